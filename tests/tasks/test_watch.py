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

from benchmarks.watch_calls import (
    CALLS_PER_SECOND,
    Case,
    SimulatedPlatform,
    SimulatedTime,
    busiest_window,
    run_case,
)
from tasks.polling import CallBudget, Cancelled, Clock
from tasks.watch import BURST_CALLS, JobLimits, JobWait, common_prefix, watch

LIMITS = JobLimits(queue_seconds=600.0, run_seconds=3600.0)
POLL_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 4.8 * POLL_SECONDS
MOST_CALLS_IN_A_MINUTE = BURST_CALLS + 60 * CALLS_PER_SECOND


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same jitter in every run."""
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
    """The names of those that ended."""
    ended = descriptions(platform, *job_names, limits=limits, follow=follow)
    assert all("FailureReason" not in description for description in ended)
    return [description["TrainingJobName"] for description in ended]


def descriptions(
    platform: SimulatedPlatform,
    *job_names: str,
    limits: JobLimits = LIMITS,
    follow: Callable[[str], None] = lambda job_name: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Of those that ended or were given up."""
    clock = platform.time.clock
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, clock)
    return watch(platform, job_names, POLL_SECONDS, limits, clock, budget, follow, is_stopped)


def look_times(platform: SimulatedPlatform) -> list[float]:
    return [at for at, operation in platform.calls if operation == "ListTrainingJobs"]


def test_jobs_that_ended_are_returned_and_the_others_left(platform: SimulatedPlatform) -> None:
    platform.add("s-a", (0.0, "Starting"), (100.0, "Training"), (500.0, "Completed"))
    platform.add("s-b", (0.0, "Starting"), (100.0, "Training"))
    assert wait_for(platform, "s-a", "s-b") == ["s-a"]
    assert 500.0 <= platform.time.seconds <= 500.0 + LONGEST_PAUSE_SECONDS + 1.0


