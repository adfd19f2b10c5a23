"""Select the backend of a platform, and define what every backend provides.

A backend is a folder next to this file, whose module `backend` has a function bind().
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.follow import LogFollower
from nodesweep.launch.protocol import Launcher
from nodesweep.launch.saved_logs import ReadNodes, read_job_log, save_log
from nodesweep.launch.store import Store
from nodesweep.launch.watch import BURST_CALLS, JobWait
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling.job import JobStatus, LogLine, PlatformKind, Render
from nodesweep.scaling.rules.rule import Facts, Findings

_BINDING = threading.RLock()


@dataclass(frozen=True, eq=False)
class Backend:
    """A platform's backend, created once per process; neither this nor rendering is slow.

    Attributes:
        platform: the config's platform.
        is_aws: True if it calls AWS, or a local platform that emulates AWS.
        request: the backend's name for a job's request.
        sending_calls: the AWS calls that submit a job.
        store: the store of the platform's sweeps and their history.
        kind: the platform's kind: AWS, emulated or simulated.
        render: returns a job's request; see nodesweep.scaling.job.Render.
        launcher: returns the launcher; with quick=True, its calls time out after seconds rather
            than minutes, for optional queries.
        validations: the same for validation jobs, which are only watched and stopped.
        check_account: runs the rules that query the platform before a run.
        read_nodes: returns the lines of every node of an ended job.
        read_metrics: returns the metrics.json of a sweep's job, or None if there is none.
        code_uri: returns the URI at which jobs find packed code by its key.
        send_code: stores packed code at this URI, unless it exists.
        shared_folder: returns the path at which jobs read a local folder in place, or None if the
            folder has to be uploaded.
        shape_problems: returns the problems of a request that can be found offline.
        slow_modules: modules that the launcher imports, to be imported ahead of time.
        describe_capacity: returns lines on the availability and cost of a sweep's nodes, for
            `plan --online`; none if the platform does not sell nodes.
        read_utilisation: returns the mean utilisation of an ended job's nodes in percent, by
            metric.
    """

    platform: PlatformConfig
    is_aws: bool
    request: str
    store: Store
    kind: PlatformKind
    render: Render
    launcher: Callable[..., Launcher]
    validations: Callable[..., Launcher]
    check_account: Callable[[Facts], Findings]
    read_nodes: ReadNodes
    read_metrics: Callable[[str, str], Mapping[str, Any] | None]
    read_utilisation: Callable[[JobStatus], Mapping[str, float]]
    code_uri: Callable[[str], str]
    send_code: Callable[[str, bytes], str]
    shared_folder: Callable[[str], str | None]
    shape_problems: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda request: ()
    sending_calls: tuple[str, ...] = ()
    slow_modules: tuple[str, ...] = ()
    describe_capacity: Callable[[Facts], list[str]] = lambda facts: []

    def client(self, service: str, quick: bool = False) -> Any:
        """Return the platform's client of an AWS service; see aws_client()."""
        # aws_client() caches by the arguments as written: quick=False would make a second client.
        return aws_client(service, self.platform, **({"quick": True} if quick else {}))

    @cached_property
    def budget(self) -> CallBudget:
        """The call budget shared by all watches of this process.

        A watch ends with the first job that ends, and the next watch starts immediately.
        """
        return CallBudget(self.platform.calls_per_second, BURST_CALLS, Clock())

    @cached_property
    def follower(self) -> LogFollower:
        """The follower of the logs of all jobs that this process watches."""
        return LogFollower(self.launcher().logs)

    @cached_property
    def waits(self) -> dict[str, JobWait]:
        """The JobWait of each job that this process watches, by name."""
        return {}

    def read_log(self, job: JobStatus, folder: Path) -> Iterable[LogLine]:
        """Return the lines of an ended job, and save them in a folder; see read_job_log()."""
        return read_job_log(self.read_nodes, job, folder)

    def save_log(self, job_name: str, folder: Path) -> list[Path]:
        """Save the log of an ended job in a folder, one file per node; return the files."""
        return save_log(self.read_nodes(job_name), job_name, folder)


_BACKENDS: dict[PlatformConfig, Backend] = {}
_MOST_BACKENDS = 64


def backend_of(platform: PlatformConfig) -> Backend:
    """Return the platform's backend, which all runs of a process share with its call budget."""
    with _BINDING:
        if platform not in _BACKENDS:
            if len(_BACKENDS) >= _MOST_BACKENDS:
                del _BACKENDS[next(iter(_BACKENDS))]  # the oldest
            module = importlib.import_module(f"nodesweep.launch.{platform.launcher}.backend")
            _BACKENDS[platform] = module.bind(platform)
        return _BACKENDS[platform]


def check_platform(backend: Backend, facts: Facts) -> Findings:
    """Run the rules that query the platform before a run.

    On AWS, they query Service Quotas, SageMaker, EC2, FSx, EFS, IAM, KMS, S3 and ECR.
    """
    return backend.check_account(facts)
