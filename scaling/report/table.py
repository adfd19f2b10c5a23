"""The tables of a report as rows of text: the one place where a column gets its heading and its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
)
from scaling.report.model import PlatformFacts, Point, ScalingReport
from scaling.speedup import FinalMetric, SummaryRow

Row = TypeVar("Row")
_BRIEF_HEADINGS = ("N", "world", "B", "n", "T", "S", "E", "D", "cost", "status")
_FLAG_WORDS = {"superlinear": "superlinear", "retrograde": "retrograde", "throughput_only": "throughput only"}
_KIND_LABELS = {
    "aws": "AWS",
    "emulated": "emulated nodes",
    "simulated": "simulated nodes",
    "measured": "times as given",
}


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column. One that is `optional` disappears where no row knows it."""

    heading: str
    meaning: str
    cell: Callable[[Row], str]
    optional: bool = False
    text: bool = False


@dataclass(frozen=True)
class TextTable:
    """A table ready to print; `text_columns` says which columns hold text, `bad_rows` which rows have no result."""

    title: str
    headings: tuple[str, ...]
    meanings: tuple[str, ...]
    text_columns: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    bad_rows: tuple[bool, ...]


def kind_label(platform: PlatformFacts) -> str:
    """What every title says of the platform: "emulated nodes, ml.local.small"."""
    return ", ".join(part for part in (_KIND_LABELS[platform.kind], platform.instance_type) if part)


def titled(what: str, report: ScalingReport) -> str:
    return f"{what} ({kind_label(report.platform)})"


def summary_table(report: ScalingReport) -> TextTable:
    """One row per node count, all columns."""
    return _table(titled("Speedup", report), _summary_columns(report), report.summary, lambda row: row.n == 0)


def brief_table(report: ScalingReport) -> TextTable:
    """One row per node count, in the columns that fit a terminal of 80 characters."""
    columns = {column.heading: column for column in _summary_columns(report)}
    return _table(
        titled("Speedup", report),
        [columns[heading] for heading in _BRIEF_HEADINGS],
        report.summary,
        lambda row: row.n == 0,
    )


def attempts_table(report: ScalingReport, most: int) -> TextTable:
    """One row per attempt, the first `most` of them."""
    return _table(
        titled("Every run", report), _attempt_columns(report), report.points[:most], lambda p: p.status != "Completed"
    )


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, text) of a nested mapping's leaves; null reads as unknown."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(str(entry) for entry in value)
        else:
            yield f"{prefix}{key}", UNKNOWN if value is None else str(value)


def _table(title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], is_bad: Callable[[Row], bool]) -> TextTable:
    cells = [[column.cell(row) for row in rows] for column in columns]
    kept = [
        place
        for place, column in enumerate(columns)
        if not column.optional or any(text != UNKNOWN for text in cells[place])
    ]
    return TextTable(
        title=title,
        headings=tuple(columns[place].heading for place in kept),
        meanings=tuple(columns[place].meaning for place in kept),
        text_columns=tuple(columns[place].text for place in kept),
        rows=tuple(zip(*(cells[place] for place in kept), strict=True)),
        bad_rows=tuple(is_bad(row) for row in rows),
    )


def _summary_columns(report: ScalingReport) -> list[Column[SummaryRow]]:
    """The answer first, since a narrow screen shows the first columns only; then what it rests on."""
    baseline = report.baseline.nodes if report.baseline else None
    metric_heading, metric_cell = _metric_column([row.final_metric for row in report.summary])
    return [
        Column("N", "nodes", lambda row: format_count(row.nodes)),
        Column("n", "completed runs", lambda row: format_count(row.n)),
        Column("T", "median train time", lambda row: format_seconds(row.train_seconds)),
        Column(
            "S",
            "speedup T(N0)/T(N)",
            lambda row: "Baseline" if row.nodes == baseline else format_speedup(row.speedup),
        ),
        Column("E", "efficiency S x N0/N", lambda row: format_percent(row.efficiency)),
        Column("D", "doubling ratio S(N)/S(N/2)", lambda row: format_ratio(row.doubling_ratio)),
        Column("cost", "median cost of a run", lambda row: format_usd(row.cost_usd), optional=True),
        Column("status", "runs and flags", row_status, text=True),
        Column("world", "processes over all nodes", lambda row: format_count(row.world_size), optional=True),
        Column("B", "global batch size", lambda row: format_count(row.global_batch_size), optional=True),
        Column("b", "per-replica batch size", lambda row: format_count(row.per_replica_batch_size), optional=True),
        Column("lr", "learning rate", lambda row: format_value(row.learning_rate), optional=True),
        Column("e", "Karp-Flatt serial fraction", lambda row: format_value(row.karp_flatt, 2), optional=True),
        Column("step", "median step time, steady", lambda row: format_seconds(row.steady_step_seconds), optional=True),
        Column("start-up", "start, queue and download", lambda row: format_seconds(row.startup_seconds), optional=True),
        Column("data wait", "share of train time", lambda row: format_percent(row.data_wait_share), optional=True),
        Column(metric_heading, "final metric, median", lambda row: metric_cell(row.final_metric), optional=True),
    ]


def _attempt_columns(report: ScalingReport) -> list[Column[Point]]:
    metric_heading, metric_cell = _metric_column([point.final_metric for point in report.points])
    return [
        Column("N", "nodes", lambda point: format_count(point.nodes)),
        Column("repeat", "repeat", lambda point: format_count(point.repeat)),
        Column("attempt", "attempt", lambda point: format_count(point.attempt)),
        Column("status", "status", lambda point: point.status, text=True),
        Column("train", "train clock", lambda point: format_seconds(report.train_seconds(point))),
        Column("step", "steady clock", lambda point: format_seconds(point.clocks.steady_step_seconds), optional=True),
        Column(
            "billable", "billable clock", lambda point: format_seconds(point.clocks.billable_seconds), optional=True
        ),
        Column(
            "submit to end",
            "what a person waits",
            lambda point: format_seconds(point.clocks.submit_to_end_seconds),
            optional=True,
        ),
        Column(metric_heading, "final metric", lambda point: metric_cell(point.final_metric), optional=True),
        Column("cost", "billable x nodes x price", lambda point: format_usd(point.cost_usd), optional=True),
        Column("job", "training job, or line of the table", lambda point: point.job_name, text=True),
    ]


def _metric_column(metrics: Sequence[FinalMetric | None]) -> tuple[str, Callable[[FinalMetric | None], str]]:
    """(heading, cell): the metric's name stands in the heading where there is one name only."""
    found = {metric.name for metric in metrics if metric is not None}
    if len(found) == 1 and (name := found.pop()):
        return name, lambda metric: UNKNOWN if metric is None else format_value(metric.value)
    return "final metric", _named_metric


def _named_metric(metric: FinalMetric | None) -> str:
    if metric is None:
        return UNKNOWN
    return f"{metric.name} {format_value(metric.value)}" if metric.name else format_value(metric.value)


def row_status(row: SummaryRow) -> str:
    """ok, 1 failed, failed (2) or no result; then the flags."""
    if row.n == 0:
        words = [f"failed ({row.n_failed})" if row.n_failed else "no result"]
    else:
        words = [f"{row.n_failed} failed" if row.n_failed else "ok"]
    return ", ".join([*words, *(_FLAG_WORDS[flag] for flag in row.flags)])
