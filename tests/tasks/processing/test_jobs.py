"""The Processing job that validates a dataset is started, adopted, awaited and stopped, on a fake
clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import JobRefused, ValidationJobFailed
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.sagemaker.processing import PROCESSING, submit, watch_job
from nodesweep.launch.sagemaker.status import RUNNING, WAITING, read_processing_job
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.watch import JobLimits
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling import names
from nodesweep.tasks.processing.jobs import failure_text, read_verdict
from nodesweep.tasks.sweeps.stopping import end_jobs

NOW = datetime(2026, 11, 25, tzinfo=UTC)
NAME = "bench-20261125000000-0123abcd-v1-0123abcd"
REQUEST = {
    "ProcessingJobName": NAME,
    "RoleArn": "arn:aws:iam::000000000000:role/training",
    "Tags": [{"Key": names.TAG_REQUEST_DIGEST, "Value": "ours"}],
}


def api_error(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "Operation")


class _LimitExceeded(ClientError):
    pass


class _InUse(ClientError):
    pass


@dataclass
class FakePlatform:
    """A Processing job whose states are given by the second at which they begin.

    `status_after_stop` is the result of a stop; None: StopProcessingJob is denied.
    """

    states: dict[float, str | None] = field(default_factory=lambda: {0.0: None})
    status_after_stop: str | None = "Stopped"
    tags: dict[str, str] = field(default_factory=lambda: {names.TAG_REQUEST_DIGEST: "ours"})
    refusal: ClientError | None = None
    seconds: float = 0.0
    stopped_at: list[float] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exceptions = SimpleNamespace(
            ClientError=ClientError, ResourceInUse=_InUse, ResourceLimitExceeded=_LimitExceeded
        )
        self.clock = Clock(
            monotonic=lambda: self.seconds,
            wait=self._wait,
            now=lambda: NOW + timedelta(seconds=self.seconds),
        )

    def _wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return False

    def _state(self) -> str | None:
        if self.stopped_at and self.status_after_stop is not None:
            return self.status_after_stop
        return self.states[max(at for at in self.states if at <= self.seconds)]

    def describe_processing_job(self, ProcessingJobName: str) -> dict[str, Any]:
        state = self._state()
        if state is None:
            raise api_error("ValidationException", "Could not find requested job with name: x")
        job = {"ProcessingJobName": NAME, "ProcessingJobArn": "arn", "CreationTime": NOW}
        if state == "Running":
            began = next(at for at, one in self.states.items() if one == "Running")
            return {
                **job,
                "ProcessingJobStatus": "InProgress",
                "ProcessingStartTime": NOW + timedelta(seconds=began),
            }
        return {**job, "ProcessingJobStatus": "InProgress" if state == "Waiting" else state}

    def stop_processing_job(self, ProcessingJobName: str) -> None:
        if self._state() not in ("Waiting", "Running"):
            raise api_error("ValidationException", "there is no such job to stop")
        if self.status_after_stop is None:
            raise api_error("ThrottlingException")
        self.stopped_at.append(self.seconds)

    def create_processing_job(self, **request: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append(request)

    def list_tags(self, ResourceArn: str) -> dict[str, Any]:
        return {"Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()]}


def wait_for(
    platform: FakePlatform, is_stopped: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Wait for a job with a poll every 10 s, for at most 600 s for instances and 3600 s after
    that."""
    budget = CallBudget(None, 1, platform.clock)
    limits = JobLimits(queue_seconds=600.0, run_seconds=3600.0)
    return watch_job(platform, NAME, 10.0, limits, platform.clock, budget, is_stopped)


def test_it_is_watched_from_the_wait_for_instances_to_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "nodesweep")
    platform = FakePlatform({0.0: "Waiting", 100.0: "Running", 900.0: "Completed"})
    assert wait_for(platform).state == "completed"
    assert platform.stopped_at == []
    told = [record.about for record in caplog.records if hasattr(record, "about")]
    told = [one for one in told if one is not None]
    assert [one.facts["state"] for one in told] == [WAITING, RUNNING, "Completed"]
    waits = [one.facts["wait_until"] for one in told]
    assert waits == [NOW.timestamp() + 600, None, None]
    assert {one.stage for one in told} == {"dataset"} and {one.job for one in told} == {NAME}


@pytest.mark.parametrize(
    ("states", "limit"),
    [({0.0: "Waiting"}, 600.0), ({0.0: "Waiting", 300.0: "Running"}, 3900.0)],
)
def test_it_is_stopped_past_each_limit_and_its_end_waited_for(
    states: dict[float, str | None], limit: float
) -> None:
    platform = FakePlatform(states)
    assert wait_for(platform).state == "stopped"
    [at] = platform.stopped_at
    assert limit < at < limit + 50


def test_a_stopped_sweep_stops_it_at_the_next_look() -> None:
    platform = FakePlatform({0.0: "Running"})
    assert wait_for(platform, lambda: platform.seconds > 100).state == "stopped"
    assert 100 < platform.stopped_at[0] < 150


def test_one_that_goes_on_after_its_stop_is_given_up(snapshot: SnapshotAssertion) -> None:
    platform = FakePlatform({0.0: "Running"}, status_after_stop="Stopping")
    with pytest.raises(ValidationJobFailed) as refused:
        wait_for(platform, lambda: True)
    assert str(refused.value) == snapshot
    assert len(platform.stopped_at) == 1, "one that is stopping is not asked again"


