"""What the API side of the local platform asks of an engine, and of an image builder.

The API side (SageMaker and CodeBuild: validation, status, S3, logs) knows no processes; an engine
knows no AWS API. `ProcessEngine` is the first engine: a node is a process tree. A container engine
implements the same two protocols.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class AccessKey:
    """One key pair, as AWS clients take it. `expires_at` is in unix seconds;
    None of both for a key that stays.
    """

    id: str
    secret: str
    session_token: str | None = None
    expires_at: float | None = None


@dataclass(frozen=True)
class ProcessingFiles:
    """What the nodes of a Processing job find below /opt/ml, where a training job has input/,
    model/ and code/.
    """

    config: Mapping[str, Any]
    """What config/processingjobconfig.json holds in each container."""
    folders: Sequence[str]
    """Those of its inputs and outputs, below /opt/ml."""


@dataclass(frozen=True)
class JobSpec:
    """One accepted CreateTrainingJob or CreateProcessingJob request, as far as its nodes need to
    know it.
    """

    job_name: str
    """Unique among the jobs of every kind."""
    job_arn: str
    region: str
    image_uri: str
    instance_type: str
    instance_count: int
    hyperparameters: Mapping[str, str]
    environment: Mapping[str, str]
    input_data_config: Sequence[Mapping[str, Any]] = ()
    """Request shape: [{ChannelName, DataSource: {S3DataSource: {...}}, ContentType?,
    InputMode?}].
    """
    checkpoint_config: Mapping[str, str] | None = None
    """Request shape: {S3Uri, LocalPath?}."""
    container_entrypoint: Sequence[str] = ()
    container_arguments: Sequence[str] = ()
    processing: ProcessingFiles | None = None
    """Of a Processing job; None for a training job."""

    @property
    def has_own_command(self) -> bool:
        """Whether the request says what its nodes run, instead of the image's `train`."""
        return bool(self.container_entrypoint or self.container_arguments)


@dataclass(frozen=True)
class Node:
    """One node of a job: its host name, its address and its own /opt/ml tree."""

    host: str  # algo-1 … algo-n
    address: str  # 198.18.x.y in a network of its own, 127.0.x.y on loopback
    opt_ml: (
        Path  # model, output, output/data, input/config, input/data/<channel>, code, checkpoints
    )
    file_systems: tuple[tuple[str, Path], ...] = ()
    """(channel, folder of this machine that it is a link to)."""


@dataclass(frozen=True)
class NodeExit:
    """How one node ended."""

    host: str
    exit_code: int  # as `train` gave it; -N when a signal N ended it
    ended_unix_seconds: float
    failure: str | None  # text of output/failure, None where the node left none
    stopped_by_platform: (
        bool  # ended because a peer failed, a stop was asked for, or the deadline passed
    )


@dataclass(frozen=True)
class NodeAttainment:
    """What a node got of the CPU that it asked for,
    while its job measured (docs/method.md, "Attainment").
    """

    seconds: float  # from `go` to `done`
    quota_seconds: float  # CPU time that its quota allowed in them
    cpu_seconds: float  # and that it used
    asked_seconds: float | None  # what it would have used on a machine of its own; None: not known
    # its threads ready to run, with quota left; None: not counted
    run_queue_delay_seconds: float | None
    # of the quota's periods, those that it used up; None: not counted
    throttled_share: float | None
    # bytes of BLAKE2b that a CPU second of the job's CPUs was worth; None: not known
    cpu_speed: float | None = None

    @property
    def share(self) -> float | None:
        """What it used of what it asked for, 0 to 1; None where that is not known."""
        if self.asked_seconds is None:
            return None
        return self.cpu_seconds / self.asked_seconds if self.asked_seconds > 0 else 1.0


@dataclass(frozen=True)
class RunResult:
    """How the run of all nodes ended. `failed_host` is the root cause,
    None when every node exited 0.
    """

    exits: Sequence[NodeExit]
    failed_host: str | None = None
    failure_reason: str | None = None  # "AlgorithmError: …", not yet cut to 1,024 characters
    stopped: bool = False  # the stop event was set
    timed_out: bool = False  # MaxRuntimeInSeconds passed
    attainment: Mapping[str, NodeAttainment] = field(default_factory=dict)
    """By host; empty where nodes had no quota, or never came to measure."""
    attainment_within: Callable[[float, float], Mapping[str, NodeAttainment]] | None = None
    """That of the part between two moments (Unix seconds), as far as it was looked at."""


