"""A job's task run, with a client that records calls and a fake clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.settings.context import get_current_settings

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.launch.watch import UNKNOWN_PHASE
from nodesweep.polling import Clock
from nodesweep.scaling.job import OVER_TIME
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.tasks.sweeps import job_runs
from nodesweep.tasks.sweeps.drawing import Drawer
from nodesweep.tasks.sweeps.job_runs import (
    BURST_CALLS,
    CALLS_PER_SECOND,
    STOPPED,
    SUBMITTED,
    UNWATCHED,
    JobRuns,
    JobView,
    end_job_runs,
    ended_view,
    running_view,
    task_run_name,
)

DONE = JobView(StateType.COMPLETED, "Completed")
RUNNING = running_view("Training")


def job(nodes: int, attempt: int = 1, arm: str = "") -> str:
    return f"s-20261124120000-0a1b2c3d-n{nodes}{arm}-r1-a{attempt}-abcd"


class Server:
    """Records a client's calls to Prefect with their seconds, and the task runs by job."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, str, str]] = []
        self.runs: dict[str, SimpleNamespace] = {}
        self.refuses: set[str] = set()
        self.opened = 0
        self.seconds_per_call = 0.0
        self.settings: dict[int, Any] = {}

    @contextmanager
    def client(self, sync_client: bool, httpx_settings: dict[str, Any]) -> Iterator[Server]:
        assert sync_client and httpx_settings["timeout"] > 0
        self.opened += 1
        yield self

    def clock(self) -> Clock:
        def wait(seconds: float) -> bool:
            self.now += seconds
            return False

        return Clock(monotonic=lambda: self.now, wait=wait)

    def create_task_run(
        self, task: Any, flow_run: UUID, *, dynamic_key: str, state: State[Any], **facts: Any
    ) -> SimpleNamespace:
        self._take(dynamic_key, state)
        new = SimpleNamespace(id=uuid4(), state=state, key=task.task_key, **facts)
        return self.runs.setdefault(dynamic_key, new)

    def set_task_run_state(self, run: UUID, state: State[Any], force: bool) -> None:
        [name] = [name for name, each in self.runs.items() if each.id == run]
        self._take(name, state)
        assert force
        self.runs[name].state = state

    def _take(self, name: str, state: State[Any]) -> None:
        self.calls.append((self.now, name, str(state.name)))
        self.now += self.seconds_per_call
        self.settings[id(get_current_settings())] = get_current_settings()
        if name in self.refuses:
            raise ConnectionError("no server")

    def states_of(self, name: str) -> list[str]:
        return [state for _, job, state in self.calls if job == name]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(job_runs, "get_client", server.client)
    for name in ("flow_run", "task_run"):
        monkeypatch.setattr(job_runs, name, SimpleNamespace(id=str(uuid4())))
    return server


def runs_of(server: Server, **facts: Any) -> JobRuns:
    return JobRuns(
        **{"max_attempts": 2, "timeout_seconds": 3600.0, "clock": server.clock(), **facts}
    )


def show_all(runs: JobRuns) -> None:
    for _ in range(1000):
        if (due := runs.next_to_show()) is None:
            return
        runs.show(*due)
    pytest.fail("it never gives up")


def outcome(status: str, reason: str | None = None) -> JobOutcome:
    return JobOutcome(
        nodes=1, repeat=1, attempt=1, job_name=job(1), status=status, reason=reason,
        platform_kind="emulated",
    )  # fmt: skip


def test_a_job_is_one_run_however_many_phases_its_program_has() -> None:
    """Prefect counts Running states as attempts."""
    phases = ["Starting", "Downloading", "Training", "Uploading"]
    assert [running_view(phase)[:2] for phase in phases] == [
        (StateType.PENDING, "Starting"),
        (StateType.PENDING, "Downloading"),
        (StateType.RUNNING, "Running"),
        (StateType.RUNNING, "Running"),
    ]
    assert running_view(UNKNOWN_PHASE) == SUBMITTED


@pytest.mark.parametrize(
    ("ended", "watched", "view"),
    [
        (outcome("Completed"), True, (StateType.COMPLETED, "Completed", None)),
        (outcome("Completed"), False, (StateType.COMPLETED, "Cached", None)),
        (outcome("Failed", "boom"), True, (StateType.FAILED, "Failed", "boom")),
        (outcome("Failed"), True, (StateType.FAILED, "Failed", None)),
        (outcome("Stopped", "by a user"), True, (StateType.CANCELLED, "Cancelled", "by a user")),
        (
            outcome("Stopped", f"{OVER_TIME}: 60 s"),
            True,
            (StateType.FAILED, "TimedOut", f"{OVER_TIME}: 60 s"),
        ),
    ],
)
def test_the_end_of_a_job_has_prefects_name(
    ended: JobOutcome, watched: bool, view: tuple[Any, ...]
) -> None:
    assert ended_view(ended, watched) == view
    assert ended_view(ended, watched).is_final


