"""Predictions from the smaller counts of a sweep against what it measured."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.report.predictions.checked import (
    CheckedPrediction,
    check_predictions,
    describe_checks,
)
from nodesweep.scaling.trend.history import (
    history_frame,
    parse_history,
    parse_predictions,
    write_history,
)

FOUR = {1: (100.0, 0.0), 2: (50.0, 2.0), 4: (25.0, 1.5), 8: (12.5, 0.9)}


def check(seconds=10.0, *measured, interval=(9.0, 11.0), **changes):
    low, high = interval or (None, None)
    fields = {
        "platform": "aws",
        "instance_type": "ml.m5.large",
        "nodes": 8,
        "seconds": seconds,
        "interval": Interval(low=low, high=high, level=0.9) if interval else None,
        "measured": measured or (10.0,),
    }
    return CheckedPrediction(**fields | changes)


def test_every_count_that_smaller_ones_allow_is_checked(budget_report):
    four, eight = check_predictions(budget_report(FOUR))
    assert (four.nodes, eight.nodes) == (4, 8)
    assert eight.measured == pytest.approx([14.4 - 0.134, 14.4, 14.4 + 0.134])
    assert eight.error == pytest.approx(eight.seconds / 14.4 - 1)
    assert abs(eight.error) < 0.05
    assert eight.interval is not None and eight.interval.low < 14.4 < eight.interval.high


def test_counts_too_far_from_the_smaller_ones_are_not(budget_report):
    far = {1: (100.0, 0.0), 2: (50.0, 2.0), 10: (10.0, 0.7)}
    assert check_predictions(budget_report(far)) == ()


def test_single_runs_are_checked_without_an_interval(budget_report):
    *_, eight = check_predictions(budget_report(FOUR, noise=(1.0,)))
    assert (eight.interval, len(eight.measured)) == (None, 1)


def test_a_report_without_parts_checks_none(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [9.0], 2: [5.0], 4: [3.0]}))
    assert check_predictions(report) == ()


def test_lines_by_instance_type(snapshot):
    checks = [
        check(10.0, 10.0, 12.0),
        check(9.0, nodes=4),
        check(platform="emulated", instance_type=None, interval=None),
        check(instance_type="ml.c5.large", projected=True),
    ]
    assert list(describe_checks(checks)) == snapshot
    assert list(describe_checks([])) == []


def test_a_short_run_is_not_called_measured(snapshot):
    each = [check(projected=True), check(10.0, 9.9, 12.0, projected=True, interval=None), check()]
    assert [one.text for one in each] == snapshot
    assert "projected" not in check().model_dump() and each[0].model_dump()["projected"] is True


def test_a_file_of_the_history_keeps_them(budget_report):
    report = budget_report(FOUR)
    checks = check_predictions(report)
    body = write_history(history_frame(report), "bench", checks)
    assert parse_predictions(body) == checks
    assert len(parse_history(body, "it")) == 12
    assert parse_predictions(write_history(history_frame(report), "bench")) == ()


@pytest.mark.parametrize("written", [b"{", b"1", b"[1]", b'[{"nodes": 8}]', b"\xff"])
def test_damaged_ones_are_none(budget_report, written):
    body = write_history(history_frame(budget_report()), "bench")
    table, damaged = pq.read_table(io.BytesIO(body)), io.BytesIO()
    metadata = table.schema.metadata | {b"nodesweep.predictions": written}
    pq.write_table(table.replace_schema_metadata(metadata), damaged)
    assert parse_predictions(damaged.getvalue()) == ()
    assert parse_predictions(b"no parquet") == ()