@dataclass(frozen=True)
class NodeUsage:
    """What a running node has used of its machine.
    The CPU time may fall a little when processes end unnoticed.
    """

    cpu_seconds: float  # since its start
    memory_bytes: int  # now; pages shared between its processes count once for each
    vcpus: float  # what its instance type has
    is_connected: bool | None = None
    """True if its program has a connection to another node now; None: not known, or it is the only
    node.
    """


LineSink = Callable[[str, str, int], None]
"""(host, text without line end, unix milliseconds); called from several threads."""


class Engine(Protocol):
    """Runs the nodes of one job at a time, or of several at once
    where its backend has room for them.
    """

    def capacity_problem(self, instance_type: str, instance_count: int) -> str | None:
        """Why this machine can't hold that many nodes
        (the text after "CapacityError: "), or None.
        """

    def command_problem(self, entrypoint: Sequence[str], arguments: Sequence[str]) -> str | None:
        """Why nodes can't be started with a request's own entry point and arguments, or None.
        The text begins with the member's name.
        """

    def image_command_problem(self) -> str | None:
        """Why nodes can't be started with their image's own entry point, or None."""

    def isolation(self, instance_type: str) -> str:
        """One phrase for people and reports: "0.2 vCPU per node by cgroup v1 quota, 1 Gbit/s
        between nodes in networks of their own" or "not isolated (reason)".
        """

    def prepare(self, job: JobSpec) -> Sequence[Node]:
        """Make the nodes' /opt/ml trees and their input/config/*.json;
        channels' folders exist, still empty.
        """

    def turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> AbstractContextManager[bool]:
        """Hold the machine for the job; False where a stop or the deadline (monotonic) came first.

        `on_wait` is called once, where another platform's job has the machine.
        """

    def run(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        """Run `train` on every node until all have ended.
        Never leaves a process behind, whatever happens.
        """

    def kill_node(self, job: JobSpec, host: str) -> None:
        """SIGKILL every process of a running node, as a broken machine would end them;
        nothing where none runs.
        """

    def usage(self, job: JobSpec) -> Mapping[str, NodeUsage]:
        """Host -> what its processes use, for the nodes that run now."""

    def clean_up(self, job: JobSpec) -> None:
        """Remove the nodes' trees. Idempotent."""


class Room(Protocol):
    """What running jobs leave of the machine. A job takes its room before it begins,
    and gives it back in the end.
    """

    @property
    def most_jobs(self) -> int:
        """How many can run at once."""

    def fits(self, instance_type: str, instance_count: int) -> bool:
        """Whether such a job may run beside those that do."""

    def take(self, job_name: str, instance_type: str, instance_count: int) -> bool:
        """Take room for a job; False where it doesn't fit."""

    def give_back(self, job_name: str) -> None:
        """Nothing where it has none."""


@dataclass(frozen=True)
class BuiltImage:
    """An image in the local store. `digest` is content-derived and identical
    for identical inputs.
    """

    digest: str  # sha256:<64 hex>
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """What the manifest in ECR says of it."""


class ImageStore(Protocol):
    """Builds and keeps images. `repository:tag` and `repository@sha256:…` both resolve."""

    def build(
        self,
        context: Path,
        repository: str,
        tag: str,
        build_args: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
        deadline_seconds: float,
    ) -> BuiltImage:
        """Build `context` (a folder with a Dockerfile) and tag it. Raises ImageBuildError."""

    def resolve(self, image_uri: str) -> Path | None:
        """The image's folder for a full URI (…/repository:tag or …/repository@digest),
        or None if it isn't here.
        """

    def images(self) -> Sequence[tuple[str, str, str]]:
        """Every (repository, tag, digest) in the store:
        the ECR face is filled from it when the platform starts.
        """


class ImageBuildError(Exception):
    """A build failed. The message names the phase and carries the last lines of its output."""
