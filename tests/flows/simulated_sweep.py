"""Sweeps on the simulated engine, and the records that Prefect keeps of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner, Result
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.logging.handlers import APILogWorker

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import WITH_SECRETS
from nodesweep.errors import PointsMissing
from nodesweep.flows.scaling_benchmark import BenchmarkRun, SweepResult, scaling_benchmark
from nodesweep.flows.stages.cancellable import cancellable
from nodesweep.scaling import names
from sagemaker_emulator.simulation.virtual import VirtualExecution

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
SMALL = {
    "instance_type": "ml.local.small",
    "hyperparameters": {"batch-size": "{per_replica_batch_size}", "lr": "{learning_rate}"},
}
COMPLETED = [(1, 1, "Completed"), (2, 1, "Completed"), (4, 1, "Completed")]


def run_benchmark(
    config: BenchmarkConfig,
    sweep_id: str | None = None,
    resume: bool = False,
    as_started: bool = False,
) -> SweepResult:
    """Run a sweep of the config and write its report."""
    return BenchmarkRun.of(config).run(sweep_id, resume, as_started)


begin_as = flow(name="scaling-benchmark-of-a-given-id")(cancellable(run_benchmark))
"""begin_as(config, sweep_id): a new sweep whose ID the test knows before it begins."""


def measure(config: BenchmarkConfig, **fields: Any) -> SweepResult:
    """Return the flow's result, even if too few points completed for it to succeed."""
    try:
        return scaling_benchmark(config, **fields)
    except PointsMissing as error:
        assert isinstance(error.result, SweepResult)
        return error.result


def ledger(served: SimpleNamespace) -> list[tuple[int, int, str]]:
    """Return the sorted (nodes, attempt, status) of every sweep job that the platform knows."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate()
    jobs = [job for page in pages for job in page["TrainingJobSummaries"]]
    places = [
        (names.parse_job_name(job["TrainingJobName"]), job["TrainingJobStatus"]) for job in jobs
    ]
    return sorted(
        (place.nodes, place.attempt, status) for place, status in places if place is not None
    )


def write_config(config: BenchmarkConfig, folder: Path) -> Path:
    """Write the config to a file for `nodesweep run`."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", context=WITH_SECRETS)))
    return path


def nodesweep_run(config: BenchmarkConfig, folder: Path, *options: str) -> Result:
    """Run `nodesweep run` on the config."""
    return CliRunner().invoke(main, ["run", str(write_config(config, folder)), *options])


@contextmanager
def held_jobs() -> Iterator[threading.Event]:
    """Let no time pass for simulated jobs until the event is set or the block ends.

    A job that is stopped ends at once.
    """
    let_go, let_pass = threading.Event(), VirtualExecution._pass

    def held(job: VirtualExecution[Any], seconds: float) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not (let_go.wait(0.05) or job._stop.is_set() or time.monotonic() > deadline):
            pass
        let_pass(job, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualExecution, "_pass", held)
        try:
            yield let_go
        finally:
            let_go.set()


_LIMIT = 200
"""Page size of Prefect's API."""


class KeptRecords(NamedTuple):
    """Flow runs with parameters, task runs, logs, and artifacts, as Prefect's API returns them."""

    flow_runs: list[dict[str, Any]]
    task_runs: list[dict[str, Any]]
    logs: list[dict[str, Any]]
    artifacts: list[dict[str, Any]]


def kept_records(name_part: str) -> KeptRecords:
    """Return Prefect's records of the flow runs with this text, such as a sweep ID, in their name.

    Other tests use the same server at the same time. Prefect sends logs every 2 s, so those of this
    process are sent first.
    """
    APILogWorker.instance().drain()
    with get_client(sync_client=True) as client:

        def read(kind: str, **which: Any) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            page = [{}] * _LIMIT
            while len(page) == _LIMIT:
                asked = {"limit": _LIMIT, "offset": len(found), **which}
                answer = client.request("POST", f"/{kind}/filter", json=asked)
                page = answer.raise_for_status().json()
                found += page
            return found

        runs = read("flow_runs", flow_runs={"name": {"like_": name_part}})
        own = {"any_": [run["id"] for run in runs]}
        return KeptRecords(
            runs,
            read("task_runs", flow_runs={"id": own}),
            read("logs", logs={"flow_run_id": own}),
            read("artifacts", flow_runs={"id": own}),
        )
