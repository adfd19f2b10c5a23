"""The share of requested CPU time that a node got, with invented counters (docs/method.md,
"Attainment")."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_emulator.engine.host import attainment
from sagemaker_emulator.engine.host.attainment import (
    AttainmentMeter,
    NodeReading,
    Reading,
    ThreadWaits,
    attainments,
    cpu_statistics,
    demanded_cpu_seconds,
    idle_seconds,
)
from sagemaker_emulator.engine.host.ballast import Ran
from sagemaker_emulator.interfaces import NodeUsage


@pytest.fixture(autouse=True)
def no_quota_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of the machine that runs the tests does not count as the invented machine's."""
    monkeypatch.setattr(attainment, "enclosing_groups", lambda: [])


def seconds_up_to(most: int) -> st.SearchStrategy[float]:
    """Return times as the kernel counts them, in whole nanoseconds."""
    return st.integers(0, most * 10**9).map(lambda nanoseconds: nanoseconds / 1e9)


SECONDS = seconds_up_to(1_000_000)
SHARES = st.floats(min_value=0, max_value=1)


def share(cpu_seconds: float, asked: float | None) -> float:
    assert asked is not None
    return cpu_seconds / asked if asked else 1.0


@given(quota=SECONDS, cpu=SECONDS, delay=SECONDS, others=st.none() | SHARES)
def test_nobody_asks_for_less_than_it_used_or_more_than_its_quota(
    quota: float, cpu: float, delay: float, others: float | None
) -> None:
    asked = demanded_cpu_seconds(quota, cpu, delay, others)
    assert asked is not None
    assert cpu <= asked <= max(quota, cpu)


@given(quota=SECONDS, cpu=SECONDS, others=st.none() | SHARES)
def test_a_node_that_never_waited_for_a_cpu_was_not_starved(
    quota: float, cpu: float, others: float | None
) -> None:
    assert (
        demanded_cpu_seconds(quota, cpu, 0.0, others) == cpu
    )  # it idled because of peers, files or the network


@given(quota=SECONDS, cpu=SECONDS, delay=SECONDS)
def test_a_node_beside_which_nothing_ran_was_not_starved(
    quota: float, cpu: float, delay: float
) -> None:
    assert demanded_cpu_seconds(quota, cpu, delay, 0.0) == cpu  # its threads waited for each other


@given(quota=SECONDS, cpu=SECONDS, delay=SECONDS, more=SECONDS, others=SHARES)
def test_longer_waits_never_make_the_share_larger(
    quota: float, cpu: float, delay: float, more: float, others: float
) -> None:
    less = share(cpu, demanded_cpu_seconds(quota, cpu, delay + more, others))
    assert less <= share(cpu, demanded_cpu_seconds(quota, cpu, delay, others))


@pytest.mark.parametrize(
    ("cpu", "delay", "others", "expected"),
    [
        (20.0, 80.0, 0.5, 1.0),  # waited a lot, but got its whole quota
        (6.0, 94.0, 0.76, 0.3),  # always ready but rarely running, like eight nodes on a busy host
        # mostly idle, and hardly disturbed by neighbors: 0.4 of 100 s
        (8.0, 0.4, 0.9, 0.996),
        (8.0, 30.0, 0.2, 0.8),  # others used the CPU a fifth of the time
        (8.0, 12.0, 0.2, 0.88),  # 12 of 100 s: without waits, it would have used 8 / 0.88 s
        (8.0, 70.0, 1.0, 0.4),  # others use the whole CPU, so it misses its whole quota
        (17.5, 30.0, 0.03, 0.97),  # a quiet machine
    ],
)
def test_shares_of_a_quota_of_20_seconds_in_100(
    cpu: float, delay: float, others: float, expected: float
) -> None:
    asked = demanded_cpu_seconds(20.0, cpu, delay, others, seconds=100.0)
    assert share(cpu, asked) == pytest.approx(expected)


@given(
    cpu=seconds_up_to(20),
    delay=seconds_up_to(99),
    others=SHARES,
)
def test_a_wait_takes_no_more_than_its_wall_time(cpu: float, delay: float, others: float) -> None:
    """A node that idles while it waits for its peers resumes a little later."""
    lost = delay / 100
    assert (
        share(cpu, demanded_cpu_seconds(20.0, cpu, delay, others, seconds=100.0)) >= 1 - lost - 1e-9
    )


