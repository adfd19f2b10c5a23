"""ScalingReports <-> the history: one Parquet file per sweep, a row per attempt,
and the trend over the sweeps.

The benchmark's name is the Hive partition of the path (names.history_key) and not a column of the
file: Athena refuses a table that has it twice. docs/history.md documents the columns.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nodesweep.scaling.analysis.cost import total_usd
from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.names import canonical_digest
from nodesweep.scaling.report.model import Conditions, PlatformFacts, Point, ScalingReport
from nodesweep.scaling.trend.compare import measured_under

HISTORY_SCHEMA_VERSION = 1
"""Grows when a column changes its name, type or meaning; every version is a table of its own."""
_VERSION_KEY = b"nodesweep.history_schema_version"
_BENCHMARK_KEY = b"nodesweep.benchmark"
_TIME = pa.timestamp("ms", tz="UTC")
# A new image or new code is what a history is kept for; everything else splits the trend.
_MAY_CHANGE = ("image_uri", "code")
_CONDITIONS = tuple(
    name for name in Conditions.model_fields if name not in ("platform", "instance_type")
)


class HistoryError(ValueError):
    """A history, or one file of it, can't be read; the message names it."""


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


def _number(name: str, meaning: str) -> Column:
    return Column(name, pa.float64(), "double", meaning)


COLUMNS = (
    _text("sweep_id", "the sweep", nullable=False),
    Column("started_at", _TIME, "timestamp", "its first job was accepted, UTC; null: not known"),
    Column("generated_at", _TIME, "timestamp", "its report was made, UTC", nullable=False),
    _text("platform_kind", "aws, emulated or simulated", nullable=False),
    _text("isolation", "how emulated nodes were kept apart"),
    _text("instance_type", "instance type of every node"),
    _text("region", "AWS region"),
    _text("image_uri", "training image, by digest"),
    _text("dataset_digest", "content digest of the dataset"),
    _text("launcher", "what started the processes"),
    _text("batch_policy", "fixed_global or fixed_per_replica"),
    _text("learning_rate_rule", "none, linear or sqrt"),
    _text("start", "cold, warm or mixed"),
    _text("train_clock", "the clock that train_seconds and the speedup are on"),
    _text(
        "conditions_digest",
        "same digest, same conditions; image and code may differ",
        nullable=False,
    ),
    _number(
        "price_usd_per_hour", "price of one node-hour that the costs are made of; null: unknown"
    ),
    _text("price_date", "ISO date the price was read"),
    _text("price_source", "where the price was read"),
    _whole("nodes", "N, nodes of the job", nullable=False),
    _whole("repeat", "which repeat of this node count, from 1", nullable=False),
    _whole("attempt", "which attempt at this repeat, from 1", nullable=False),
    _text("job_name", "training job", nullable=False),
    Column("created_at", _TIME, "timestamp", "the platform accepted the job, UTC"),
    _text("status", "Completed, Failed or Stopped", nullable=False),
    Column("used", pa.bool_(), "boolean", "the speedup is made of it", nullable=False),
    Column("spot", pa.bool_(), "boolean", "ran on spot capacity", nullable=False),
    _text("reason", "why it did not complete"),
    _number("submit_to_end_seconds", "job accepted to terminal status"),
    _number("billable_seconds", "billed wall time, not multiplied by nodes"),
    _number("train_seconds", "the training, on train_clock"),
    _number("steady_step_seconds", "median step time in the steady window"),
    _number("run_usd", "what the run was billed"),
    _number("on_demand_usd", "the same run bought on demand"),
    _number("warm_pool_usd", "warm pool kept after the run"),
    _number("epoch_usd", "one epoch on the train clock"),
    _number("target_usd", "the run up to the target metric"),
    _whole("world_size", "processes over all nodes"),
    _whole("global_batch_size", "samples per optimiser step over all processes"),
    _whole("per_replica_batch_size", "samples per process and micro-step"),
    _number("learning_rate", "learning rate"),
    _text("final_metric_name", "validation metric"),
    _number("final_metric_value", "its value at the end"),
    _whole("baseline_nodes", "N0 of the sweep; null where nothing completed"),
    _number("speedup", "S(N) of the sweep, the same on every row of its N"),
    _number("speedup_low", "lower bound of its interval; null for fewer than 3 runs"),
    _number("speedup_high", "upper bound"),
    _number("efficiency", "E(N) of the sweep"),
    _number("efficiency_low", "lower bound of its interval"),
    _number("efficiency_high", "upper bound"),
    _number("doubling_ratio", "S(N)/S(N/2) of the sweep"),
    _text(
        "parity",
        "final metric against the baseline's: baseline, same, reached_target, different or unknown",
        nullable=False,
    ),
    _text(
        "flags",
        "superlinear, retrograde, throughput_only, starved, joined by +;"
        " empty: none; null: no S(N)",
    ),
)


