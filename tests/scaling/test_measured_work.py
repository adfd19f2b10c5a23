"""The work that each row of a large table takes, counted in calls rather than in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from pydantic import BaseModel

from scaling.cost import Price
from scaling.measured import read_measured
from scaling.measured_columns import COLUMNS
from scaling.report import Analysis, analyse
from scaling.report.points_csv import render_csv

HEADER = (
    "nodes,train_seconds,billable_seconds,instance_type,status,batch_policy,global_batch_size,world_size,final_metric"
)
# It takes about 52; a pass over all rows with a call in it is one more.
CALLS_PER_ROW = 54
PRICE = Price(instance_type="ml.p3.16xlarge", usd_per_hour=28.0)


def table(rows: int) -> str:
    cells = "ml.p3.16xlarge,Completed,fixed_global,4096"
    lines = (f"{n},{100 / n + i},{120 / n + i},{cells},{8 * n},0.7{i}" for i in range(rows) for n in (2 ** (i % 4),))
    return "\n".join([HEADER, *lines])


def analysis_of(rows: int) -> Analysis:
    outcomes = read_measured(table(rows))
    return analyse("table", None, None, outcomes, PRICE, {}, datetime(2026, 1, 2, tzinfo=UTC))


def calls_of(work: Callable[[], Any]) -> int:
    """Calls of Python functions, generators included."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def calls_per_row(work: Callable[[int], Any]) -> float:
    work(40)  # what is done once: imports, caches
    few, many = calls_of(lambda: work(400)), calls_of(lambda: work(1200))
    return (many - few) / 800


def test_reading_a_row_takes_few_calls():
    """About 14, most of them for its two times and its line number, which no other row has."""
    assert calls_per_row(lambda rows: read_measured(table(rows))) < 16


def test_reading_and_analysing_a_row_takes_few_calls():
    assert calls_per_row(analysis_of) < CALLS_PER_ROW


def test_writing_a_row_as_csv_takes_hardly_a_call():
    analyses = {rows: analysis_of(rows) for rows in (40, 400, 1200)}
    assert calls_per_row(lambda rows: render_csv(analyses[rows].runs)) < 2


def test_a_cell_that_stands_in_many_rows_is_read_once(monkeypatch):
    read: list[str] = []

    def count(cell: str) -> float:
        read.append(cell)
        return float(cell)

    monkeypatch.setitem(COLUMNS, "final_metric", count)
    outcomes = read_measured("nodes,train_seconds,final_metric\n" + "1,9,0.5\n2,5,0.25\n" * 50)
    assert read == ["0.5", "0.25"]
    assert [outcome.final_metric["value"] for outcome in outcomes] == [0.5, 0.25] * 50


def test_rows_of_one_final_metric_share_it():
    table = "nodes,train_seconds,final_metric\n" + "1,9,0.5\n2,5,0.25\n" * 50
    report = analyse("table", None, None, read_measured(table), PRICE, {}, datetime(2026, 1, 2, tzinfo=UTC)).report
    assert len({id(point.final_metric) for point in report.points}) == 2


def test_no_point_is_validated(monkeypatch):
    validated: list[type[BaseModel]] = []
    validate = BaseModel.__init__

    def count(self: BaseModel, /, **values: Any) -> None:
        validated.append(type(self))
        validate(self, **values)

    monkeypatch.setattr(BaseModel, "__init__", count)
    analysis_of(40)
    of_few = len(validated)
    validated.clear()
    analysis_of(400)
    # Some more rows have an interval of repeats; 360 more points, each of several parts, would be over a thousand.
    assert 0 < of_few <= len(validated) < of_few + 36