def test_a_run_has_the_jobs_name_attempt_and_timeout(server: Server) -> None:
    assert task_run_name("job of someone else") == "job of someone else"
    assert task_run_name(job(4, arm="b")) == "train-4nb-r1"
    runs = runs_of(server)
    runs.want({job(4, attempt=2): SUBMITTED, "other": SUBMITTED})
    show_all(runs)
    made, other = server.runs[job(4, attempt=2)], server.runs["other"]
    assert (made.name, made.key) == ("train-4n-r1-a2", "training-job")
    assert made.extra_tags == ["training-job", "attempt 2 of 2", "timeout 1 h 0 min"]
    assert made.state.message == job(4, attempt=2)
    assert other.extra_tags[1] == "attempt 1 of 2"
    [parent] = made.task_inputs["__parents__"]
    assert str(parent.id) == job_runs.task_run.id


def test_an_hour_of_busy_jobs_is_a_call_a_second_and_no_end_is_lost(server: Server) -> None:
    """Four jobs at a time, of ten phases, each phase half a second: eight changes a second."""
    runs = runs_of(server)
    second = 0.0
    for nodes in range(1, 201):
        for phase in range(10):
            runs.want({job(nodes): JobView(StateType.PENDING, f"phase {phase}")})
            second += 0.125
            while server.now < second and (due := runs.next_to_show()) is not None:
                runs.show(*due)
            server.now = max(server.now, second)
        runs.want({job(nodes): DONE})
    seconds = server.now
    assert len(server.calls) <= BURST_CALLS + CALLS_PER_SECOND * seconds + 1
    assert len(server.calls) >= CALLS_PER_SECOND * seconds * 0.9, "the budget is used"
    assert server.opened == 1, "a new client for each call would take 20 to 50 ms of CPU"
    assert [each.client.max_retries for each in server.settings.values()] == [0], "once, too"
    runs.end()
    while runs.is_behind:
        due = runs.next_to_show()
        assert due is not None
        runs.show(*due)
    assert server.now == seconds, "the last states are not paced"
    assert all(each.state.name == "Completed" for each in server.runs.values())


def test_running_jobs_come_before_those_that_have_ended_unseen(server: Server) -> None:
    runs = runs_of(server)
    runs.want({job(1): RUNNING})
    show_all(runs)
    runs.want({job(2): DONE, job(3): SUBMITTED, job(1): DONE})
    show_all(runs)
    assert [name for _, name, _ in server.calls] == [job(1), job(1), job(3), job(2)]
    assert not runs.is_behind


def test_a_retried_flow_run_finds_the_runs_of_its_jobs(server: Server) -> None:
    first = runs_of(server)
    first.want({job(1): DONE, job(2): RUNNING})
    show_all(first)
    assert first.abandon(STOPPED) and not first.abandon(STOPPED)
    show_all(first)
    assert server.runs[job(2)].state.type is StateType.CANCELLED
    before = dict(server.runs)
    retried = runs_of(server)
    retried.want({job(1): JobView(StateType.COMPLETED, "Cached"), job(2): RUNNING})
    show_all(retried)
    assert server.runs == before
    assert server.runs[job(1)].state.name == "Completed", "it is left as it was"
    assert server.runs[job(2)].state.type is StateType.RUNNING


def test_a_retried_flow_run_replaces_a_state_of_the_same_type(server: Server) -> None:
    first = runs_of(server)
    first.want({job(1): UNWATCHED, job(2): SUBMITTED, job(4): RUNNING, job(8): DONE})
    show_all(first)
    server.calls.clear()
    retried = runs_of(server)
    boom = JobView(StateType.CANCELLED, "Cancelled", "by a user")
    retried.want({job(1): boom, job(2): JobView(StateType.PENDING, "Starting"), job(4): RUNNING})
    show_all(retried)
    assert server.states_of(job(1)) == ["Cancelled"] * 2
    assert server.runs[job(1)].state.message == "by a user"
    assert server.runs[job(2)].state.name == "Starting"
    assert server.states_of(job(4)) == ["Running"], "Prefect counts each as a try"


def test_a_server_that_is_away_is_named_once_and_gets_everything_later(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    runs = runs_of(server)
    names = [job(1), job(2)]
    runs.want(dict.fromkeys(names, RUNNING))
    server.refuses.update(names)
    for _ in range(5):
        due = runs.next_to_show()
        assert due is not None
        runs.show(*due)
    assert len([each for each in caplog.records if "no server" in each.getMessage()]) == 1
    assert {name for _, name, _ in server.calls} == set(names), "each in turn"
    assert server.now >= 5.0, "pauses grow"
    server.refuses.clear()
    runs.want(dict.fromkeys(names, DONE))
    assert runs.is_behind
    show_all(runs)
    assert [server.states_of(name)[-1] for name in names] == ["Completed"] * 2
    assert not runs.is_behind


def test_a_dead_server_is_called_once_a_minute_and_not_for_long_after_the_sweep(
    server: Server,
) -> None:
    runs = runs_of(server)
    runs.want({job(1): DONE})
    server.refuses.add(job(1))
    while server.now < 3600.0:
        runs.show(job(1), DONE)
    assert 40 < len(server.calls) < 110
    ended_at = server.now
    runs.end()
    show_all(runs)
    assert 30.0 <= server.now - ended_at < 40.0
    assert runs.is_behind, "so that a wait for it warns"


def test_a_slow_server_gets_every_end_however_long_that_takes(server: Server) -> None:
    """Only an error after the time for retries ends the attempts."""
    runs = runs_of(server)
    runs.want({job(nodes): DONE for nodes in range(1, 41)})
    server.seconds_per_call = 2.0
    runs.end()
    show_all(runs)
    assert server.now >= 80.0 and not runs.is_behind
    assert len(server.runs) == 40


def test_the_thread_of_a_dead_server_ends_with_the_sweep(server: Server) -> None:
    server.refuses.add(job(1))
    drawer = Drawer("s", runs_of(server))
    drawer.show_jobs({job(1): DONE})
    drawer.wait(0.0)
    wait_until(lambda: drawer._thread is None)


def test_the_end_of_the_sweep_ends_the_pause_after_an_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runs, "_PAUSES_SECONDS", (86_400.0, 86_400.0))
    server.refuses.add(job(1))
    runs = JobRuns(2, None)
    runs.want({job(1): RUNNING})
    thread = threading.Thread(target=runs.show, args=(job(1), RUNNING), daemon=True)
    thread.start()
    wait_until(lambda: server.calls)
    runs.end()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()


