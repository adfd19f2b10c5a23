"""A cancellation at every stage of a run: according to Prefect's server, the run ends as Cancelled
and has no other state in between.

This includes a cancellation that the worker does not notice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.production.stages import (
    HELD_AT,
    events_of,
    gates,
    settings_of,
    states_of,
    taken_limit,
    task_states_of,
    wait_at,
)
from tests.production.world import World, is_alive, send, wait_for

pytestmark = pytest.mark.slow
DEPLOYMENT, ONE_AT_A_TIME = "scaling-benchmark/scaling-benchmark", "scaling-benchmark/local"
STAGES = tuple(HELD_AT)
WAITING = ("validation", "build", "jobs")
OUTAGE_SECONDS = 30.0
"""After about 25 s Prefect's worker listens for cancels no more."""


@dataclass
class Story:
    """The run at each stage, according to Prefect's server, and its jobs on the platform."""

    runs: dict[str, str] = field(default_factory=dict)
    states: dict[str, list[str]] = field(default_factory=dict)
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    events: dict[str, set[str]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, list[str]] = field(default_factory=dict)
    next_run: str = ""

    def tell(self, world: World, stage: str, run: str) -> None:
        """Record a run that has ended, once its last events have arrived, from which Prefect
        derives the states of task runs."""
        wait_for(
            f"the end of {stage} in the events",
            lambda: (
                "prefect.flow-run.Cancelled" in events_of(world, run)
                and not {"PENDING", "RUNNING"} & set(task_states_of(world, run).values())
            ),
        )
        self.states[stage] = states_of(world, run)
        self.tasks[stage] = task_states_of(world, run)
        self.events[stage] = events_of(world, run)
        self.logs[stage] = world.log_of(run)


def has_heard(world: World, run: str) -> bool:
    """Return True if a cancelled run has ended, or hangs in a call and knows."""
    return world.state(run) == "Cancelled" or "is being cancelled" in world.log_of(run)


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    """Run all sweeps simultaneously, since each spends most of its time on starting."""
    story, release = Story(), None
    try:
        with taken_limit(world), gates(world, STAGES) as held:
            for stage in ("report", *(stage for stage in STAGES if stage != "report")):
                settings = settings_of(world, stage, f"c-{stage}", held[stage].endpoint)
                place = ONE_AT_A_TIME if stage == "build" else DEPLOYMENT
                story.runs[stage] = world.start(place, preset="local", settings=settings)
                if stage == "report":
                    wait_at(world, held[stage], story.runs[stage], f"c-{stage}")
                    release = world.hold_jobs()  # its own have ended
            for stage, gate in held.items():
                wait_at(world, gate, story.runs[stage], f"c-{stage}")
            story.next_run = world.start(
                ONE_AT_A_TIME, preset="local", settings=world.settings("c-next")
            )
            wait_for(
                "the next run's place in the line",
                lambda: world.state(story.next_run) == "AwaitingConcurrencySlot",
            )
            for run in story.runs.values():
                world.cancel(run)
            for stage, run in story.runs.items():
                wait_for(f"{stage} to hear of its cancel", partial(has_heard, world, run))
            for gate in held.values():
                gate.opened.set()  # a call that hangs is then answered
            for stage, run in story.runs.items():
                world.end_of(run)
                story.tell(world, stage, run)
            story.stopped = {stage: gate.stopped for stage, gate in held.items()}
            release()  # for the next run
        yield story
    finally:
        if release is not None:
            release()


@pytest.mark.parametrize("stage", STAGES)
def test_cancel_ends_as_cancelled_at_every_stage(story: Story, stage: str) -> None:
    states = story.states[stage]
    assert states[-1] == "CANCELLED"
    assert set(states[states.index("RUNNING") :]) == {"RUNNING", "CANCELLING", "CANCELLED"}, (
        states,
        story.logs[stage],
    )
    assert not [event for event in story.events[stage] if event.endswith(".Crashed")]
    assert "Crash detected" not in story.logs[stage]


@pytest.mark.parametrize("stage", STAGES)
def test_cancel_leaves_no_task_run_crashed_or_running(story: Story, stage: str) -> None:
    assert set(story.tasks[stage].values()) <= {"COMPLETED", "CANCELLED"}, story.tasks[stage]


def test_cancel_while_the_worker_starts_the_process_ends_as_cancelled(world: World) -> None:
    """The process gets no signal, and Prefect refuses to set the run Running."""
    run = world.start(DEPLOYMENT, preset="local", settings=world.settings("c-early"))
    wait_for("its start", lambda: world.state(run) != "Scheduled")
    world.cancel(run)
    assert world.end_of(run) == "Cancelled"
    assert not {"RUNNING", "CRASHED", "FAILED"} & set(states_of(world, run))
    assert world.ledger("c-early").points == {}


def test_cancel_stops_what_the_stage_has_started(story: Story, world: World) -> None:
    assert story.stopped["build"] == ["StopBuild"]
    assert set(story.stopped["validation"]) == {"StopProcessingJob"}
    assert world.ledger("c-jobs").points == {(1, 1): ["Stopped"], (2, 1): ["Stopped"]}
    assert world.ledger("c-quota").points == {}


def test_next_run_in_the_line_begins_once_the_cancelled_one_has_ended(
    story: Story, world: World
) -> None:
    """Its place in the line is looked at every 30 s. On a busy machine, the cancelled run hears of
    the cancel before its worker's signal and ends by itself; the worker then sets it to Cancelled
    again.
    """
    assert world.end_of(story.next_run) == "Completed"
    begun = [
        each["timestamp"]
        for each in world.call("GET", f"/flow_run_states/?flow_run_id={story.next_run}")
        if each["name"] in ("Pending", "Submitting", "Running")
    ]
    ended = min(
        each["timestamp"]
        for each in world.call("GET", f"/flow_run_states/?flow_run_id={story.runs['build']}")
        if each["type"] == "CANCELLED"
    )
    assert ended < min(begun)


def test_cancel_is_heard_after_the_server_was_away(world: World) -> None:
    """The worker no longer notices cancellations, so each run polls for itself, whatever it waits
    for."""
    release, runs, story = world.hold_jobs(), dict[str, str](), Story()
    try:
        with gates(world, WAITING) as held:
            for stage, gate in held.items():
                settings = settings_of(world, stage, f"d-{stage}", gate.endpoint)
                runs[stage] = world.start(DEPLOYMENT, preset="local", settings=settings)
            for stage, gate in held.items():
                wait_at(world, gate, runs[stage], f"d-{stage}")
            server = world.process("server")
            send(server, signal.SIGKILL)
            wait_for("the server's end", lambda: not is_alive(server))
            time.sleep(OUTAGE_SECONDS)
            world.up()
            for run in runs.values():
                world.cancel(run)
            assert world.no_job_runs("d-jobs").points == {
                (1, 1): ["Stopped"],
                (2, 1): ["Stopped"],
            }
            for stage, run in runs.items():
                assert world.end_of(run) == "Cancelled"
                story.tell(world, stage, run)
                assert not [event for event in story.events[stage] if event.endswith(".Crashed")]
                assert story.states[stage][-2:] == ["CANCELLING", "CANCELLED"]
                assert set(story.tasks[stage].values()) <= {"COMPLETED", "CANCELLED"}
            assert held["build"].stopped == ["StopBuild"]
            assert held["validation"].stopped
    finally:
        release()
