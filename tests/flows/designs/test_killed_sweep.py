"""After kill -9 of `nodesweep run` during a probe sweep, the resumed sweep has the jobs of an
undisturbed one.

Each of the jobs is created once. test_sequential_sweep.py has a crash of a sequential sweep.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.forks import Forks
from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from sagemaker_emulator.training.manager import TrainingJobs
from sagemaker_emulator.training.record import TrainingJob
from tests.flows.designs.test_sequential_sweep import points_of
from tests.flows.simulated_sweep import ledger, write_config
from tests.flows.stages.test_end_signals import nodesweep_command

SECONDS = 600.0
# E(4) = 62%, E(2) = 83%: 4 nodes fail, and 2 are the answer.
MODEL = {"noise_sigma": 0.0, "serial_share": 0.2, "gradient_bytes": 1e6}
POINTS = sorted([(2, 3), (4, 3), *((nodes, repeat) for nodes in (1, 2, 4) for repeat in (1, 2))])


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_a_sweep_that_was_killed_ends_with_the_jobs_of_one_that_was_not(
    simulated: Callable[..., Any],
    sweep_config: Callable[..., BenchmarkConfig],
    forks: Forks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half, create, killed = len(POINTS) // 2, TrainingJobs.create, threading.Event()

    def accept(manager: TrainingJobs, region: str, request: dict[str, Any]) -> TrainingJob:
        if len(manager.summaries(region)) > half:
            killed.wait(SECONDS)
        return create(manager, region, request)

    monkeypatch.setattr(TrainingJobs, "create", accept)
    with simulated(model=MODEL, time_scale=0.005) as served:
        probes = {"design": "probe", "repeats": 2, "max_parallel_jobs": 2}
        config = sweep_config(served, sweep=probes)
        command, log = nodesweep_command(forks, tmp_path, "run", write_config(config, tmp_path))
        try:
            wait_until(lambda: len(ledger(served)) > half or command.poll() is not None, SECONDS)
            assert command.poll() is None, log.read_text()
        finally:
            command.send_signal(signal.SIGKILL)
            command.wait(SECONDS)
            killed.set()
        [sweep_id] = {names.sweep_of_job(job) for job in _jobs(served)}
        assert half < len(_jobs(served)) < len(POINTS), "struck between two of its jobs"
        result = scaling_benchmark(config, sweep_id=str(sweep_id))
        assert points_of(served, str(sweep_id)) == POINTS, "each once, and no other"
    assert result.missing_points == 0
    told = json.loads((result.folder / "report.json").read_text())
    assert told["recommendation"]["chosen"]["nodes"] == told["check"]["nodes"] == 2


def _jobs(served: Any) -> list[str]:
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate()
    return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
