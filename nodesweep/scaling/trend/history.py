"""The history of a benchmark, with a Parquet file per sweep and a row per attempt, and its trends.

The benchmark's name is the Hive partition of the path (names.history_key) and not a column of the
file, since Athena refuses a table that has a name twice. docs/history.md documents the columns.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.names import canonical_digest
from nodesweep.scaling.report.frames import SUMMARY
from nodesweep.scaling.report.model import Conditions, PlatformFacts, Point, ScalingReport
from nodesweep.scaling.report.predictions.model import CheckedPrediction
from nodesweep.scaling.trend.compare import measured_under

if TYPE_CHECKING:
    from pandas import DataFrame

HISTORY_SCHEMA_VERSION = 1
"""Version, raised if a column's name, type or meaning changes; every version is a new table."""
_VERSION_KEY = b"nodesweep.history_schema_version"
_BENCHMARK_KEY = b"nodesweep.benchmark"
_PREDICTIONS_KEY = b"nodesweep.predictions"
"""Metadata key of a file for the sweep's checked predictions as JSON, which belong to no row."""
_TIME = pa.timestamp("ms", tz="UTC")
_DTYPES = {
    pa.string(): "string",
    pa.int32(): "Int32",
    pa.float64(): "Float64",
    pa.bool_(): "boolean",
    _TIME: "datetime64[ms, UTC]",
}
# A history shows the effect of a new image or new code; any other change starts a new trend.
_MAY_CHANGE = ("image_uri", "code")
_CONDITIONS = tuple(
    name for name in Conditions.model_fields if name not in ("platform", "instance_type")
)


class HistoryError(ValueError):
    """An unusable history, history file or request; the message says what is wrong."""


@dataclass(frozen=True)
class Column:
    """One column of the history; `sql` is its type in Athena."""

    name: str
    type: Any
    sql: str
    meaning: str
    nullable: bool = True


def _text(name: str, meaning: str, nullable: bool = True) -> Column:
    return Column(name, pa.string(), "string", meaning, nullable)


def _whole(name: str, meaning: str, nullable: bool = True) -> Column:
    return Column(name, pa.int32(), "int", meaning, nullable)


def _number(name: str, meaning: str | None = None) -> Column:
    """Return a column of numbers, by default with the meaning that report/frames.py gives it."""
    return Column(name, pa.float64(), "double", meaning or SUMMARY[name].meaning)


_RATIOS = tuple(
    name for ratio in ("speedup", "efficiency") for name in (ratio, f"{ratio}_low", f"{ratio}_high")
)
COLUMNS = (
    _text("sweep_id", "id of the sweep", nullable=False),
    Column(
        "started_at", _TIME, "timestamp", "time at which the sweep's first job was accepted, UTC"
    ),
    Column("generated_at", _TIME, "timestamp", "time of the sweep's report, UTC", nullable=False),
    _text("platform_kind", "aws, emulated or simulated", nullable=False),
    _text("isolation", "isolation of emulated nodes from each other"),
    _text("instance_type", "instance type of every node"),
    _text("region", "AWS region"),
    _text("image_uri", "training image, by digest"),
    _text("dataset_digest", "content digest of the dataset"),
    _text("launcher", "launcher of the processes"),
    _text("batch_policy", "fixed_global or fixed_per_replica"),
    _text("learning_rate_rule", "none, linear or sqrt"),
    _text("start", "cold, warm or mixed"),
    _text("train_clock", "clock of train_seconds and the speedup"),
    _text(
        "conditions_digest",
        "digest of the conditions without image and code; sweeps with the same digest form a trend",
        nullable=False,
    ),
    _number("price_usd_per_hour", "price of one node-hour behind the costs"),
    _text("price_date", "ISO date of the price"),
    _text("price_source", "source of the price"),
    _whole("nodes", SUMMARY["nodes"].meaning, nullable=False),
    _whole("repeat", "repeat of this node count, from 1", nullable=False),
    _whole("attempt", "attempt at this repeat, from 1", nullable=False),
    _text("job_name", "name of the training job", nullable=False),
    Column("created_at", _TIME, "timestamp", "time at which the platform accepted the job, UTC"),
    _text("status", "Completed, Failed or Stopped", nullable=False),
    Column(
        "used", pa.bool_(), "boolean", "true if the statistics include the attempt", nullable=False
    ),
    Column("spot", pa.bool_(), "boolean", "true if the job ran on spot capacity", nullable=False),
    _text("reason", "reason why the attempt did not complete; null if it completed"),
    _number("submit_to_end_seconds", "time from the accepted job to its terminal status"),
    _number("billable_seconds", "billed time, not multiplied by nodes"),
    _number("train_seconds", "train time on train_clock"),
    _number("steady_step_seconds"),
    _number("run_usd", "billed cost of the run"),
    _number("on_demand_usd"),
    _number("warm_pool_usd"),
    _number("epoch_usd"),
    _number("target_usd"),
    _whole("world_size", SUMMARY["world_size"].meaning),
    _whole("global_batch_size", SUMMARY["global_batch_size"].meaning),
    _whole("per_replica_batch_size", SUMMARY["per_replica_batch_size"].meaning),
    _number("learning_rate"),
    _text("final_metric_name", "name of the validation metric"),
    _number("final_metric_value", "validation metric at the end"),
    _whole("baseline_nodes", "N0 of the sweep; null if nothing completed"),
    *(_number(name) for name in (*_RATIOS, "doubling_ratio")),
    _text(
        "parity",
        "final metric against the baseline's: baseline, same, reached_target, different or unknown",
        nullable=False,
    ),
    _text(
        "flags",
        "flags of the node count (see report.json), joined by +; empty if it has none, null if "
        "S(N) is unknown",
    ),
)