def test_a_job_that_prefect_refuses_holds_up_no_other(server: Server) -> None:
    runs = runs_of(server)
    server.refuses.add(job(1))
    runs.want({job(1): RUNNING, job(2): RUNNING})
    for _ in range(4):
        due = runs.next_to_show()
        assert due is not None
        runs.show(*due)
    assert server.states_of(job(2)) == ["Running"]


def test_nothing_is_shown_outside_a_flow(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runs, "flow_run", SimpleNamespace(id=None))
    runs = runs_of(server)
    runs.want({job(1): RUNNING})
    assert runs.next_to_show() is None and not runs.abandon(STOPPED)


def test_the_board_waits_for_the_ends_of_what_it_has_shown(server: Server) -> None:
    drawer = Drawer("s", runs_of(server))
    drawer.show_jobs({job(1): RUNNING, job(2): RUNNING})
    wait_until(lambda: len(server.runs) == 2)
    drawer.show_jobs({job(1): DONE})
    drawer.abandon_jobs(STOPPED, HANG_SECONDS)
    drawer.wait(HANG_SECONDS)
    assert {name: run.state.name for name, run in server.runs.items()} == {
        job(1): "Completed", job(2): "Cancelled",
    }  # fmt: skip


def test_the_board_waits_no_longer_for_a_server_that_hangs(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, is_back = threading.Event(), threading.Event()
    create = server.create_task_run

    def hang(*arguments: Any, **facts: Any) -> Any:
        begun.set()
        assert is_back.wait(HANG_SECONDS)
        return create(*arguments, **facts)

    monkeypatch.setattr(server, "create_task_run", hang)
    drawer = Drawer("s", runs_of(server))
    drawer.show_jobs({job(1): RUNNING})
    assert begun.wait(HANG_SECONDS)
    drawer.abandon_jobs(STOPPED, 0.05)
    assert "did not accept the last state" in caplog.text
    is_back.set()
    drawer.wait(HANG_SECONDS)
    wait_until(lambda: drawer._thread is None)
    assert server.states_of(job(1)) == ["Running"], "the process may watch the job again by then"


class Ending:
    """A server with unfinished task runs, which are read page by page."""

    def __init__(self, count: int) -> None:
        self.left = [SimpleNamespace(id=uuid4(), name=f"train-{each}n-r1") for each in range(count)]
        self.states: dict[UUID, State[Any]] = {}
        self.refuses: set[UUID] = set()
        self.retries: list[int] = []
        self.now, self.call_seconds = 0.0, 0.0

    @contextmanager
    def client(self, timeout_seconds: float, retries: int) -> Iterator[Ending]:
        self.retries.append(retries)
        yield self

    def read_task_runs(self, offset: int, **_: Any) -> list[SimpleNamespace]:
        return self.left[offset : offset + 200]

    def set_task_run_state(self, run: UUID, state: State[Any], force: bool) -> None:
        self.now += self.call_seconds
        if run in self.refuses:
            raise ConnectionError("429")
        self.states[run] = state


def test_all_jobs_of_a_killed_run_end_however_many_and_whatever_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending(450)
    monkeypatch.setattr(job_runs, "quick_client", ending.client)
    refused = ending.left[7]
    ending.refuses.add(refused.id)
    end_job_runs(uuid4(), STOPPED)
    assert set(ending.states) == {each.id for each in ending.left} - {refused.id}
    assert {state.name for state in ending.states.values()} == {"Cancelled"}
    assert f"the end of {refused.name} can't be shown" in caplog.text
    assert ending.retries == [2]


def test_a_busy_server_holds_up_the_end_of_a_killed_run_for_two_minutes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending(450)
    ending.call_seconds = 30.0
    monkeypatch.setattr(job_runs, "quick_client", ending.client)
    end_job_runs(uuid4(), clock=Clock(monotonic=lambda: ending.now))
    assert len(ending.states) == 5
    assert "busy for 120 s" in caplog.text
