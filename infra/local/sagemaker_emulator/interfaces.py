"""The interfaces between the API side of the local platform, its engines and its image builders.

The API side (SageMaker and CodeBuild: validation, status, S3, logs) does not depend on processes,
and engines do not call AWS APIs. `ProcessEngine` (nodes are process trees) and `ContainerEngine`
implement `Engine`.
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
    """The access key of an AWS client.

    `expires_at` is in Unix seconds. A permanent key has no expiry and no session token.
    """

    id: str
    secret: str
    session_token: str | None = None
    expires_at: float | None = None


@dataclass(frozen=True)
class ProcessingFiles:
    """The files of a Processing job below /opt/ml, which lacks input/, model/ and code/."""

    config: Mapping[str, Any]
    """The content of config/processingjobconfig.json in each container."""
    folders: Sequence[str]
    """The folders of inputs and outputs below /opt/ml."""


@dataclass(frozen=True)
class JobSpec:
    """The part of a CreateTrainingJob or CreateProcessingJob request that nodes need."""

    job_name: str
    """A name for the job that is unique among all kinds of jobs."""
    job_arn: str
    region: str
    image_uri: str
    instance_type: str
    instance_count: int
    hyperparameters: Mapping[str, str]
    environment: Mapping[str, str]
    input_data_config: Sequence[Mapping[str, Any]] = ()
    """The InputDataConfig in the request.

    [{ChannelName, DataSource: {S3DataSource: {...}}, ContentType?, InputMode?}]
    """
    checkpoint_config: Mapping[str, str] | None = None
    """The CheckpointConfig in the request: {S3Uri, LocalPath?}."""
    container_entrypoint: Sequence[str] = ()
    container_arguments: Sequence[str] = ()
    processing: ProcessingFiles | None = None
    """The files of a Processing job, or None for a training job."""

    @property
    def has_own_command(self) -> bool:
        """True if the request specifies a command instead of `train`."""
        return bool(self.container_entrypoint or self.container_arguments)


@dataclass(frozen=True)
class Node:
    """The host name, the address and the /opt/ml tree of a node."""

    host: str  # algo-1 … algo-n
    address: str  # 198.18.x.y in a separate network, 127.0.x.y on loopback
    opt_ml: (
        Path  # model, output, output/data, input/config, input/data/<channel>, code, checkpoints
    )
    file_systems: tuple[tuple[str, Path], ...] = ()
    """Channels with file systems, as (channel, folder on this machine)."""


@dataclass(frozen=True)
class NodeExit:
    """How a node ended."""

    host: str
    exit_code: int  # exit code of `train`, or -N if signal N killed it
    ended_unix_seconds: float
    failure: str | None  # text in output/failure, or None if there is none
    stopped_by_platform: (
        bool  # ended because a peer failed, a stop was requested, or the deadline passed
    )


@dataclass(frozen=True)
class NodeAttainment:
    """The CPU time that a node got during a measurement (docs/method.md, "Attainment")."""

    seconds: float  # wall time of the measurement
    quota_seconds: float  # CPU time that the quota allowed
    cpu_seconds: float  # CPU time that the node used
    asked_seconds: float | None  # CPU time it would use on a dedicated machine; None if unknown
    # time in which threads waited for a CPU although quota was left; None if unknown
    run_queue_delay_seconds: float | None
    # share of quota periods in which the quota was exhausted; None if unknown
    throttled_share: float | None
    # bytes of BLAKE2b hashed per CPU second on the job's CPUs; None if unknown
    cpu_speed: float | None = None

    @property
    def share(self) -> float | None:
        """The share of the requested CPU time that the node got, 0 to 1, or None if unknown."""
        if self.asked_seconds is None:
            return None
        return self.cpu_seconds / self.asked_seconds if self.asked_seconds > 0 else 1.0


@dataclass(frozen=True)
class RunResult:
    """The result of running all nodes. `failed_host` caused the failure, if any."""

    exits: Sequence[NodeExit]
    failed_host: str | None = None
    failure_reason: str | None = None  # "AlgorithmError: …", can exceed 1,024 characters
    stopped: bool = False  # the stop event was set
    timed_out: bool = False  # MaxRuntimeInSeconds passed
    attainment: Mapping[str, NodeAttainment] = field(default_factory=dict)
    """Attainment by host; empty if nodes had no quota or did not begin to measure."""
    attainment_within: Callable[[float, float], Mapping[str, NodeAttainment]] | None = None
    """Returns the attainment between two times in Unix seconds, if there are readings."""


@dataclass(frozen=True)
class NodeUsage:
    """The resource usage of a running node.

    The CPU time can decrease slightly when a process ends and its parent does not wait for it.
    """

    cpu_seconds: float  # since the node's start
    memory_bytes: int  # current; counts pages once for each process that shares them
    vcpus: float  # of the node's instance type
    is_connected: bool | None = None
    """True if the program is connected to another node; None if unknown or a single node."""


LineSink = Callable[[str, str, int], None]
"""Called with (host, text without newline, Unix milliseconds) from several threads."""


class Engine(Protocol):
    """Runs the nodes of jobs, possibly several jobs in parallel."""

    def capacity_problem(self, instance_type: str, instance_count: int) -> str | None:
        """Return why this machine is too small for these nodes, or None if it is not.

        The reason is worded like AWS's CapacityError.
        """

    def command_problem(self, entrypoint: Sequence[str], arguments: Sequence[str]) -> str | None:
        """Return why nodes cannot use the entry point and arguments of a request, or None.

        The reason begins with the name of a member of the request.
        """

    def image_command_problem(self) -> str | None:
        """Return why nodes cannot use the entry point of their image, or None if they can."""

    def isolation(self, instance_type: str) -> str:
        """Return a short description of nodes' CPU quota and network, for messages and reports.

        Examples: "0.2 vCPU per node by cgroup v1 quota, 1 Gbit/s between nodes in networks of their
        own", or "not isolated (reason)".
        """

    def prepare(self, job: JobSpec) -> Sequence[Node]:
        """Create the nodes' /opt/ml trees, with input/config/*.json and empty channel folders."""

    def turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> AbstractContextManager[bool]:
        """Hold the machine for the job.

        Yield False if `stop` is set, or the deadline (monotonic seconds) passes, before the machine
        is free. `on_wait` is called once if a job of another platform holds the machine.
        """

    def run(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        """Run `train` on every node until all have ended, and leave no process behind."""

    def kill_node(self, job: JobSpec, host: str) -> None:
        """Kill every process of a running node, as a hardware failure would."""

    def usage(self, job: JobSpec) -> Mapping[str, NodeUsage]:
        """Return the current resource usage of the running nodes by host."""

    def clean_up(self, job: JobSpec) -> None:
        """Remove the nodes' trees. This is idempotent."""


class Room(Protocol):
    """The capacity of the machine, part of which every job reserves until it ends."""

    @property
    def most_jobs(self) -> int:
        """The maximum number of jobs that can run in parallel."""

    def fits(self, instance_type: str, instance_count: int) -> bool:
        """Return True if a job of this size fits next to the running jobs."""

    def take(self, job_name: str, instance_type: str, instance_count: int) -> bool:
        """Reserve capacity for a job, or return False if the job does not fit."""

    def release(self, job_name: str) -> None:
        """Release a job's reservation, if any."""


@dataclass(frozen=True)
class BuiltImage:
    """An image that was built and stored."""

    digest: str  # sha256:<64 hex>
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations of the image manifest in ECR."""


class ImageStore(Protocol):
    """Builds and stores images, which are found by `repository:tag` or `repository@sha256:…`."""

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
        """Build an image from `context` (a folder with a Dockerfile) and tag it.

        Raises:
            ImageBuildError: If the build fails, is stopped or times out.
        """

    def resolve(self, image_uri: str) -> Path | None:
        """Return the path of an image (for the process engine, its folder), or None if missing."""

    def images(self) -> Sequence[tuple[str, str, str]]:
        """Return the repository, tag and digest of every image, to register in ECR at startup."""


class ImageBuildError(Exception):
    """A build failed. The message contains the phase and the last lines of the output."""
