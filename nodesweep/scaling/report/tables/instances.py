"""The table of a sweep of several instance types: a row per type and node count."""

from __future__ import annotations

from dataclasses import replace

from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_interval,
    format_percent,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
)
from nodesweep.scaling.instances.model import ArmRow, InstanceComparison
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import (
    Cell,
    Column,
    Group,
    TableRow,
    TextTable,
    kind_label,
    make_table,
)

_BRIEF = ("instance type", "N", "n", "T", "cost", "front", "verdict", "S", "E")
_ANSWERS = {
    "pass": "pass",
    "fail": "fail",
    "undecided": "undecided",
    "on_the_limit": "on the limit",
}


def of_all_types(report: ScalingReport) -> ScalingReport:
    """The report with all its types named where its titles name the platform."""
    assert report.instances is not None
    count = f"{len(report.instances.instance_types)} instance types"
    platform = report.platform.model_copy(update={"instance_type": count})
    return report.model_copy(update={"platform": platform})


def arms_table(report: ScalingReport, comparison: InstanceComparison) -> TextTable:
    """Every type at every node count; a smaller one for a page is `split_table` of it."""
    columns: tuple[Column[ArmRow], ...] = (
        Column("instance type", "what a node is", lambda arm: arm.instance_type, is_text=True),
        Column("N", "nodes", lambda arm: Cell(str(arm.nodes))),
        Column("T", "median train time; below it its interval, 95 % or as in brackets", _time),
        Column("cost", "median cost of a run; below it its interval", _cost, optional=True),
        Column("front", "● no other is both faster and cheaper; ○ one is", _front, optional=True),
        Column("verdict", "against the limits that decide between types", _verdict, is_text=True),
        Column("S", "speedup over its own type's smallest N", _speedup),
        Column("E", "efficiency within its type", lambda arm: format_percent(arm.efficiency)),
        Column("n", "used runs", _runs),
        Column("node price", "USD per node-hour", _price, optional=True),
        Column("W", "processes over all nodes", lambda arm: format_count(arm.world_size)),
        Column("B", "global batch", lambda arm: format_count(arm.global_batch_size), optional=True),
        Column(
            "b",
            "batch per process",
            lambda arm: format_count(arm.per_replica_batch_size),
            optional=True,
        ),
        Column(
            "learning rate",
            "as planned",
            lambda arm: format_value(arm.learning_rate),
            optional=True,
        ),
    )
    title = f"Instance types ({kind_label(of_all_types(report).platform, report.train_clock)})"
    return make_table(
        title, columns, [Group(comparison.arms)], is_bad=lambda arm: arm.train_seconds is None
    )


def brief_arms_table(report: ScalingReport, comparison: InstanceComparison) -> TextTable:
    """The same without intervals and without what was planned, for a terminal."""
    table = arms_table(report, comparison)
    indexes = [index for index, column in enumerate(table.columns) if column.heading in _BRIEF]
    rows = [
        TableRow(tuple(Cell(row.cells[index].text) for index in indexes), row.is_bad)
        for row in table.rows
    ]
    columns = tuple(table.columns[index] for index in indexes)
    return replace(table, columns=columns, groups=(Group(rows),))


def _time(arm: ArmRow) -> Cell:
    projected = " projected" if arm.n_projected else ""
    return Cell(
        f"{format_seconds(arm.train_seconds)}{projected}",
        format_interval(arm.train_interval, format_seconds),
    )


def _cost(arm: ArmRow) -> Cell:
    return Cell(format_usd(arm.total_usd), format_interval(arm.total_usd_interval, format_usd))


def _front(arm: ArmRow) -> str:
    return UNKNOWN if arm.on_front is None else "●" if arm.on_front else "○"


def _verdict(arm: ArmRow) -> Cell:
    word = "no time" if arm.answer is None else _ANSWERS[arm.answer]
    return Cell(word, arm.reason or "")


def _speedup(arm: ArmRow) -> str:
    return format_speedup(arm.speedup)


def _runs(arm: ArmRow) -> str:
    failed = f" ({arm.n_failed} failed)" if arm.n_failed else ""
    return f"{arm.n}{failed}"


def _price(arm: ArmRow) -> str:
    return format_usd(arm.usd_per_hour)
