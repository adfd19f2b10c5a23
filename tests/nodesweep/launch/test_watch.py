"""The watcher of a sweep on a simulated clock and platform."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from benchmarks.watch_calls import (
    CALLS_PER_SECOND,
    Case,
    SimulatedPlatform,
    SimulatedTime,
    busiest_window,
    run_case,
)
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.watch import BURST_CALLS, JobLimits, JobWait, watch
from nodesweep.polling import CallBudget, Cancelled, Clock
from nodesweep.scaling.job import JobStatus

LIMITS = JobLimits(queue_seconds=600.0, run_seconds=3600.0)
POLL_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 4.8 * POLL_SECONDS
MOST_CALLS_IN_A_MINUTE = BURST_CALLS + 60 * CALLS_PER_SECOND


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Use the same jitter in every run."""
    random.seed(1)


@pytest.fixture
def platform() -> SimulatedPlatform:
    return SimulatedPlatform(SimulatedTime())


def wait_for(
    platform: SimulatedPlatform,
    *job_names: str,
    limits: JobLimits = LIMITS,
    follow: Callable[[str], None] = lambda job_name: None,
) -> list[str]:
    """Return the names of the jobs that ended."""
    ended = statuses(platform, *job_names, limits=limits, follow=follow)
    assert all(job.reason is None for job in ended if job.state != "stopped")
    return [job.name for job in ended]


def statuses(
    platform: SimulatedPlatform,
    *job_names: str,
    limits: JobLimits = LIMITS,
    follow: Callable[[str], None] = lambda job_name: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[JobStatus]:
    """Return the statuses of the jobs that ended or were given up."""
    clock = platform.time.clock
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, clock)
    return watch(
        SageMakerJobs(platform), job_names, POLL_SECONDS, limits, clock, budget, follow, is_stopped
    )


def described_at(platform: SimulatedPlatform) -> list[float]:
    return [at for at, operation in platform.calls if operation == "DescribeTrainingJob"]


def test_jobs_that_ended_are_returned_and_the_others_left(platform: SimulatedPlatform) -> None:
    platform.add("s-a", (0.0, "Starting"), (100.0, "Training"), (500.0, "Completed"))
    platform.add("s-b", (0.0, "Starting"), (100.0, "Training"))
    assert wait_for(platform, "s-a", "s-b") == ["s-a"]
    assert 500.0 <= platform.time.seconds <= 500.0 + LONGEST_PAUSE_SECONDS + 1.0


def test_each_look_describes_each_job_once_and_nothing_else_is_asked(
    platform: SimulatedPlatform,
) -> None:
    names = [f"s-{place}" for place in range(20)]
    for name in names:
        platform.add(name, (0.0, "Starting"), (100.0, "Training"), (3000.0, "Completed"))
    looks: list[float] = []

    def is_stopped() -> bool:
        looks.append(platform.time.seconds)
        return False

    assert len(statuses(platform, *names, is_stopped=is_stopped)) == 20
    assert len(looks) > 30
    assert platform.described == names * len(looks)
    assert {operation for _, operation in platform.calls} == {"DescribeTrainingJob"}


def test_pauses_grow_to_four_times_the_first_until_something_changes(
    platform: SimulatedPlatform,
) -> None:
    platform.add("a", (0.0, "Training"), (1000.0, "Uploading"), (2000.0, "Completed"))
    wait_for(platform, "a")
    looks = described_at(platform)
    pauses = {earlier: later - earlier - 0.1 for earlier, later in pairwise(looks)}
    steady = [pause for at, pause in pauses.items() if 400.0 < at < 1000.0 or at > 1500.0]
    assert all(0.8 * 60.0 <= pause <= LONGEST_PAUSE_SECONDS for pause in steady)
    seen = next(at for at in looks if at >= 1000.0)
    assert pauses[seen] <= 1.2 * POLL_SECONDS + 0.1
    assert pauses[looks[0]] <= 1.2 * POLL_SECONDS + 0.1


