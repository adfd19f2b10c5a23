"""Backend-neutral models of a job to run and of its status.

A launcher (nodesweep/launch) takes a JobSpec and reports a JobStatus. The queue, the budget and the
outcomes use these models instead of a backend's own requests and responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from nodesweep.configs.dataset import DatasetConfig
    from nodesweep.configs.platform import PlatformConfig
    from nodesweep.configs.training import Scalar, TrainingConfig

PlatformKind = Literal["aws", "emulated", "simulated", "measured", "slurm"]
"""The kind of platform; `measured` stands for a user's table of times from unknown machines."""
Retention = Literal["available", "in_use", "over"]
"""State of the nodes that are kept after a job: waiting for the next job, in use, or released."""
JobState = Literal["running", "stopping", "completed", "failed", "stopped"]
"""State of a job; `running` includes the wait for nodes, and the last three are final."""
FINAL_STATES: frozenset[JobState] = frozenset({"completed", "failed", "stopped"})
OVER_TIME = "MaxRuntimeExceeded"
"""Prefix of the `reason` of a job that was stopped at its runtime limit."""
TRAINING_PHASE = "Training"
"""Name of the phase in which the program runs; backends choose the names of the other phases."""


@dataclass(frozen=True)
class ResolvedInputs:
    """The results of earlier stages that a job needs, in addition to its config and its point.

    `dataset_uri` is None if the config has no dataset. `dataset_folders` are the folders below it
    that become channels if dataset.channel is null.
    """

    sweep_id: str
    image_uri: str
    dataset_uri: str | None
    source_uri: str | None = None
    dataset_folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobSpec:
    """A job to run; its name is computed from the other fields, so equal specs are the same job.

    Attributes:
        name: the job's name; empty while it is being computed.
        digest: digest of the backend's request, computed without the job's name.
        nodes: number of nodes.
        repeat: number of the repeat, from 1.
        attempt: number of the attempt at this repeat, from 1.
        inputs: the sweep with its image, code and data.
        training: the config's `training` section for the job's arm.
        dataset: the config's `dataset` section; None without a dataset.
        hyperparameters: the program's arguments.
        variables: nodesweep's environment variables, in addition to training.environment.
        platform: the config's `platform` section for the job's arm; None: the launcher's settings.
    """

    name: str
    digest: str
    nodes: int
    repeat: int
    attempt: int
    inputs: ResolvedInputs
    training: TrainingConfig = field(repr=False)
    dataset: DatasetConfig | None = field(repr=False)
    hyperparameters: Mapping[str, Scalar] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    platform: PlatformConfig | None = field(default=None, repr=False)

    @property
    def instance_type(self) -> str:
        """Type of the nodes."""
        return self.training.instance_type


Render = Callable[[JobSpec], Mapping[str, Any]]
"""A function that returns the backend's request for a spec.

If the spec has no name, nothing in the request identifies the job, so all attempts at a point have
equal requests.
"""