def test_only_a_change_is_described(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Starting"), (100.0, "Training"), (3000.0, "Completed"))
    wait_for(platform, "a")
    assert platform.described == ["a", "a"], "when it trains and when it ended"
    assert len(look_times(platform)) > 40


def test_pauses_grow_to_four_times_the_first_until_something_changes(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Training"), (1000.0, "Uploading"), (2000.0, "Completed"))
    wait_for(platform, "a")
    looks = look_times(platform)
    pauses = {earlier: later - earlier - 0.1 for earlier, later in pairwise(looks)}
    steady = [pause for at, pause in pauses.items() if 400.0 < at < 1000.0 or at > 1500.0]
    assert all(0.8 * 60.0 <= pause <= LONGEST_PAUSE_SECONDS for pause in steady)
    seen = next(at for at in looks if at >= 1000.0)
    assert pauses[seen] <= 1.2 * POLL_SECONDS + 0.1
    assert pauses[looks[0]] <= 1.2 * POLL_SECONDS + 0.1


def test_a_thousand_jobs_keep_to_the_budget_and_no_end_is_late() -> None:
    case = Case("1,000 at once", 1000, 1000, POLL_SECONDS, (60.0, 600.0), (600.0, 7200.0))
    result = run_case(case, seed=1)
    assert result["busiest_minute_calls"] <= MOST_CALLS_IN_A_MINUTE
    # A pause, ten pages of the first look, and a few others that ended with it.
    assert result["end_known_after_seconds"]["longest"] <= LONGEST_PAUSE_SECONDS + 10.0 + 10.0
    # Downloading, Training, Uploading, Completed at most.
    assert result["calls"]["DescribeTrainingJob"] <= 4 * 1000


def test_jobs_that_end_together_are_known_a_second_apart(platform: SimulatedPlatform) -> None:
    names = [f"s-{place}" for place in range(300)]
    for name in names:
        platform.add(name, (0.0, "Training"), (1000.0, "Completed"))
    assert sorted(wait_for(platform, *names)) == sorted(names)
    assert platform.time.seconds <= 1000.0 + LONGEST_PAUSE_SECONDS + 3 + 300
    assert busiest_window(platform.calls) <= MOST_CALLS_IN_A_MINUTE
    assert Counter(platform.described) == dict.fromkeys(names, 1)


def test_all_are_listed_once_and_then_what_changed(platform: SimulatedPlatform) -> None:
    names = [f"s-{place}" for place in range(250)]
    for place, name in enumerate(names):
        platform.add(name, (0.0, "Training"), (850.0 if place == 0 else 9000.0, "Completed"))
    platform.time.seconds = 300.0  # long after the last change
    wait_for(platform, *names, limits=JobLimits(1e6, 1e6))
    gaps = [later - earlier for earlier, later in pairwise(look_times(platform))]
    assert gaps[0] < 1.0 and gaps[1] < 1.0, "three pages"
    # All changed together, so that they are still listed until 60 s, and a look and its pause, have passed since then.
    quiet = [gap for at, gap in zip(look_times(platform), gaps, strict=False) if 300.0 + 210.0 < at < 850.0]
    assert len(quiet) > 3 and min(quiet) > 1.0


def test_old_jobs_of_the_sweep_are_not_paged_through(platform: SimulatedPlatform) -> None:
    for place in range(1000):
        platform.add(f"s-n1-r{place}", (0.0, "Completed"))
    platform.time.seconds = 5000.0
    for name in ("s-n1-x", "s-n1-y"):
        platform.add(name, (0.0, "Training"), (60.0, "Completed"))
    platform.time.seconds = 5100.0
    assert wait_for(platform, "s-n1-x", "s-n1-y") == ["s-n1-x", "s-n1-y"]
    assert len(look_times(platform)) == 1


def test_names_that_only_contain_the_prefix_are_ignored(platform: SimulatedPlatform) -> None:
    platform.add("s-n1", (0.0, "Training"), (900.0, "Completed"))
    for place in range(150):
        platform.add(f"my-s-n1-{place}", (1.0, "Training"), (50.0, "Failed"))
    platform.add("s-n11", (1.0, "Failed"))
    assert wait_for(platform, "s-n1") == ["s-n1"]
    assert set(platform.described) == {"s-n1"}


@pytest.mark.parametrize(
    ("names", "prefix"),
    [(["s-n1-r1"], "s-n1-r1"), (["s-n2-r1", "s-n1-r1", "s-n16-r1"], "s-n"), (["s", "s-n1"], "s"), (["a", "b"], "")],
)
def test_common_prefix(names: list[str], prefix: str) -> None:
    assert common_prefix(names) == prefix


def test_names_without_a_common_prefix_are_found(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Training"), (60.0, "Completed"))
    platform.add("b", (0.0, "Training"))
    assert wait_for(platform, "a", "b") == ["a"]


def test_job_that_the_list_does_not_show_is_described(platform: SimulatedPlatform) -> None:
    platform.add("s-a", (0.0, "Training"), (500.0, "Completed"), listed_after_seconds=1e6)
    platform.add("s-b", (0.0, "Training"))
    assert wait_for(platform, "s-a", "s-b") == ["s-a"]
    assert platform.time.seconds <= 500.0 + LONGEST_PAUSE_SECONDS + 31.0
    described_at = [at for at, operation in platform.calls if operation == "DescribeTrainingJob"]
    assert all(later - earlier >= 30.0 for earlier, later in pairwise(described_at))


def test_job_that_is_listed_late_is_described_no_more_than_others(platform: SimulatedPlatform) -> None:
    platform.add("s-a", (0.0, "Training"), (3000.0, "Completed"), listed_after_seconds=100.0)
    wait_for(platform, "s-a")
    assert len([at for at, operation in platform.calls if operation == "DescribeTrainingJob" and at > 200.0]) == 1


class LateList(SimulatedPlatform):
    """Its list shows one job as it was at first, until a time."""

    until_seconds = 400.0

    def list_training_jobs(self, **query: Any) -> dict[str, Any]:
        late = self.jobs["s-late"]
        steps = late.steps
        if self.time.seconds < self.until_seconds:
            late.steps = steps[:1]
        try:
            return super().list_training_jobs(**query)
        finally:
            late.steps = steps


def test_change_that_is_listed_very_late_is_found() -> None:
    """By then others have changed long after it, so that it is not among the latest changes of more than a page."""
    platform = LateList(SimulatedTime())
    others = [f"s-b{place}" for place in range(100)]
    for name in others:
        platform.add(name, (0.0, "Training"))
    platform.add("s-late", (0.0, "Training"), (100.0, "Completed"))
    platform.add("s-b", (0.0, "Starting"), (200.0, "Downloading"), (390.0, "Training"))
    assert wait_for(platform, "s-late", "s-b", *others) == ["s-late"]
    assert 600.0 <= platform.time.seconds <= 600.0 + LONGEST_PAUSE_SECONDS + 1.0


def test_change_that_is_listed_up_to_a_minute_late_is_found_at_the_next_look() -> None:
    platform = LateList(SimulatedTime())
    others = [f"s-b{place}" for place in range(100)]
    for name in others:
        platform.add(name, (0.0, "Starting"), (395.0, "Training"))
    platform.add("s-late", (0.0, "Training"), (350.0, "Completed"))
    assert wait_for(platform, "s-late", *others) == ["s-late"]
    assert platform.time.seconds <= 400.0 + LONGEST_PAUSE_SECONDS + 30.0


def test_change_that_is_listed_late_is_found_at_the_next_look_where_all_are_one_page() -> None:
    platform = LateList(SimulatedTime())
    platform.add("s-late", (0.0, "Training"), (100.0, "Completed"))
    platform.add("s-b", (0.0, "Starting"), (200.0, "Downloading"), (390.0, "Training"))
    assert wait_for(platform, "s-late", "s-b") == ["s-late"]
    assert 400.0 <= platform.time.seconds <= 400.0 + LONGEST_PAUSE_SECONDS + 1.0


def test_list_that_runs_ahead_of_the_description_is_no_end(platform: SimulatedPlatform) -> None:
    """A job is over when its description says so: that is what is returned."""
    platform.add("a", (0.0, "Training"), (100.0, "Completed"))
    true_describe = platform.describe_training_job

    def behind(TrainingJobName: str) -> dict[str, Any]:
        answer = true_describe(TrainingJobName)
        return answer if platform.time.seconds > 300.0 else {**answer, "TrainingJobStatus": "InProgress"}

    platform.describe_training_job = behind  # type: ignore[method-assign]
    assert wait_for(platform, "a") == ["a"]
    assert platform.time.seconds > 300.0


def test_throttled_list_is_left_to_the_tasks_retry(platform: SimulatedPlatform) -> None:
    throttled: Any = {"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}
    platform.add("a", (0.0, "Training"), (100.0, "Completed"))
    true_list, calls = platform.list_training_jobs, iter(range(100))

    def second_fails(**query: Any) -> dict[str, Any]:
        if next(calls) == 1:
            raise ClientError(throttled, "ListTrainingJobs")
        return true_list(**query)

    platform.list_training_jobs = second_fails  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="Rate exceeded"):
        wait_for(platform, "a")
    assert wait_for(platform, "a") == ["a"]


def test_job_that_nobody_knows_is_asked_for_again_and_given_up_in_the_end(platform: SimulatedPlatform) -> None:
    platform.add("s-b", (0.0, "Training"))
    [given_up] = descriptions(platform, "s-a", "s-b")
    assert (given_up["TrainingJobName"], given_up["TrainingJobStatus"]) == ("s-a", "InProgress")
    assert "SageMaker has not known it for 300 s" in given_up["FailureReason"]
    assert 300.0 < platform.time.seconds < 300.0 + 3 * LONGEST_PAUSE_SECONDS


def test_job_that_is_described_late_is_not_lost(platform: SimulatedPlatform) -> None:
    """The description knows it 100 s after it was accepted, the list never."""
    platform.add("s-a", (0.0, "Training"), (500.0, "Completed"), listed_after_seconds=1e6)
    platform.add("s-b", (0.0, "Training"))
    describe = platform.describe_training_job

    def late(TrainingJobName: str) -> dict[str, Any]:
        return describe("unknown" if platform.time.seconds < 100.0 else TrainingJobName)

    platform.describe_training_job = late  # type: ignore[method-assign]
    assert wait_for(platform, "s-a", "s-b") == ["s-a"]
    assert 500.0 < platform.time.seconds < 700.0


def test_sweep_that_is_stopped_stops_all_its_jobs_at_the_next_look(platform: SimulatedPlatform) -> None:
    """One of them is not known yet, as it was only just accepted, and is asked again."""
    for name in ("s-a", "s-b"):
        platform.add(name, (0.0, "Training"))
    platform.add("s-c", (0.0, "Training"), listed_after_seconds=1e6)
    stop = platform.stop_training_job

    def late(TrainingJobName: str) -> None:
        if TrainingJobName == "s-c" and platform.time.seconds < 110.0:
            raise ClientError({"Error": {"Code": "ValidationException", "Message": "not found"}}, "StopTrainingJob")
        stop(TrainingJobName)

    platform.stop_training_job = late  # type: ignore[method-assign]
    left = ["s-a", "s-b", "s-c"]
    while left:
        ended = descriptions(platform, *left, is_stopped=lambda: platform.time.seconds > 100.0)
        assert {description["TrainingJobStatus"] for description in ended} == {"Stopped"}
        left = [name for name in left if name not in {description["TrainingJobName"] for description in ended}]
    assert set(platform.stopped) == {"s-a", "s-b", "s-c"}
    assert platform.time.seconds < 100.0 + 30.0 + 4 * LONGEST_PAUSE_SECONDS


def test_stop_that_fails_is_asked_again_and_does_not_end_the_watch(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Starting"))
    stop, tries = platform.stop_training_job, iter(range(100))

    def throttled(TrainingJobName: str) -> None:
        if next(tries) < 2:
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow"}}, "StopTrainingJob")
        stop(TrainingJobName)

    platform.stop_training_job = throttled  # type: ignore[method-assign]
    assert wait_for(platform, "a") == ["a"]
    assert platform.jobs["a"].steps[-1][1] == "Stopped"


def test_job_that_does_not_train_in_time_is_stopped_once_and_awaited(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Starting"))
    assert wait_for(platform, "a") == ["a"]
    assert platform.stopped == ["a"]
    [stopped_at] = [at for at, operation in platform.calls if operation == "StopTrainingJob"]
    assert 600.0 < stopped_at <= 600.0 + LONGEST_PAUSE_SECONDS + 1.0
    described_at = [at for at, operation in platform.calls if operation == "DescribeTrainingJob"]
    assert all(at > 600.0 for at in described_at), "until the limit the list is enough"


def test_job_that_runs_too_long_is_stopped_by_when_it_began_to_train(platform: SimulatedPlatform) -> None:
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


def test_limit_is_checked_with_one_description(platform: SimulatedPlatform) -> None:
    """A restarted spot job may have trained before: where that can't be known from the list, one call tells."""
    platform.add("a", (0.0, "Starting"), (10.0, "Training"), (1000.0, "Starting"), (3000.0, "Completed"))
    platform.time.seconds = 1500.0
    assert wait_for(platform, "a") == ["a"]
    assert (platform.stopped, len(platform.described)) == ([], 2)


def test_job_that_never_stops_does_not_hold_the_run_for_ever() -> None:
    platform = SimulatedPlatform(SimulatedTime(), stop_seconds=1e9)
    platform.add("a", (0.0, "Starting"))
    [given_up] = descriptions(platform, "a")
    assert given_up["TrainingJobStatus"] == "Stopping"
    assert "it did not stop within 300 s of being asked to" in given_up["FailureReason"]
    assert 900.0 < platform.time.seconds <= 900.0 + 2 * LONGEST_PAUSE_SECONDS + 2.0
    assert platform.stopped == ["a"]


def test_job_that_never_stops_is_given_up_in_time_though_others_end_all_the_while() -> None:
    """A watch ends with the first job that does; the next one goes on with what was asked of the others."""
    platform = SimulatedPlatform(SimulatedTime(), stop_seconds=1e9)
    platform.add("s-stubborn", (0.0, "Starting"))
    clock, waits = platform.time.clock, dict[str, JobWait]()
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, clock)
    for place in range(200):
        platform.add(f"s-{place}", (0.0, "Training"), (platform.time.seconds + 60.0, "Completed"))
        names = ["s-stubborn", f"s-{place}"]
        ended = watch(platform, names, POLL_SECONDS, LIMITS, clock, budget, waits=waits)
        if given_up := [one for one in ended if one["TrainingJobName"] == "s-stubborn"]:
            break
    assert "it did not stop within 300 s of being asked to" in given_up[0]["FailureReason"]
    assert platform.time.seconds < 900.0 + 3 * LONGEST_PAUSE_SECONDS
    assert platform.stopped == ["s-stubborn"]
    assert "s-stubborn" not in waits


def test_end_that_the_list_has_not_got_yet_is_seen_before_a_stop_is_given_up() -> None:
    platform = LateList(SimulatedTime())
    platform.add("s-late", (0.0, "Starting"))
    assert wait_for(platform, "s-late", limits=JobLimits(1.0, 1.0)) == ["s-late"]
    assert 300.0 < platform.time.seconds < 400.0


def test_job_that_ended_is_not_stopped_though_the_list_is_behind() -> None:
    platform = LateList(SimulatedTime())
    platform.until_seconds = 1e6
    platform.add("s-late", (0.0, "Starting"), (350.0, "Completed"))
    assert wait_for(platform, "s-late", limits=JobLimits(355.0, 355.0)) == ["s-late"]
    assert platform.stopped == []


def test_logs_are_followed_in_turn_of_jobs_that_train(platform: SimulatedPlatform) -> None:
    names = [f"s-t{place}" for place in range(60)]
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


def test_platform_whose_list_has_no_secondary_status(platform: SimulatedPlatform) -> None:
    true_list = platform.list_training_jobs

    def older(**query: Any) -> dict[str, Any]:
        answer = true_list(**query)
        for summary in answer["TrainingJobSummaries"]:
            del summary["SecondaryStatus"]
        return answer

    platform.list_training_jobs = older  # type: ignore[method-assign]
    platform.add("a", (0.0, "Starting"), (100.0, "Training"), (900.0, "Completed"))
    followed: list[str] = []
    assert wait_for(platform, "a", follow=followed.append) == ["a"]
    assert platform.described == ["a", "a"], "what changed is told by when it was modified"
    assert len(followed) > 5


def test_states_are_said_with_their_messages_and_together(
    platform: SimulatedPlatform, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.jobs")
    platform.add("s-a", (0.0, "Starting"), (1.0, "Training"), (60.0, "Completed"))
    platform.add("s-b", (0.0, "Starting"))
    wait_for(platform, "s-a", "s-b")
    said = [record.getMessage() for record in caplog.records]
    assert said[:5] == [
        "s-a: Starting", "s-b: Starting", "2 jobs: 2 Starting",
        "s-a: Training (it is Training)", "2 jobs: 1 Starting, 1 Training",
    ]  # fmt: skip
    assert said[-2:] == ["s-a: Completed (it is Completed)", "2 jobs: 1 Completed, 1 Starting"]


def test_one_job_is_said_by_its_name(
    platform: SimulatedPlatform, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.jobs")
    platform.add("a", (0.0, "Starting"), (100.0, "Completed"))
    wait_for(platform, "a")
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "a: Starting" and said[-1] == "a: Completed (it is Completed)"
    assert all(text.startswith("a: still Starting (") for text in said[1:-1]) and len(said) > 3


def test_watch_ends_at_once_when_the_run_is_cancelled(platform: SimulatedPlatform) -> None:
    platform.add("a", (0.0, "Training"))
    clock = Clock(monotonic=lambda: 0.0, wait=lambda seconds: True, now=platform.time.now)
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, clock)
    with pytest.raises(Cancelled):
        watch(platform, ["a"], POLL_SECONDS, LIMITS, clock, budget)
    assert len(platform.calls) == 1


def test_watch_for_a_first_step_reads_the_log_at_every_look_and_ends_with_it(platform: SimulatedPlatform) -> None:
    """Looks that come often leave no call to spare; then the step would never be seen."""
    platform.add("a", (0.0, "Starting"), (10.0, "Training"), (900.0, "Completed"))
    clock, read = platform.time.clock, list[float]()
    budget = CallBudget(CALLS_PER_SECOND, 1, clock)

    def has_stepped(name: str) -> bool:
        return clock.monotonic() > 100.0 and bool(read)

    def follow(name: str) -> None:
        read.append(clock.monotonic())

    assert watch(platform, ["a"], 0.2, LIMITS, clock, budget, follow, has_stepped=has_stepped) == []
    assert len(read) > 20 and clock.monotonic() < 120.0
    ended = watch(platform, ["a"], 0.2, LIMITS, clock, budget, follow, has_stepped=lambda name: False)
    assert [description["TrainingJobName"] for description in ended] == ["a"], "it ends without a step"