def test_twenty_jobs_at_once_keep_to_the_budget_and_no_end_is_late() -> None:
    case = Case("20 at once", 100, 20, POLL_SECONDS, (60.0, 600.0), (600.0, 7200.0))
    result = run_case(case, seed=1)
    assert result["busiest_minute_calls"] <= MOST_CALLS_IN_A_MINUTE
    # A pause, and a look at each of the others.
    assert result["end_known_after_seconds"]["longest"] <= LONGEST_PAUSE_SECONDS + 20.0 + 2.0


def test_jobs_that_end_together_are_known_a_second_apart(platform: SimulatedPlatform) -> None:
    names = [f"s-{place}" for place in range(60)]
    for name in names:
        platform.add(name, (0.0, "Training"), (1000.0, "Completed"))
    assert sorted(wait_for(platform, *names)) == sorted(names)
    # One that is described just before it ends waits for the next look.
    assert platform.time.seconds <= 1000.0 + 60 + LONGEST_PAUSE_SECONDS + 60
    assert busiest_window(platform.calls) <= MOST_CALLS_IN_A_MINUTE


def test_throttled_description_is_left_to_the_tasks_retry(platform: SimulatedPlatform) -> None:
    """The next poll finds the other jobs' changes again."""
    throttled: Any = {"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}
    platform.add("s-a", (0.0, "Training"), (10.0, "Completed"))
    platform.add("s-b", (0.0, "Training"))
    true_describe, calls = platform.describe_training_job, iter(range(100))

    def fourth_fails(TrainingJobName: str) -> dict[str, Any]:
        if next(calls) == 3:
            raise ClientError(throttled, "DescribeTrainingJob")
        return true_describe(TrainingJobName)

    platform.describe_training_job = fourth_fails  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="Rate exceeded"):
        wait_for(platform, "s-a", "s-b")
    assert wait_for(platform, "s-a", "s-b") == ["s-a"]


def test_job_that_nobody_knows_is_asked_for_again_and_given_up_in_the_end(
    platform: SimulatedPlatform, snapshot: SnapshotAssertion
) -> None:
    platform.add("s-b", (0.0, "Training"))
    [given_up] = statuses(platform, "s-a", "s-b")
    assert (given_up.name, given_up.state) == ("s-a", "running")
    assert given_up.reason == snapshot
    assert 300.0 < platform.time.seconds < 300.0 + 3 * LONGEST_PAUSE_SECONDS


def test_job_that_is_described_late_is_not_lost(platform: SimulatedPlatform) -> None:
    """SageMaker knows it 100 s after it was accepted, and once more not for a while."""
    platform.add("s-a", (0.0, "Training"), (500.0, "Completed"))
    platform.add("s-b", (0.0, "Training"))
    describe = platform.describe_training_job

    def late(TrainingJobName: str) -> dict[str, Any]:
        is_known = (
            TrainingJobName == "s-b"
            or 100.0 <= platform.time.seconds < 200.0
            or platform.time.seconds > 450.0
        )
        return describe(TrainingJobName if is_known else "unknown")

    platform.describe_training_job = late  # type: ignore[method-assign]
    assert wait_for(platform, "s-a", "s-b") == ["s-a"]
    assert 500.0 < platform.time.seconds < 700.0


def test_sweep_that_is_stopped_stops_all_its_jobs_at_the_next_look(
    platform: SimulatedPlatform,
) -> None:
    """One of them is not known yet, as it was only just accepted, and is asked again."""
    for name in ("s-a", "s-b"):
        platform.add(name, (0.0, "Training"))
    platform.add("s-c", (0.0, "Training"))
    stop = platform.stop_training_job

    def late(TrainingJobName: str) -> None:
        if TrainingJobName == "s-c" and platform.time.seconds < 110.0:
            raise ClientError(
                {"Error": {"Code": "ValidationException", "Message": "not found"}},
                "StopTrainingJob",
            )
        stop(TrainingJobName)

    platform.stop_training_job = late  # type: ignore[method-assign]
    left = ["s-a", "s-b", "s-c"]
    while left:
        ended = statuses(platform, *left, is_stopped=lambda: platform.time.seconds > 100.0)
        assert {job.state for job in ended} == {"stopped"}
        left = [name for name in left if name not in {job.name for job in ended}]
    assert set(platform.stopped) == {"s-a", "s-b", "s-c"}
    assert platform.time.seconds < 100.0 + 30.0 + 4 * LONGEST_PAUSE_SECONDS