def test_a_stop_that_fails_is_asked_again_until_the_job_is_given_up() -> None:
    platform = FakePlatform({0.0: "Running"}, status_after_stop=None)
    with pytest.raises(ValidationJobFailed, match="300 s"):
        wait_for(platform, lambda: True)
    assert platform.stopped_at == [] and 300 < platform.seconds < 400
    platform = FakePlatform({0.0: "Running"}, status_after_stop=None)

    def allow_late() -> bool:
        platform.status_after_stop = "Stopped" if platform.seconds > 100 else None
        return True

    assert wait_for(platform, allow_late).state == "stopped"


def test_one_that_nobody_knows_is_given_up() -> None:
    platform = FakePlatform({0.0: None})
    with pytest.raises(ValidationJobFailed, match="has not reported it"):
        wait_for(platform)
    assert 300 <= platform.seconds < 400


def test_one_that_is_known_late_is_waited_for() -> None:
    platform = FakePlatform({0.0: None, 60.0: "Running", 100.0: "Completed"})
    assert wait_for(platform).state == "completed"


def test_a_new_one_is_created_and_not_doubted() -> None:
    platform = FakePlatform()
    assert submit(platform, REQUEST, platform.clock).state == "running"
    assert platform.created == [REQUEST]


def test_one_that_is_there_is_adopted_by_its_tag(snapshot: SnapshotAssertion) -> None:
    platform = FakePlatform({0.0: "Running"})
    assert submit(platform, REQUEST, platform.clock).created_at == NOW
    assert platform.created == []
    platform.tags = {names.TAG_REQUEST_DIGEST: "theirs"}
    with pytest.raises(JobRefused) as refused:
        submit(platform, REQUEST, platform.clock)
    assert str(refused.value) == snapshot


def test_one_that_was_created_meanwhile_is_adopted() -> None:
    error = {"Error": {"Code": "ResourceInUse", "Message": "there"}}
    platform = FakePlatform({0.0: None, 5.0: "Running"}, refusal=_InUse(error, "Create"))
    assert submit(platform, REQUEST, platform.clock).created_at == NOW


def test_refusals_say_what_to_do(snapshot: SnapshotAssertion) -> None:
    error = {"Error": {"Code": "ResourceLimitExceeded", "Message": "limit is 0 Instances"}}
    platform = FakePlatform(refusal=_LimitExceeded(error, "Create"))
    with pytest.raises(JobRefused) as refused:
        submit(platform, REQUEST, platform.clock)
    assert str(refused.value) == snapshot
    platform.refusal = api_error("ValidationException", "no such image")
    with pytest.raises(JobRefused) as refused:
        submit(platform, REQUEST, platform.clock)
    assert str(refused.value) == snapshot
    platform.refusal = api_error("InternalError")
    with pytest.raises(ClientError):
        submit(platform, REQUEST, platform.clock)


def end(platform: FakePlatform, job_names: list[str]) -> list[str]:
    return end_jobs(SageMakerJobs(platform, kind=PROCESSING), job_names, platform.clock)


def test_ending_waits_until_each_is_known_to_stop() -> None:
    platform = FakePlatform({0.0: None, 5.0: "Running"})
    assert end(platform, [NAME]) == [NAME]
    assert platform.seconds < 30


def test_ending_believes_after_a_while_that_there_is_no_such_job() -> None:
    platform = FakePlatform()
    assert end(platform, [NAME]) == []
    assert 30 <= platform.seconds < 60
    ended = FakePlatform({0.0: "Completed"})
    assert end(ended, [NAME]) == []
    assert ended.seconds == 0
    assert end(ended, []) == []


def test_one_that_cannot_be_stopped_is_named() -> None:
    platform = FakePlatform({0.0: "Running"}, status_after_stop=None)
    with pytest.raises(JobRefused, match=f"{NAME}: .*ThrottlingException"):
        end(platform, [NAME])
    assert platform.seconds >= 300


@pytest.mark.parametrize(
    "ended",
    [
        {
            "ProcessingJobStatus": "Failed",
            "ProcessingStartTime": NOW,
            "ExitMessage": "boom\n",
            "FailureReason": "AlgorithmError: exit code: 1",
        },
        {"ProcessingJobStatus": "Failed", "FailureReason": "CapacityError: none"},
        {"ProcessingJobStatus": "Stopped"},
    ],
)
def test_a_job_without_a_verdict_says_why(
    platform: PlatformConfig, ended: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    backend = backend_of(platform)
    said = failure_text(backend, read_processing_job({"ProcessingJobName": NAME, **ended}))
    assert said == snapshot
    assert said.endswith(f"--log-stream-name-prefix {NAME}/ --since 1d --region us-east-1")


@pytest.mark.parametrize(
    "body",
    [None, b"{", b"[]"],
)
def test_a_verdict_that_is_none_is_refused(
    aws: Callable[[str], Any],
    platform: PlatformConfig,
    body: bytes | None,
    snapshot: SnapshotAssertion,
) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket=platform.bucket)
    sweep, store = str(names.sweep_of_validation_job(NAME)), BucketStore(platform, client=s3)
    if body is not None:
        store.put(names.validation_verdict_key(store.prefix, sweep, NAME), body)
    with pytest.raises(ValidationJobFailed) as refused:
        read_verdict(store, sweep, NAME)
    assert str(refused.value) == snapshot
