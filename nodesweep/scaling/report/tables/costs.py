"""The table of costs, and texts about the origin of costs and prices."""

from __future__ import annotations

from functools import partial

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_seconds,
    format_usd,
    format_value,
)
from nodesweep.scaling.report.frames import rows_frame
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import (
    Format,
    Table,
    format_columns,
    titled,
    without_unknown,
)
from nodesweep.scaling.report.tables.cells import hidden_note, shown_rows

NOT_INCLUDED = (
    "Not included: storage (S3, FSx, volumes), data transfer, logs and building the image."
)
_CHARGED_HOURS = "the cost of a run: billable x nodes, shared ones counted as whole"
format_hours: Format = partial(format_value, digits=3)
_COLUMNS: dict[str, tuple[str, Format]] = {
    "N": ("nodes", format_count),
    "run": ("run_usd", format_usd),
    "on demand": ("on_demand_usd", format_usd),
    "epoch": ("epoch_usd", format_usd),
    "to target": ("target_usd", format_usd),
    "warm pool": ("warm_pool_usd", format_usd),
    "total": ("total_usd", format_usd),
    "next run": ("next_run_usd", format_usd),
    "per result": ("usd_per_result", format_usd),
    "billing-hours": ("billing_hours", format_hours),
    "billable": ("billable_seconds", format_seconds),
}
_MEANINGS = {
    "N": "nodes",
    "on demand": "the same run on demand",
    "epoch": "T x N x price / epochs",
    "to target": "until the target metric",
    "warm pool": "kept after the run, additional",
    "total": "including its warm pool: the cost that the recommendation uses",
    "next run": (
        "the next run in this session costs less with a probability of 95%, warm pool included"
    ),
    "per result": (
        "expected cost of a result, failed attempts included: the cost that the recommendation uses"
    ),
    "billable": "geometric mean of the billed times",
    "billing-hours": "billed hours x the job's TRES billing weight",
    "node-hours": "N x T",
}


def costs_table(report: ScalingReport) -> Table | None:
    """Return the mean costs by node count; None if all of them are unknown."""
    frame = rows_frame(shown_rows(report))
    in_usd = report.price.unit == "USD"
    known = "^(run|on_demand|epoch|target|warm_pool|total)_usd$" if in_usd else "^node_hours$"
    if frame.filter(regex=known).isna().all(None):
        return None
    cells = format_columns(frame, _COLUMNS)
    has_pool = frame["warm_pool_usd"].gt(0).fillna(False)
    # the interval of the total applies to the cost of the run only if no warm pool was kept
    cells["run"] = cells["run"].where(has_pool, cells["total"])
    cells["total"] = cells["total"].where(has_pool, UNKNOWN)
    if report.train_clock != "throughput" or not in_usd:
        hours = frame["nodes"] * frame["train_seconds"] / 3600 if in_usd else frame["node_hours"]
        written = format_columns(hours.to_frame("hours"), {"hours": ("hours", format_hours)})
        cells["node-hours"] = written["hours"]
    where = " if no attempt failed" * any(row.per_result for row in report.summary)
    whole = ", of a projected full run" if report.train_clock == "projected" else ""
    caption = (
        f"Price: {price_text(report.price)}."
        if not in_usd
        else f"The run cost is {cost_origin(report)}."
        if report.price.usd_per_hour is None
        else f"Price: {price_text(report.price)}. {NOT_INCLUDED}"
    )
    return Table(
        titled("Cost", report),
        without_unknown(cells, ("N", "run" if in_usd else "node-hours")),
        _MEANINGS
        | ({} if in_usd else {"node-hours": _CHARGED_HOURS})
        | {"run": f"{cost_origin(report)}{whole}", "total": f"{_MEANINGS['total']}{where}"},
        f"{caption}{hidden_note(report)}",
    )


def cost_origin(report: ScalingReport) -> str:
    """Return the origin of the run costs: computed, from a table, or both."""
    text, computed = "as given in the table", "billable x nodes x price"
    given = report.costs.attempts_with_given_cost
    if not given:
        return computed
    known = len(report.points) - report.costs.attempts_without_cost
    return f"{text} or {computed}" if known > given else text


def price_text(price: Price) -> str:
    """Return the price with its source and date, or why it is unknown."""
    if price.unit != "USD":
        return f"not set; costs are in {price.unit}"
    if price.usd_per_hour is None:
        return f"unknown: {price.reason}"
    rate = f"{format_value(price.usd_per_hour)} USD per node-hour, {price.purchase_option}"
    return ", ".join(part for part in (rate, price.region, price.date, price.source) if part)
