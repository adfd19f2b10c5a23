"""Slurm as a backend."""

from __future__ import annotations

from nodesweep.launch.registry import Backend
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.launch.slurm.script import render

BACKEND = Backend(
    request="sbatch script",
    render=render,
    shape_problems=lambda request: (),
    request_problems=lambda request: (),
    slow_modules=(),
    launcher=SlurmJobs,
)
