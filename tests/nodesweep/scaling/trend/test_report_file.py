"""Reading report.json: complete, of this version, with the times that its summary is computed
from."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report
from tests.plain import plain

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference.json").read_bytes())


def test_a_whole_report_is_read() -> None:
    report = parse_report(json.dumps(GOLDEN).encode(), "a.json")
    assert [row.nodes for row in report.summary] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        pytest.param(b"[" * 100_000, id="deep"),
        b'{"schema_version": NaN}',
        b"[]",
        b'{"schema_version": "1"}',
        b'{"schema_version": 99}',
    ],
)
def test_what_is_no_report_of_this_version_is_refused(
    body: bytes, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ReportUnreadable) as refused:
        parse_report(body, "a.json")
    assert str(refused.value) == snapshot


def without_time(report: dict) -> None:
    report["points"][0]["clocks"]["train_seconds"] = None


def other_time(report: dict) -> None:
    report["points"][-1]["clocks"]["train_seconds"] *= 2


def without_rows(report: dict) -> None:
    report["summary"] = []


def odd_sweep(report: dict) -> None:
    report["sweep_id"] = [1]


@pytest.mark.parametrize("damage", [without_rows, odd_sweep, without_time, other_time])
def test_what_its_numbers_are_made_of_has_to_be_there(damage, snapshot: SnapshotAssertion) -> None:
    report = copy.deepcopy(GOLDEN)
    damage(report)
    with pytest.raises(ReportUnreadable) as refused:
        parse_report(json.dumps(report).encode(), "a.json")
    assert plain(refused.value) == snapshot
