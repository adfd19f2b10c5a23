"""The interfaces between the local platform's API side, its engines and its image builders.

The API side (SageMaker and CodeBuild: validation, status, S3, logs) does not depend on processes,
and an engine does not call AWS APIs. `ProcessEngine` (a node is a process tree) and
`ContainerEngine` implement `Engine`.
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
    """An access key pair as AWS clients use it.

    `expires_at` is in Unix seconds. A permanent key has no expiry and no session token.
    """

    id: str
    secret: str
    session_token: str | None = None
    expires_at: float | None = None


@dataclass(frozen=True)
class ProcessingFiles:
    """The files below /opt/ml of a Processing job, which has no input/, model/ and code/ there."""

    config: Mapping[str, Any]
    """Content of config/processingjobconfig.json in each container."""
    folders: Sequence[str]
    """Folders of the job's inputs and outputs, below /opt/ml."""


@dataclass(frozen=True)
class JobSpec:
    """The part of an accepted CreateTrainingJob or CreateProcessingJob request that nodes need."""

    job_name: str
    """Identifier of the job, unique among jobs of all kinds."""
    job_arn: str
    region: str
    image_uri: str
    instance_type: str
    instance_count: int
    hyperparameters: Mapping[str, str]
    environment: Mapping[str, str]
    input_data_config: Sequence[Mapping[str, Any]] = ()
    """InputDataConfig of the request.

    [{ChannelName, DataSource: {S3DataSource: {...}}, ContentType?, InputMode?}]
    """
    checkpoint_config: Mapping[str, str] | None = None
    """CheckpointConfig of the request: {S3Uri, LocalPath?}."""
    container_entrypoint: Sequence[str] = ()
    container_arguments: Sequence[str] = ()
    processing: ProcessingFiles | None = None
    """The files of a Processing job; None for a training job."""

    @property
    def has_own_command(self) -> bool:
        """True if the request specifies a command instead of the image's `train`."""
        return bool(self.container_entrypoint or self.container_arguments)


@dataclass(frozen=True)
class Node:
    """One node of a job: its host name, address and /opt/ml tree."""

    host: str  # algo-1 … algo-n
    address: str  # 198.18.x.y in its own network, 127.0.x.y on loopback
    opt_ml: (
        Path  # model, output, output/data, input/config, input/data/<channel>, code, checkpoints
    )
    file_systems: tuple[tuple[str, Path], ...] = ()
    """(channel, folder on this machine that the channel's link points to)."""


@dataclass(frozen=True)
class NodeExit:
    """The end of one node."""

    host: str
    exit_code: int  # exit code of `train`; -N if ended by signal N
    ended_unix_seconds: float
    failure: str | None  # text of output/failure; None if there is no such file
    stopped_by_platform: (
        bool  # ended because a peer failed, a stop was requested, or the deadline passed
    )


@dataclass(frozen=True)
class NodeAttainment:
    """The CPU time that a node got while its job measured (docs/method.md, "Attainment")."""

    seconds: float  # wall time of the measurement
    quota_seconds: float  # CPU time that the node's quota allowed
    cpu_seconds: float  # CPU time that the node used
    asked_seconds: float | None  # CPU time of the same run on a dedicated machine; None: unknown
    # time in which its threads waited for a CPU with quota left; None: not measured
    run_queue_delay_seconds: float | None
    # share of the quota's periods in which the quota was used up; None: not measured
    throttled_share: float | None
    # bytes of BLAKE2b hashed per CPU second on the job's CPUs; None: unknown
    cpu_speed: float | None = None

    @property
    def share(self) -> float | None:
        """Share of the requested CPU time that the node used, 0 to 1; None if unknown."""
        if self.asked_seconds is None:
            return None
        return self.cpu_seconds / self.asked_seconds if self.asked_seconds > 0 else 1.0


