"""The Slurm backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.errors import best_effort
from nodesweep.launch.registry import Backend
from nodesweep.launch.slurm.check import check_cluster
from nodesweep.launch.slurm.inputs import code_uri, read_metrics, read_nodes, send_code
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.launch.slurm.script import render
from nodesweep.launch.store import FolderStore
from nodesweep.scaling.job import JobStatus


@lru_cache(maxsize=64)
def _jobs(section: SlurmPlatform) -> SlurmJobs:
    """Return the platform's launcher, whose users share one poll per second."""
    return SlurmJobs(section)


def _read_utilisation(section: SlurmPlatform, job: JobStatus) -> Mapping[str, float]:
    with best_effort(f"the CPU use of {job.name} can't be read"):
        return _jobs(section).cpu_use(job.name)
    return {}


def bind(platform: PlatformConfig) -> Backend:
    """Return the platform's backend."""
    assert isinstance(platform, SlurmPlatform)
    section = platform
    return Backend(
        platform,
        is_aws=False,
        request="sbatch",
        store=FolderStore(Path(section.folder), section.prefix),
        kind="slurm",
        render=lambda spec: render(section, spec),
        launcher=lambda quick=False: _jobs(section),
        # datasets are validated by the run itself, so there are no such jobs
        validations=lambda quick=False: _jobs(section),
        check_account=check_cluster,
        read_nodes=lambda job_name: read_nodes(section, job_name),
        read_metrics=lambda sweep, job_name: read_metrics(section, sweep, job_name),
        read_utilisation=lambda job: _read_utilisation(section, job),
        code_uri=lambda key: code_uri(section.folder, key),
        send_code=lambda key, body: send_code(section.folder, key, body),
        # the nodes share it
        shared_folder=lambda folder: f"{Path(folder).resolve()}/",
    )
