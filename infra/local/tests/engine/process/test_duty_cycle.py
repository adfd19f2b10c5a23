"""A CPU quota without control groups, which stops processes that have used their share of a
period."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.tests.engine.engine_bench import (
    TIMES,
    Bench,
    OneImage,
    tell_end_of_measurement,
    write_image,
)
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.process.duty_cycle import (
    DutyCycle,
    NodeBudget,
    Periods,
    process_cpu_seconds,
)
from sagemaker_emulator.engine.process.engine import ProcessEngine

SHARE_SECONDS = 0.008
LATE_SECONDS = 0.005


@given(st.lists(st.floats(min_value=0, max_value=LATE_SECONDS), min_size=1, max_size=200))
def test_over_many_periods_no_node_gets_more_than_its_share(late: Sequence[float]) -> None:
    """A node that used too much because it was polled late gets less in the following periods."""
    budget, used = NodeBudget(), 0.0
    for late_seconds in late:
        if budget.begin_period(SHARE_SECONDS):
            seconds = budget.left_seconds + late_seconds  # everything it may use, and a little more
            used += seconds
            assert not budget.use(seconds)
    assert used <= SHARE_SECONDS * len(late) + LATE_SECONDS + 1e-9


def test_what_a_node_leaves_of_a_period_is_lost() -> None:
    budget = NodeBudget()
    for _ in range(3):
        assert budget.begin_period(SHARE_SECONDS)
        assert budget.use(0.001)
    assert budget.begin_period(SHARE_SECONDS)
    assert not budget.use(SHARE_SECONDS)


def test_a_node_that_used_several_periods_at_once_waits_them_out() -> None:
    budget = NodeBudget()
    assert budget.begin_period(SHARE_SECONDS)
    assert not budget.use(2.5 * SHARE_SECONDS)
    assert [budget.begin_period(SHARE_SECONDS) for _ in range(3)] == [False, True, True]


def test_periods_in_which_a_node_sleeps_do_not_count() -> None:
    budget = NodeBudget()
    for used_seconds in (0.008, 0.008, 0.004, 0.0, 0.0) * 2:  # works, then sleeps for two periods
        runs = budget.begin_period(SHARE_SECONDS) and budget.use(used_seconds)
        budget.is_stopped = not runs
        budget.end_period()
    assert budget.periods() == (5, 4)


def test_a_period_that_used_more_than_its_share_does_not_count_as_two() -> None:
    budget = NodeBudget()
    for used_seconds in (0.010, 0.006):
        budget.is_stopped = not (budget.begin_period(SHARE_SECONDS) and budget.use(used_seconds))
        budget.end_period()
    assert budget.periods() == (2, 2)


def test_a_period_that_begins_late_has_the_share_of_the_time_since_the_last() -> None:
    periods = Periods(phase=0.25)
    told = [periods.begin(at) for at in (10.0, 10.02, 10.06, 10.09, 99.0)]
    assert [None if length is None else round(length, 6) for length in told] == [
        0.04, 0.02, 0.04, 0.03, 0.2,
    ]  # fmt: skip


def test_a_late_period_does_not_move_those_after_it() -> None:
    periods = Periods(phase=0.25)
    periods.begin(10.0)
    assert round(periods.ends_at, 6) == 10.01
    assert periods.begin(10.005) is None
    periods.begin(10.03)
    assert round(periods.ends_at, 6) == 10.05


def test_nodes_have_their_periods_at_different_times() -> None:
    """Nodes that begin simultaneously would wait for a CPU, but not for each other."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(8)]
    try:
        hosts = {process.pid: f"algo-{n}" for n, process in enumerate(processes, 1)}
        duty_cycle = DutyCycle(lambda: hosts, lambda *said: None)
        duty_cycle.limit(0.1)
        nodes = wait_until(lambda: len(found := list(duty_cycle._nodes.values())) == 8 and found)
        phases = sorted(node.periods.phase for node in nodes)
        gaps = [after - before for before, after in itertools.pairwise([*phases, phases[0] + 1])]
        assert min(gaps) > 0.05
        duty_cycle.limit(None)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def spinner() -> Iterator[int]:
    """A process with a child, which both use all the CPU time that they get."""
    code = (
        "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nos.fork()\nwhile True:"
        " pass"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    try:
        wait_until(lambda: len(family(process.pid)) == 2)
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def states(pids: Sequence[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_a_tree_of_processes_is_held_to_its_share_and_let_go(spinner: int) -> None:
    reported: list[tuple[str, int, int]] = []
    duty_cycle = DutyCycle(lambda: {spinner: "algo-1"}, lambda *said: reported.append(said))
    pids = family(spinner)
    duty_cycle.limit(0.1)
    wait_until(lambda: reported)
    used, began = sum(map(process_cpu_seconds, pids)), time.monotonic()
    time.sleep(1)

    def share() -> float:
        return (sum(map(process_cpu_seconds, pids)) - used) / (time.monotonic() - began)

    # Overuse because of a late poll is deducted from later periods, so the share decreases.
    assert wait_until(lambda: 0 < share() <= 0.12)
    assert wait_until(lambda: states(pids) == {"T"}), "both are stopped together"
    host, periods, stopped = wait_until(lambda: reported[-1] if reported[-1][2] else None)
    assert (host, stopped <= periods) == ("algo-1", True)
    duty_cycle.limit(None)
    wait_until(lambda: not duty_cycle._changed.is_set())  # the thread has ended its last period
    wait_until(lambda: "T" not in states(pids))
    time.sleep(0.1)
    assert "T" not in states(pids)


@pytest.mark.slow
def test_nodes_without_groups_have_a_duty_cycle_that_is_named_and_measured(
    tmp_path: Path, job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_end_of_measurement(monkeypatch)
    image = write_image(tmp_path / "image", SM_BOOT_BARRIER="1")
    engine = ProcessEngine(tmp_path / "state", OneImage(image), "http://127.0.0.1:1", times=TIMES)
    engine._quotas, engine._quota_reason = None, "cgroups not writable"
    said = engine.isolation("ml.local.small")
    assert said.startswith("0.2 vCPU ") and "duty cycle" in said
    bench = Bench(engine, image, job)
    bench.program("""
        boot = pathlib.Path(os.environ["SM_BOOT_BARRIER_DIR"])
        (boot / "ready").touch()
        while not (boot / "go").exists(): time.sleep(0.01)
        start, cpu = time.monotonic(), time.process_time()
        while True:
            sum(range(1000))
            seconds, used = time.monotonic() - start, time.process_time() - cpu
            if seconds > 5 and used <= 1.1 * 0.2 * seconds: break  # or what a late look let pass
        (boot / "done").touch()
        while not (boot / "measured").exists(): time.sleep(0.01)
    """)
    result = bench.run(nodes=2)
    engine.close()
    assert (result.failed_host, result.timed_out) == (None, False)
    for host in ("algo-1", "algo-2"):
        attained = result.attainment[host]
        assert attained.share is not None
        assert attained.throttled_share is not None