@dataclass(frozen=True)
class Trend:
    """Sweeps with the same conditions, except for image and code, so that times are comparable."""

    platform: PlatformFacts
    conditions: dict[str, str | None]
    conditions_digest: str
    baseline_nodes: int
    """Smallest N0 of the sweeps; S and E are missing in the rows of sweeps with a different N0."""
    points: DataFrame
    """One row per node count and sweep, sorted by nodes, then date; see TREND_COLUMNS."""
    failed_sweep: str | None = None
    """Id of the newest sweep of the history if it has no used run, so no points; else None."""

    @property
    def sweeps(self) -> tuple[str, ...]:
        """Ids of the trend's sweeps, oldest first."""
        return tuple(self.points.sort_values(["at", "sweep_id"])["sweep_id"].unique())

    def at_nodes(self, nodes: int) -> Trend:
        """Return the trend with only the points of one node count, for tables and plots."""
        points = self.points[self.points["nodes"].eq(nodes)].reset_index(drop=True)
        return replace(self, points=points)


TREND_COLUMNS = {
    "sweep_id": "id of the sweep",
    "nodes": SUMMARY["nodes"].meaning,
    "at": "start of the sweep, UTC; if unknown, time of the sweep's report",
    "n": "number of used runs",
    "train_seconds": "median train time of the used runs",
    "train_seconds_of_runs": "list of the train times of the used runs",
    **{name: SUMMARY[name].meaning for name in _RATIOS},
    "total_usd": "median cost of a run, including the warm pool kept after it",
    "image_uri": "training image, by digest",
    "throughput_only": (
        "true if runs at this node count have not been shown to reach the baseline's final metric, "
        "so T is not a time-to-train"
    ),
    "contended": "true if an emulated node got less CPU than it requested, so T is not valid",
    "baseline_nodes": "N0 of the sweep",
}
"""Columns of a trend's points and their meanings; an unknown value is missing (NA)."""


def history_schema(benchmark: str) -> pa.Schema:
    """Return the schema of a benchmark's files, with its name and the version as metadata."""
    metadata = {_VERSION_KEY: str(HISTORY_SCHEMA_VERSION), _BENCHMARK_KEY: benchmark}
    fields = [pa.field(column.name, column.type, nullable=column.nullable) for column in COLUMNS]
    return pa.schema(fields, metadata=metadata)


def history_frame(report: ScalingReport) -> DataFrame:
    """Return one row per attempt of a sweep, with the columns of COLUMNS."""
    from pandas import DataFrame, Series, to_datetime

    sweep = _sweep_values(report)
    rows = {row.nodes: row for row in report.summary}
    records = [
        sweep | _point_values(report, point) | _row_values(rows[point.nodes])
        for point in report.points
    ]
    frame = DataFrame(records, columns=[column.name for column in COLUMNS], dtype=object)
    # a time without an offset is UTC
    frame["created_at"] = to_datetime(frame["created_at"], utc=True, format="ISO8601")
    frame["started_at"] = Series(frame["created_at"].min(), frame.index, _DTYPES[_TIME])
    frame["generated_at"] = to_datetime(frame["generated_at"], utc=True, format="ISO8601")
    return frame.astype({column.name: _DTYPES[column.type] for column in COLUMNS})