@given(quota=SECONDS, cpu=SECONDS, delay=SECONDS, others=SHARES)
def test_a_node_that_used_up_its_quota_in_every_period_was_not_starved(
    quota: float, cpu: float, delay: float, others: float
) -> None:
    """The node waited in periods in which it got its whole quota, and idled in other periods."""
    assert demanded_cpu_seconds(quota, cpu, delay, others, throttled_share=1.0) == cpu


def test_the_waits_of_periods_that_used_up_the_quota_do_not_count() -> None:
    assert demanded_cpu_seconds(20.0, 15.0, 10.0, 0.5, throttled_share=0.75) == 17.5


def test_what_is_not_counted_makes_no_share() -> None:
    assert demanded_cpu_seconds(20.0, 6.0, None, 5.0) is None
    begin = Reading(0.0, {"algo-1": NodeReading(0.0, None)})
    end = Reading(10.0, {"algo-1": NodeReading(1.0, None), "algo-2": NodeReading(1.0, 1.0)})
    [(host, found)] = attainments(begin, end, 0.2, {}).items()
    assert (host, found.share, found.run_queue_delay_seconds, found.throttled_share) == (
        "algo-1",
        None,
        None,
        None,
    )
    assert attainments(end, end, 0.2, {}) == {}


def test_the_time_that_the_quota_held_a_node_back_is_no_delay_of_any_thread(
    tmp_path: Path,
) -> None:
    """Three threads were ready while the quota throttled the node for 8 s: one all the time, one
    half of the time, and one that also waited for another second.
    """
    waits = ThreadWaits(tmp_path)
    for thread_id, waited in ((1, 50), (2, 20), (3, 30)):
        thread(tmp_path, thread_id, f"9 {waited}000000000 1\n")
    begin = waits.seconds([1, 2, 3], 40.0)
    for thread_id, waited in ((1, 58), (2, 24), (3, 39)):
        thread(tmp_path, thread_id, f"9 {waited}000000000 1\n")
    end = waits.seconds([1, 2, 3], 48.0)
    assert begin is not None and end is not None
    assert end - begin == 1.0


def test_what_others_had_of_a_cpu_meets_each_of_its_nodes() -> None:
    hosts = ("algo-1", "algo-2", "algo-3")
    cpus = {"algo-1": 0, "algo-2": 1, "algo-3": 0}
    begin = Reading(0.0, {host: NodeReading(0.0, 0.0) for host in hosts}, {0: 0.0, 1: 0.0})
    end = Reading(10.0, {host: NodeReading(1.0, 9.0) for host in hosts}, {0: 6.0, 1: 0.0})
    found = attainments(begin, end, 0.2, cpus)
    # others used 10 - 6 - 2 x 1 of 10 seconds
    assert found["algo-1"].share == found["algo-3"].share == pytest.approx(0.8)
    assert found["algo-2"].asked_seconds == 2.0


def test_a_quota_around_the_platform_withholds_too() -> None:
    begin = Reading(0.0, {"algo-1": NodeReading(0.0, 0.0)}, {0: 0.0}, held_back_seconds=1.0)
    end = Reading(10.0, {"algo-1": NodeReading(1.0, 9.0)}, {0: 9.0}, held_back_seconds=1.5)
    assert attainments(begin, end, 0.2, {"algo-1": 0})["algo-1"].share == pytest.approx(0.95)


STAT = (
    "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 800 40 5 6 7 50 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 1\n"
)


def test_a_cpu_idles_while_nothing_runs_and_while_it_waits_for_a_disk() -> None:
    assert idle_seconds(STAT) == {0: pytest.approx(8.4)}  # ticks of 10 ms


def test_ballast_is_nobody_that_a_node_waits_for(tmp_path: Path) -> None:
    """The ballast only uses a CPU while nothing else can run."""
    machine = Machine(tmp_path)
    machine.meter.begin()
    machine.count(10.0, 1.8, 5.0, busy=10.0)
    machine.ballast = {0: Ran(8.2, 8.2e8)}
    machine.meter.take_reading()
    assert machine.meter.attainments()["algo-1"].share == pytest.approx(1.0)


