"""Runs -> Points: each attempt as a report keeps it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Literal

from scaling.analysis.speedup import Run
from scaling.outcome.outcome import JobOutcome
from scaling.report.model import DeviceFacts, Point, SampleCounts, SteadyWindow

# What an outcome and its point have under the same name.
_SHARED = tuple(field.name for field in fields(JobOutcome) if field.name in Point.model_fields)


def list_points(runs: Sequence[Run]) -> tuple[Point, ...]:
    """All of the runs, in their order."""
    reused = {run.outcome.reused_by_job for run in runs}
    return tuple(_point(run, reused) for run in runs)


def _point(run: Run, reused: Collection[str | None]) -> Point:
    """`reused` holds the names of the jobs that started in a pool which another one kept."""
    outcome = run.outcome
    own = {
        "used": run.used,
        "log_tail": () if outcome.completed else outcome.log_tail,
        "start": _start(outcome, reused),
        "interruptions": _whole(outcome, "interruptions"),
        "epochs": outcome.metric_number("epochs"),
        "final_metric": run.metric,
        "seconds_to_target": run.seconds_to_target,
        "data_wait_share": outcome.metric_number("data_wait_share"),
        "steady": _steady(outcome),
        "samples": _samples(outcome),
        "device": _device(outcome),
        "costs": run.costs,
        "cost_is_given": outcome.given_cost_usd is not None,
    }
    return Point(**{name: getattr(outcome, name) for name in _SHARED} | own)


def _start(outcome: JobOutcome, reused: Collection[str | None]) -> Literal["cold", "warm"] | None:
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
