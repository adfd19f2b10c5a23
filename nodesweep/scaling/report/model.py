"""The typed form of report.json, from which report/schema.py generates docs/report.schema.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.cost import RunCosts
from nodesweep.scaling.analysis.goodput import Goodput
from nodesweep.scaling.analysis.hour_value import HourValueRange
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.quality_target import QualityTarget
from nodesweep.scaling.analysis.remedies import Remedies
from nodesweep.scaling.analysis.speedup import Baseline, SummaryRow
from nodesweep.scaling.analysis.step_budget import MissingParts, StepBudget
from nodesweep.scaling.design.base import Check, JobKind, validates
from nodesweep.scaling.fits.models import Fits
from nodesweep.scaling.instances.model import InstanceComparison
from nodesweep.scaling.outcome.outcome import Clocks, PlatformKind, TrainClock
from nodesweep.scaling.outcome.program_error import ProgramError
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.report.predictions.model import Predictions
from nodesweep.scaling.report_part import Part

SCHEMA_VERSION: Literal[2] = 2
Start = Literal["cold", "warm", "mixed"]


class PlatformFacts(Part):
    """The platform that the points ran on."""

    kind: PlatformKind = Field(
        description=(
            "aws: real instances; emulated: real training on shares of one machine; simulated: "
            "no training ran; measured: times from a table; slurm: nodes of a Slurm cluster."
        )
    )
    isolation: str | None = Field(
        description=(
            "How emulated nodes are isolated from each other, or a cluster's nodes from other "
            "jobs; null on real instances."
        )
    )
    instance_type: str | None = Field(description="Instance type of every node; null: unknown.")
    cluster: str | None = Field(
        default=None,
        exclude_if=lambda name: name is None,
        description="Name of the Slurm cluster; absent elsewhere.",
    )


class Conditions(Part):
    """The conditions of a sweep; unknown conditions are null.

    Two sweeps are comparable only if their conditions are equal.
    """

    platform: PlatformKind = Field(description="Kind of platform.")
    instance_type: str | None = Field(description="Instance type of every node.")
    region: str | None = Field(description="AWS region, or name of the cluster.")
    image_uri: str | None = Field(description="Training image, by digest.")
    dataset_digest: str | None = Field(description="Content digest of the dataset.")
    launcher: str | None = Field(
        description="plain, torchrun or mpi, as the program reported it; several are joined by +."
    )
    batch_policy: str | None = Field(description="fixed_global or fixed_per_replica.")
    learning_rate_rule: str | None = Field(description="none, linear or sqrt.")
    start: Start | None = Field(
        description="cold: new instances; warm: from a warm pool; mixed: both in one sweep."
    )
    train_clock: TrainClock | None = Field(description="Clock of the train times.")


class SweepCosts(Part):
    """The cost of the whole sweep, including failed attempts."""

    spent_usd: float | None = Field(
        description="Sum over the attempts with a known cost; null: none."
    )
    warm_pool_usd: float | None = Field(
        description="Additional cost of warm pools kept after jobs; null: none was reported."
    )
    validation_usd: float | None = Field(
        default=None,
        exclude_if=lambda usd: usd is None,
        description=(
            "Additional cost of the Spark job that validated the dataset. Absent: there was "
            "none, or its price is unknown."
        ),
    )
    attempts_without_cost: int = Field(description="Attempts with an unknown billed time or price.")
    attempts_with_given_cost: int = Field(
        default=0, description="Attempts whose cost was read from a table."
    )
    goodput: Goodput | None = Field(
        default=None,
        exclude_if=lambda goodput: goodput is None,
        description="Where the billed time of all attempts went; absent: it is unknown.",
    )


class SteadyWindow(Part):
    """The window over which steady_step_seconds is the median step time."""

    steps: int | None = Field(description="Optimizer steps in the window.")
    seconds: float | None = Field(description="Length of the window, seconds.")
    short_window: bool | None = Field(
        description=("True if the window has under 100 steps and under 60 s.")
    )


class SampleCounts(Part):
    """The samples of a run, over all processes."""

    requested: int | None = Field(description="Samples that the run was configured to process.")
    processed: int | None = Field(description="Samples that it processed.")
    padded: int | None = Field(description="Samples repeated to fill the last batch.")
    dropped: int | None = Field(description="Samples dropped because they did not fill a batch.")


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
    """An attempt at a point, whether it completed or not."""

    nodes: int = Field(description="N, nodes of the job.")
    repeat: int = Field(description="Repeat of this node count, from 1.")
    attempt: int = Field(description="Attempt at this repeat, from 1.")
    job_name: str = Field(
        description="Training job, or the line of the table that the numbers are from."
    )
    kind: JobKind = Field(
        default="run",
        exclude_if=lambda kind: kind == "run",
        description=(
            "In a probe sweep: probe: a run that can finish early; check: a validation run, which "
            "is a full run that is compared with the projection at its node count. Absent: a full "
            "run of a different design."
        ),
    )
    status: str = Field(description="Completed, Failed or Stopped.")
    used: bool = Field(
        description=("True if the summary uses it: completed, with a time on the summary's clock.")
    )
    reason: str | None = Field(description="Why it did not complete; null if it did.")
    failed_host: str | None = Field(
        default=None,
        description=(
            "Node that failed first, from `reason` or, if it names none or the job ran under "
            "mpirun, from the logs; null: none or unknown."
        ),
    )
    log_tail: tuple[str, ...] = Field(
        description=(
            "If it did not complete, the last lines that its program wrote, on the node that "
            "failed first if known; lines of the toolkit and of torchrun are excluded."
        )
    )
    other_log_tail: tuple[str, ...] = Field(
        default=(), description="If it did not complete, the last lines of the other nodes."
    )
    failed_rank: int | None = Field(
        default=None,
        description=(
            "Rank that failed first, according to torchrun or mpirun; null: none or unknown."
        ),
    )
    program_error: ProgramError | None = Field(
        default=None, description="The program's error; null if no log reports one."
    )
    created_at: str | None = Field(description="ISO time at which the platform accepted the job.")
    instance_type: str | None = Field(description="Instance type of its nodes.")
    isolation: str | None = Field(description="Isolation of its emulated nodes from each other.")
    clocks: Clocks
    train_clock: TrainClock | None = Field(
        description=(
            "The best available source of the train time. projected: from a probe; program: "
            "metrics.json; logged: train_seconds from the program's log; observed: from the first "
            "request for data to the last optimizer step of a program that reports no time; "
            "phase_from_start_line, phase_from_first_step: the platform's Training phase from that "
            "log line on; training_phase: the whole phase; measured: the time in a table; "
            "throughput: seconds per sample, from the rate in a table."
        )
    )
    train_seconds_by: Mapping[str, float] = Field(
        default={},
        description=("The train time from each known source, keyed as in `train_clock`."),
    )
    logged: Mapping[str, float] = Field(
        default={},
        description=(
            "Values from the program's log by name: train_seconds, final_metric and the like."
        ),
    )
    spot: bool = Field(
        description=("True if it ran on spot capacity; such runs never count toward the headline.")
    )
    interruptions: int | None = Field(
        default=None,
        description=(
            "Number of times that a spot job lost its nodes and resumed from a checkpoint; null if "
            "not reported."
        ),
    )
    launch_path_only: str | None = Field(
        description="Why its time is not a valid measurement, for example a missing library."
    )
    start: Literal["cold", "warm"] | None = Field(
        description="cold: on new instances; warm: from a warm pool; null: unknown."
    )
    launcher: str | None = Field(
        description="Launcher of the processes, as the program reported it."
    )
    output_uri: str | None = Field(description="Location of the job's raw result, metrics.json.")
    phases: Mapping[str, float] = Field(description="Seconds in each secondary status.")
    world_size: int | None = Field(
        description=(
            "Processes over all nodes, as confirmed by metrics.json or the log; null: unconfirmed."
        )
    )
    global_batch_size: int | None = Field(
        description="Samples per optimizer step over all processes."
    )
    per_replica_batch_size: int | None = Field(description="Samples per process and (micro-)step.")
    learning_rate: float | None = Field(description="Learning rate of this point.")
    planned: Mapping[str, float] = Field(
        description="Values that were requested for the job, by the names of the fields above."
    )
    epochs: float | None = Field(description="Epochs trained.")
    final_metric: FinalMetric | None = Field(description="Validation metric at the end.")
    seconds_to_target: float | None = Field(
        description="Train time until the target metric was reached."
    )
    data_wait_share: float | None = Field(
        description="Share of train time spent waiting for data, 0 to 1."
    )
    steady: SteadyWindow | None
    samples: SampleCounts | None
    device: DeviceFacts | None
    utilisation: Mapping[str, float] = Field(
        description=(
            "Mean CloudWatch utilization over all nodes while the job ran, in percent: "
            "cpu_percent (100 per core), memory_percent, gpu_percent (100 per GPU), "
            "gpu_memory_percent (100 per GPU), disk_percent. Empty if none were collected. "
            "Emulated nodes with a CPU quota add, for the duration of the measurement: "
            "attained_percent, share of the requested CPU on the most affected node; "
            "quota_used_percent, CPU time over quota x time; throttled_percent, periods that used "
            "up the quota; run_queue_delay_percent, time that threads were ready to run with quota "
            "left; cpu_speed_percent, 100 if a CPU second hashed 1 GB (BLAKE2b). Several emulated "
            "nodes add connected_percent, samples of a node in which its program had a connection "
            "to another node. On Slurm, from sacct: cpu_percent, and for nodes without GPUs "
            "allocated_cpu_percent, CPU time over allocated CPU time."
        )
    )
    projection: Projection | None = Field(
        default=None,
        exclude_if=lambda projection: projection is None,
        description=(
            "For a job that finished early, the projected full run: its train time is projected, "
            "but its other clocks and its cost are measured. Absent: it was a full run."
        ),
    )
    costs: RunCosts
    cost_is_given: bool = Field(
        description=(
            "True if the run's cost was read from a table instead of computed from time and price."
        )
    )
    goodput: Goodput | None = Field(
        default=None,
        exclude_if=lambda goodput: goodput is None,
        description="Where its billed time went; absent: the billed time is unknown.",
    )

    @property
    def is_validation_run(self) -> bool:
        """True for a full run that validates a projection."""
        return validates(self.kind)

    def seconds_on(self, clock: TrainClock | None) -> float | None:
        """Return the train time on a summary's clock; None if the summary does not use the run."""
        if not self.used:
            return None
        if self.train_clock == clock:
            return self.clocks.train_seconds
        return self.train_seconds_by.get(clock or "", self.phases.get("Training"))