@dataclass(frozen=True)
class TrendPoint:
    """One sweep at one node count; medians over its used runs. None where unknown."""

    sweep_id: str
    at: datetime
    nodes: int
    n: int
    train_seconds: float
    train_seconds_of_runs: tuple[float, ...]
    speedup: float | None
    speedup_interval: Interval | None
    efficiency: float | None
    efficiency_interval: Interval | None
    total_usd: float | None
    image_uri: str | None
    throughput_only: bool
    """It missed the baseline's final metric: T is no time-to-train,
    S no speedup of the same training.
    """


@dataclass(frozen=True)
class Trend:
    """Sweeps that compare: same conditions, image and code apart, and same N0.
    Points by nodes, then date.
    """

    platform: PlatformFacts
    conditions: Mapping[str, str | None]
    conditions_digest: str
    baseline_nodes: int
    points: tuple[TrendPoint, ...]

    @property
    def sweeps(self) -> tuple[str, ...]:
        """The ids of the trend's sweeps, the oldest first."""
        ordered = sorted(self.points, key=lambda point: (point.at, point.sweep_id))
        return tuple(dict.fromkeys(point.sweep_id for point in ordered))


def history_schema(benchmark: str) -> pa.Schema:
    """The file's schema; its metadata holds the schema version and the benchmark."""
    metadata = {_VERSION_KEY: str(HISTORY_SCHEMA_VERSION), _BENCHMARK_KEY: benchmark}
    fields = [pa.field(column.name, column.type, nullable=column.nullable) for column in COLUMNS]
    return pa.schema(fields, metadata=metadata)


def history_table(report: ScalingReport, benchmark: str) -> pa.Table:
    """One row per attempt of the sweep."""
    sweep = _sweep_values(report)
    rows = {row.nodes: row for row in report.summary}
    records = [
        sweep | _point_values(report, point) | _row_values(rows[point.nodes])
        for point in report.points
    ]
    return pa.Table.from_pylist(records, schema=history_schema(benchmark))


