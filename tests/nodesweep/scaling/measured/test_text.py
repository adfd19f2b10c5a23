"""Files that are no table of measured times are refused, most of them by their first bytes."""

from __future__ import annotations

import pytest

from nodesweep.scaling.measured import text as measured_text
from nodesweep.scaling.measured.table import MeasuredTableError, read_measured
from nodesweep.scaling.measured.text import HEAD_BYTES, refuse_other_files

HEADER = b"nodes,train_seconds\n"


def refusal(table: bytes) -> str:
    with pytest.raises(MeasuredTableError) as caught:
        read_measured(table)
    return str(caught.value)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", "the table is empty; its first line names the columns: nodes, train_seconds"),
        (b" \n\n", "the table is empty"),
        (b"\xef\xbb\xbf", "the table is empty"),
        (
            "nodes,train_seconds\n1,9\n".encode("utf-16"),
            "this is UTF-16 text; save the table as CSV in UTF-8",
        ),
        (
            b"\xfe\xff" + "nodes".encode("utf-16-be"),
            "this is UTF-16 text; save the table as CSV in UTF-8",
        ),
        (
            "nodes,train_seconds\n1,9\n".encode("utf-16-le"),
            "this is not UTF-8 text (it has NUL bytes)",
        ),
        (
            b"PK\x03\x04\x14\x00\x06",
            "this is not UTF-8 text (it has NUL bytes); save the table as CSV in UTF-8",
        ),
        (b"\x7fELF" + b"\x00" * HEAD_BYTES, "this is not UTF-8 text (it has NUL bytes)"),
        (b"x" * HEAD_BYTES, "the first line is longer than 65,536 bytes; this is not a CSV table"),
        (b"\n" * HEAD_BYTES, "the first line is longer than 65,536 bytes; this is not a CSV table"),
        (
            b"\n" * (HEAD_BYTES - 2) + b"no",
            "the first line is longer than 65,536 bytes; this is not a CSV table",
        ),
        (
            b"1,5940\n2,3300\n",
            r"the first line, '1,5940\n', names no known column; known: nodes, train_seconds",
        ),
        (b"\x1b[31m\xff\n", r"the first line, '\x1b[31m�\n', names no known column"),
        (b'"nodes,train_seconds\n', "names no known column"),
    ],
)
def test_other_files_are_refused_by_their_head(head, reason):
    with pytest.raises(MeasuredTableError) as caught:
        refuse_other_files(head)
    assert reason in str(caught.value)
    assert str(caught.value) == refusal(head)


def test_a_head_that_may_begin_a_table_passes():
    refuse_other_files(HEADER)
    refuse_other_files(b"\xef\xbb\xbf\r\n" + HEADER + b"\xc3" * HEAD_BYTES)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            b'1,"9\n2,5\n',
            (
                "the row that starts in line 2 is not a valid CSV row; is a quote not closed? "
                "(unexpected end of data)"
            ),
        ),
        (b'1,9\n\n2,"5\n4,3\n"x', "the row that starts in line 4 is not a valid CSV row"),
        (
            b'1,"9\n' + b"2,5\n" * 50_000,
            "the row that starts in line 2 is not a valid CSV row; is a quote not closed? (field l",
        ),
        (
            b"1,9\n2,\xff\n",
            "line 3: not UTF-8 text (invalid start byte); save the table as CSV in UTF-8",
        ),
    ],
)
def test_broken_rows_are_refused_with_their_line(rows, reason):
    assert reason in refusal(HEADER + rows)


def test_text_that_utf8_cannot_write_is_refused():
    with pytest.raises(MeasuredTableError, match="line 2: not UTF-8 text"):
        read_measured("nodes,train_seconds\n1,\udcff\n")


def test_a_table_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(measured_text, "MAX_TABLE_BYTES", 2**20)
    assert "the table is larger than the maximum of 1 MiB" in refusal(HEADER + b"\n" * 2**20)
