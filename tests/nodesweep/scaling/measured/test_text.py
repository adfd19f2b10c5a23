"""Files that are not tables of measured times are refused, most of them by their first bytes."""

from __future__ import annotations

import re

import pytest

from nodesweep.scaling.measured import text as measured_text
from nodesweep.scaling.measured.table import MeasuredTableError, read_measured
from nodesweep.scaling.measured.text import HEAD_BYTES, refuse_other_files

HEADER = b"nodes,train_seconds\n"


def refusal(table: str | bytes) -> str:
    with pytest.raises(MeasuredTableError) as refused:
        read_measured(table)
    return str(refused.value)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \n\n", id="blank"),
        pytest.param(b"\xef\xbb\xbf", id="byte order mark alone"),
        pytest.param("nodes,train_seconds\n1,9\n".encode("utf-16"), id="UTF-16"),
        pytest.param(b"\xfe\xff" + "nodes".encode("utf-16-be"), id="UTF-16 BE"),
        pytest.param("nodes,train_seconds\n1,9\n".encode("utf-16-le"), id="UTF-16, no mark"),
        pytest.param(b"PK\x03\x04\x14\x00\x06", id="zip"),
        pytest.param(b"\x7fELF" + b"\x00" * HEAD_BYTES, id="program"),
        pytest.param(b"x" * HEAD_BYTES, id="one line"),
        pytest.param(b"\n" * HEAD_BYTES, id="blank lines"),
        pytest.param(b"\n" * (HEAD_BYTES - 2) + b"no", id="blank lines, then a word"),
        pytest.param(b"1,5940\n2,3300\n", id="no header"),
        pytest.param(b"\x1b[31m\xff\n", id="escape sequence"),
        pytest.param(b'"nodes,train_seconds\n', id="open quote"),
    ],
)
def test_other_files_are_refused_by_their_head(head, snapshot):
    with pytest.raises(MeasuredTableError) as refused:
        refuse_other_files(head)
    assert "\x1b" not in str(refused.value)
    assert str(refused.value) == refusal(head) == snapshot


def test_a_head_that_may_begin_a_table_passes():
    refuse_other_files(HEADER)
    refuse_other_files(b"\xef\xbb\xbf\r\n" + HEADER + b"\xc3" * HEAD_BYTES)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(b'1,"9\n2,5\n', id="open quote"),
        pytest.param(b'1,9\n\n2,"5\n4,3\n"x', id="text after a quote"),
        pytest.param(b'1,"9\n' + b"2,5\n" * 50_000, id="long cell"),
        pytest.param(b"1,9\n2,\xff\n", id="not UTF-8"),
    ],
)
def test_broken_rows_are_refused_with_their_line(rows, snapshot):
    # csv's own words differ between versions of Python
    assert re.sub(r"(?<=CSV row \().*(?=\); check)", "<csv>", refusal(HEADER + rows)) == snapshot


def test_text_that_utf8_cannot_write_is_refused(snapshot):
    assert refusal("nodes,train_seconds\n1,\udcff\n") == snapshot


def test_a_table_over_the_limit_is_refused(monkeypatch, snapshot):
    monkeypatch.setattr(measured_text, "MAX_TABLE_BYTES", 2**20)
    assert refusal(HEADER + b"\n" * 2**20) == snapshot
