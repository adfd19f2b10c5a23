"""Sweeps on the simulated engine, for tests of what becomes of their jobs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from click.testing import CliRunner, Result
from prefect import flow

from cli.main import main
from configs.models import BenchmarkConfig
from configs.section import WITH_SECRETS
from flows.scaling_benchmark import SweepResult, run_benchmark, scaling_benchmark
from scaling import names
from tasks.errors import PointsMissing

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
SMALL = {
    "instance_type": "ml.local.small",
    "hyperparameters": {"batch-size": "{per_replica_batch_size}", "lr": "{learning_rate}"},
}
COMPLETED = [(1, 1, "Completed"), (2, 1, "Completed"), (4, 1, "Completed")]

begin_as = flow(name="scaling-benchmark-of-a-given-id")(run_benchmark)
"""begin_as(config, sweep_id): a new sweep whose id the test knows before it begins."""


def measure(config: BenchmarkConfig, **fields: Any) -> SweepResult:
    """What the flow has measured, also where too few of the points have a completed run for it to
    succeed.
    """
    try:
        return scaling_benchmark(config, **fields)
    except PointsMissing as error:
        assert isinstance(error.result, SweepResult)
        return error.result


def ledger(served: SimpleNamespace) -> list[tuple[int, int, str]]:
    """(nodes, attempt, status) of every job of a sweep that the platform knows, sorted."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate()
    jobs = [job for page in pages for job in page["TrainingJobSummaries"]]
    places = [
        (names.parse_job_name(job["TrainingJobName"]), job["TrainingJobStatus"]) for job in jobs
    ]
    return sorted((place[0], place[2], status) for place, status in places if place is not None)


def write_config(config: BenchmarkConfig, folder: Path) -> Path:
    """The config as a file for `nodesweep run`."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", context=WITH_SECRETS)))
    return path


def nodesweep_run(config: BenchmarkConfig, folder: Path, *options: str) -> Result:
    """`nodesweep run` of the config."""
    return CliRunner().invoke(main, ["run", str(write_config(config, folder)), *options])
