"""Sweeps that are ended from outside while both of their jobs run: the platform's jobs then, and
after a retry."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from nodesweep.infra.worker.machine import REPOSITORY
from nodesweep.scaling import names
from tests.production.stages import job_states_of, states_of
from tests.production.world import Ledger, World, is_alive, send, wait_for

pytestmark = pytest.mark.slow
DEPLOYMENT = "scaling-benchmark/scaling-benchmark"
ENDED_BY = ("cancel", "leave", "stop", "sigterm", "sigkill")
SUSPENDED = {"suspend": "stop", "parked": "leave"}
"""And sweep.on_cancel of each."""
RETRIED = ("cancel", "sigterm", "sigkill")
INTERRUPTED = {"once": 1, "twice": 2}
"""`nodesweep run` on a terminal, and how often Ctrl-C is pressed."""


@dataclass
class Story:
    """The end of each benchmark: its run's state and its jobs at the end, and after the next
    run."""

    runs: dict[str, str] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    ended: dict[str, Ledger] = field(default_factory=dict)
    taken_over: dict[str, Ledger] = field(default_factory=dict)
    state_in_the_end: dict[str, str] = field(default_factory=dict)
    in_the_end: dict[str, Ledger] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    shown: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    """Run all sweeps simultaneously, since each spends most of its time on starting."""
    story = Story()
    release = world.hold_jobs()
    try:
        terminals = _begin(world, story)
        _end(world, story, terminals)
        _take_over(world, story)
        release()
        _finish(world, story)
        yield story
    finally:
        release()


def _begin(world: World, story: Story) -> dict[str, subprocess.Popen[str]]:
    for name in (*ENDED_BY, *SUSPENDED):
        leaves = name == "leave" or SUSPENDED.get(name) == "leave"
        changes = {"sweep__on_cancel": "leave"} if leaves else {}
        story.runs[name] = world.start(
            DEPLOYMENT, preset="local", settings=world.settings(name, **changes)
        )
    terminals = {name: _terminal(world, name) for name in INTERRUPTED}
    for name in (*ENDED_BY, *SUSPENDED, *INTERRUPTED):
        world.running_jobs(name, 2)
    return terminals


def _terminal(world: World, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nodesweep", "run", str(world.config_file(name))],
        cwd=REPOSITORY,
        env=world.machine.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _press_ctrl_c(terminal: subprocess.Popen[str], times: int) -> None:
    """Press Ctrl-C again once the command has reported that it is ending, since two simultaneous
    signals would be one."""
    assert terminal.stderr is not None
    for press in range(times):
        if press:
            assert any("Ctrl-C again" in line for line in terminal.stderr)
        send(terminal.pid, signal.SIGINT)


def _end(world: World, story: Story, terminals: dict[str, subprocess.Popen[str]]) -> None:
    for name in ("cancel", "leave"):
        world.cancel(story.runs[name])
    for name in SUSPENDED:
        process = world.flow_process(story.runs[name])
        world.suspend(story.runs[name])
        wait_for(f"the end of {name}", lambda process=process: not is_alive(process))
        story.state[name] = world.state(story.runs[name])
        story.ended[name] = world.ledger(name)
        story.words[name] = world.log_of(story.runs[name])
    (sweep,) = world.ledger("stop").sweeps
    stop = world.start("stop-sweep/stop-sweep", sweep_id=sweep, settings=world.settings("stop"))
    send(world.flow_process(story.runs["sigterm"]), signal.SIGTERM)
    send(world.flow_process(story.runs["sigkill"]), signal.SIGKILL)
    for name, terminal in terminals.items():
        _press_ctrl_c(terminal, INTERRUPTED[name])
        _, story.words[name] = terminal.communicate(timeout=300)
        story.state[name] = str(terminal.returncode)
        story.ended[name] = world.ledger(name)
    for name in ENDED_BY:
        story.state[name] = world.end_of(story.runs[name])
        story.ended[name] = world.ledger(name)
        wait_for(
            f"the ends of {name}'s task runs, which the worker sets after a crash",
            lambda run=story.runs[name]: (
                {state for _, state in job_states_of(world, run)} <= {"Cancelled", "Unwatched"}
            ),
        )
        story.shown[name] = job_states_of(world, story.runs[name])
    world.end_of(stop)


def _take_over(world: World, story: Story) -> None:
    """Retry the runs while the jobs still run, and repeat a `collect` that has to wait."""
    world.worker_has_noticed_kill(story.runs["sigkill"])
    for name in RETRIED:
        world.retry(story.runs[name])
    (sweep,) = world.ledger("leave").sweeps
    early = world.start("collect-sweep/collect", sweep_id=sweep, settings=world.settings("leave"))
    story.state["collected early"] = world.end_of(early)
    wait_for("the word that jobs still run", lambda: "running jobs: leave-" in world.log_of(early))
    for name in SUSPENDED:
        world.call("POST", f"/flow_runs/{story.runs[name]}/resume")
    for name in (*RETRIED, *SUSPENDED):
        run = story.runs[name]
        wait_for(
            f"{name} goes on",
            lambda run=run: "job 2/2" in world.log_of(run).rpartition("resuming")[2],
        )
        world.running_jobs(name, 2)  # a stopped job is found first, then its next attempt starts
        story.taken_over[name] = world.ledger(name)


def _finish(world: World, story: Story) -> None:
    world.no_job_runs("leave")
    (sweep,) = world.ledger("leave").sweeps
    story.runs["leave"] = world.start(
        "collect-sweep/collect", sweep_id=sweep, settings=world.settings("leave")
    )
    for name in (*RETRIED, *SUSPENDED, "leave"):
        story.state_in_the_end[name] = world.end_of(story.runs[name])
        story.in_the_end[name] = world.no_job_runs(name)


def test_cancelled_run_stops_its_jobs(story: Story) -> None:
    assert story.state["cancel"] == "Cancelled"
    assert story.ended["cancel"].points == {(1, 1): ["Stopped"], (2, 1): ["Stopped"]}


def test_cancelled_run_leaves_its_jobs_where_the_config_says_so(story: Story) -> None:
    assert story.state["leave"] == "Cancelled"
    assert story.ended["leave"].points == {(1, 1): ["InProgress"], (2, 1): ["InProgress"]}


@pytest.mark.parametrize(
    ("name", "jobs", "resumed"),
    [("suspend", "Stopped", ["Stopped", "InProgress"]), ("parked", "InProgress", None)],
)
def test_suspended_run_ends_its_jobs_as_a_cancel_and_is_resumed(
    story: Story, name: str, jobs: str, resumed: list[str] | None
) -> None:
    assert story.state[name] == "Suspended"
    assert "Resume the run to continue" in story.words[name]
    assert story.ended[name].points == {(1, 1): [jobs], (2, 1): [jobs]}
    resumed = resumed or [jobs]
    assert story.taken_over[name].points == {(1, 1): resumed, (2, 1): resumed}
    assert story.state_in_the_end[name] == "Completed"
    completed = [*resumed[:-1], "Completed"]
    assert story.in_the_end[name].points == {(1, 1): completed, (2, 1): completed}


def test_stop_sweep_ends_the_run_that_waits_for_the_jobs(story: Story) -> None:
    assert story.state["stop"] == "Failed"
    assert story.ended["stop"].points == {(1, 1): ["Stopped"], (2, 1): ["Stopped"]}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("cancel", "Cancelled"),
        ("leave", "Unwatched"),
        ("stop", "Cancelled"),
        ("sigterm", "Unwatched"),
        ("sigkill", "Unwatched"),
    ],
)
def test_ended_run_shows_no_job_as_running(story: Story, name: str, state: str) -> None:
    assert story.shown[name] == [("train-1n-r1", state), ("train-2n-r1", state)]


def test_retried_run_shows_each_job_once(story: Story, world: World) -> None:
    for name in ("sigterm", "sigkill"):
        assert job_states_of(world, story.runs[name]) == [
            ("train-1n-r1", "Completed"), ("train-2n-r1", "Completed"),
        ]  # fmt: skip
    assert job_states_of(world, story.runs["cancel"]) == [
        ("train-1n-r1", "Cancelled"), ("train-1n-r1-a2", "Completed"),
        ("train-2n-r1", "Cancelled"), ("train-2n-r1-a2", "Completed"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["sigterm", "sigkill"])
def test_crashed_run_leaves_its_jobs(story: Story, name: str) -> None:
    assert story.state[name] == "Crashed"
    assert story.ended[name].points == {(1, 1): ["InProgress"], (2, 1): ["InProgress"]}


@pytest.mark.parametrize("name", ["sigterm", "sigkill"])
def test_retried_run_adopts_running_jobs(story: Story, name: str) -> None:
    assert story.taken_over[name].points == {(1, 1): ["InProgress"], (2, 1): ["InProgress"]}
    assert story.state_in_the_end[name] == "Completed"
    assert story.in_the_end[name].points == {(1, 1): ["Completed"], (2, 1): ["Completed"]}


def test_retried_run_gives_stopped_points_one_more_job_each(story: Story) -> None:
    assert story.taken_over["cancel"].points == {
        (1, 1): ["Stopped", "InProgress"],
        (2, 1): ["Stopped", "InProgress"],
    }
    assert story.state_in_the_end["cancel"] == "Completed"
    assert story.in_the_end["cancel"].points == {
        (1, 1): ["Stopped", "Completed"],
        (2, 1): ["Stopped", "Completed"],
    }


def test_collect_reports_jobs_that_were_left_once_they_have_ended(
    story: Story, world: World
) -> None:
    assert story.state["collected early"] == "Completed"
    assert story.state_in_the_end["leave"] == "Completed"
    assert story.in_the_end["leave"].points == {(1, 1): ["Completed"], (2, 1): ["Completed"]}
    (sweep,) = story.in_the_end["leave"].sweeps
    assert sweep is not None
    world.s3.head_object(
        Bucket="nodesweep-local", Key=names.report_key("nodesweep", sweep, names.REPORT_JSON)
    )


def test_interrupted_command_stops_its_jobs_and_its_run_is_cancelled(
    story: Story, world: World
) -> None:
    (sweep,) = story.ended["once"].sweeps
    named = {"name": {"like_": str(sweep)}}
    (run,) = world.call("POST", "/flow_runs/filter", flow_runs=named)
    assert states_of(world, run["id"]) == ["PENDING", "RUNNING", "CANCELLED"]
    assert story.state["once"] == "1"
    assert "interrupted" in story.words["once"]
    assert story.ended["once"].points == {(1, 1): ["Stopped"], (2, 1): ["Stopped"]}


def test_command_that_is_interrupted_twice_ends_at_once(story: Story) -> None:
    """Its jobs may or may not be stopped by then, but there are no others."""
    assert story.state["twice"] == "130"
    assert "at once" in story.words["twice"]
    assert {point: len(jobs) for point, jobs in story.ended["twice"].points.items()} == {
        (1, 1): 1,
        (2, 1): 1,
    }
