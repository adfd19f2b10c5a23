"""The timing of passes after a run, with a clock that the passes themselves move."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from training.measuring import passes
from training.measuring.passes import ENTRY_SECONDS, ROUNDS, sizes_to_time, time_passes, time_rounds

from nodesweep.scaling.outcome.timed_passes import TIME_PASSES, read_timed_passes
from tests.infra.image.training.processes import IMAGE

METRICS: dict[str, Any] = {
    "budget": [{"rank": 0, "seconds": {"forward": 20.0, "backward": 40.0}}],
    "steps": 100,
    "device": {"type": "cpu", "cpu_quota_cores": None, "threads": 2},
    "batch": {"global_batch_size": 64, "per_replica_batch_size": 64},
    "world": {"world_size": 1},
    "train_seconds": 100.0,
}


class Clock:
    """Time that only passes take: `per_sample` seconds per sample, and `first` more at first."""

    def __init__(self, per_sample: float, first: float = 0.0) -> None:
        self.seconds, self.made = 0.0, list[int]()
        self._per_sample, self._first = per_sample, first

    def __call__(self) -> float:
        return self.seconds

    def run_pass(self, size: int) -> None:
        self.seconds += size * self._per_sample + (0.0 if size in self.made else self._first)
        self.made.append(size)

    def time(self, limit_seconds: float, sizes: Sequence[int] = (64, 16)) -> dict[str, Any]:
        return time_rounds(self.run_pass, sizes, limit_seconds, self, wall=self)


def test_the_variable_has_one_name() -> None:
    assert passes.ASKED_BY == TIME_PASSES


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        (None, {}),
        ("", {}),
        ("64", {}),
        ("64,0", {}),
        ("32,16", {}),
        ("128,64,32", {}),
        ("64,32", {"budget": None}),
        ("64,32", {"device": {**METRICS["device"], "type": "cuda"}}),
        ("64,32", {"batch": {"global_batch_size": 64, "per_replica_batch_size": 32}}),
    ],
)
def test_nothing_is_timed_unless_the_run_shows_the_whole_batch(
    asked: str | None, changes: dict[str, Any]
) -> None:
    metrics = {name: value for name, value in (METRICS | changes).items() if value is not None}
    assert sizes_to_time(asked, metrics) == []


def test_sizes_are_timed_from_the_largest_to_the_smallest() -> None:
    assert sizes_to_time("8,64,16", METRICS) == [64, 16, 8]


def test_passes_by_hand() -> None:
    """Passes of 0.64 s and 0.16 s, the shorter of which are made twice per round."""
    clock = Clock(0.01)
    timed = clock.time(100.0)
    assert timed["passes"] == [
        {"samples": 64, "seconds": pytest.approx([0.64] * ROUNDS)},
        {"samples": 16, "seconds": pytest.approx([0.16] * ROUNDS)},
    ]
    assert timed["passes_seconds"] == pytest.approx(clock.seconds)
    assert clock.made == [64, 16, *([64, 16, 16] * ROUNDS)]


def test_the_first_pass_of_a_size_counts_only_toward_the_limit() -> None:
    timed = Clock(0.01, first=5.0).time(60.0)
    assert timed["passes"][1]["seconds"] == pytest.approx([0.16] * ROUNDS)
    assert timed["passes_seconds"] > 10.0


def test_the_limit_leaves_fewer_rounds_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    # 8 s for the first passes, and 8 s per round
    clock = Clock(0.1)
    timed = clock.time(45.0)
    assert [len(each["seconds"]) for each in timed["passes"]] == [4, 4]
    assert timed["passes_seconds"] == pytest.approx(40.0)
    assert capsys.readouterr().out == ""
    assert Clock(0.1).time(31.0) == {}
    assert "more than 31 s" in capsys.readouterr().out


def test_rounds_that_get_slower_end_the_timing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(0.1)

    def slower(size: int) -> None:
        clock.run_pass(size)
        clock.seconds += 20.0 if len(clock.made) > 4 else 0.0

    assert time_rounds(slower, (64, 16), 60.0, clock, wall=clock) == {}
    assert "not timed" in capsys.readouterr().out


def test_a_throttled_process_makes_passes_for_its_share_of_the_time() -> None:
    """At 0.1 cores, 0.02 s of CPU time take 0.2 s."""
    clock = Clock(0.001)
    timed = time_rounds(clock.run_pass, (4, 2), 1e3, clock, 0.1, lambda: clock.seconds * 10)
    assert timed["passes"][0]["seconds"] == pytest.approx([0.04] * ROUNDS)
    assert clock.made == [4, 2, *([4] * 5 + [2] * 10) * ROUNDS]
    assert pytest.approx(ENTRY_SECONDS) == 5 * 0.004 * 10


class Value:
    """The loss of a pass, or a sliceable part of a batch."""

    def __init__(self, events: list[Any], rows: int) -> None:
        self._events, self.rows = events, rows

    def __getitem__(self, rows: slice) -> Value:
        return Value(self._events, rows.stop)

    def backward(self) -> None:
        self._events.append(("backward", self.rows))


class Program:
    """A module and its data, which record what is done with them."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def any_batch(self) -> tuple[Value, Value]:
        return Value(self.events, 64), Value(self.events, 64)

    def on_after_batch_transfer(self, batch: tuple[Value, Value], index: int) -> Any:
        self.events.append(("normalize", batch[0].rows, batch[1].rows))
        return batch

    def train(self) -> None:
        self.events.append("train")

    def training_step(self, batch: tuple[Value, Value], index: int) -> Value:
        self.events.append(("forward", batch[0].rows))
        return batch[0]

    def zero_grad(self) -> None:
        self.events.append("zero_grad")


def test_a_pass_is_that_of_a_step_without_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "ENTRY_SECONDS", 1e-9)
    program = Program()
    timed = time_passes(program, program, [64, 8], METRICS)
    expected: list[Any] = ["train"]
    for size in [64, 8] * (1 + ROUNDS):
        expected += [("normalize", size, size), ("forward", size), "zero_grad", ("backward", size)]
    assert program.events == expected
    read = read_timed_passes({**METRICS, **timed})
    assert read is not None and set(read.ratios) == {8}


@pytest.mark.parametrize(
    ("quota", "train_seconds", "expected"),
    [(None, 100.0, (15.0, "wall", 1.0)), (2, 400.0, (40.0, "wall", 1.0)),
     (0.5, 100.0, (15.0, "cpu", 0.5))],
)  # fmt: skip
def test_a_node_that_is_throttled_is_timed_by_its_cpu_time(
    quota: float | None,
    train_seconds: float,
    expected: tuple[float, str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    clocks = {passes.time.process_time: "cpu", passes.time.perf_counter: "wall"}

    def record(run: Any, sizes: Any, limit: float, clock: Any, rate: float) -> dict[str, Any]:
        seen.append((limit, clocks[clock], rate))
        return {}

    monkeypatch.setattr(passes, "time_rounds", record)
    metrics = METRICS | {
        "device": {**METRICS["device"], "cpu_quota_cores": quota},
        "train_seconds": train_seconds,
    }
    time_passes(Program(), Program(), [64, 8], metrics)
    assert seen == [expected]


def test_sigterm_during_the_timing_ends_a_complete_job() -> None:
    program = (
        "import os, signal, time\n"
        "from training.measuring.passes import end_successfully_on_sigterm\n"
        "end_successfully_on_sigterm()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(IMAGE)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60)
    assert ended.returncode == 0
