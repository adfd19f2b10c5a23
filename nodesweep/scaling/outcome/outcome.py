"""Turn the status, metrics.json and log of a job into a JobOutcome.

This module reads the four clocks (docs/method.md, "Clocks"), which are never mixed. An unknown
clock is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, Field

from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.job import OVER_TIME, TRAINING_PHASE, JobStatus, PlatformKind
from nodesweep.scaling.outcome.failure import name_host, read_failure
from nodesweep.scaling.outcome.logged import (
    FILE,
    LOG,
    CutNumber,
    Logged,
    UnmatchedMetric,
    contradiction,
)
from nodesweep.scaling.outcome.metrics_values import finite_or_none, nested_value, positive_or_none
from nodesweep.scaling.outcome.observed import (
    NO_OWN_CLOCK,
    is_observed,
    lacks_own_clock,
    not_observed_reason,
)
from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.outcome.projection import (
    ANY_PART,
    ASKED_BY,
    MOST_STEPS,
    Projection,
    partial_run_reason,
    partial_run_steps,
    project,
    unprojected_reason,
    whole_run_metrics,
)
from nodesweep.scaling.outcome.timed_passes import read_timed_passes
from nodesweep.scaling.report_part import Part

TrainClock = Literal[
    "projected",
    "program",
    "logged",
    "observed",
    "phase_from_start_line",
    "phase_from_first_step",
    "training_phase",
    "measured",
    "throughput",
]
"""The source of a train time.

