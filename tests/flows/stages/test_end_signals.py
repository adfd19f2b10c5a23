"""SIGTERM from service managers and CI to `nodesweep run`: the command's exit code, and the
platform's jobs."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.forks import Forked, Forks
from benchmarks.chaos.world import REPOSITORY
from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from sagemaker_emulator.training.manager import TrainingJobs
from sagemaker_emulator.training.record import TrainingJob
from tests.flows.simulated_sweep import ledger, write_config

Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
SECONDS = 600.0
"""That only a hang reaches."""
ENDLESS = {
    "t_compute_seconds": 3600,
    "startup_seconds": 0,
    "download_seconds": 0,
    "setup_seconds": 0,
}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(("policy", "becomes"), [("stop", "Stopped"), ("leave", "InProgress")])
def test_sigterm_ends_the_command_as_ctrl_c_does(
    simulated: Platform,
    sweep_config: Configs,
    forks: Forks,
    tmp_path: Path,
    policy: str,
    becomes: str,
) -> None:
    with simulated(model=ENDLESS, time_scale=1.0) as served:
        config = sweep_config(served, sweep={"node_counts": [1], "on_cancel": policy})
        command, log = nodesweep_command(forks, tmp_path, "run", write_config(config, tmp_path))
        try:
            wait_until(lambda: ledger(served) or command.poll() is not None, SECONDS)
            assert ledger(served) == [(1, 1, "InProgress")]
            command.send_signal(signal.SIGTERM)
            command.wait(SECONDS)
        finally:
            command.send_signal(signal.SIGKILL)
        words = log.read_text()
        wait_until(lambda: ledger(served) == [(1, 1, becomes)], SECONDS)
        assert command.returncode == 1, words
        assert "nodesweep: interrupted" in words
        assert "report.html" not in words
        [job] = served.sagemaker.list_training_jobs()["TrainingJobSummaries"]
        sweep = names.sweep_of_job(job["TrainingJobName"])
        owner = served.s3.get_object(
            Bucket=config.platform.bucket, Key=names.owner_key(config.platform.prefix, str(sweep))
        )
        assert (b'"left_running": true' in owner["Body"].read()) is (policy == "leave")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(
    ("options", "signals", "pause_seconds"),
    [
        ((), (signal.SIGINT, signal.SIGTERM), 0.05),
        ((), (signal.SIGTERM, signal.SIGTERM), 0.02),
        ((), (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM), 0.5),
        (("--detach",), (signal.SIGTERM, signal.SIGTERM), 0.05),
    ],
)
def test_signals_that_follow_do_not_cut_off_the_stopping_of_the_jobs(
    simulated: Platform,
    sweep_config: Configs,
    forks: Forks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    signals: tuple[signal.Signals, ...],
    pause_seconds: float,
) -> None:
    """As CI systems send them. A detached sweep is struck as its third job is accepted, of
    which it hears afterwards."""
    jobs, create, struck = 8, TrainingJobs.create, threading.Event()
    enough = 3 if options else jobs
    accepted = itertools.count(1)

    def accept(manager: TrainingJobs, region: str, request: dict[str, Any]) -> TrainingJob:
        job = create(manager, region, request)
        if options and next(accepted) == enough:
            struck.wait(SECONDS)
        return job

    monkeypatch.setattr(TrainingJobs, "create", accept)
    with simulated(model=ENDLESS, time_scale=1.0) as served:
        config = sweep_config(
            served, sweep={"node_counts": [1], "repeats": jobs, "max_parallel_jobs": jobs}
        )
        path = write_config(config, tmp_path)
        command, log = nodesweep_command(forks, tmp_path, "run", path, *options)
        try:
            wait_until(lambda: len(ledger(served)) >= enough or command.poll() is not None, SECONDS)
            for number in signals:
                command.send_signal(number)
                time.sleep(pause_seconds)
            struck.set()
            command.wait(SECONDS)
        finally:
            struck.set()
            command.send_signal(signal.SIGKILL)
        words = log.read_text()
        # The last signal may meet a process that has said all and exits.
        assert command.returncode in (1, -signal.SIGTERM), words
        assert "nodesweep: interrupted" in words and "unlocked lock" not in words, words
        assert len(ledger(served)) >= enough
        wait_until(lambda: {status for *_, status in ledger(served)} == {"Stopped"})


def nodesweep_command(forks: Forks, folder: Path, *arguments: str | Path) -> tuple[Forked, Path]:
    """Start the command as a process, with its output in a file."""
    log = folder / "said"
    return forks.start([str(argument) for argument in arguments], REPOSITORY, log), log
