"""Choose the backend of a platform; nothing else does.

A backend is a folder next to this file, whose module `backend` has a BACKEND.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.protocol import Launcher
from nodesweep.launch.saved_logs import ReadNodes, read_job_log, save_log
from nodesweep.launch.store import Store
from nodesweep.scaling.job import JobSpec, JobStatus, LogLine, PlatformKind, Render
from nodesweep.scaling.rules.rule import Facts, Findings


@dataclass(frozen=True)
class Backend:
    """The functions of a backend that a run calls. Importing one is quick, and so is rendering.

    Attributes:
        is_aws: True if its calls are AWS's, or a local platform's.
        request: the backend's name for a job's request.
        sending_calls: the AWS calls that send one.
        render: returns a job's request on a platform; see nodesweep.scaling.job.Render.
        launcher: returns a platform's launcher; with True, its calls give up after seconds rather
            than minutes.
        validations: the same for the jobs that validate datasets, which are only watched and ended.
        store: returns the store of a platform's sweeps and their history.
        kind: returns a platform's kind: AWS, emulated or simulated.
        check_account: runs the rules that query the platform before a run.
        read_nodes: returns the lines of every node of an ended job.
        read_metrics: returns the metrics.json of a sweep's job; None if there is none.
        code_uri: returns where jobs find the packed code of a key.
        send_code: stores packed code there, unless it is there already.
        shared_folder: returns where jobs read a folder of this machine without a copy; None if it
            has to be uploaded.
        shape_problems: returns what is wrong with a request, as far as that is known offline.
        slow_modules: what the launcher imports, to be imported ahead.
        describe_capacity: returns lines on the availability and cost of a sweep's nodes, for
            `plan --online`; none if the platform does not sell nodes.
        read_utilisation: returns the mean utilisation of an ended job's nodes in percent, by
            metric.
    """

    is_aws: bool
    request: str
    render: Callable[[PlatformConfig, JobSpec], Mapping[str, Any]]
    launcher: Callable[[PlatformConfig, bool], Launcher]
    validations: Callable[[PlatformConfig, bool], Launcher]
    store: Callable[[PlatformConfig], Store]
    kind: Callable[[PlatformConfig], PlatformKind]
    check_account: Callable[[Facts], Findings]
    read_nodes: ReadNodes
    read_metrics: Callable[[PlatformConfig, str, str], Mapping[str, Any] | None]
    code_uri: Callable[[PlatformConfig, str], str]
    send_code: Callable[[PlatformConfig, str, bytes], str]
    shared_folder: Callable[[PlatformConfig, str], str | None]
    shape_problems: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda request: ()
    sending_calls: tuple[str, ...] = ()
    slow_modules: tuple[str, ...] = ()
    describe_capacity: Callable[[Facts], list[str]] = lambda facts: []
    read_utilisation: Callable[[PlatformConfig, JobStatus], Mapping[str, float]] = (
        lambda platform, job: {}
    )

    def read_log(self, platform: PlatformConfig, job: JobStatus, folder: Path) -> Iterable[LogLine]:
        """Return the lines of an ended job, and save them in a folder; see read_job_log()."""
        return read_job_log(self.read_nodes, platform, job, folder)

    def save_log(self, platform: PlatformConfig, job_name: str, folder: Path) -> list[Path]:
        """Save the log of an ended job in a folder, a file for each node; return the files."""
        return save_log(self.read_nodes(platform, job_name), job_name, folder)


def backend_of(platform: PlatformConfig) -> Backend:
    """Return the platform's backend."""
    backend = importlib.import_module(f"nodesweep.launch.{platform.launcher}.backend").BACKEND
    assert isinstance(backend, Backend)
    return backend


def launcher_of(platform: PlatformConfig, quick: bool = False) -> Launcher:
    """Return the platform's launcher.

    Args:
        platform: the config's platform.
        quick: its calls give up after seconds rather than minutes, for optional queries.
    """
    return backend_of(platform).launcher(platform, quick)


def validations_of(platform: PlatformConfig, quick: bool = False) -> Launcher:
    """Return the launcher of the jobs that validate datasets; see launcher_of()."""
    return backend_of(platform).validations(platform, quick)


def store_of(platform: PlatformConfig) -> Store:
    """Return the store of the platform's sweeps and their history, without calling it."""
    return backend_of(platform).store(platform)


def check_account(facts: Facts) -> Findings:
    """Run the rules that query the platform before a run.

    On AWS, they query Service Quotas, SageMaker, EC2, FSx, EFS, IAM, KMS, S3 and ECR.
    """
    return backend_of(facts.config.platform).check_account(facts)


def renderer_of(platform: PlatformConfig) -> Render:
    """Return the platform's function that renders jobs as requests."""
    return partial(backend_of(platform).render, platform)
