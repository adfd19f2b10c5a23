"""Which report.json is read: one that is whole, of this version, with the times that its summary is
made of.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "reference.json").read_bytes())


def test_a_whole_report_is_read() -> None:
    report = parse_report(json.dumps(GOLDEN).encode(), "a.json")
    assert [row.nodes for row in report.summary] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "a.json: damaged, not JSON; recreate it"),
        (b"[" * 100_000, "a.json: damaged, not JSON"),
        (b'{"schema_version": NaN}', "a.json: damaged, not JSON"),
        (b"[]", "a.json: not a report.json of a sweep, since it has no schema_version"),
        (b'{"schema_version": "1"}', "damaged at schema_version: '1' is not a whole number"),
        (
            b'{"schema_version": 99}',
            "a.json: the report has schema version 99, but this nodesweep reads version",
        ),
    ],
)
def test_what_is_no_report_of_this_version_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ReportUnreadable, match=message.replace(".", r"\.").replace("[", r"\[")):
        parse_report(body, "a.json")


def without_time(report: dict) -> None:
    report["points"][0]["clocks"]["train_seconds"] = None


def other_time(report: dict) -> None:
    report["points"][-1]["clocks"]["train_seconds"] *= 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda report: report.update(summary=[]), "damaged at summary: it has no rows"),
        (lambda report: report.update(sweep_id=[1]), "damaged at sweep_id: "),
        (without_time, "damaged at points.0: a used run without a time on the train clock"),
        (other_time, r"damaged at summary.\d: n and T\(\d\) do not match its runs"),
    ],
)
def test_what_its_numbers_are_made_of_has_to_be_there(damage, message: str) -> None:
    report = copy.deepcopy(GOLDEN)
    damage(report)
    with pytest.raises(ReportUnreadable, match=message):
        parse_report(json.dumps(report).encode(), "a.json")
