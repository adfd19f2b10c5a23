"""The live view of a recorded run, drawn at three sizes and compared with text files.

After an intended change, run NODESWEEP_WRITE_SCREENS=1 pytest
tests/nodesweep/cli/views/test_live.py, and review the files.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.views.live import LiveView, Screen, left_of
from nodesweep.cli.views.state import RunState
from nodesweep.events import Event, read_event
from nodesweep.tasks.image.output import BuildOutput
from tests.nodesweep.cli.views.recorded import (
    BEGAN,
    begin,
    done,
    ended,
    event,
    failed,
    in_the_middle,
    job,
    line,
    of_types,
    probes_of_types,
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
    "types": (of_types, 90.0),
    "probed_types": (probes_of_types, 90.0),
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
    state = state_of([*begin(), *train(18, 1)][:-1])
    drawn = screen(state, 78, (80, 24))
    assert "Training" in drawn and "1 min 0 s" in drawn
    assert left_of(state, BEGAN.timestamp() + 78) is None


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
    view.interrupt(state.interrupt_text("nodesweep run my.yaml"), state.second_interrupt_text())
    view.close()
    view.close()
    said = out.getvalue()
    assert "3.2 s" in said and "64.5 s" in said
    assert "RuntimeError: no room" in said and "SM_HP_SEED" not in said
    assert said.count("Resume with: nodesweep run my.yaml --resume") == 1
    assert said.count("\x1b[?25h") >= 1, "the cursor is there again"


def test_points_that_a_sequential_sweep_decides_on_are_added_with_the_reason() -> None:
    state = state_of(begin())
    planned = len(state.points)
    text = "1 job next: 8 nodes undecided; one more run at 8 nodes"
    point = {"nodes": 8, "repeat": 2, "batch": None}
    state.show(event(30, "sweep-decided", text, stage="sweep", points=[point], answers=[]))
    assert (state.points[-1].nodes, state.points[-1].repeat) == (8, 2)
    assert len(state.points) == planned + 1
    assert "8 nodes undecided" in screen(state, 31, (80, 24))


def test_the_processing_job_of_a_validation_is_shown_and_named_by_ctrl_c(
    snapshot: SnapshotAssertion,
) -> None:
    state = state_of(preparing())
    name = "bench-20261125000000-0123abcd-v1-0123abcd"

    def show(words: str) -> None:
        text = f"{name}: {words}"
        one = event(30, "job-state", text, stage="dataset", state=words, wait_until=None)
        state.show(replace(one, job=name))

    show("Waiting for instances")
    assert state.stages["dataset"].note == snapshot
    words = state.interrupt_text("nodesweep run my.yaml")
    assert name in words and words.endswith("nodesweep run my.yaml"), "its sweep has no record yet"
    assert words == snapshot
    assert state.second_interrupt_text() == snapshot
    assert state.aborted_text(None) == snapshot
    show("Completed")
    assert state.stages["dataset"].note == ""
    assert name not in state.interrupt_text("nodesweep run my.yaml")


def test_what_the_image_build_fetched_stays_on_the_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    build = BuildOutput(logging.getLogger("nodesweep.image"))
    build.add(["[FETCHED] 191.8 MB for the image", "[NOTE] no CPU wheel was found", "#7 done"])
    out, state = io.StringIO(), RunState()
    view = LiveView(out, state, False, time.time, Console(file=out, width=80))
    for one in map(read_event, caplog.records):
        state.show(one)
        view.show(one)
    view.close()
    fetched, warned = out.getvalue().splitlines()
    assert "191.8 MB" in fetched and "warning: " in warned


LIMITS = "efficiency 76% (71%–82%) for at least 75%, doubling ratio 1.66 (1.42–1.90) for"
WHY = f"4 nodes undecided: {LIMITS} at least 1.50; one more run each at 1, 2 and 4 nodes"
ANSWERS = [
    {"nodes": 8, "answer": "fail", "brief": "8 nodes fail", "text": "8 nodes fail: …"},
    {"nodes": 4, "answer": "undecided", "brief": "4 nodes undecided", "text": WHY},
]


def decided(
    second: float, text: str, points: Sequence[dict[str, Any]], answers: Sequence[Any] = ()
) -> Event:
    return event(
        second, "sweep-decided", text, stage="sweep", points=points, reason=text, answers=answers
    )


def planned(second: float, design: str, most_jobs: int) -> Event:
    return event(
        second, "sweep-planned", "sweep", stage="sweep", sweep="s", design=design, points=[],
        most_jobs=most_jobs, max_parallel_jobs=1, usd_per_hour=None, cost_bound_usd=None,
        on_cancel="stop",
    )  # fmt: skip


def test_80_columns_hold_why_the_next_jobs_are_the_next_and_what_is_known_so_far(
    snapshot: SnapshotAssertion,
) -> None:
    points = [{"nodes": nodes, "repeat": 2, "kind": "run"} for nodes in (1, 2, 4)]
    why = decided(30, f"3 jobs next: {WHY}", points, ANSWERS)
    state = state_of([*begin(), planned(17, "sequential", 20), why, *train(31, 1)])
    drawn = screen(state, 40, (80, 24))
    words = " ".join(drawn.split())
    assert WHY in words and "; ".join(answer["brief"] for answer in ANSWERS) in words
    assert "0/3 points" in drawn
    assert drawn.splitlines()[-2:] == snapshot
    state.usd_per_hour, state.cost_bound_usd = 12.0, 40.0
    for one in (done(60, 1, 40.0, 50.0), *train(61, 2)):
        state.show(one if one.job is None else replace(one, job=job(one.nodes or 1, 2)))
    drawn = screen(state, 70, (80, 24))
    assert "1/3 points" in drawn
    assert all(time in drawn for time in ("51.0 s", "25.0 s", "1 min 41 s"))
    last = drawn.splitlines()[-1]
    assert "$0.2067" in last and "$40.00" in last, "below: it has no room"
    assert drawn.splitlines()[-2:] == snapshot
    assert max(map(len, drawn.splitlines())) <= 80 and len(drawn.splitlines()) < 24
    state.show(ended(60, "sweep", 43.0))
    assert "3 jobs next" not in screen(state, 61, (80, 24)), "it decides nothing any more"


def test_a_decision_that_is_too_long_keeps_its_beginning_and_leaves_room() -> None:
    why = decided(30, "3 jobs next: " + "reason \x1b[31m" * 90, [])
    drawn = screen(state_of([*begin(), why]), 31, (80, 24))
    assert "3 jobs next: reason" in drawn and "…" in drawn and "\x1b" not in drawn
    assert drawn.count("reason") < 45 and "0/4 points" in drawn


def test_decisions_and_answers_stay_on_the_terminal() -> None:
    out, state = io.StringIO(), RunState()
    view = LiveView(out, state, False, lambda: BEGAN.timestamp() + 150, Console(file=out))
    for one in [
        *begin(),
        event(29, "count-answered", "8 nodes fail: slow", stage="sweep", count=8, answer="fail"),
        decided(30, "no further job: 4 nodes pass", []),
    ]:
        state.show(one)
        view.show(one)
    view.close()
    assert "8 nodes fail: slow" in out.getvalue()
    assert "no further job: 4 nodes pass" in out.getvalue()


def probing() -> Iterator[Event]:
    """Return events of probes on 1 and 2 nodes: jobs of 40 and 30 s that project 220 and 120 s."""
    yield from begin()
    yield planned(17, "probe", 3)
    points = [{"nodes": nodes, "repeat": 1, "kind": "probe"} for nodes in (1, 2)]
    yield decided(17.2, "2 jobs next: every node count is probed first", points)
    yield from train(18, 1)
    yield line(30, 1, "step=20", step=(20, 500))
    yield probed(58, 1, 40.0, 220.0)
    yield from train(60, 2)


def probed(second: float, nodes: int, job_seconds: float, whole_seconds: float) -> Event:
    return event(
        second, "point-ended", f"{job(nodes)}: projected", nodes=nodes, status="Completed",
        train_seconds=12.0, is_projected=True, billable_seconds=28, steps=None, reason=None,
        submit_to_end_seconds=job_seconds, whole_run_seconds=whole_seconds, whole_run_steps=500,
        lines=[],
    )  # fmt: skip


def test_a_projected_time_is_called_so_and_its_steps_are_a_part() -> None:
    drawn = screen(state_of(probing()), 62.0, (200, 50))
    assert "12.0 s projected" in drawn
    assert "20 of 500 steps" in drawn
    assert "1/3 points" in drawn, "the validation run is one of them"


def test_a_probe_that_runs_has_no_share_of_a_whole_training() -> None:
    events = [*probing()]
    state = state_of(events[: events.index(probed(58, 1, 40.0, 220.0))])
    drawn = screen(state, 31, (80, 24))
    assert "step 20" in drawn and "20/500" not in drawn
    assert left_of(state, BEGAN.timestamp() + 31) is None


def test_the_check_is_expected_to_take_as_long_as_a_whole_job() -> None:
    """The probe of 2 nodes has run for 10 s of about 28; the check follows it, at 1 or 2 nodes."""
    state = state_of(probing())
    left = left_of(state, BEGAN.timestamp() + 70)
    assert left is not None
    assert left.low_seconds == pytest.approx(0.9 * 20 - 10 + 0.9 * 110)
    assert left.high_seconds == pytest.approx(1.1 * 40 - 10 + 1.1 * 220)
    state.show(probed(90, 2, 30.0, 120.0))
    asked = decided(91, "1 job next: it checks", [{"nodes": 2, "repeat": 2, "kind": "check"}])
    state.show(asked)
    left = left_of(state, BEGAN.timestamp() + 91)
    assert left is not None and left.seconds == pytest.approx(120.0)
    drawn = screen(state, 91, (80, 24))
    assert "2   check  waiting" in drawn and "2/3 points" in drawn


def test_the_steps_of_the_check_tell_its_end_of_those_that_its_probes_foretold() -> None:
    state = state_of([*probing(), probed(90, 2, 30.0, 120.0)])
    state.show(decided(91, "1 job next", [{"nodes": 2, "repeat": 2, "kind": "check"}]))
    name = job(2, 2)
    for one in (
        event(92, "job-submitted", "check"),
        event(95, "job-state", "Training", state="Training", wait_until=None),
        event(105, "node-line", "step=250", kind="program", host="algo-1", step=(250, None)),
    ):
        state.show(replace(one, job=name))
    left = left_of(state, BEGAN.timestamp() + 105)
    assert left is not None and left.seconds == pytest.approx(10.0)
    assert "250/500" in screen(state, 105, (80, 24))


def test_points_of_an_earlier_run_that_are_kept_are_shown() -> None:
    kept = [{"nodes": 1, "repeat": 2, "kind": "check"}]
    state = state_of([*probing(), event(61, "sweep-kept", "1 point", stage="sweep", points=kept)])
    assert "1   check  waiting" in screen(state, 62, (80, 24))


def test_a_check_has_no_speedup_over_what_is_projected() -> None:
    state = state_of([*probing(), probed(90, 2, 30.0, 120.0)])
    state.show(decided(91, "1 job next", [{"nodes": 2, "repeat": 2, "kind": "check"}]))
    end = done(200, 2, 6.0, 110.0)
    state.show(replace(end, job=job(2, 2)))
    [row] = [row for row in screen(state, 201, (80, 24)).splitlines() if " check " in row]
    assert row.split()[-3:] == ["6.0", "s", "–"]


def test_programs_that_never_end_early_are_followed_by_no_check() -> None:
    events = [*probing()]
    at = events.index(probed(58, 1, 40.0, 220.0))
    whole = replace(events[at], facts={**events[at].facts, "whole_run_seconds": None})
    state = state_of([*events[:at], whole, *events[at + 1 :]])
    left = left_of(state, BEGAN.timestamp() + 70)
    assert left is not None and left.high_seconds == pytest.approx(1.1 * 40 - 10)
    assert "1/2 points" in screen(state, 70, (80, 24))


def test_a_job_that_waits_says_why_until_it_trains() -> None:
    why = "Training job waiting for capacity: another training job runs on this machine"
    state = state_of(begin())
    state.show(event(20, "job-submitted", "job 1/4", nodes=1))
    state.show(
        event(21, "job-state", "x: Pending", nodes=1, state="Pending", wait_until=9e9, why=why)
    )
    assert f"Pending: {why}" in screen(state, 30.0, (120, 30))
    assert max(map(len, screen(state, 30.0, (60, 20)).splitlines())) <= 60
    state.show(
        event(31, "job-state", "x: Training", nodes=1, state="Training", wait_until=None, why="")
    )
    assert why not in screen(state, 32.0, (120, 30))