def test_stop_that_fails_is_asked_again_and_does_not_end_the_watch(
    platform: SimulatedPlatform,
) -> None:
    platform.add("a", (0.0, "Starting"))
    stop, tries = platform.stop_training_job, iter(range(100))

    def throttled(TrainingJobName: str) -> None:
        if next(tries) < 2:
            raise ClientError(
                {"Error": {"Code": "ThrottlingException", "Message": "slow"}}, "StopTrainingJob"
            )
        stop(TrainingJobName)

    platform.stop_training_job = throttled  # type: ignore[method-assign]
    assert wait_for(platform, "a") == ["a"]
    assert platform.jobs["a"].steps[-1][1] == "Stopped"


def test_job_that_does_not_train_in_time_is_stopped_once_and_awaited(
    platform: SimulatedPlatform,
) -> None:
    platform.add("a", (0.0, "Starting"))
    assert wait_for(platform, "a") == ["a"]
    assert platform.stopped == ["a"]
    [stopped_at] = [at for at, operation in platform.calls if operation == "StopTrainingJob"]
    assert 600.0 < stopped_at <= 600.0 + LONGEST_PAUSE_SECONDS + 1.0


def test_job_that_runs_too_long_is_stopped_by_when_it_began_to_train(
    platform: SimulatedPlatform,
) -> None:
    platform.add("s-a", (0.0, "Starting"), (500.0, "Training"))
    assert wait_for(platform, "s-a") == ["s-a"]
    [stopped_at] = [at for at, operation in platform.calls if operation == "StopTrainingJob"]
    assert 4100.0 < stopped_at <= 4100.0 + LONGEST_PAUSE_SECONDS + 1.0


def test_adopted_job_has_no_more_time_than_any_other(platform: SimulatedPlatform) -> None:
    platform.add("s-a", (0.0, "Training"))
    platform.add("s-b", (0.0, "Training"), (4000.0, "Completed"))
    platform.time.seconds = 3590.0
    wait_for(platform, "s-a", "s-b")
    assert sorted(platform.stopped) == ["s-a", "s-b"]
    assert platform.time.seconds < 3590.0 + 2 * LONGEST_PAUSE_SECONDS + 30.0


def test_restarted_spot_job_has_its_runtime_from_its_first_training(
    platform: SimulatedPlatform,
) -> None:
    platform.add(
        "a", (0.0, "Starting"), (10.0, "Training"), (1000.0, "Starting"), (3000.0, "Completed")
    )
    platform.time.seconds = 1500.0
    assert wait_for(platform, "a") == ["a"]
    assert platform.stopped == []


def test_job_that_never_stops_does_not_hold_the_run_for_ever(snapshot: SnapshotAssertion) -> None:
    platform = SimulatedPlatform(SimulatedTime(), stop_seconds=1e9)
    platform.add("a", (0.0, "Starting"))
    [given_up] = statuses(platform, "a")
    assert given_up.state == "stopping"
    assert given_up.reason == snapshot
    assert 900.0 < platform.time.seconds <= 900.0 + 2 * LONGEST_PAUSE_SECONDS + 2.0
    assert platform.stopped == ["a"]


def test_job_that_never_stops_is_given_up_in_time_though_others_end_all_the_while() -> None:
    """A watch ends with the first job that does; the next one goes on with what was asked of the
    others.
    """
    platform = SimulatedPlatform(SimulatedTime(), stop_seconds=1e9)
    platform.add("s-stubborn", (0.0, "Starting"))
    clock, waits = platform.time.clock, dict[str, JobWait]()
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, clock)
    for place in range(200):
        platform.add(f"s-{place}", (0.0, "Training"), (platform.time.seconds + 60.0, "Completed"))
        names = ["s-stubborn", f"s-{place}"]
        ended = watch(
            SageMakerJobs(platform), names, POLL_SECONDS, LIMITS, clock, budget, waits=waits
        )
        if given_up := [one for one in ended if one.name == "s-stubborn"]:
            break
    assert "300 s" in str(given_up[0].reason)
    assert platform.time.seconds < 900.0 + 3 * LONGEST_PAUSE_SECONDS
    assert platform.stopped == ["s-stubborn"]
    assert "s-stubborn" not in waits