def test_what_the_ticks_say_ran_does_not_count(tmp_path: Path) -> None:
    """Quotas are refilled at ticks, so a node that ran for 2 of 10 s was counted with 4 s."""
    machine = Machine(tmp_path)
    machine.meter.begin()
    machine.count(10.0, 1.8, 5.0, busy=1.8, seen_busy=4.0)
    machine.meter.take_reading()
    assert machine.meter.attainments()["algo-1"].share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nr_periods 5\nnr_throttled 2\nthrottled_time 1500000000\n", 1.5),  # v1
        ("usage_usec 9\nnr_periods 5\nnr_throttled 2\nthrottled_usec 250000\n", 0.25),  # v2
        ("", 0.0),
    ],
)
def test_throttled_time_of_both_versions(tmp_path: Path, text: str, expected: float) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert cpu_statistics(tmp_path)["throttled_seconds"] == expected


def thread(proc: Path, thread_id: int, text: str) -> None:
    (proc / str(thread_id)).mkdir(exist_ok=True)
    (proc / str(thread_id) / "schedstat").write_text(text)


def test_the_waits_of_threads_that_have_ended_are_kept(tmp_path: Path) -> None:
    waits = ThreadWaits(tmp_path)
    assert waits.seconds([1]) is None  # nothing was counted
    thread(tmp_path, 1, "9 2000000000 1\n")
    thread(tmp_path, 2, "9 1000000000 1\n")
    assert waits.seconds([1, 2]) == 3.0
    assert waits.seconds([1]) == 3.0
    thread(tmp_path, 1, "9 500000000 1\n")  # a new thread reused its id
    assert waits.seconds([1]) == 3.5
    assert waits.seconds([]) == 3.5


def test_a_kernel_without_the_accounting_counts_nothing(tmp_path: Path) -> None:
    thread(tmp_path, 1, "0 0 0\n")
    assert ThreadWaits(tmp_path).seconds([1]) is None


