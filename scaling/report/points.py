"""JobOutcome -> Point: one attempt as a report keeps it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from scaling.outcome import JobOutcome
from scaling.report.model import DeviceFacts, Point, PointClocks, SampleCounts, SteadyWindow
from scaling.speedup import Run


def make_point(run: Run, reused: Collection[str]) -> Point:
    """`reused` holds the names of the jobs that started in a warm pool."""
    outcome = run.outcome
    return Point.trusted(
        nodes=outcome.nodes,
        repeat=outcome.repeat,
        attempt=outcome.attempt,
        job_name=outcome.job_name,
        status=outcome.status,
        used=run.used,
        reason=outcome.reason,
        failed_host=outcome.failed_host,
        log_tail=() if outcome.completed else outcome.log_tail,
        other_log_tail=outcome.other_log_tail,
        created_at=outcome.created_at,
        instance_type=outcome.instance_type,
        isolation=outcome.isolation,
        clocks=PointClocks.trusted(
            submit_to_end_seconds=outcome.clocks.submit_to_end_seconds,
            billable_seconds=outcome.clocks.billable_seconds,
            train_seconds=outcome.clocks.train_seconds,
            steady_step_seconds=outcome.clocks.steady_step_seconds,
        ),
        train_clock=outcome.train_clock,
        spot=outcome.spot,
        interruptions=_whole(outcome, "interruptions") if outcome.metric_known("interruptions") else None,
        launch_path_only=outcome.launch_path_only,
        start=_start(outcome, reused),
        launcher=outcome.launcher,
        output_uri=outcome.output_uri,
        phases=outcome.phases,
        world_size=outcome.world_size,
        global_batch_size=outcome.global_batch_size,
        per_replica_batch_size=outcome.per_replica_batch_size,
        learning_rate=outcome.learning_rate,
        planned=outcome.planned and {name: float(value) for name, value in outcome.planned.items()},
        epochs=outcome.metric_number("epochs"),
        final_metric=run.metric,
        seconds_to_target=run.seconds_to_target,
        data_wait_share=outcome.metric_number("data_wait_share"),
        steady=_steady(outcome) if outcome.metric_known("steady") else None,
        samples=_samples(outcome) if outcome.metric_known("samples") else None,
        device=_device(outcome) if outcome.metric_known("device") else None,
        utilisation=outcome.utilisation,
        costs=run.costs,
        cost_is_given=outcome.given_cost_usd is not None,
    )


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
