"""The data frames of a report: columns, types, and unknown as missing."""

from __future__ import annotations

import io
from pathlib import Path

import pandas
import pytest

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.report.frames import SUMMARY, points_frame, summary_frame
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.points_csv import render_csv
from nodesweep.scaling.trend.report_file import parse_report

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def reference() -> ScalingReport:
    path = GOLDEN / "reference.json"
    return parse_report(path.read_bytes(), str(path))


def test_summary_has_its_columns_and_their_types(reference: ScalingReport) -> None:
    frame = summary_frame(reference)
    assert list(frame.columns) == list(SUMMARY)
    assert list(frame["speedup"].round(1)) == [1.0, 1.8, 3.7, 7.3]
    assert (frame.dtypes["nodes"], frame.dtypes["train_seconds"]) == ("Int64", "Float64")
    assert frame["total_usd"].isna().all() and frame.dtypes["total_usd"] == "Float64"


def test_points_are_the_rows_of_points_csv(reference: ScalingReport) -> None:
    frame = points_frame(reference)
    read = pandas.read_csv(io.StringIO(render_csv(reference)))
    assert list(frame.columns) == list(read.columns)
    assert list(frame["train_seconds"]) == list(read["train_seconds"])
    types = {"used": "boolean", "world_size": "Int64", "reason": "string", "run_usd": "Float64"}
    assert {name: frame.dtypes[name] for name in types} == types


def test_both_ends_of_an_interval_are_columns(reference: ScalingReport) -> None:
    row = reference.summary[1]
    train = row.clocks.train.model_copy(
        update={"seconds_interval": Interval(low=3200.0, high=3400.0, level=0.75)}
    )
    clocks = row.clocks.model_copy(update={"train": train})
    summary = (reference.summary[0], row.model_copy(update={"clocks": clocks}))
    frame = summary_frame(reference.model_copy(update={"summary": summary}))
    assert list(frame["train_seconds_low"].dropna()) == [3200.0]
    assert list(frame["train_seconds_high"].dropna()) == [3400.0]
    assert list(frame["train_seconds_level"].dropna()) == [0.75]
