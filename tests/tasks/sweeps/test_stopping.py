"""The end of a sweep's jobs, on a platform whose lists and descriptions lag."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from syrupy.assertion import SnapshotAssertion

import nodesweep.launch.registry
import nodesweep.launch.sagemaker.store
import nodesweep.tasks.sweeps.stopping
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import BackendUnusable, JobRefused
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.job import JobStatus
from nodesweep.tasks.sweeps.claims import claim_job
from nodesweep.tasks.sweeps.stopping import (
    SETTLE_SECONDS,
    STOPPING_SECONDS,
    end_jobs,
    release_pools,
    stop_sweep_jobs_now,
)
from tests.nodesweep.launch.sagemaker.lagging_platform import LaggingPlatform, error

SWEEP = "bench-20260102030405-0a1b2c3d"
JOBS = [names.job_name(SWEEP, nodes, 1, 1, "abcd") for nodes in (1, 2, 4, 8)]


def end(platform: LaggingPlatform, *known: str) -> list[str]:
    jobs = SageMakerJobs(platform)
    return end_jobs(jobs, known, platform.time.clock, partial(jobs.jobs_of, SWEEP))


def statuses(platform: LaggingPlatform) -> set[str]:
    return {platform.status(name) for name in platform.jobs}


def test_every_job_of_the_sweep_is_stopped_not_only_those_given() -> None:
    platform = LaggingPlatform()
    platform.add(*JOBS)
    platform.complete(JOBS[3])
    assert sorted(end(platform, JOBS[0])) == sorted(JOBS[:3])
    assert [platform.status(name) for name in JOBS] == ["Stopping"] * 3 + ["Completed"]
    assert platform.time.seconds < 3, "without a warm pool there is nothing to wait for"


@pytest.mark.parametrize("describe_lag", [0.0, 6.0, 20.0])
def test_jobs_that_neither_list_nor_stop_know_yet_are_asked_again(describe_lag: float) -> None:
    platform = LaggingPlatform(list_lag=1e6, describe_lag=describe_lag)
    platform.add(*JOBS)
    assert sorted(end(platform, *JOBS)) == sorted(JOBS)
    assert statuses(platform) == {"Stopping"}
    assert platform.time.seconds < describe_lag + 10


class SlowStops(SageMakerJobs):
    """Jobs of a platform on which each accepted stop takes some seconds."""

    SECONDS = 8.0

    def stop(self, job_name: str) -> bool:
        is_accepted = super().stop(job_name)
        if is_accepted:
            self.sagemaker.time.clock.sleep(self.SECONDS)
        return is_accepted


@pytest.mark.parametrize("appears_at", [1.0, 8.0, 20.0, 32.0])
def test_a_job_that_is_listed_during_a_slow_round_of_stops_is_stopped_too(
    appears_at: float,
) -> None:
    """Nothing but the list shows the job, and the stops of the others take 32 s."""
    platform = LaggingPlatform()
    platform.add(*JOBS)
    late = names.job_name(SWEEP, 16, 1, 1, "abcd")
    jobs = SlowStops(platform)

    def listed() -> list[JobStatus]:
        if platform.time.seconds >= appears_at and late not in platform.jobs:
            platform.add(late)
        return list(jobs.jobs_of(SWEEP))

    stopped = end_jobs(jobs, [], platform.time.clock, listed)
    assert sorted(stopped) == sorted([*JOBS, late])
    assert "InProgress" not in statuses(platform)


def test_a_job_that_becomes_known_during_a_slow_round_of_stops_is_stopped_too() -> None:
    """The job is known by name, and unknown to the platform when the round asks for it."""
    platform = LaggingPlatform(list_lag=1e6)
    platform.add(*JOBS)
    late = names.job_name(SWEEP, 1, 0, 1, "abcd")
    assert late < min(JOBS), "it is asked for before the others are stopped"
    jobs = SlowStops(platform)
    jobs.SECONDS = SETTLE_SECONDS

    def asked(job_name: str) -> JobStatus | None:
        status = SageMakerJobs.status(jobs, job_name)
        if job_name == late and late not in platform.jobs:
            platform.add(late)
        return status

    jobs.status = asked  # type: ignore[method-assign]
    assert sorted(end_jobs(jobs, [*JOBS, late], platform.time.clock)) == sorted([*JOBS, late])


def test_a_list_is_read_once_more_after_slow_stops_and_not_for_ever() -> None:
    platform = LaggingPlatform()
    platform.add(*JOBS)
    jobs = SlowStops(platform)
    lists = []

    def listed() -> list[JobStatus]:
        platform.time.clock.sleep(20)
        lists.append(platform.time.seconds)
        return list(jobs.jobs_of(SWEEP))

    end_jobs(jobs, [], platform.time.clock, listed)
    assert len(lists) == 2


def test_job_that_was_never_made_is_given_up_after_the_lag_of_a_list() -> None:
    platform = LaggingPlatform()
    assert end(platform, JOBS[0]) == []
    assert SETTLE_SECONDS <= platform.time.seconds < SETTLE_SECONDS + 10


def test_warm_pools_are_released_once_their_jobs_have_stopped() -> None:
    """After Ctrl-C in a sweep of four jobs, no pool is Available while the jobs are Stopping."""
    platform = LaggingPlatform(list_lag=6.0, stop_seconds=130.0)
    platform.add(*JOBS, keep_alive=6 * 3600)
    platform.complete(JOBS[0])
    end(platform, *JOBS)
    assert statuses(platform) == {"Completed", "Stopped"}
    assert [platform.pool(name) for name in JOBS] == ["Terminated"] * 4


def test_job_that_does_not_stop_is_named_and_the_other_pools_are_released(
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    platform = LaggingPlatform(stubborn=frozenset({JOBS[1]}))
    platform.add(*JOBS, keep_alive=600)
    logging.getLogger("nodesweep").propagate = True
    end(platform, *JOBS)
    assert STOPPING_SECONDS <= platform.time.seconds < STOPPING_SECONDS + SETTLE_SECONDS + 60
    assert [platform.pool(name) for name in JOBS] == [
        "Terminated",
        "InUse",
        "Terminated",
        "Terminated",
    ]
    assert caplog.messages == snapshot


def test_list_that_fails_does_not_keep_known_jobs_from_being_stopped() -> None:
    platform = LaggingPlatform()
    platform.add(*JOBS)

    def refused() -> list[dict[str, str]]:
        raise error("AccessDeniedException", "no", "ListTrainingJobs")

    assert sorted(end_jobs(SageMakerJobs(platform), JOBS, platform.time.clock, refused)) == sorted(
        JOBS
    )
    assert statuses(platform) == {"Stopping"}


def test_a_machine_that_cannot_reach_the_backend_at_all_does_not_wait() -> None:
    """Slurm's commands exist on login nodes only."""

    class Missing(SageMakerJobs):
        def stop(self, job_name: str) -> bool:
            raise BackendUnusable("squeue can't be run")

        def status(self, job_name: str) -> JobStatus | None:
            raise BackendUnusable("squeue can't be run")

    platform = LaggingPlatform()
    with pytest.raises(JobRefused, match=f"{JOBS[1]}: squeue can't be run"):
        end_jobs(Missing(platform), JOBS, platform.time.clock)
    assert platform.time.seconds < 3


