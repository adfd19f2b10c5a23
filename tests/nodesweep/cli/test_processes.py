"""A wait ends when there is no progress, not when a busy machine is slow."""

from __future__ import annotations

import os
import subprocess

from nodesweep.cli.processes import Progress, cpu_ticks, start_ticks


def test_what_moves_is_waited_for_until_the_limit() -> None:
    now, ticks = [0.0], {1: 5, 2: 7}
    progress = Progress(
        1, 2, longest_seconds=600.0, clock=lambda: now[0], cpu=lambda pid: ticks[pid]
    )
    for now[0] in range(59, 590, 59):
        ticks[2] += 1  # the second alone: a command waits for its server
        assert progress.problem() is None
    now[0] = 600.0
    ticks[2] += 1
    assert progress.problem() == "after 600 s"


def test_what_does_nothing_is_given_up() -> None:
    now = [0.0]
    still = Progress(1, clock=lambda: now[0], cpu=lambda pid: 3)
    soon = Progress(1, still_seconds=20.0, clock=lambda: now[0], cpu=lambda pid: 3)
    now[0] = 20.0
    assert (still.problem(), soon.problem()) == (None, "after 20 s without progress")
    now[0] = 60.0
    assert still.problem() == "after 60 s without progress"


def test_times_of_a_process() -> None:
    before, began = cpu_ticks(os.getpid()), start_ticks(os.getpid())
    while cpu_ticks(os.getpid()) == before:
        sum(range(10_000))
    assert began == start_ticks(os.getpid())
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(ended.pid) is None, "a zombie"
    assert (cpu_ticks(ended.pid), start_ticks(ended.pid)) == (0, None)
