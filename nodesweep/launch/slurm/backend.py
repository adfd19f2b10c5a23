"""Slurm as a backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import best_effort
from nodesweep.launch.registry import Backend
from nodesweep.launch.slurm.check import check_cluster
from nodesweep.launch.slurm.inputs import (
    code_uri,
    read_metrics,
    read_nodes,
    send_code,
    shared_folder,
)
from nodesweep.launch.slurm.launcher import SlurmJobs, section_of
from nodesweep.launch.slurm.script import render
from nodesweep.launch.store import FolderStore
from nodesweep.scaling.job import JobStatus


@lru_cache(maxsize=64)
def _jobs(platform: PlatformConfig) -> SlurmJobs:
    """Return the platform's launcher; all its users share one poll a second."""
    return SlurmJobs(section_of(platform))


def _read_utilisation(platform: PlatformConfig, job: JobStatus) -> Mapping[str, float]:
    with best_effort(f"the CPU use of {job.name} can't be read"):
        return _jobs(platform).cpu_use(job.name)
    return {}


BACKEND = Backend(
    is_aws=False,
    request="sbatch",
    render=lambda platform, spec: render(section_of(platform), spec),
    launcher=lambda platform, quick: _jobs(platform),
    # datasets are validated where the run is, so there are none
    validations=lambda platform, quick: _jobs(platform),
    store=lambda platform: FolderStore(Path(section_of(platform).folder), platform.prefix),
    kind=lambda platform: "slurm",
    check_account=check_cluster,
    read_nodes=read_nodes,
    read_metrics=read_metrics,
    read_utilisation=_read_utilisation,
    code_uri=code_uri,
    send_code=send_code,
    shared_folder=shared_folder,
)
