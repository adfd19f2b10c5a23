"""ScalingReport -> pandas data frames: one row per attempt, or one per node count.

Units are in the columns' names: `_seconds`, `_usd`, `_share` (0 to 1). Unknown is missing (NA),
never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.points_csv import point_columns

if TYPE_CHECKING:
    from pandas import DataFrame

SUMMARY_COLUMNS: Mapping[str, str] = {
    "nodes": "node count N",
    "runs": "runs that the statistics are made of",
    "failed_runs": "attempts that failed or were stopped",
    "world_size": "processes over all nodes, as the runs confirmed them",
    "global_batch_size": "samples per optimizer step over all processes",
    "per_replica_batch_size": "samples per process and step",
    "learning_rate": "learning rate",
    "train_seconds": "median train time T(N)",
    "train_seconds_low": "lower bound of its 95% interval",
    "train_seconds_high": "upper bound of its 95% interval",
    "next_run_seconds": "19 of 20 next runs are shorter",
    "speedup": "S(N) = T(N0) / T(N)",
    "speedup_low": "lower bound of its 95% interval",
    "speedup_high": "upper bound of its 95% interval",
    "efficiency": "E(N) = S(N) N0 / N",
    "efficiency_low": "lower bound of its 95% interval",
    "efficiency_high": "upper bound of its 95% interval",
    "doubling_ratio": "S(N) / S(N/2); 2 is perfect",
    "doubling_ratio_low": "lower bound of its 95% interval",
    "doubling_ratio_high": "upper bound of its 95% interval",
    "karp_flatt": "serial fraction (1/S - 1/R) / (1 - 1/R), R = N/N0",
    "steady_step_seconds": "median step time in the steady window",
    "startup_seconds": "median of Starting, Pending and Downloading",
    "data_wait_share": "median share of the train time spent waiting for data",
    "total_usd": "median cost of a run, the warm pool kept after it included",
    "total_usd_low": "lower bound of its 95% interval",
    "total_usd_high": "upper bound of its 95% interval",
    "final_metric": "median validation metric at the end",
    "flags": "what limits the row, comma separated; report.json lists the flags",
}
"""Columns of `summary_frame` and what each holds."""
_DTYPES = {bool: "boolean", int: "Int64", float: "Float64", str: "string"}
_SUMMARY_DTYPES = {
    **dict.fromkeys(("nodes", "runs", "failed_runs", "world_size"), "Int64"),
    **dict.fromkeys(("global_batch_size", "per_replica_batch_size"), "Int64"),
    "flags": "string",
}


def points_frame(report: ScalingReport) -> DataFrame:
    """Return one row per attempt, failed ones included, with the columns of points.csv.

    Columns: the fields of a point in report.json, nested ones by their path (`samples_padded`),
    then `platform` and `platform_kind`.
    """
    from pandas import DataFrame

    columns = {column.name: column for column in point_columns(report)}
    frame = DataFrame({name: list(column.values) for name, column in columns.items()}, dtype=object)
    return frame.astype({name: _DTYPES[column.kind] for name, column in columns.items()})


def summary_frame(report: ScalingReport) -> DataFrame:
    """Return one row per node count, ascending, with the columns of SUMMARY_COLUMNS.

    Of a sweep of several instance types these are the rows of its main one.
    """
    from pandas import DataFrame

    rows = [_summary_values(row) for row in report.summary]
    frame = DataFrame(rows, columns=list(SUMMARY_COLUMNS), dtype=object)
    return frame.astype({name: _SUMMARY_DTYPES.get(name, "Float64") for name in SUMMARY_COLUMNS})


def _summary_values(row: SummaryRow) -> dict[str, Any]:
    train = row.train
    return {
        "nodes": row.nodes,
        "runs": row.n,
        "failed_runs": row.n_failed,
        "world_size": row.world_size,
        "global_batch_size": row.global_batch_size,
        "per_replica_batch_size": row.per_replica_batch_size,
        "learning_rate": row.learning_rate,
        "train_seconds": train.seconds,
        **_bounds("train_seconds", train.seconds_interval),
        "next_run_seconds": train.next_run_seconds,
        "speedup": train.speedup,
        **_bounds("speedup", train.speedup_interval),
        "efficiency": train.efficiency,
        **_bounds("efficiency", train.efficiency_interval),
        "doubling_ratio": train.doubling_ratio,
        **_bounds("doubling_ratio", train.doubling_ratio_interval),
        "karp_flatt": train.karp_flatt,
        "steady_step_seconds": row.steady_step_seconds,
        "startup_seconds": row.startup_seconds,
        "data_wait_share": row.data_wait_share,
        "total_usd": row.costs.total_usd,
        **_bounds("total_usd", row.cost_spread.interval),
        "final_metric": row.final_metric and row.final_metric.value,
        "flags": ", ".join(row.flags),
    }


def _bounds(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}
