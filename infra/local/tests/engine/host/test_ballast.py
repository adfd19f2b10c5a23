"""The ballast keeps idle CPUs busy during measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host import ballast
from sagemaker_emulator.engine.host.ballast import Ballast, Ran, ballast_ran

CPU = min(os.sched_getaffinity(0))


@pytest.fixture
def filled() -> Iterator[Ballast]:
    made = Ballast([CPU, CPU])
    made.start()
    yield made
    made.stop()


def pids() -> list[int]:
    return [process.started.pid for process in ballast._running]


def test_one_process_of_the_idle_class_stays_on_each_cpu(filled: Ballast) -> None:
    [pid] = pids()
    wait_until(lambda: ballast._running[0].ran().hashed_bytes > 0)  # it has begun
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    assert os.sched_getaffinity(pid) == {CPU}
    before = ballast_ran().get(CPU, Ran())
    wait_until(
        lambda: (
            ballast_ran()[CPU].cpu_seconds > before.cpu_seconds
            and ballast_ran()[CPU].hashed_bytes > before.hashed_bytes
        )
    )


def test_it_ends_and_what_it_has_run_stays_counted(filled: Ballast) -> None:
    [process] = ballast._running
    wait_until(lambda: ballast_ran()[CPU].hashed_bytes > 0)
    ran = ballast_ran()[CPU]
    filled.stop()
    filled.stop()
    assert process.started.wait(HANG_SECONDS) < 0  # takes longest if others use the CPU
    assert ballast_ran()[CPU] >= ran


def test_those_of_two_jobs_are_counted_together(filled: Ballast) -> None:
    second = Ballast([CPU])
    second.start()
    try:
        assert len(pids()) == 2
        # CPU time used before the first report would be counted later
        wait_until(lambda: all(each.ran().hashed_bytes > 0 for each in ballast._running))
        began, before = time.monotonic(), ballast_ran()[CPU].cpu_seconds
        time.sleep(0.5)
        assert ballast_ran()[CPU].cpu_seconds - before <= time.monotonic() - began + 0.05
    finally:
        second.stop()
    assert len(pids()) == 1
