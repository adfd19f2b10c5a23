"""The table of costs, and where its prices are from."""

from __future__ import annotations

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_seconds,
    format_usd,
    format_value,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Cell, Column, Group, TextTable, make_table, titled
from nodesweep.scaling.report.tables.cells import hidden_note, ranged, shown_rows


def costs_table(report: ScalingReport) -> TextTable | None:
    """Median costs per node count, None where not one is known."""
    rows = shown_rows(report)
    if all(cost is None for row in rows for _, cost in row.costs):
        return None
    whole = ", of a whole run as projected" if report.train_clock == "projected" else ""
    columns: list[Column[SummaryRow]] = [
        Column("N", "nodes", lambda row: format_count(row.nodes)),
        Column("run", f"{cost_origin(report)}{whole}", _run_with_interval),
        Column(
            "on demand",
            "the same run on demand",
            lambda row: format_usd(row.costs.on_demand_usd),
            optional=True,
        ),
        Column(
            "epoch",
            "T x N x price / epochs",
            lambda row: format_usd(row.costs.epoch_usd),
            optional=True,
        ),
        Column(
            "to target",
            "until the target metric",
            lambda row: format_usd(row.costs.target_usd),
            optional=True,
        ),
        Column(
            "warm pool",
            "kept after the run, on top",
            lambda row: format_usd(row.costs.warm_pool_usd),
            True,
        ),
        Column(
            "total",
            "with its warm pool: what a choice is judged by",
            _total_with_pool,
            optional=True,
        ),
        Column(
            "next run",
            "19 of 20 next runs cost less, warm pool included",
            lambda row: format_usd(row.cost_spread.next_run_usd),
            optional=True,
        ),
        Column(
            "per result",
            "all attempts over the completed ones, where some did not complete",
            lambda row: (
                format_usd(row.cost_spread.usd_per_completed_run) if row.n_failed else UNKNOWN
            ),
            optional=True,
        ),
        Column(
            "billable",
            "median billed time",
            lambda row: format_seconds(row.clocks.billable.seconds),
            optional=True,
        ),
    ]
    if report.train_clock != "throughput":
        columns.append(Column("node-hours", "N x T", _node_hours, optional=True))
    known = report.price.usd_per_hour is not None
    caption = (
        f"Price: {price_text(report.price)}."
        if known
        else f"The run cost is {cost_origin(report)}."
    )
    return make_table(
        titled("Cost", report), columns, [Group(rows)], f"{caption}{hidden_note(report)}"
    )


def _run_with_interval(row: SummaryRow) -> Cell:
    """With the interval of its cost, which is the run's own only where no pool was kept."""
    interval = None if row.costs.warm_pool_usd else row.cost_spread.interval
    return ranged(row.costs.run_usd, interval, format_usd)


def _total_with_pool(row: SummaryRow) -> Cell:
    if not row.costs.warm_pool_usd:
        return Cell(UNKNOWN)
    return ranged(row.costs.total_usd, row.cost_spread.interval, format_usd)


def cost_origin(report: ScalingReport) -> str:
    """How the run costs came about: computed, given by a table, or some of both."""
    text, computed = "as given in the table", "billable x nodes x price"
    given = report.costs.attempts_with_given_cost
    if not given:
        return computed
    known = len(report.points) - report.costs.attempts_without_cost
    return f"{text} or {computed}" if known > given else text


def price_text(price: Price) -> str:
    """The price with its source and date, or why there is none."""
    if price.usd_per_hour is None:
        return f"unknown: {price.reason}"
    rate = f"{format_value(price.usd_per_hour)} USD per node-hour, {price.purchase_option}"
    return ", ".join(part for part in (rate, price.region, price.date, price.source) if part)


def _node_hours(row: SummaryRow) -> str:
    return (
        UNKNOWN
        if row.train.seconds is None
        else format_value(row.nodes * row.train.seconds / 3600, 3)
    )
