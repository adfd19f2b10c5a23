"""A wait ends if there is no progress, but not if a busy machine is slow."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest

from sagemaker_emulator.progress import Progress, cpu_ticks


@pytest.fixture
def world() -> SimpleNamespace:
    return SimpleNamespace(now=0.0, ticks={1: 5, 2: 7})


def progress_of(world: SimpleNamespace, *pids: int) -> Progress:
    return Progress(*pids, clock=lambda: world.now, cpu=lambda pid: world.ticks[pid])


def test_what_moves_is_waited_for_well_past_any_start_of_an_idle_machine(
    world: SimpleNamespace,
) -> None:
    progress = progress_of(world, 1, 2)
    for world.now in range(59, 880, 59):
        world.ticks[2] += 1  # only the second process, like a command that waits for its server
        assert progress.problem() is None
    world.now += 60
    assert "60 s" in str(progress.problem())


def test_what_computes_for_ever_is_given_up(world: SimpleNamespace) -> None:
    progress = progress_of(world, 1)
    for world.now in range(0, 900, 30):
        world.ticks[1] += 1
        assert progress.problem() is None
    world.now = 900
    world.ticks[1] += 1
    assert progress.problem() == "after 900 s"


def test_cpu_time_of_a_process() -> None:
    before = cpu_ticks(os.getpid())
    while cpu_ticks(os.getpid()) == before:
        sum(range(10_000))
    with subprocess.Popen(["true"]) as ended:
        pass
    assert cpu_ticks(ended.pid) == 0
