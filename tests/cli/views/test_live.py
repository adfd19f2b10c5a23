"""The live view of a recorded run, drawn at three sizes and held against text files.

After a change that is meant: NODESWEEP_WRITE_SCREENS=1 pytest tests/cli/views/test_live.py, and
read what it wrote.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cli.views.live import LiveView, Screen, left_of
from cli.views.state import RunState
from tasks.events import Event
from tests.cli.views.recorded import (
    BEGAN,
    begin,
    done,
    ended,
    event,
    failed,
    in_the_middle,
    job,
    line,
    train,
)

SCREENS = Path(__file__).parent / "screens"
SIZES = [(80, 24), (100, 30), (200, 50)]


def state_of(events: Iterable[Event]) -> RunState:
    state = RunState()
    for one in events:
        state.show(one)
    return state


def screen(state: RunState, second: float, size: tuple[int, int], interrupted: str = "") -> str:
    console = Console(
        file=io.StringIO(), width=size[0], height=size[1], record=True, color_system=None,
        force_terminal=True, legacy_windows=False,
    )  # fmt: skip
    console.print(Screen(state, BEGAN.timestamp() + second, interrupted))
    return "\n".join(text.rstrip() for text in console.export_text().splitlines()) + "\n"


def preparing() -> Iterator[Event]:
    for number, one in enumerate(begin()):
        if number < 7:
            yield one


def priced() -> Iterator[Event]:
    yield from in_the_middle(price=12.0, bound=40.0)
    yield line(148, 4, "a warning of mine \x1b[31m in red")


def over() -> Iterator[Event]:
    yield from in_the_middle(price=12.0, bound=40.0)
    yield failed(168, 4)
    yield from train(170, 8)
    yield done(200, 8, 12.0, 28.0)
    yield ended(201, "sweep", 184.0)


RUNS: dict[str, tuple[Callable[[], Iterator[Event]], float]] = {
    "preparing": (preparing, 5.2),
    "in_the_middle": (in_the_middle, 148.0),
    "priced": (priced, 148.0),
    "over": (over, 202.0),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", RUNS)
def test_screen(name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    events, second = RUNS[name]
    drawn = screen(state_of(events()), second, size)
    assert max(map(len, drawn.splitlines())) <= size[0]
    assert len(drawn.splitlines()) < size[1]
    assert "\x1b" not in drawn
    path = SCREENS / f"{name}_{size[0]}x{size[1]}.txt"
    if os.environ.get("NODESWEEP_WRITE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn)
    assert drawn == path.read_text()


def test_a_long_sweep_fits_the_terminal_and_shows_what_runs() -> None:
    state = state_of(begin())
    points = [{"nodes": 2**at, "repeat": repeat} for at in range(9) for repeat in range(1, 11)]
    state.show(
        event(
            17,
            "sweep-planned",
            sweep="s",
            points=points,
            max_parallel_jobs=4,
            usd_per_hour=None,
            cost_bound_usd=None,
            on_cancel="stop",
        )
    )
    for one in train(30, 8):
        state.show(one)
    for size in SIZES:
        drawn = screen(state, 40, size)
        assert len(drawn.splitlines()) < size[1]
        assert "Training" in drawn and "more points" in drawn and "0/90 points" in drawn


def test_own_code_that_says_nothing_shows_its_phase_and_how_long() -> None:
    events = [*begin(), *train(18, 1)][:-1]
    drawn = screen(state_of(events), 78, (80, 24))
    assert "Training" in drawn and "for 1 min 0 s" in drawn and "not known yet" in drawn


def test_time_left_is_of_what_was_measured() -> None:
    left = left_of(state_of(in_the_middle()), BEGAN.timestamp() + 148)
    assert left is not None
    # n4 has made 14 of 28 steps in 9 s; n8 takes between what n4 does in all, 21 s, and half of it
    assert left.seconds == pytest.approx(9 + 21 * 0.5**0.5, abs=0.1)


def test_a_retry_begins_anew_and_a_late_state_does_not_wake_what_ended() -> None:
    state = state_of([*in_the_middle(), failed(150, 4)])
    [point] = [point for point in state.points if point.nodes == 4]
    assert point.state == "failed"
    state.show(
        event(151, "job-state", "late", source="jobs", nodes=4, state="Training", wait_until=None)
    )
    assert point.state == "failed"
    state.show(event(152, "job-submitted", "again", nodes=4))
    assert (point.state, point.step) == ("Starting", None)


def test_what_stays_is_written_above_and_the_view_takes_itself_away() -> None:
    out, state = io.StringIO(), RunState()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None)
    view = LiveView(out, state, False, lambda: BEGAN.timestamp() + 150, console)
    for one in [*in_the_middle(), failed(149, 4)]:
        state.show(one)
        view.show(one)
    view.interrupt(state.ending_words("nodesweep run my.yaml"))
    view.close()
    view.close()
    said = out.getvalue()
    assert "preflight done after 3.2 s" in said and f"{job(1)}: trained for 64.5 s" in said
    assert "RuntimeError: no room" in said and "SM_HP_SEED" not in said
    assert said.count("Go on: nodesweep run my.yaml --resume") == 1
    assert said.count("\x1b[?25h") >= 1, "the cursor is there again"


def test_points_that_a_sequential_sweep_decides_on_are_added_with_the_reason() -> None:
    state = state_of(begin())
    planned = len(state.points)
    text = "1 job next: 8 nodes undecided; one more run at 8 nodes"
    point = {"nodes": 8, "repeat": 2, "batch": None}
    state.show(event(30, "sweep-decided", text, stage="sweep", points=[point], answers=[]))
    assert (state.points[-1].nodes, state.points[-1].repeat) == (8, 2)
    assert len(state.points) == planned + 1
    assert "8 nodes undecided" in state.stages["sweep"].note


def test_the_processing_job_of_a_validation_is_shown_and_named_by_ctrl_c() -> None:
    state = state_of(begin())
    name = "bench-20261125000000-0123abcd-v1-0123abcd"

    def show(words: str) -> None:
        text = f"{name}: {words}"
        one = event(30, "job-state", text, stage="dataset", state=words, wait_until=None)
        state.show(replace(one, job=name))

    show("Waiting for instances")
    assert state.stages["dataset"].note == f"Spark: {name}: Waiting for instances"
    words = state.ending_words("nodesweep run my.yaml")
    assert words.startswith(f"ending; stopping the Processing job {name}")
    assert "--resume" not in words, "its sweep has no record yet"
    show("Completed")
    assert state.stages["dataset"].note == ""
    assert "Processing job" not in state.ending_words("nodesweep run my.yaml")


def test_a_projected_time_is_called_so() -> None:
    probe = event(
        200, "point-ended", f"{job(8)}: projected 12.0 s", nodes=8, status="Completed",
        train_seconds=12.0, is_projected=True, billable_seconds=28, submit_to_end_seconds=28.0,
        steps=None, reason=None, lines=[],
    )  # fmt: skip
    state = state_of([*in_the_middle(), *train(170, 8), probe])
    assert "12.0 s projected" in screen(state, 202.0, (200, 50))