def write_history(
    frame: DataFrame, benchmark: str, checks: Sequence[CheckedPrediction] = ()
) -> bytes:
    """Return the bytes of a sweep's Parquet file.

    Args:
        frame: The rows of history_frame().
        benchmark: The name of the benchmark.
        checks: The sweep's checked predictions.
    """
    schema = history_schema(benchmark)
    if checks:
        body = json.dumps([check.model_dump() for check in checks])
        schema = schema.with_metadata(schema.metadata | {_PREDICTIONS_KEY: body})
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    buffer = io.BytesIO()
    # without pandas' own metadata
    pq.write_table(table.replace_schema_metadata(schema.metadata), buffer)
    return buffer.getvalue()


@cache
def _dtypes() -> dict[Any, Any]:
    """Return pandas' types of COLUMNS, except for times, which are converted without one."""
    from pandas.api.types import pandas_dtype

    return {kind: pandas_dtype(name) for kind, name in _DTYPES.items() if kind != _TIME}


def parse_history(body: bytes, origin: str) -> DataFrame:
    """Return the rows of a Parquet file, with the columns of COLUMNS.

    Args:
        body: The whole file.
        origin: Name of the file in errors.

    Raises:
        HistoryError: The file is damaged or has a different schema version.
    """
    try:
        table = pq.read_table(io.BytesIO(body))
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(
            f"{origin}: damaged or not a Parquet file ({str(error).splitlines()[0]})"
        ) from None
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
    if version != str(HISTORY_SCHEMA_VERSION):
        raise HistoryError(
            f"{origin}: history schema version {version}, expected {HISTORY_SCHEMA_VERSION}"
        )
    if missing := [column.name for column in COLUMNS if column.name not in table.column_names]:
        raise HistoryError(
            f"{origin}: damaged: column {missing[0]} is missing; recreate the sweep's report"
        )
    try:
        table = table.select([column.name for column in COLUMNS]).cast(
            history_schema("").remove_metadata()
        )
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise HistoryError(
            f"{origin}: damaged: a column has a different type ({str(error).splitlines()[0]}); "
            "recreate the sweep's report"
        ) from None
    frame = table.to_pandas(types_mapper=_dtypes().get)
    used = frame[frame["used"]]
    timed = used["train_seconds"].between(0, math.inf, inclusive="neither")
    if not (timed & used["baseline_nodes"].gt(0)).fillna(False).all():
        raise HistoryError(
            f"{origin}: damaged: a used run has no time or baseline; recreate the sweep's report"
        )
    return frame


def parse_predictions(body: bytes) -> tuple[CheckedPrediction, ...]:
    """Return the checked predictions in a Parquet file, or () if one of them is unreadable."""
    try:
        metadata = pq.read_schema(io.BytesIO(body)).metadata or {}
        written = json.loads(metadata.get(_PREDICTIONS_KEY, b"[]"))
        return tuple(CheckedPrediction.model_validate(each) for each in written)
    except (pa.ArrowException, OSError, TypeError, ValueError, RecursionError):
        return ()


def read_history(frames: Sequence[DataFrame]) -> tuple[Trend, ...]:
    """Return the trends of a history, starting with the trend of the most recent sweep.

    Attempts that were not used are left out. If the most recent sweep has no used run, it is the
    failed_sweep of the newest trend that its conditions do not contradict.

    Args:
        frames: Rows of each file.
    """
    from pandas import concat

    if not frames:
        return ()
    attempts = concat(frames, ignore_index=True)
    attempts["at"] = attempts["started_at"].fillna(attempts["generated_at"])
    runs = attempts[attempts["used"]]
    trends = [_trend(of_trend) for _, of_trend in runs.groupby("conditions_digest", sort=False)]
    trends.sort(key=lambda trend: trend.points["at"].max(), reverse=True)
    newest = attempts.sort_values(["at", "sweep_id"])[-1:]
    if not newest["sweep_id"].isin(runs["sweep_id"]).all():
        failed = _first_row(newest)
        of_failed = next((trend for trend in trends if _may_contain(trend, failed)), None)
        if of_failed is not None:
            trends.remove(of_failed)
            trends.insert(0, replace(of_failed, failed_sweep=failed["sweep_id"]))
    return tuple(trends)