class Machine:
    """A node with a quota of 0.2 on CPU 0 of a machine whose counters are files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.group = folder / "group"
        self.group.mkdir(parents=True)
        self.now = 0.0
        self.usage: dict[str, NodeUsage] = {}
        self.ballast: dict[int, Ran] = {}
        self.meter = AttainmentMeter(
            lambda: self.usage,
            {"algo-1": self.group},
            {"algo-1": 0},
            0.2,
            ballast=lambda: self.ballast,
            proc=folder,
            clock=lambda: self.now,
        )
        self.count(0.0, 0.0, 0.0, 0.0)

    def count(
        self,
        seconds: float,
        cpu: float,
        waited: float,
        busy: float,
        seen_busy: float | None = None,
    ) -> None:
        self.now = seconds
        self.usage = {"algo-1": NodeUsage(cpu, 0, 0.2)}
        (self.group / "cgroup.threads").write_text("7\n")
        (self.group / "cpu.stat").write_text(
            f"nr_periods {int(50 * seconds)}\nnr_throttled {int(10 * seconds)}\n"
        )
        thread(self.folder, 7, f"1 {int(waited * 1e9)} 1\n")
        (self.folder / "stat").write_text(
            f"cpu0 {int((seen_busy or busy) * 100)} 0 0 {round(100 * (seconds - busy))} 1 0 0 0 0\n"
        )


def test_the_meter_reads_what_the_kernel_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.meter.attainments() == {}
    machine.count(100.0, 10.0, 50.0, 60.0)
    machine.meter.begin()
    machine.count(110.0, 11.2, 58.0, 69.0)
    machine.meter.take_reading()
    found = machine.meter.attainments()["algo-1"]
    assert (found.seconds, found.quota_seconds) == (10.0, pytest.approx(2.0))
    assert found.share == pytest.approx(0.6)  # 80% of the delay of 8 s, capped at the quota
    assert found.throttled_share == pytest.approx(0.2)
    assert found.run_queue_delay_seconds == pytest.approx(8.0)


@pytest.mark.parametrize(
    "later", [{}, {"algo-1": NodeUsage(3.0, 0, 0.2)}], ids=["gone", "a process has ended"]
)
def test_a_look_after_the_end_of_a_process_does_not_count(
    tmp_path: Path, later: dict[str, NodeUsage]
) -> None:
    """The CPU time of a process that has ended is lost, so the node would look CPU-throttled."""
    machine = Machine(tmp_path)
    machine.meter.begin()
    machine.count(10.0, 2.0, 5.0, 10.0)
    machine.meter.take_reading()
    machine.count(20.0, 4.0, 10.0, 20.0)
    machine.usage = {"algo-1": NodeUsage(1.0, 0, 0.2)} if later else {}
    machine.meter.take_reading()
    assert machine.meter.attainments()["algo-1"].cpu_seconds == 2.0


@pytest.mark.parametrize(
    ("window", "cpu_seconds", "seconds"),
    [
        ((12.4, 17.0), 1.0, 4.0),  # the readings at 12 and 16 s
        ((13.0, 13.5), 0.25, 2.0),  # between two readings: both of them
        ((16.2, math.inf), 0.25, 4.0),
        ((3.0, 5.0), 0.0, 2.0),  # before the first reading: the first two
    ],
)
def test_a_part_of_the_time_is_that_between_the_nearest_looks(
    tmp_path: Path, window: tuple[float, float], cpu_seconds: float, seconds: float
) -> None:
    """The script loads libraries, trains and then sleeps."""
    machine = Machine(tmp_path)
    machine.count(10.0, 2.0, 0.0, 0.0)
    machine.meter.begin()
    for at, cpu in ((12.0, 2.0), (14.0, 2.25), (16.0, 3.0), (18.0, 3.25), (20.0, 3.25)):
        machine.count(at, cpu, 0.0, 0.0)
        machine.meter.take_reading()
    found = machine.meter.attainments(*window)["algo-1"]
    assert (found.cpu_seconds, found.seconds) == (cpu_seconds, seconds)


@pytest.mark.parametrize(("cpu_seconds", "speed"), [(4.0, 5e8), (0.9, None)])
def test_the_speed_of_the_cpus_is_what_the_ballast_did_in_its_cpu_time(
    tmp_path: Path, cpu_seconds: float, speed: float | None
) -> None:
    """Short CPU times of the ballast are too random to measure the speed."""
    machine = Machine(tmp_path)
    machine.ballast = {0: Ran(100.0, 9e10), 1: Ran(3.0, 1e9)}
    machine.meter.begin()
    machine.count(10.0, 2.0, 0.0, 10.0)
    machine.ballast = {0: Ran(100.0 + cpu_seconds, 9e10 + cpu_seconds * 5e8), 1: Ran(9.0, 1e10)}
    machine.meter.take_reading()
    assert machine.meter.attainments()["algo-1"].cpu_speed == (
        None if speed is None else pytest.approx(speed)
    )


def test_of_very_many_looks_every_second_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attainment, "_MOST_READINGS", 4)
    machine = Machine(tmp_path)
    machine.meter.begin()
    for at in range(1, 20):
        machine.count(float(at), at / 10, 0.0, 0.0)
        machine.meter.take_reading()
        found = machine.meter.attainments()["algo-1"]
        assert (found.seconds, found.cpu_seconds) == (at, at / 10)
    assert len(machine.meter._readings) <= 4


def test_a_node_without_a_group_is_its_threads_and_its_stops(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    counts = iter([(100, 10), (150, 60)])
    meter = AttainmentMeter(
        lambda: machine.usage,
        {},
        {"algo-1": 0},
        0.2,
        thread_ids=lambda host: [7],
        stopped_periods=lambda host: next(counts),
        proc=tmp_path,
        clock=lambda: machine.now,
    )
    meter.begin()
    machine.count(10.0, 1.9, 6.0, 10.0)
    meter.take_reading()
    found = meter.attainments()["algo-1"]
    assert (found.throttled_share, found.run_queue_delay_seconds) == (1.0, 6.0)
    assert found.share == 1.0