def test_jobs_that_nothing_tells_of_are_not_said_to_have_ended() -> None:
    """Neither the claims nor the list can be read; the failure is reported, so that a task
    retries."""
    lost = EndpointConnectionError(endpoint_url="http://there:1")

    def unreadable() -> list[dict[str, str]]:
        raise lost

    platform = LaggingPlatform()
    platform.add(*JOBS)
    with pytest.raises(EndpointConnectionError):
        end_jobs(SageMakerJobs(platform), [], platform.time.clock, unreadable, unreadable)  # type: ignore[arg-type]
    with pytest.raises(EndpointConnectionError):
        end_jobs(SageMakerJobs(platform), JOBS[:1], platform.time.clock, unreadable, unreadable)  # type: ignore[arg-type]
    assert platform.status(JOBS[0]) != "InProgress", "what is known is stopped"


def test_end_that_cannot_ask_says_that_jobs_may_run_on(
    platform: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    """This holds for every way to end a sweep: a cancellation, Ctrl-C, `nodesweep stop`."""

    class Lost:
        exceptions = SimpleNamespace(ClientError=ClientError)

        def get_paginator(self, operation: str) -> None:
            raise EndpointConnectionError(endpoint_url="http://there:1")

    for module in (nodesweep.launch.registry, nodesweep.launch.sagemaker.store):
        monkeypatch.setattr(module, "aws_client", lambda *_: Lost())
    monkeypatch.setattr(nodesweep.tasks.sweeps.stopping, "SETTLE_SECONDS", 0.0)
    with pytest.raises(EndpointConnectionError, match="http://there:1"):
        stop_sweep_jobs_now(backend_of(platform), SWEEP)
    assert caplog.messages == snapshot


def test_claims_that_are_read_later_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, tries = EndpointConnectionError(endpoint_url="http://there:1"), iter(range(100))

    def claims() -> list[str]:
        if next(tries) < 3:
            raise lost
        return JOBS

    def unreadable() -> list[dict[str, str]]:
        raise lost

    platform = LaggingPlatform()
    platform.add(*JOBS)
    assert sorted(
        end_jobs(SageMakerJobs(platform), [], platform.time.clock, unreadable, claims)
    ) == sorted(JOBS)


def test_jobs_that_only_the_store_knows_are_stopped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lagging = LaggingPlatform(list_lag=1e6)
    lagging.add(*JOBS)
    for name in JOBS:
        claim_job(store, SWEEP, name, "one")
    stopping = nodesweep.tasks.sweeps.stopping
    jobs = SageMakerJobs(lagging)
    backend: Any = SimpleNamespace(store=store, launcher=lambda: jobs, validations=lambda: jobs)
    monkeypatch.setattr(stopping, "ENDING_CLOCK", lagging.time.clock)
    assert sorted(stop_sweep_jobs_now(backend, SWEEP)) == sorted(JOBS)


def test_stop_that_passes_later_is_tried_again_and_one_that_never_does_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform = LaggingPlatform(stop_seconds=600)
    platform.add(*JOBS)
    stop, tries = platform.stop_training_job, iter(range(100))

    def unreliable(TrainingJobName: str) -> None:
        if TrainingJobName == JOBS[3]:
            raise error("AccessDeniedException", "no", "StopTrainingJob")
        if next(tries) < 2:
            raise error("ThrottlingException", "slow", "StopTrainingJob")
        stop(TrainingJobName)

    monkeypatch.setattr(platform, "stop_training_job", unreliable)
    with pytest.raises(JobRefused, match=rf"{JOBS[3]}: .*AccessDenied"):
        end(platform, *JOBS)
    assert [platform.status(name) for name in JOBS] == ["Stopping"] * 3 + ["InProgress"]


def test_a_job_that_nothing_shows_to_stop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = LaggingPlatform(stop_seconds=600)
    platform.add(*JOBS)
    stop = platform.stop_training_job

    def accepted(TrainingJobName: str) -> None:
        if TrainingJobName != JOBS[1]:
            stop(TrainingJobName)

    monkeypatch.setattr(platform, "stop_training_job", accepted)
    with pytest.raises(JobRefused, match=f":\n{JOBS[1]}: .* within 300 s$"):
        end(platform, *JOBS)
    assert statuses(platform) == {"Stopping", "InProgress"}


@pytest.mark.parametrize("seconds", [1.0, STOPPING_SECONDS])
def test_training_jobs_are_stopped_however_slow_the_stop_of_the_validation_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    lagging, validation = LaggingPlatform(), names.validation_job_name(SWEEP, 1, "0123abcdef")
    lagging.add(*JOBS, validation)

    class Slow(SageMakerJobs):
        def stop(self, job_name: str) -> bool:
            lagging.time.clock.sleep(seconds)
            return super().stop(job_name)

    store.put(names.validation_request_key(store.prefix, SWEEP, validation), b"{}")
    stopping = nodesweep.tasks.sweeps.stopping
    backend: Any = SimpleNamespace(
        store=store, launcher=lambda: SageMakerJobs(lagging), validations=lambda: Slow(lagging)
    )
    monkeypatch.setattr(stopping, "ENDING_CLOCK", lagging.time.clock)
    if seconds < STOPPING_SECONDS:
        assert sorted(stop_sweep_jobs_now(backend, SWEEP)) == sorted([*JOBS, validation])
    else:
        with pytest.raises(JobRefused, match=validation):
            stop_sweep_jobs_now(backend, SWEEP)
    assert statuses(lagging) == {"Stopping"}


def test_an_ended_job_whose_description_is_denied_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The training jobs of a sweep are stopped after its validation."""
    platform = LaggingPlatform()
    platform.add(JOBS[0])
    platform.complete(JOBS[0])

    def denied(TrainingJobName: str) -> None:
        raise error("AccessDeniedException", "no", "DescribeTrainingJob")

    monkeypatch.setattr(platform, "describe_training_job", denied)
    with pytest.raises(JobRefused, match=f"{JOBS[0]}: .*AccessDenied.*DescribeTrainingJob"):
        end_jobs(SageMakerJobs(platform), JOBS[:1], platform.time.clock)
    assert SETTLE_SECONDS <= platform.time.seconds < SETTLE_SECONDS + 10


def test_pools_of_jobs_that_ended_by_themselves_are_released_though_the_list_is_behind() -> None:
    platform = LaggingPlatform(list_lag=1e6)
    platform.add(*JOBS, keep_alive=600)
    for name in JOBS:
        platform.complete(name)
    assert sorted(release_pools(SageMakerJobs(platform), JOBS, platform.time.clock)) == sorted(JOBS)
    assert release_pools(SageMakerJobs(platform), JOBS, platform.time.clock) == []


def test_pool_that_cannot_be_released_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    platform = LaggingPlatform()
    platform.add(*JOBS[:2], keep_alive=600)
    platform.complete(JOBS[0])
    platform.complete(JOBS[1])
    update = platform.update_training_job

    def denied(TrainingJobName: str, **changes: dict[str, int]) -> None:
        if TrainingJobName == JOBS[0]:
            raise ClientError(
                {"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "UpdateTrainingJob"
            )
        update(TrainingJobName, **changes)

    monkeypatch.setattr(platform, "update_training_job", denied)
    logging.getLogger("nodesweep").propagate = True
    assert release_pools(SageMakerJobs(platform), JOBS[:2], platform.time.clock) == [JOBS[1]]
    assert caplog.messages == snapshot


def test_the_pool_of_a_job_that_runs_on_is_left_to_it() -> None:
    platform = LaggingPlatform()
    platform.add(*JOBS, keep_alive=600)
    assert release_pools(SageMakerJobs(platform), JOBS, platform.time.clock) == []
    assert platform.time.seconds < 5


@pytest.mark.parametrize("describe_lag", [6.0, 20.0])
def test_a_role_that_may_stop_jobs_by_their_tag_is_denied_until_the_tag_is_known(
    describe_lag: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IAM responds with AccessDenied instead of "not found" while aws:ResourceTag has no value."""
    platform = LaggingPlatform(list_lag=1e6, describe_lag=describe_lag)
    platform.add(*JOBS)
    stop = platform.stop_training_job

    def by_tag(TrainingJobName: str) -> None:
        job = platform.jobs.get(TrainingJobName)
        if job is None or platform.time.seconds < job.created_at + describe_lag + 4:
            raise error("AccessDeniedException", "not authorized", "StopTrainingJob")
        stop(TrainingJobName)

    monkeypatch.setattr(platform, "stop_training_job", by_tag)
    never_sent = names.job_name(SWEEP, 16, 1, 1, "abcd")
    assert sorted(end(platform, *JOBS, never_sent)) == sorted(JOBS)
    assert statuses(platform) == {"Stopping"}


def test_an_outage_ends_at_the_deadline_and_not_once_for_every_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform = LaggingPlatform()
    many = [names.job_name(SWEEP, nodes, 1, 1, "abcd") for nodes in range(1, 51)]
    platform.add(*many)

    def unreachable(**_: object) -> None:
        platform.time.clock.sleep(80)
        raise EndpointConnectionError(endpoint_url="https://api.sagemaker.invalid")

    for call in ("stop_training_job", "describe_training_job", "list_training_jobs"):
        monkeypatch.setattr(platform, call, unreachable)
    with pytest.raises(JobRefused, match="300 s"):
        end(platform, *many)
    assert platform.time.seconds < STOPPING_SECONDS + 200


def test_a_job_that_somebody_else_has_stopped_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform = LaggingPlatform(stop_seconds=200)
    platform.add(JOBS[0])
    platform.stop_training_job(JOBS[0])

    def not_twice(TrainingJobName: str) -> None:
        raise error("ValidationException", "The job is in status Stopping", "StopTrainingJob")

    monkeypatch.setattr(platform, "stop_training_job", not_twice)
    end(platform, JOBS[0])
    assert platform.time.seconds < 5