def _may_contain(trend: Trend, row: Mapping[str, Any]) -> bool:
    """Return False if a row contradicts a condition; failed runs do not report all conditions."""
    platform = trend.platform
    conditions = trend.conditions | {
        "platform_kind": platform.kind,
        "isolation": platform.isolation,
        "instance_type": platform.instance_type,
    }
    return all(
        None in (value, row[name]) or value == row[name] for name, value in conditions.items()
    )


def _first_row(rows: DataFrame) -> dict[str, Any]:
    """Return the first row by column, with None for missing values."""
    first = rows.iloc[0]
    return dict(first.where(first.notna(), None))


def _trend(runs: DataFrame) -> Trend:
    # Times are comparable even if N0 differs; ratios are comparable only for the same N0.
    baseline = runs["baseline_nodes"].min()
    ratios = runs[list(_RATIOS)].where(runs["baseline_nodes"].eq(baseline))
    runs = runs.assign(
        **ratios,
        # like total_usd() in analysis/cost.py, which adds nothing for an unknown warm pool
        total_usd=runs["run_usd"] + runs["warm_pool_usd"].fillna(0.0),
        throughput_only=runs["flags"].str.contains("throughput_only", regex=False, na=False),
        contended=runs["flags"].str.contains("starved", regex=False, na=False),
    )
    points = runs.groupby(["sweep_id", "nodes"], sort=False).agg(
        at=("at", "first"),
        n=("used", "size"),
        train_seconds=("train_seconds", "median"),
        train_seconds_of_runs=("train_seconds", list),
        total_usd=("total_usd", "median"),
        **{
            name: (name, "first")
            for name in ("throughput_only", "contended", "baseline_nodes", "image_uri", *_RATIOS)
        },
    )
    first = _first_row(runs)
    return Trend(
        platform=PlatformFacts(
            kind=first["platform_kind"],
            isolation=first["isolation"],
            instance_type=first["instance_type"],
        ),
        conditions={name: first[name] for name in _CONDITIONS if name not in _MAY_CHANGE},
        conditions_digest=first["conditions_digest"],
        baseline_nodes=baseline,
        points=points.reset_index()[list(TREND_COLUMNS)].sort_values(
            ["nodes", "at", "sweep_id"], ignore_index=True
        ),
    )


def _sweep_values(report: ScalingReport) -> dict[str, Any]:
    compared = {
        name: value for name, value in measured_under(report).items() if name not in _MAY_CHANGE
    }
    return {
        "sweep_id": report.sweep_id,
        "generated_at": report.generated_at,
        "platform_kind": report.platform.kind,
        "isolation": report.platform.isolation,
        "instance_type": report.platform.instance_type,
        **{name: getattr(report.conditions, name) for name in _CONDITIONS},
        "conditions_digest": canonical_digest(compared),
        "price_usd_per_hour": report.price.usd_per_hour,
        "price_date": report.price.date,
        "price_source": report.price.source,
        "baseline_nodes": report.baseline.nodes if report.baseline is not None else None,
    }


def _point_values(report: ScalingReport, point: Point) -> dict[str, Any]:
    metric = point.final_metric
    of_point = ("nodes", "repeat", "attempt", "job_name", "status", "used", "spot", "reason",
                "world_size", "global_batch_size", "per_replica_batch_size",
                "learning_rate", "created_at")  # fmt: skip
    return {
        **{name: getattr(point, name) for name in of_point},
        **point.clocks.model_dump(),
        **point.costs.model_dump(),
        "train_seconds": _train_seconds(report, point),
        "final_metric_name": metric.name if metric is not None else None,
        "final_metric_value": metric.value if metric is not None else None,
    }


def _train_seconds(report: ScalingReport, point: Point) -> float | None:
    """Return an attempt's train time on the sweep's clock, even if the summary leaves it out."""
    if point.used:
        return report.train_seconds(point)
    if point.train_clock == report.train_clock:
        return point.clocks.train_seconds
    return point.train_seconds_by.get(report.train_clock or "")


def _row_values(row: SummaryRow) -> dict[str, Any]:
    train = row.train
    return {
        "speedup": train.speedup,
        **_bounds("speedup", train.speedup_interval),
        "efficiency": train.efficiency,
        **_bounds("efficiency", train.efficiency_interval),
        "doubling_ratio": train.doubling_ratio,
        "parity": row.parity.verdict,
        "flags": "+".join(row.flags) if train.speedup is not None else None,
    }


def _bounds(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {
        f"{name}_low": interval.low if interval is not None else None,
        f"{name}_high": interval.high if interval is not None else None,
    }