@dataclass(frozen=True)
class RunResult:
    """The result of running all nodes; `failed_host` caused the failure, None if there is none."""

    exits: Sequence[NodeExit]
    failed_host: str | None = None
    failure_reason: str | None = None  # "AlgorithmError: …", not yet truncated to 1,024 characters
    stopped: bool = False  # the stop event was set
    timed_out: bool = False  # MaxRuntimeInSeconds passed
    attainment: Mapping[str, NodeAttainment] = field(default_factory=dict)
    """Attainment by host; empty if nodes had no quota or never began to measure."""
    attainment_within: Callable[[float, float], Mapping[str, NodeAttainment]] | None = None
    """The attainment between two moments (Unix seconds), as far as readings exist."""


@dataclass(frozen=True)
class NodeUsage:
    """Resources that a running node has used.

    The CPU time may decrease slightly when a process ends that no other process waits for (reaps).
    """

    cpu_seconds: float  # since the node's start
    memory_bytes: int  # current; a page shared by several processes is counted several times
    vcpus: float  # of the node's instance type
    is_connected: bool | None = None
    """True if the node's program is connected to another node; None if unknown or no other node."""


LineSink = Callable[[str, str, int], None]
"""Takes (host, text without newline, Unix milliseconds); called from several threads."""


class Engine(Protocol):
    """Runs the nodes of jobs, several jobs at the same time if they fit on the machine."""

    def capacity_problem(self, instance_type: str, instance_count: int) -> str | None:
        """Return the reason why this machine cannot hold that many nodes, or None if it can.

        The reason is worded as the message of a CapacityError.
        """

    def command_problem(self, entrypoint: Sequence[str], arguments: Sequence[str]) -> str | None:
        """Return why nodes cannot use the request's entry point and arguments, or None if they can.

        The reason begins with the name of the request's member.
        """

    def image_command_problem(self) -> str | None:
        """Return why nodes cannot use the entry point of their image, or None if they can."""

    def isolation(self, instance_type: str) -> str:
        """Return a short description of a node's CPU quota and network, for messages and reports.

        For instance "0.2 vCPU per node by cgroup v1 quota, 1 Gbit/s between nodes in networks of
        their own" or "not isolated (reason)".
        """

    def prepare(self, job: JobSpec) -> Sequence[Node]:
        """Create the nodes' /opt/ml trees with input/config/*.json and empty channel folders."""

    def turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> AbstractContextManager[bool]:
        """Hold the machine for the job.

        Yields False if `stop` is set or the deadline (monotonic clock) passes before the machine
        is free. `on_wait` is called once if another platform's job holds the machine.
        """

    def run(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        """Run `train` on every node until all have ended; never leave a process behind."""

    def kill_node(self, job: JobSpec, host: str) -> None:
        """Kill every process of a node, if it is running, as a hardware failure would."""

    def usage(self, job: JobSpec) -> Mapping[str, NodeUsage]:
        """Return the current resource usage of the running nodes by host."""

    def clean_up(self, job: JobSpec) -> None:
        """Remove the nodes' trees; idempotent."""


class Room(Protocol):
    """The machine's remaining capacity, which each job reserves in part until its end."""

    @property
    def most_jobs(self) -> int:
        """Maximum number of jobs that run at the same time."""

    def fits(self, instance_type: str, instance_count: int) -> bool:
        """Return True if a job of this size may run next to the running jobs."""

    def take(self, job_name: str, instance_type: str, instance_count: int) -> bool:
        """Reserve capacity for a job; return False if the job does not fit."""

    def release(self, job_name: str) -> None:
        """Release a job's reservation, if any."""


@dataclass(frozen=True)
class BuiltImage:
    """An image that was built and stored."""

    digest: str  # sha256:<64 hex>
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the manifest in ECR."""


class ImageStore(Protocol):
    """Builds and stores images; `repository:tag` and `repository@sha256:…` both resolve."""

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
        """Build the image of `context` (a folder with a Dockerfile) and tag it.

        Raises:
            ImageBuildError: If the build fails, is stopped or times out.
        """

    def resolve(self, image_uri: str) -> Path | None:
        """Return an image's path, or None if it is missing; for the process engine, a folder."""

    def images(self) -> Sequence[tuple[str, str, str]]:
        """Return (repository, tag, digest) of every image; ECR is filled from these at startup."""


class ImageBuildError(Exception):
    """A build failed; the message gives the phase and the last lines of the output."""
