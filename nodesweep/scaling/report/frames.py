"""Convert a ScalingReport to pandas data frames: a row per attempt, node count or clock.

The names of columns end in their unit: `_seconds`, `_usd`, `_share` (0 to 1). Unknown values are
missing (NA), never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nodesweep.scaling.analysis.cost import RunCosts
from nodesweep.scaling.analysis.goodput import Goodput
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.report.model import (
    DeviceFacts,
    Point,
    SampleCounts,
    ScalingReport,
    SteadyWindow,
)
from nodesweep.scaling.report.table import kind_label

if TYPE_CHECKING:
    from pandas import DataFrame, Series


class Field(NamedTuple):
    """A column of a frame."""

    path: str
    """Path of the value in the model of the row, with dots between the attributes."""
    meaning: str
    dtype: str = "Float64"


def with_interval(name: str, path: str, meaning: str, interval: str) -> dict[str, Field]:
    """Return the columns for a value and for its interval, which is at the path `interval`."""
    return {
        name: Field(path, meaning),
        f"{name}_low": Field(f"{interval}.low", f"lower bound of the interval of {name}"),
        f"{name}_high": Field(f"{interval}.high", f"upper bound of the interval of {name}"),
        f"{name}_level": Field(f"{interval}.level", f"confidence level of the interval of {name}"),
    }


def _ratio(clock: str, name: str, meaning: str) -> dict[str, Field]:
    return with_interval(name, f"{clock}{name}", meaning, f"{clock}{name}_interval")


def _ratios(clock: str) -> dict[str, Field]:
    return {
        **_ratio(clock, "speedup", "S(N) = T(N0) / T(N)"),
        **_ratio(clock, "efficiency", "E(N) = S(N) N0 / N"),
        **_ratio(clock, "doubling_ratio", "S(N) / S(N/2); 2 is ideal"),
        "karp_flatt": Field(
            f"{clock}karp_flatt", "serial fraction (1/S - 1/R) / (1 - 1/R), R = N/N0"
        ),
    }


SUMMARY: Mapping[str, Field] = {
    "nodes": Field("nodes", "node count N", "Int64"),
    "runs": Field("n", "runs behind the statistics", "Int64"),
    "failed_runs": Field("n_failed", "attempts that failed or were stopped", "Int64"),
    "world_size": Field(
        "world_size", "processes over all nodes, if the program confirmed them", "Int64"
    ),
    "global_batch_size": Field(
        "global_batch_size", "samples per optimizer step over all processes", "Int64"
    ),
    "per_replica_batch_size": Field(
        "per_replica_batch_size", "samples per process and (micro-)step", "Int64"
    ),
    "learning_rate": Field("learning_rate", "learning rate"),
    **with_interval(
        "train_seconds",
        "train.seconds",
        "geometric mean train time T(N)",
        "train.seconds_interval",
    ),
    "projection_error_seconds": Field(
        "projection_error_seconds", "largest error of a projected train time, half of an interval"
    ),
    "next_run_seconds": Field(
        "train.next_run_seconds",
        "train time that the next run in this session stays below with a probability of 95%",
    ),
    **_ratios("train."),
    "process_efficiency": Field("accelerator_efficiency", "efficiency against one process"),
    "steady_step_seconds": Field("steady_step_seconds", "median step time in the steady window"),
    "startup_seconds": Field("startup_seconds", "median of Starting, Pending and Downloading"),
    "data_wait_share": Field(
        "data_wait_share", "median share of the train time spent waiting for data"
    ),
    "flops_per_second": Field(
        "flops_per_second", "floating-point operations per second of all processes"
    ),
    "mfu": Field("mfu", "model FLOPs utilization: operations per second over the peak, 0 to 1"),
    "billable_seconds": Field(
        "clocks.billable.seconds", "geometric mean of the billed times, not multiplied by nodes"
    ),
    "run_usd": Field("costs.run_usd", "geometric mean cost of a run"),
    "on_demand_usd": Field("costs.on_demand_usd", "cost of the same run bought on demand"),
    "epoch_usd": Field("costs.epoch_usd", "cost of one epoch on the train clock"),
    "target_usd": Field("costs.target_usd", "cost of the run up to the target metric"),
    "warm_pool_usd": Field("costs.warm_pool_usd", "cost of the warm pool kept after the run"),
    **with_interval(
        "total_usd",
        "costs.total_usd",
        "geometric mean cost of a run, including the warm pool kept after it",
        "cost_spread.interval",
    ),
    "next_run_usd": Field(
        "cost_spread.next_run_usd",
        "cost that the next run, warm pool included, stays below with a probability of 95%",
    ),
    "usd_per_result": Field(
        "per_result.result.usd", "expected cost of a result; empty if no attempt failed"
    ),
    "node_hours": Field(
        "costs.node_hours", "billed node-hours of a run; only if costs are in node-hours"
    ),
    "billing_hours": Field(
        "costs.billing_hours", "billed hours of a run x its job's TRES billing weight"
    ),
    "final_metric": Field("final_metric.value", "median validation metric at the end"),
    "target_seconds": Field("seconds_to_target", "median train time up to the target metric"),
    "flags": Field(
        "flags", "flags of the node count (see report.json), joined by commas", "string"
    ),
}
"""Columns of `summary_frame`."""
CLOCK: Mapping[str, Field] = {
    "runs": Field("n", "runs with a time on this clock", "Int64"),
    **with_interval("seconds", "seconds", "geometric mean time", "seconds_interval"),
    **_ratios(""),
}
"""Columns for the statistics of one clock."""
# The models within a point, with the prefix of their columns: samples.padded becomes
# samples_padded.
_NESTED: Mapping[str, tuple[type[BaseModel], str]] = {
    "clocks": (Clocks, ""),
    "costs": (RunCosts, ""),
    "final_metric": (FinalMetric, "final_metric_"),
    "steady": (SteadyWindow, "steady_"),
    "samples": (SampleCounts, "samples_"),
    "device": (DeviceFacts, "device_"),
    "program_error": (ProgramError, "program_error_"),
    "projection": (Projection, "projection_"),
    "goodput": (Goodput, "goodput_"),
}
_LEFT_OUT = ("log_tail", "other_log_tail")
_LEFT_OUT_OF_NESTED = ("parts", "unknown_jobs", "exceeding_jobs")
_OF_PROBES = ("kind", "projection")
# Mappings with arbitrary keys: phases.Training becomes phases_Training.
_OPEN = ("phases", "planned", "utilisation", "train_seconds_by", "logged")
_DTYPES = {bool: "boolean", int: "Int64", float: "Float64", str: "string"}


def model_frame(rows: Sequence[Any], fields: Mapping[str, Field]) -> DataFrame:
    """Return one row per model, with a column per field."""
    from pandas import DataFrame, array

    # arrays, because aligning the index of each Series would take a tenth of a report's time
    return DataFrame(
        {
            name: array([_at(row, field.path) for row in rows], dtype=field.dtype)
            for name, field in fields.items()
        }
    )


def summary_frame(report: ScalingReport) -> DataFrame:
    """Return one row per node count, ascending, with the columns of SUMMARY.

    For a sweep of several instance types, these are the rows of its main type.
    """
    return rows_frame(report.summary)


def rows_frame(rows: Sequence[SummaryRow]) -> DataFrame:
    """Return the given rows of a summary, with the columns of SUMMARY."""
    return model_frame(rows, SUMMARY)


def points_frame(report: ScalingReport) -> DataFrame:
    """Return one row per attempt, including failed ones, with the columns of points.csv.

    These are the fields of a point in report.json, nested fields under their path
    (`samples_padded`), followed by `platform` and `platform_kind`.
    """
    from pandas import concat

    points = [*report.points, *report.other_points]
    probed = any(point.kind != "run" for point in report.points)
    columns = [
        column
        for name in Point.model_fields
        if name not in _LEFT_OUT and (probed or name not in _OF_PROBES)
        for column in _columns(name, [getattr(point, name) for point in points])
    ]
    # Users combine the rows of several sweeps in one sheet, so every row has its platform.
    columns.append(_column("platform", [_label(report, point) for point in points], str))
    columns.append(_column("platform_kind", [report.platform.kind] * len(points), str))
    return concat(columns, axis=1)


def _at(row: Any, path: str) -> Any:
    value = row
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return ", ".join(value) if isinstance(value, tuple) else value


def _label(report: ScalingReport, point: Point) -> str:
    if report.instances is None:
        return kind_label(report.platform)
    name = report.instances.name_of_job(point.job_name) if report.instances.variants else None
    name = name or point.instance_type
    return kind_label(report.platform.model_copy(update={"instance_type": name}))


def _columns(name: str, values: Sequence[Any]) -> Iterator[Series]:
    if name in _OPEN:
        for key in dict.fromkeys(key for entries in values for key in entries):
            yield _column(f"{name}_{key}", (entries.get(key) for entries in values), float)
    elif name in _NESTED:
        model, prefix = _NESTED[name]
        for field, info in model.model_fields.items():
            if field not in _LEFT_OUT_OF_NESTED:
                nested = (part and getattr(part, field) for part in values)
                yield _column(f"{prefix}{field}", nested, _kind(info))
    else:
        yield _column(name, values, _kind(Point.model_fields[name]))


def _column(name: str, values: Iterable[Any], kind: type) -> Series:
    from pandas import Series

    return Series(list(values), name=name, dtype=object).astype(_DTYPES[kind])


def _kind(field: FieldInfo) -> type:
    """Return the type of the values of a field other than None, from its annotation."""
    arguments = get_args(field.annotation)
    named = {field.annotation, *arguments} & _DTYPES.keys()
    # a Literal has its values instead of a type
    found = named or {type(value) for value in arguments}
    return next((kind for kind in _DTYPES if kind in found), str)
