"""JobOutcome -> Point: one attempt as a report keeps it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from scaling.outcome import JobOutcome
from scaling.report.model import DeviceFacts, Point, PointClocks, SampleCounts, SteadyWindow
from scaling.speedup import Run


def make_point(run: Run, reused: Collection[str]) -> Point:
    """`reused` holds the names of the jobs that started in a warm pool."""
    outcome = run.outcome
    clocks = outcome.clocks
    values = _FIELDS.copy()
    values["nodes"] = outcome.nodes
    values["repeat"] = outcome.repeat
    values["attempt"] = outcome.attempt
    values["job_name"] = outcome.job_name
    values["status"] = outcome.status
    values["reason"] = outcome.reason
    values["failed_host"] = outcome.failed_host
    values["other_log_tail"] = outcome.other_log_tail
    values["created_at"] = outcome.created_at
    values["instance_type"] = outcome.instance_type
    values["isolation"] = outcome.isolation
    values["train_clock"] = outcome.train_clock
    values["spot"] = outcome.spot
    values["launch_path_only"] = outcome.launch_path_only
    values["launcher"] = outcome.launcher
    values["output_uri"] = outcome.output_uri
    values["phases"] = outcome.phases
    values["world_size"] = outcome.world_size
    values["global_batch_size"] = outcome.global_batch_size
    values["per_replica_batch_size"] = outcome.per_replica_batch_size
    values["learning_rate"] = outcome.learning_rate
    values["utilisation"] = outcome.utilisation
    values["used"] = run.used
    values["log_tail"] = () if outcome.completed else outcome.log_tail
    values["clocks"] = PointClocks.trusted(
        {
            "submit_to_end_seconds": clocks.submit_to_end_seconds,
            "billable_seconds": clocks.billable_seconds,
            "train_seconds": clocks.train_seconds,
            "steady_step_seconds": clocks.steady_step_seconds,
        }
    )
    values["start"] = _start(outcome, reused)
    values["planned"] = outcome.planned and {name: float(value) for name, value in outcome.planned.items()}
    values["final_metric"] = run.metric
    values["seconds_to_target"] = run.seconds_to_target
    values["costs"] = run.costs
    values["cost_is_given"] = outcome.given_cost_usd is not None
    if isinstance(outcome.metrics, dict):
        for name in outcome.metrics:
            if name in _REPORTED:
                values[name] = _REPORTED[name](outcome)
    return Point.trusted(values)


def _start(outcome: JobOutcome, reused: Collection[str]) -> Literal["cold", "warm"] | None:
    if outcome.job_name in reused:
        return "warm"
    return None if outcome.keep_alive is None else "cold"


def _steady(outcome: JobOutcome) -> SteadyWindow | None:
    steady = SteadyWindow(
        steps=_whole(outcome, "steady", "steps"),
        seconds=outcome.metric_number("steady", "seconds"),
        short_window=outcome.metric_flag("steady", "short_window"),
    )
    return steady if any(value is not None for _, value in steady) else None


def _samples(outcome: JobOutcome) -> SampleCounts | None:
    counts = SampleCounts(**{name: _whole(outcome, "samples", name) for name in SampleCounts.model_fields})
    return counts if any(value is not None for _, value in counts) else None


def _device(outcome: JobOutcome) -> DeviceFacts | None:
    device = DeviceFacts(
        type=outcome.metric_text("device", "type"),
        name=outcome.metric_text("device", "name"),
        count_per_node=_whole(outcome, "device", "count_per_node"),
        cpu_quota_cores=outcome.metric_number("device", "cpu_quota_cores"),
        threads=_whole(outcome, "device", "threads"),
    )
    return device if any(value is not None for _, value in device) else None


def _whole(outcome: JobOutcome, *path: str) -> int | None:
    number = outcome.metric_number(*path)
    return int(number) if number is not None and number.is_integer() else None


# A copy of it is filled several times faster than a dict is made; what nothing is known of stays None.
_FIELDS: dict[str, Any] = dict.fromkeys(Point.model_fields)
# What the program's metrics.json may have at its top.
_REPORTED: Mapping[str, Callable[[JobOutcome], Any]] = {
    "interruptions": lambda outcome: _whole(outcome, "interruptions"),
    "epochs": lambda outcome: outcome.metric_number("epochs"),
    "data_wait_share": lambda outcome: outcome.metric_number("data_wait_share"),
    "steady": _steady,
    "samples": _samples,
    "device": _device,
}