A job that finished early (sweep.design: probe) has only `projected`, the time of a full run. Other
jobs have these sources, the best first: `program`, from the metrics.json that the training program
writes; `logged`, the train_seconds in its log, possibly found by a metric definition; `observed`,
from the first request for data to the last optimizer step of a program that reports neither
(infra/image/nodesweep_measure.py); and the Training phase of the platform, either from the start
line or the first step in the log, or as a whole. Tables have `measured`, as given, or `throughput`,
the seconds per sample from a given rate.
"""
OWN_CLOCKS: tuple[TrainClock, ...] = ("program", "logged", "observed")
GIVEN_CLOCKS: tuple[TrainClock, ...] = ("measured", "throughput")
PHASE_CLOCKS: tuple[TrainClock, ...] = (
    "phase_from_start_line",
    "phase_from_first_step",
    "training_phase",
)
# Paths in metrics.json at which the program reports planned numbers.
_REPORTED: dict[str, tuple[str, ...]] = {
    "global_batch_size": ("batch", "global_batch_size"),
    "per_replica_batch_size": ("batch", "per_replica_batch_size"),
    "learning_rate": ("learning_rate",),
}
# Transient failures of SageMaker and Slurm; AlgorithmError and ClientError would recur.
_TRANSIENT_FAILURES = (
    *("CapacityError", "InternalServerError"),
    *("BOOT_FAIL", "NODE_FAIL", "PREEMPTED"),
)


class Clocks(Part):
    """The four clocks in seconds; null if unknown."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    submit_to_end_seconds: float | None = Field(
        default=None,
        description="Time from the acceptance of the job to its end, which is how long you wait.",
    )
    billable_seconds: float | None = Field(
        default=None,
        description="Billed wall time, not multiplied by nodes; it determines the cost.",
    )
    train_seconds: float | None = Field(
        default=None,
        description=("Time of the training itself, from the source in `train_clock`."),
    )
    steady_step_seconds: float | None = Field(
        default=None, description="Median step time in the steady window."
    )


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of an attempt at a point.

    `clocks.train_seconds` is from `train_clock`, the best known source; `train_seconds_by` maps
    every known source to its train time. `logged` holds the numbers from the log. `world_size` is
    the number of processes that the run itself confirmed, or None if it did not. Batch sizes and
    learning rate are as reported by the program or, if it reports none, as planned; `planned` holds
    the planned values. `log_tail` holds the last lines of the node that failed first
    (`failed_host`), or of all nodes if that node is unknown.
    """

    nodes: int
    repeat: int
    attempt: int
    job_name: str
    status: str
    platform_kind: PlatformKind
    instance_type: str | None = None
    reason: str | None = None
    log_tail: tuple[str, ...] = ()
    failed_host: str | None = None
    other_log_tail: tuple[str, ...] = ()
    failed_rank: int | None = None
    program_error: ProgramError | None = None
    clocks: Clocks = field(default_factory=Clocks)
    train_clock: TrainClock | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    isolation: str | None = None
    launch_path_only: str | None = None
    metrics: Mapping[str, Any] | None = None
    world_size: int | None = None
    global_batch_size: int | None = None
    per_replica_batch_size: int | None = None
    learning_rate: float | None = None
    created_at: str | None = None
    batch_policy: str | None = None
    learning_rate_rule: str | None = None
    planned: Mapping[str, float] = field(default_factory=dict)
    image_uri: str | None = None
    region: str | None = None
    cluster: str | None = None
    launcher: str | None = None
    output_uri: str | None = None
    spot: bool = False
    training_time_seconds: float | None = None
    retained_billable_seconds: float | None = None
    reused_by_job: str | None = None
    keep_alive: bool | None = None
    given_cost_usd: float | None = None
    billing: float | None = None
    utilisation: Mapping[str, float] = field(default_factory=dict)
    train_seconds_by: Mapping[TrainClock, float] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)
    unmatched_metrics: tuple[UnmatchedMetric, ...] = ()
    cut_numbers: tuple[CutNumber, ...] = ()
    projection: Projection | None = None
    is_given: bool = False
    """True for a row of a table, which has run even if the table has no start time."""
    unprojected: str | None = None
    """Why a probe, a partial run or a job without its own clock has no train time; else None."""
    not_observed: str | None = None
    """Why a program that reports no time could not be measured from outside; else None."""
    starts: int = 1
    """Number of times that the training began: 1, plus 1 for each interruption or retry."""
    around_seconds: float | None = None
    """Billed seconds before the first start and after the last stop; None if unknown."""

    @property
    def completed(self) -> bool:
        """True if the job completed."""
        return self.status == "Completed"

    @property
    def is_failure(self) -> bool:
        """True if the attempt failed because of the program, the platform or the runtime limit.

        This excludes attempts that were stopped on request or whose job was refused before its
        creation, because they provide no information about the node count.
        """
        is_over_time = (self.reason or "").startswith(OVER_TIME)
        has_run = self.created_at is not None or self.is_given
        return has_run and (self.status == "Failed" or (self.status == "Stopped" and is_over_time))

    @property
    def whole_run_clocks(self) -> Clocks:
        """The clocks of a full run: projected for a probe, measured for any other job.

        They exclude the time in which a job timed passes for predictions.
        """
        own = self.clocks
        whole = {
            name: self._of_whole_run(getattr(own, name))
            for name in ("billable_seconds", "submit_to_end_seconds")
        }
        is_same = all(getattr(own, name) == seconds for name, seconds in whole.items())
        return own if is_same else own.model_copy(update=whole)

    @property
    def whole_run_phases(self) -> Mapping[str, float]:
        """Seconds in each phase of a full run, projected like `whole_run_clocks`."""
        own = self.phases.get(TRAINING_PHASE)
        training = self._of_whole_run(own)
        if training is None or training == own:
            return self.phases
        return {**self.phases, TRAINING_PHASE: training}

    def _of_whole_run(self, seconds: float | None) -> float | None:
        """Return the time of a full run that corresponds to a time of this job."""
        if seconds is None:
            return None
        timed = read_timed_passes(self.metrics)
        if timed is not None and timed.passes_seconds < seconds:
            seconds -= timed.passes_seconds
        return seconds if self.projection is None else seconds + self.projection.extra_seconds

    @property
    def final_metric(self) -> FinalMetric | None:
        """The metric at the end of the training, or None; metrics.json can have just a number."""
        given = nested_value(self.metrics, ("final_metric",))
        parts = given if isinstance(given, dict) else {"value": given}
        value = finite_or_none(parts.get("value"))
        if value is None:
            return None
        name, goal = (
            None if parts.get(key) is None else str(parts[key]) for key in ("name", "goal")
        )
        return FinalMetric(name=name, value=value, goal=goal)

    def metric(self, *path: str) -> Any:
        """Return a raw value from metrics.json by its keys; None if a key is missing."""
        return nested_value(self.metrics, path)

    def metric_number(self, *path: str) -> float | None:
        """Return a number from metrics.json by its keys; None if it is missing or not a number."""
        return finite_or_none(nested_value(self.metrics, path))

    @property
    def validations(self) -> tuple[tuple[float, float], ...]:
        """(seconds on the program's train clock, metric) of the validations, sorted by time."""
        given = self.metrics.get("validations") if isinstance(self.metrics, Mapping) else None
        entries = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
        read = (
            (
                positive_or_none(nested_value(entry, ("elapsed_seconds",))),
                finite_or_none(nested_value(entry, ("value",))),
            )
            for entry in entries
        )
        return tuple(
            sorted((at, value) for at, value in read if at is not None and value is not None)
        )

    @property
    def failure_is_transient(self) -> bool:
        """True if a retry could succeed, as after a lack of capacity or a platform error."""
        return is_retryable(self.status, self.reason)


def is_retryable(status: str, reason: str | None) -> bool:
    """Return True if a retry of a job with this status and reason could succeed."""
    return status == "Failed" and (reason or "").startswith(_TRANSIENT_FAILURES)


def read_outcome(
    job: JobStatus,
    metrics: Mapping[str, Any] | None,
    log_tail: Sequence[str] = (),
    logged: Logged | None = None,
    **point: Any,
) -> JobOutcome:
    """Return the outcome of a job that has ended.

    Args:
        job: The status of the job.
        metrics: The contents of metrics.json, if any.
        log_tail: The last log lines of every node, "algo-N: text", in time order.
        logged: The measurements from the log.
        **point: nodes, repeat, attempt, the policies, and the planned world_size,
            global_batch_size, per_replica_batch_size and learning_rate. Batch sizes and a learning
            rate that the program reports replace the planned ones. The world size is used only if
            the run confirms it; a run with a different world size counts as failed.
    """
    logged = logged or Logged()
    planned = {
        name: point[name] for name in ("world_size", *_REPORTED) if point.get(name) is not None
    }
    phases = job.phase_seconds
    not_observed = not_observed_reason(metrics)
    metrics = metrics if not_observed is None else None
    own = None if is_observed(metrics) else metrics
    train_seconds_by = _train_seconds_by(job, metrics, logged)
    status = job.state.capitalize()  # spelled as in reports
    environment = job.environment
    projection = project(own, logged.numbers, logged.steady_seconds)
    numbers = logged.numbers
    part = partial_run_steps(own, numbers)
    if part is not None:  # the time of a partial run is not a train time
        train_seconds_by = {} if projection is None else {"projected": projection.train_seconds}
        metrics = own = whole_run_metrics(own)
        numbers = {name: numbers[name] for name in ANY_PART if name in numbers}
    unprojected = None
    if projection is None and status == "Completed" and ASKED_BY in environment:
        unprojected = unprojected_reason(own, logged.numbers, environment.get(MOST_STEPS))
        if unprojected is not None:
            train_seconds_by = {}
    elif projection is None and status == "Completed" and part is not None:
        unprojected = partial_run_reason(part)
    elif status == "Completed" and lacks_own_clock(environment, train_seconds_by):
        train_seconds_by, unprojected = {}, NO_OWN_CLOCK
    reason, kind = job.reason, job.platform_kind
    # Values that the program logs replace observed ones.
    confirming = own if logged.world_sizes else metrics
    world, wrong_world = _world_size(confirming, logged, planned.get("world_size"), point["nodes"])
    if kind == "simulated":  # nothing ran, so nothing can confirm or contradict the plan
        world, wrong_world = world or planned.get("world_size"), None
    if status == "Completed" and wrong_world is not None:
        status, reason = "Failed", wrong_world
    ranks, rest = divmod(planned.get("world_size") or 0, point["nodes"])
    failure = read_failure(
        reason, log_tail, status == "Failed", point["nodes"], None if rest else ranks
    )
    clock = next(iter(train_seconds_by), None)
    return JobOutcome(
        job_name=job.name,
        status=status,
        platform_kind=kind,
        instance_type=job.instance_type,
        reason=name_host(reason, failure.host) if job.nodes != 1 else reason,
        log_tail=failure.lines,
        failed_host=failure.host,
        other_log_tail=failure.other_lines,
        failed_rank=failure.rank,
        program_error=failure.error,
        clocks=Clocks(
            submit_to_end_seconds=positive_or_none(job.seconds_to_end),
            billable_seconds=positive_or_none(job.billable_seconds),
            train_seconds=None if clock is None else train_seconds_by[clock],
            steady_step_seconds=positive_or_none(
                nested_value(
                    own if "steady_step_seconds" in numbers else metrics, ("steady", "step_seconds")
                )
            ),
        ),
        train_clock=clock,
        train_seconds_by=train_seconds_by,
        logged=numbers,
        projection=projection,
        unprojected=unprojected,
        not_observed=not_observed,
        cut_numbers=logged.cut,
        unmatched_metrics=() if kind == "simulated" else logged.unmatched,
        phases=phases,
        isolation=job.isolation,
        launch_path_only=job.launch_path_only,
        metrics=metrics,
        created_at=None if job.created_at is None else job.created_at.isoformat(),
        planned=planned,
        image_uri=job.image_uri,
        region=job.region,
        cluster=job.cluster,
        launcher=_text(nested_value(metrics, ("world", "launcher"))),
        output_uri=job.output_uri,
        spot=job.spot,
        billing=job.billing,
        training_time_seconds=positive_or_none(job.training_seconds),
        keep_alive=bool(job.keep_alive_seconds),
        starts=max(1, sum(visit.phase == TRAINING_PHASE for visit in job.visits)),
        around_seconds=_around_seconds(job, own),
        **kept_node_facts(job),
        **{**point, **_reported(metrics), "world_size": world},
    )


def _reported(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the batch sizes and learning rate that the program reports, by name.

    Batch sizes that are not whole numbers are ignored.
    """
    found = {
        name: positive_or_none(nested_value(metrics, path)) for name, path in _REPORTED.items()
    }
    rate = {"learning_rate": found.pop("learning_rate")}
    whole = {
        name: int(value)
        for name, value in found.items()
        if value is not None and value.is_integer()
    }
    return {**whole, **{name: value for name, value in rate.items() if value is not None}}


def _world_size(
    metrics: Mapping[str, Any] | None, logged: Logged, planned: int | None, nodes: int
) -> tuple[int | None, str | None]:
    """Return (number of processes that the run confirmed, error if it contradicts the plan).

    A plan alone proves nothing, because nodes that never connected look like a job that does not
    scale. Only a job that was planned with one process needs no confirmation.
    """
    written = positive_or_none(nested_value(metrics, ("world", "world_size")))
    in_file = [int(written)] if written is not None and written.is_integer() else []
    said = {FILE: in_file, LOG: sorted(logged.world_sizes)}
    wrong = None if planned is None else contradiction(planned, nodes, said)
    known = [number for numbers in said.values() for number in numbers if number != planned]
    known += [number for numbers in said.values() for number in numbers]
    return (known[0] if known else 1 if planned == 1 else None), wrong


def kept_node_facts(job: JobStatus) -> dict[str, Any]:
    """Return the fields of a JobOutcome that describe the kept nodes of a job.

    They can still change after the job has ended.
    """
    return {
        "retained_billable_seconds": finite_or_none(job.retained_seconds),
        "reused_by_job": job.reused_by,
    }


def _around_seconds(job: JobStatus, metrics: Mapping[str, Any] | None) -> float | None:
    """Return the billed seconds before the program first started and after it last stopped.

    Return None if one of these times is unknown, as after a restart without a checkpoint.
    """
    start, stop = (
        positive_or_none(nested_value(metrics, (name,)))
        for name in ("run_start_unix_seconds", "run_stop_unix_seconds")
    )
    began, ended = job.billing_began_at, job.billing_ended_at
    left = next((visit.end for visit in job.visits if visit.phase == TRAINING_PHASE), None)
    if start is None or stop is None or began is None or ended is None or left is None:
        return None
    if start > left.timestamp() + 1:  # the platform reports whole seconds
        return None
    before, after = start - began.timestamp(), ended.timestamp() - stop
    return before + after if min(before, after) >= -1 else None


def _train_seconds_by(
    job: JobStatus, metrics: Mapping[str, Any] | None, logged: Logged
) -> dict[TrainClock, float]:
    """Return the train time from every known source, the best one first.

    Times from the Training phase of the platform are used only for completed jobs.
    """
    in_file = positive_or_none(nested_value(metrics, ("train_seconds",)))
    times: dict[TrainClock, float | None] = {
        "program": None if is_observed(metrics) else in_file,
        "logged": positive_or_none(logged.numbers.get("train_seconds")),
        "observed": in_file if is_observed(metrics) else None,
    }
    if job.completed:
        times["phase_from_start_line"] = _phase_from(job, logged.start_unix_seconds)
        times["phase_from_first_step"] = _phase_from(job, logged.first_step_unix_seconds)
        times["training_phase"] = positive_or_none(job.phase_seconds.get(TRAINING_PHASE))
    if ASKED_BY in job.environment:
        # a probe that ran all its steps needs no projection
        times["projected"] = times["program"] or times["logged"]
    return {clock: seconds for clock, seconds in times.items() if seconds is not None}


def _phase_from(job: JobStatus, start_unix_seconds: float | None) -> float | None:
    """Return the seconds from `start_unix_seconds` to the end of the Training phase.

    Return None unless there is exactly one such phase and the start lies within it.
    """
    visits = [
        (visit.start.timestamp(), visit.end.timestamp())
        for visit in job.visits
        if visit.phase == TRAINING_PHASE and visit.start is not None and visit.end is not None
    ]
    if start_unix_seconds is None or len(visits) != 1:
        return None
    [(began, ended)] = visits
    return ended - start_unix_seconds if began <= start_unix_seconds < ended else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
