"""The typed form of report.json; docs/report.schema.json is generated from it.

python -m nodesweep.scaling.report.schema > docs/report.schema.json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.cost import RunCosts
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.speedup import Baseline, SummaryRow
from nodesweep.scaling.design.base import Check, JobKind, validates
from nodesweep.scaling.fits.models import Fits
from nodesweep.scaling.instances.model import InstanceComparison
from nodesweep.scaling.outcome.outcome import Clocks, PlatformKind, TrainClock
from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.report_part import Part

SCHEMA_VERSION: Literal[2] = 2
Start = Literal["cold", "warm", "mixed"]


class PlatformFacts(Part):
    """Where the points ran."""

    kind: PlatformKind = Field(
        description=(
            "aws: real instances; emulated: real training on shares of one machine; "
            "simulated: no training ran; measured: the times were given as a table."
        )
    )
    isolation: str | None = Field(
        description="How emulated nodes were kept apart; null on real instances."
    )
    instance_type: str | None = Field(description="Instance type of every node; null: not known.")


class Conditions(Part):
    """The conditions of a sweep; two sweeps compare only if these are equal.

    Null: unknown.
    """

    platform: PlatformKind = Field(description="Kind of platform.")
    instance_type: str | None = Field(description="Instance type of every node.")
    region: str | None = Field(description="AWS region.")
    image_uri: str | None = Field(description="Training image, by digest.")
    dataset_digest: str | None = Field(description="Content digest of the dataset.")
    launcher: str | None = Field(
        description="plain, torchrun, mpi as the program reported it; several: joined by +."
    )
    batch_policy: str | None = Field(description="fixed_global or fixed_per_replica.")
    learning_rate_rule: str | None = Field(description="none, linear or sqrt.")
    start: Start | None = Field(
        description="cold: new instances; warm: from a warm pool; mixed: both in one sweep."
    )
    train_clock: TrainClock | None = Field(description="The clock that train times are on.")


class SweepCosts(Part):
    """The cost of the whole sweep, failed attempts included."""

    spent_usd: float | None = Field(
        description="Sum over the attempts whose cost is known; null: of none."
    )
    warm_pool_usd: float | None = Field(
        description="Warm pools kept after jobs, on top; null: none was reported."
    )
    validation_usd: float | None = Field(
        default=None,
        exclude_if=lambda usd: usd is None,
        description=(
            "The Spark job that validated the dataset, on top. Not there: none did, or its price"
            " is not known."
        ),
    )
    attempts_without_cost: int = Field(
        description="Attempts whose billed time or price is not known."
    )
    attempts_with_given_cost: int = Field(
        default=0, description="Attempts whose cost a table gave."
    )


class SteadyWindow(Part):
    """The window that steady_step_seconds is the median of."""

    steps: int | None = Field(description="Optimiser steps in the window.")
    seconds: float | None = Field(description="Its length.")
    short_window: bool | None = Field(description="True: under 100 steps and under 60 s.")


class SampleCounts(Part):
    """Samples of the whole run over all processes."""

    requested: int | None = Field(description="Samples the run was to process.")
    processed: int | None = Field(description="Samples it did process.")
    padded: int | None = Field(description="Samples seen twice to fill the last batch.")
    dropped: int | None = Field(description="Samples left out for the same reason.")


class DeviceFacts(Part):
    """The device that a process trained on."""

    type: str | None = Field(description="cpu, cuda or another torch device type.")
    name: str | None = Field(description="Model of the device.")
    count_per_node: int | None = Field(description="Devices per node.")
    cpu_quota_cores: float | None = Field(
        description="CPU quota in force at the start of training; null: none."
    )
    threads: int | None = Field(description="Compute threads per process.")


class Point(Part):
    """One attempt at one point, kept whether it completed or not."""

    nodes: int = Field(description="N, nodes of the job.")
    repeat: int = Field(description="Which repeat of this node count, from 1.")
    attempt: int = Field(description="Which attempt at this repeat, from 1.")
    job_name: str = Field(
        description="Training job, or the line of the table the numbers were given in."
    )
    kind: JobKind = Field(
        default="run",
        exclude_if=lambda kind: kind == "run",
        description=(
            "Of a probe sweep. probe: it may end itself early; check: a whole run, compared with"
            " what is projected at its count. Not there: a whole run of another design."
        ),
    )
    status: str = Field(description="Completed, Failed or Stopped.")
    used: bool = Field(
        description=(
            "Whether the summary is made of it: completed, with a time on the summary's clock."
        )
    )
    reason: str | None = Field(description="Why it did not complete; null where it did.")
    failed_host: str | None = Field(
        default=None,
        description=(
            "Node that failed first, by the reason, else by the logs; null: none, or not known."
        ),
    )
    log_tail: tuple[str, ...] = Field(
        description=(
            "Last lines that the program of one that did not complete wrote, on the node that"
            " failed first if that is known; the toolkit's and torchrun's own are left out."
        )
    )
    other_log_tail: tuple[str, ...] = Field(
        default=(), description="Last lines of its other nodes."
    )
    failed_rank: int | None = Field(
        default=None,
        description="Rank that failed first, as torchrun names it; null: none, or not known.",
    )
    program_error: ProgramError | None = Field(
        default=None, description="null where no log tells of an error."
    )
    created_at: str | None = Field(description="ISO time the platform accepted the job.")
    instance_type: str | None = Field(description="Instance type of its nodes.")
    isolation: str | None = Field(description="How its emulated nodes were kept apart.")
    clocks: Clocks
    train_clock: TrainClock | None = Field(
        description=(
            "The best source known. program: metrics.json; logged: train_seconds of the program's"
            " log; phase_from_start_line, phase_from_first_step, training_phase: the platform's"
            " Training phase, from a line of the log on or whole; measured: as given; throughput:"
            " seconds per sample of a given rate."
        )
    )
    train_seconds_by: Mapping[str, float] = Field(
        default={},
        description=(
            "The train time by every source of a job that is known; keys as in `train_clock`."
        ),
    )
    logged: Mapping[str, float] = Field(
        default={},
        description=(
            "What the program's log says, by name: train_seconds, final_metric and the like."
        ),
    )
    spot: bool = Field(description="Ran on spot capacity; such runs never make the headline.")
    interruptions: int | None = Field(
        default=None,
        description=(
            "Times a spot job lost its nodes and went on from a checkpoint; null: not reported."
        ),
    )
    launch_path_only: str | None = Field(
        description="Why its time is no measurement: a library that was not there."
    )
    start: Literal["cold", "warm"] | None = Field(
        description="On new instances, or from a warm pool; null: not known."
    )
    launcher: str | None = Field(
        description="What started the processes, as the program reported it."
    )
    output_uri: str | None = Field(description="Where the job's raw result, metrics.json, lies.")
    phases: Mapping[str, float] = Field(description="Seconds in each secondary status.")
    world_size: int | None = Field(
        description=(
            "Processes over all nodes, as metrics.json or the log confirmed them;"
            " null: not confirmed."
        )
    )
    global_batch_size: int | None = Field(
        description="Samples per optimiser step over all processes."
    )
    per_replica_batch_size: int | None = Field(description="Samples per process and (micro-)step.")
    learning_rate: float | None = Field(description="Learning rate of this point.")
    planned: Mapping[str, float] = Field(
        description="What the job was asked for, by the name of the fields above."
    )
    epochs: float | None = Field(description="Epochs trained.")
    final_metric: FinalMetric | None = Field(description="Validation metric at the end.")
    seconds_to_target: float | None = Field(
        description="Train seconds until the target metric was reached."
    )
    data_wait_share: float | None = Field(
        description="Share of train time spent waiting for data, 0 to 1."
    )
    steady: SteadyWindow | None
    samples: SampleCounts | None
    device: DeviceFacts | None
    utilisation: Mapping[str, float] = Field(
        description=(
            "Mean CloudWatch utilisation over all nodes while the job ran, in percent: cpu_percent"
            " (100 per core), memory_percent, gpu_percent (100 per GPU), gpu_memory_percent (100"
            " per GPU), disk_percent. Empty: none. Of emulated nodes with a CPU quota also, while"
            " they measured: attained_percent, what the node that got least used of the CPU it"
            " asked for; quota_used_percent, CPU time of quota x time; throttled_percent, periods"
            " that used up the quota; run_queue_delay_percent, time ready to run with quota left,"
            " over all threads; cpu_speed_percent, of 1 GB of BLAKE2b hashed in a CPU second. Of"
            " several emulated nodes also connected_percent, samples of a node in which its program"
            " had a connection to another node."
        )
    )
    projection: Projection | None = Field(
        default=None,
        exclude_if=lambda projection: projection is None,
        description=(
            "Of a job that ended itself early, the whole run that it foretells: its train time is"
            " projected, its other clocks and its cost are measured. Not there: it was a whole run."
        ),
    )
    costs: RunCosts
    cost_is_given: bool = Field(
        description="The run's cost was given by a table, not computed from time and price."
    )

    @property
    def is_check(self) -> bool:
        """True for a whole run that validates what is projected."""
        return validates(self.kind)

    def seconds_on(self, clock: TrainClock | None) -> float | None:
        """Return the train time on the clock of a summary; None if that does not use the run."""
        if not self.used:
            return None
        if self.train_clock == clock:
            return self.clocks.train_seconds
        return self.train_seconds_by.get(clock or "", self.phases.get("Training"))


class ScalingReport(Part):
    """The meaning of one sweep's outcomes, or of one table of times."""

    schema_version: Literal[2] = Field(
        default=SCHEMA_VERSION, description="Grows when a field changes its meaning."
    )
    sweep_id: str
    title: str = Field(description="Heading of the rendered report.")
    generated_at: str = Field(description="ISO time in UTC.")
    headline: str = Field(description="The result in one sentence.")
    platform: PlatformFacts
    policy: str | None = Field(
        description="Batch policy: fixed_global or fixed_per_replica; null: not known."
    )
    policy_label: str = Field(
        description="What the policy makes of the curve: strong or throughput scaling."
    )
    train_clock: TrainClock | None = Field(
        description="The one clock that every T and S in `summary` is on."
    )
    ratio_intervals: Literal["paired", "bootstrap"] = Field(
        default="bootstrap",
        description=(
            "How the intervals of S, E and D are made. paired: by repeat, since the plan shuffles"
            " the node counts within each; bootstrap: of both sides by themselves."
        ),
    )
    baseline: Baseline | None = Field(description="null where nothing completed.")
    summary: tuple[SummaryRow, ...] = Field(description="One row per node count, ascending.")
    points: tuple[Point, ...] = Field(
        description="Every attempt, in order of nodes, repeat and attempt."
    )
    price: Price
    costs: SweepCosts
    conditions: Conditions
    pareto: tuple[int, ...] = Field(
        description="Node counts that no other beats on both train time and run cost."
    )
    recommendation: Recommendation | None = Field(
        description=(
            "null where fewer than two node counts completed,"
            " or no program gave a train time of its own."
        )
    )
    check: Check | None = Field(
        default=None,
        exclude_if=lambda check: check is None,
        description=(
            "Of a probe sweep, the whole run at the count that is recommended; not there: none."
        ),
    )
    other_checks: tuple[Check, ...] = Field(
        default=(),
        exclude_if=lambda checks: not checks,
        description=(
            "Whole runs that checked other counts, before the answer moved; not there: none."
        ),
    )
    instances: InstanceComparison | None = Field(
        default=None,
        exclude_if=lambda comparison: comparison is None,
        description=(
            "Of a sweep of several instance types, all of them side by side; the rest of the report"
            " is about its `main` one, but for headline, caveats and costs. Not there: one type."
        ),
    )
    other_points: tuple[Point, ...] = Field(
        default=(),
        exclude_if=lambda points: not points,
        description="The attempts on the other instance types; not there: one type.",
    )
    fits: Fits = Field(description="Scaling laws fitted to the node-time, with their verdicts.")
    caveats: tuple[str, ...] = Field(description="What limits these numbers; only what applies.")
    config: Mapping[str, Any] | None = Field(
        description="The benchmark's config as it was resolved; null for a table."
    )
    provenance: Mapping[str, Any] = Field(
        description="Digests, versions, region and the like, as the run gave them."
    )

    @field_validator("config")
    @classmethod
    def _has_sections(cls, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Refuse entries that are no mapping, which a comparison would read as empty."""
        for section in ("training", "dataset"):
            if config is not None and not isinstance(config.get(section, {}), Mapping | None):
                raise ValueError(
                    f"{section} is a {type(config[section]).__name__}; expected its fields by name"
                )
        return config

    def train_seconds(self, point: Point) -> float | None:
        """Return a point's train time on the clock of the summary; None if it is not used."""
        return point.seconds_on(self.train_clock)

    def train_seconds_by_nodes(self) -> dict[int, list[float]]:
        """Return the train times of the used runs by node count, on the clock of the summary."""
        times: dict[int, list[float]] = {}
        for point in self.points:
            if (seconds := self.train_seconds(point)) is not None:
                times.setdefault(point.nodes, []).append(seconds)
        return times