def write_history(table: pa.Table) -> bytes:
    """The table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def parse_history(body: bytes, origin: str) -> pa.Table:
    """A file's bytes. Raises HistoryError naming `origin` where it is none
    of this schema version.
    """
    try:
        table = pq.read_table(io.BytesIO(body))
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(
            f"{origin}: damaged, not a Parquet file ({str(error).splitlines()[0]})"
        ) from None
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
    if version != str(HISTORY_SCHEMA_VERSION):
        raise HistoryError(
            f"{origin}: history schema version {version}, expected {HISTORY_SCHEMA_VERSION}"
        )
    if missing := [column.name for column in COLUMNS if column.name not in table.column_names]:
        raise HistoryError(
            f"{origin}: damaged, no column {missing[0]}; make the sweep's report anew"
        )
    try:
        table = table.select([column.name for column in COLUMNS]).cast(
            pa.schema(history_schema("").remove_metadata(), metadata=table.schema.metadata)
        )
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise HistoryError(
            f"{origin}: damaged, a column of another type ({str(error).splitlines()[0]});"
            " make the sweep's report anew"
        ) from None
    if any(
        row["used"] and not (0 < (row["train_seconds"] or 0) < math.inf and row["baseline_nodes"])
        for row in table.select(["used", "train_seconds", "baseline_nodes"]).to_pylist()
    ):
        raise HistoryError(
            f"{origin}: damaged, a used run without a time or a baseline;"
            " make the sweep's report anew"
        )
    return table


def read_history(tables: Iterable[pa.Table], nodes: int | None = None) -> tuple[Trend, ...]:
    """The trends, the one with the youngest sweep first; only of `nodes` where that is given.

    Attempts that were not used stay in the tables and out of the trend.
    """
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for table in tables:
        for record in table.to_pylist():
            if record["used"] and nodes in (None, record["nodes"]):
                groups.setdefault(
                    (record["conditions_digest"], record["baseline_nodes"]), []
                ).append(record)
    trends = [_trend(records) for records in groups.values()]
    return tuple(
        sorted(trends, key=lambda trend: max(point.at for point in trend.points), reverse=True)
    )


def _trend(records: Sequence[Mapping[str, Any]]) -> Trend:
    runs: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        runs.setdefault((record["sweep_id"], record["nodes"]), []).append(record)
    first = records[0]
    platform = PlatformFacts(
        kind=first["platform_kind"],
        isolation=first["isolation"],
        instance_type=first["instance_type"],
    )
    points = (_trend_point(each) for each in runs.values())
    return Trend(
        platform=platform,
        conditions={name: first[name] for name in _CONDITIONS if name not in _MAY_CHANGE},
        conditions_digest=first["conditions_digest"],
        baseline_nodes=first["baseline_nodes"],
        points=tuple(sorted(points, key=lambda point: (point.nodes, point.at, point.sweep_id))),
    )


def _trend_point(runs: Sequence[Mapping[str, Any]]) -> TrendPoint:
    first = runs[0]
    totals = [total_usd(run["run_usd"], run["warm_pool_usd"]) for run in runs]
    costs = [usd for usd in totals if usd is not None]
    times = tuple(run["train_seconds"] for run in runs)
    return TrendPoint(
        sweep_id=first["sweep_id"],
        at=first["started_at"] or first["generated_at"],
        nodes=first["nodes"],
        n=len(runs),
        train_seconds=statistics.median(times),
        train_seconds_of_runs=times,
        speedup=first["speedup"],
        speedup_interval=_interval(first, "speedup"),
        efficiency=first["efficiency"],
        efficiency_interval=_interval(first, "efficiency"),
        total_usd=statistics.median(costs) if costs else None,
        image_uri=first["image_uri"],
        throughput_only="throughput_only" in (first["flags"] or "").split("+"),
    )


def _interval(record: Mapping[str, Any], name: str) -> Interval | None:
    low, high = record[f"{name}_low"], record[f"{name}_high"]
    return None if low is None or high is None else Interval(low=low, high=high)


def _sweep_values(report: ScalingReport) -> dict[str, Any]:
    accepted = [
        _moment(point.created_at) for point in report.points if point.created_at is not None
    ]
    compared = {
        name: value for name, value in measured_under(report).items() if name not in _MAY_CHANGE
    }
    return {
        "sweep_id": report.sweep_id,
        "started_at": min(accepted, default=None),
        "generated_at": _moment(report.generated_at),
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
                "learning_rate")  # fmt: skip
    return {
        **{name: getattr(point, name) for name in of_point},
        **point.clocks.model_dump(),
        **point.costs.model_dump(),
        "created_at": _moment(point.created_at) if point.created_at is not None else None,
        "train_seconds": _train_seconds(report, point),
        "final_metric_name": metric.name if metric is not None else None,
        "final_metric_value": metric.value if metric is not None else None,
    }


def _train_seconds(report: ScalingReport, point: Point) -> float | None:
    """On the sweep's clock, of runs that the summary leaves out (spot) too;
    None where only another clock was read.
    """
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


def _moment(text: str) -> datetime:
    """An ISO time as UTC; one without an offset is UTC."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