class LogLine(NamedTuple):
    """A line of one node's log, and the time at which the platform received it."""

    unix_milliseconds: int
    host: str
    text: str

    @property
    def at(self) -> str:
        """The time in UTC as ISO 8601 with milliseconds."""
        moment = datetime.fromtimestamp(self.unix_milliseconds / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class PhaseVisit(NamedTuple):
    """A period that the job spent in a phase; `end` is None while it lasts."""

    phase: str
    start: datetime | None
    end: datetime | None


@dataclass(frozen=True)
class JobStatus:
    """The status of a job as its backend last reported it; most fields can be unknown.

    Attributes:
        name: the job's name.
        state: the job's state.
        phase: the backend's name for what the job is doing, shown to users.
        message: the backend's message about the phase; None if there is none.
        reason: why the job failed, or why it was stopped or abandoned.
        exit_message: the program's own failure message, if the backend reports it.
        created_at: when the backend accepted the job; None just after its submission.
        started_at: when the job began to run; its runtime counts from here.
        changed_at: when the job last changed.
        ended_at: when the job reached its final state.
        billing_began_at: start of the billed time.
        billing_ended_at: end of the billed time.
        billable_seconds: billed seconds of each node, if the backend reports them.
        training_seconds: seconds of training, excluding interruptions, as reported by the backend.
        billing: billing weight of the job's resources on a cluster; None if there is none.
        nodes: number of nodes.
        instance_type: type of the nodes.
        keep_alive_seconds: how long the nodes are kept, and billed, after the end.
        retained_seconds: how long they have been kept so far; final once `retention` is `over`.
        retention: state of the kept nodes; None if no kept nodes are known.
        reused_by: the job that took over the kept nodes.
        spot: True if the nodes are spot capacity.
        visits: the phases that the job went through, in order, excluding the final state.
        isolation: how the platform isolated emulated or shared nodes.
        launch_path_only: why the job's time on an emulated platform is not a valid measurement.
        platform_kind: the kind of platform.
        region: the region.
        cluster: name of the Slurm cluster; None elsewhere.
        image_uri: the container image.
        output_uri: where the job's output is, or will be.
        environment: the program's environment variables.
        metric_definitions: regular expressions that the backend searches the log for, by metric.
        final_metrics: the last value found for each metric.
    """

    name: str
    state: JobState
    phase: str = ""
    message: str | None = None
    reason: str | None = None
    exit_message: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    changed_at: datetime | None = None
    ended_at: datetime | None = None
    billing_began_at: datetime | None = None
    billing_ended_at: datetime | None = None
    billable_seconds: float | None = None
    training_seconds: float | None = None
    billing: float | None = None
    nodes: int = 1
    instance_type: str | None = None
    keep_alive_seconds: float = 0.0
    retained_seconds: float | None = None
    retention: Retention | None = None
    reused_by: str | None = None
    spot: bool = False
    visits: tuple[PhaseVisit, ...] = ()
    isolation: str | None = None
    launch_path_only: str | None = None
    platform_kind: PlatformKind = "aws"
    region: str | None = None
    cluster: str | None = None
    image_uri: str | None = None
    output_uri: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    metric_definitions: Mapping[str, str] = field(default_factory=dict)
    final_metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """True if the state is final."""
        return self.state in FINAL_STATES

    @property
    def completed(self) -> bool:
        """True if the job completed."""
        return self.state == "completed"

    @property
    def phase_seconds(self) -> dict[str, float]:
        """The seconds per phase, excluding visits still in progress."""
        seconds: dict[str, float] = {}
        for visit in self.visits:
            if visit.start is not None and visit.end is not None:
                stay = (visit.end - visit.start).total_seconds()
                seconds[visit.phase] = seconds.get(visit.phase, 0.0) + stay
        return seconds

    @property
    def seconds_to_end(self) -> float | None:
        """Seconds from the creation of the job to its end, or to its last change until it ends.

        Both times are from the backend's clock.
        """
        end = self.ended_at or self.changed_at
        if end is None or self.created_at is None:
            return None
        return (end - self.created_at).total_seconds()

    @property
    def billed_seconds(self) -> float | None:
        """Billed seconds of each node; None until the job has ended, or if that time is unknown.

        If the backend reports no billable seconds, the job is billed from `billing_began_at` to
        `billing_ended_at`. A job that ended before its nodes started costs nothing.
        """
        if not self.has_ended:
            return None
        if self.billable_seconds is not None:
            return float(self.billable_seconds)
        if self.billing_began_at is None:
            return 0.0
        if self.billing_ended_at is None:
            return None
        return (self.billing_ended_at - self.billing_began_at).total_seconds()

    @property
    def billed_node_seconds(self) -> float | None:
        """Billed seconds of all nodes, kept nodes included; None if `billed_seconds` is None.

        Until the retained time is final, kept nodes count for their whole keep-alive period.
        """
        if (billed := self.billed_seconds) is None:
            return None
        period = 0.0 if self.retention == "over" else self.keep_alive_seconds
        return float(self.nodes * (billed + max(self.retained_seconds or 0.0, period)))