class ScalingReport(Part):
    """The analysis of one sweep's outcomes, or of one table of times."""

    schema_version: Literal[2] = Field(
        default=SCHEMA_VERSION, description="Increases when a field changes its meaning."
    )
    sweep_id: str
    title: str = Field(description="Heading of the rendered report.")
    generated_at: str = Field(description="ISO time in UTC.")
    headline: str = Field(description="The result in one sentence.")
    platform: PlatformFacts
    policy: str | None = Field(
        description="Batch policy: fixed_global or fixed_per_replica; null: unknown."
    )
    policy_label: str = Field(
        description="Kind of curve under the policy: strong or throughput scaling."
    )
    train_clock: TrainClock | None = Field(description="The clock of every T and S in `summary`.")
    ratio_intervals: Literal["paired", "bootstrap"] = Field(
        default="bootstrap",
        description=(
            "Method for the intervals of S, E and D. paired: by repeat, because the plan shuffles "
            "the node counts within each repeat; bootstrap: from the runs at each node count "
            "separately, by Welch's t (older reports: by resampling)."
        ),
    )
    baseline: Baseline | None = Field(description="The baseline; null if nothing completed.")
    summary: tuple[SummaryRow, ...] = Field(description="One row per node count, ascending.")
    points: tuple[Point, ...] = Field(
        description="Every attempt, ordered by nodes, repeat and attempt."
    )
    price: Price
    costs: SweepCosts
    conditions: Conditions
    pareto: tuple[int, ...] = Field(
        description="Node counts that no other count beats on both time and cost of a result."
    )
    hour_values: tuple[HourValueRange, ...] = Field(
        default=(),
        exclude_if=lambda ranges: not ranges,
        description=(
            "For each node count, the values of an hour of waiting for which it has the least cost "
            "plus waiting, ascending. Absent if there are fewer than two node counts, if a run "
            "cost is unknown, if the times are rates or phases, or if the recommendation is "
            "withheld."
        ),
    )
    recommendation: Recommendation | None = Field(
        description=(
            "The recommendation; null if fewer than two node counts completed, if no program "
            "reported a train time, or if `prediction` has a recommendation."
        )
    )
    check: Check | None = Field(
        default=None,
        exclude_if=lambda check: check is None,
        description=(
            "In a probe sweep, the validation run at the recommended count; absent: none."
        ),
    )
    other_checks: tuple[Check, ...] = Field(
        default=(),
        exclude_if=lambda checks: not checks,
        description=(
            "Validation runs at other node counts: at the count whose rejection decides the "
            "recommendation, and from before the recommendation changed; absent: none."
        ),
    )
    instances: InstanceComparison | None = Field(
        default=None,
        exclude_if=lambda comparison: comparison is None,
        description=(
            "In a sweep of several instance types, the comparison of all of them; the rest of "
            "the report describes its `main` type, except for headline, caveats and costs. "
            "Absent: one type."
        ),
    )
    other_points: tuple[Point, ...] = Field(
        default=(),
        exclude_if=lambda points: not points,
        description="The attempts on the other instance types; absent: one type.",
    )
    step_budget: StepBudget | None = Field(
        default=None,
        exclude_if=lambda budget: budget is None,
        description=(
            "Where the train time goes, and the causes of lost efficiency; absent unless the "
            "shipped or an observed program ran on CPUs, in steps of 20 ms or more."
        ),
    )
    remedies: Remedies | None = Field(
        default=None,
        exclude_if=lambda remedies: remedies is None,
        description="Changes that would help, predicted from `step_budget`; absent without it.",
    )
    prediction: Predictions | None = Field(
        default=None,
        exclude_if=lambda prediction: prediction is None,
        description=(
            "With design predict, the predictions for node counts that were not measured, and a "
            "recommendation based on them; absent: nothing was predicted."
        ),
    )
    missing_parts: tuple[MissingParts, ...] = Field(
        default=(),
        exclude_if=lambda missing: not missing,
        description="Runs that are not in `step_budget`, with the reason; absent: none.",
    )
    sized_steps: int | None = Field(
        default=None,
        exclude_if=lambda steps: steps is None,
        description=(
            "Steps per job, derived from the first run under training.baseline_seconds; absent: "
            "the program or training.steps sets them."
        ),
    )
    quality_target: QualityTarget | None = Field(
        default=None,
        exclude_if=lambda target: target is None,
        description=(
            "Time to a quality target with a growing global batch, estimated from the noise of the "
            "gradients; absent if the batch does not grow or no run measured the noise."
        ),
    )
    fits: Fits = Field(description="Scaling laws fitted to the node-time, with their verdicts.")
    caveats: tuple[str, ...] = Field(description=("Limitations that apply to these numbers."))
    config: Mapping[str, Any] | None = Field(
        description="The benchmark's resolved config; null for a table."
    )
    provenance: Mapping[str, Any] = Field(
        description="Digests, versions, region and the like, as recorded by the run."
    )

    @field_validator("config")
    @classmethod
    def _has_sections(cls, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Refuse sections that are not mappings, because a comparison would treat them as empty."""
        for section in ("training", "dataset"):
            if config is not None and not isinstance(config.get(section, {}), Mapping | None):
                raise ValueError(
                    f"{section} is a {type(config[section]).__name__}; expected a mapping of its"
                    " fields"
                )
        return config

    @property
    def limits(self) -> Mapping[str, Any]:
        """Return the configured limits of the recommendation, by field of RecommendationConfig."""
        section = (self.config or {}).get("report")
        configured = section.get("recommendation") if isinstance(section, Mapping) else None
        # a report on a table or on runs has no config
        return configured or self.provenance.get("limits") or {}

    def train_seconds(self, point: Point) -> float | None:
        """Return the train time of a point on the summary's clock; None for unused points."""
        return point.seconds_on(self.train_clock)

    def train_seconds_by_nodes(self) -> dict[int, list[float]]:
        """Return the train times of the used runs by node count, on the clock of the summary."""
        times: dict[int, list[float]] = {}
        for point in self.points:
            if (seconds := self.train_seconds(point)) is not None:
                times.setdefault(point.nodes, []).append(seconds)
        return times