def test_logs_are_followed_in_turn_of_jobs_that_train(platform: SimulatedPlatform) -> None:
    names = [f"s-t{place}" for place in range(18)]
    for name in names:
        platform.add(name, (0.0, "Training"))
    platform.add("s-waits", (0.0, "Starting"))
    platform.add("s-ends", (0.0, "Starting"), (3000.0, "Completed"))
    followed: list[str] = []

    def follow(name: str) -> None:
        followed.append(name)
        platform.filter_log_events()

    wait_for(platform, *names, "s-waits", "s-ends", limits=JobLimits(1e6, 1e6), follow=follow)
    assert busiest_window(platform.calls) <= MOST_CALLS_IN_A_MINUTE
    times = Counter(followed)
    assert (times.pop("s-ends"), "s-waits" in times) == (1, False), "its last lines when it ended"
    assert set(times) == set(names)
    assert max(times.values()) - min(times.values()) <= 1, "in turn"


def test_logs_are_read_even_where_the_looks_take_every_call(platform: SimulatedPlatform) -> None:
    """Twenty jobs that change all the time are described every 15 s, with a call each."""
    names = [f"s-{place}" for place in range(BURST_CALLS)]
    for place, name in enumerate(names):
        changes = ((at, ("Training", "Uploading")[at % 40 == 0]) for at in range(place, 2000, 20))
        platform.add(
            name,
            (0.0, "Training"),
            *((float(at), state) for at, state in changes),
            (2000.0, "Completed"),
        )
    followed: list[str] = []
    wait_for(platform, *names, follow=followed.append)
    assert set(followed[: 3 * BURST_CALLS]) == set(names)


def test_states_are_said_with_their_messages_and_together(
    platform: SimulatedPlatform,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.jobs")
    platform.add("s-a", (0.0, "Starting"), (1.0, "Training"), (60.0, "Completed"))
    platform.add("s-b", (0.0, "Starting"))
    wait_for(platform, "s-a", "s-b")
    said = [record.getMessage() for record in caplog.records]
    assert [*said[:5], *said[-2:]] == snapshot


def test_one_job_is_said_by_its_name(
    platform: SimulatedPlatform, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.jobs")
    platform.add("a", (0.0, "Starting"), (100.0, "Completed"))
    wait_for(platform, "a")
    said = [record.getMessage() for record in caplog.records]
    assert "(it is Starting)" in said[0] and "(it is Completed)" in said[-1]
    assert all("Starting" in text for text in said[1:-1]) and len(said) > 3


def test_watch_ends_at_once_when_the_run_is_cancelled(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Training"))
    clock = Clock(monotonic=lambda: 0.0, wait=lambda seconds: True, now=platform.time.now)
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, clock)
    with pytest.raises(Cancelled):
        watch(SageMakerJobs(platform), ["a"], POLL_SECONDS, LIMITS, clock, budget)
    assert len(platform.calls) == 1


def test_watch_for_a_first_step_reads_the_log_in_every_pause_and_ends_with_it(
    platform: SimulatedPlatform,
) -> None:
    """Frequent polls leave no spare call, so that the step would never be noticed."""
    platform.add("a", (0.0, "Starting"), (10.0, "Training"), (900.0, "Completed"))
    clock, read = platform.time.clock, list[float]()
    budget = CallBudget(CALLS_PER_SECOND, 1, clock)

    def has_stepped(name: str) -> bool:
        return clock.monotonic() > 100.0 and bool(read)

    def follow(name: str) -> None:
        read.append(clock.monotonic())

    assert (
        watch(
            SageMakerJobs(platform),
            ["a"],
            0.2,
            LIMITS,
            clock,
            budget,
            follow,
            has_stepped=has_stepped,
        )
        == []
    )
    assert len(read) > 20 and clock.monotonic() < 120.0
    ended = watch(
        SageMakerJobs(platform),
        ["a"],
        0.2,
        LIMITS,
        clock,
        budget,
        follow,
        has_stepped=lambda name: False,
    )
    assert [job.name for job in ended] == ["a"], "it ends without a step"
