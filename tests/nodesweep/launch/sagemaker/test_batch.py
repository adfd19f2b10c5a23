"""Training jobs through an AWS Batch queue: each is paid for once, and is found under all
circumstances."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import ROLE_ARN, made_queue, serve_platform, wait_until
from infra.local.tests.platform_fakes import IMAGE_URI
from nodesweep.configs.distribution import NoDistribution
from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.platform import BatchConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.errors import JobRefused, is_transient, was_refused
from nodesweep.launch.sagemaker.backend import bind
from nodesweep.launch.sagemaker.batch import (
    QUEUED,
    BatchJobs,
    QueuedTraining,
    payload_name,
    training_launcher,
)
from nodesweep.launch.sagemaker.calls import KNOWN_SECONDS
from nodesweep.launch.sagemaker.logs import own_name
from nodesweep.polling import Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import OVER_TIME, JobSpec, JobStatus, ResolvedInputs
from tests.nodesweep.launch.test_contract import hurried
from tests.plain import plain

SWEEP = "bench-20260102030405-0a1b2c3d"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(tmp_path_factory.mktemp("platform")) as served:
        served.s3.create_bucket(Bucket="results")
        served.engine.programs["broken"] = broken
        yield served


def broken(*_: Any) -> None:
    raise ValueError("boom")


@pytest.fixture
def platform(served: SimpleNamespace, request: pytest.FixtureRequest) -> Iterator[PlatformConfig]:
    """The config's section with a separate queue of one instance."""
    queue = f"queue-{crc32(request.node.name.encode()):08x}"
    made_queue(served, queue)
    config = PlatformConfig(
        region="us-east-1",
        bucket="results",
        role_arn=ROLE_ARN,
        endpoint_url=served.endpoint,
        credentials="platform",
        state_directory=str(served.state_dir),
        batch=BatchConfig(queue=queue),
    )
    yield config
    jobs = launcher_of(served, config)
    for job in jobs.jobs_of(SWEEP):
        jobs.stop(job.name)
        ended(jobs, job.name)


def launcher_of(served: SimpleNamespace, platform: PlatformConfig) -> BatchJobs:
    launcher = training_launcher(bind(platform), quick=False)
    assert isinstance(launcher, BatchJobs)
    return launcher


@pytest.fixture
def jobs(served: SimpleNamespace, platform: PlatformConfig) -> BatchJobs:
    return launcher_of(served, platform)


def ended(jobs: BatchJobs, name: str) -> JobStatus:
    def over() -> JobStatus | None:
        job = jobs.status(name)
        return job if job is not None and job.has_ended else None

    found: JobStatus = wait_until(over)
    return found


@pytest.fixture
def spec_of(request: pytest.FixtureRequest) -> Callable[..., JobSpec]:
    """Return a function that returns a job that only this test uses."""
    number = f"{crc32(request.node.name.encode()):08x}"[:4]

    def make(program: str = "endless", repeat: int = 1, **training: Any) -> JobSpec:
        return JobSpec(
            name=names.job_name(SWEEP, 1, repeat, 1, number),
            digest=f"digest-{len(training)}",
            nodes=1,
            repeat=repeat,
            attempt=1,
            inputs=ResolvedInputs(SWEEP, IMAGE_URI, dataset_uri=None),
            training=TrainingConfig(
                entry_point="train.py",
                distribution=NoDistribution(kind="none"),
                instance_type="ml.local.small",
                volume_size_gb=1,
                environment={"PROGRAM": program},
                **{"max_runtime_seconds": 3600, **training},
            ),
            dataset=None,
            hyperparameters={},
        )

    return make


def trained(served: SimpleNamespace, name: str) -> list[str]:
    """Return SageMaker's names of the training jobs of a service job."""
    listed = served.sagemaker.list_training_jobs(NameContains=payload_name(name))
    return [job["TrainingJobName"] for job in listed["TrainingJobSummaries"]]


class Client:
    """A Batch client with some methods replaced."""

    def __init__(self, batch: Any, **methods: Any) -> None:
        self._batch, self._methods = batch, methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._batch, name)


def with_client(jobs: BatchJobs, **methods: Any) -> BatchJobs:
    batch: Any = Client(jobs.queued.batch, **methods)
    return replace(jobs, kind=replace(jobs.queued, batch=batch), clock=hurried())


def test_job_is_sent_as_rendered_under_a_name_that_batch_can_extend(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec, sent = spec_of(), []
    queue = jobs.queued.queue.model_copy(
        update={"share_identifier": "a", "scheduling_priority": 7, "attempt_timeout_seconds": 90}
    )
    with_queue = replace(jobs, kind=replace(jobs.queued, queue=queue))

    def submit(**members: Any) -> dict[str, str]:
        sent.append(members)
        return {"jobId": "its-own"}

    with_client(with_queue, submit_service_job=submit).submit(spec)
    [request] = sent
    payload = json.loads(request.pop("serviceRequestPayload"))
    rendered = jobs.render(spec)
    assert payload == {**rendered, "TrainingJobName": payload_name(spec.name)}
    assert len(f"AWSBatch{payload['TrainingJobName']}") + 32 == 63
    assert request == {
        "jobName": spec.name,
        "jobQueue": queue.queue,
        "serviceJobType": "SAGEMAKER_TRAINING",
        "retryStrategy": {"attempts": 1},
        "clientToken": payload_name(spec.name),
        "shareIdentifier": "a",
        "schedulingPriority": 7,
        "timeoutConfig": {"attemptDurationSeconds": 90},
    }


def test_waiting_job_is_queued_and_costs_nothing_also_when_it_is_stopped_there(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    first, second = spec_of(), spec_of(repeat=2)
    jobs.submit(first)
    assert jobs.submit(second).state == "running"
    waiting = jobs.status(second.name)
    assert waiting is not None
    assert (waiting.state, waiting.phase, waiting.started_at) == ("running", QUEUED, None)
    assert (waiting.nodes, waiting.instance_type) == (1, "ml.local.small")
    assert waiting.created_at is not None and waiting.platform_kind == "emulated"
    assert list(jobs.logs(second.name, datetime.now(UTC)).new_lines()) == []
    assert jobs.submit(second) == waiting, "it is adopted"
    with pytest.raises(JobRefused):
        replace(jobs, clock=hurried()).submit(spec_of(repeat=2, max_runtime_seconds=60))
    assert jobs.stop(second.name)
    stopped = jobs.status(second.name)
    assert stopped is not None
    assert (stopped.state, stopped.reason) == ("stopped", "stopped by nodesweep")
    assert stopped.ended_at is not None and stopped.billed_node_seconds == 0.0
    assert trained(served, second.name) == []


def test_job_whose_submission_lost_its_answer_is_adopted(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec, lost = spec_of("quick"), ConnectionClosedError(endpoint_url="batch")

    def lose(**members: Any) -> None:
        jobs.queued.batch.submit_service_job(**members)
        raise lost

    with pytest.raises(ConnectionClosedError):
        with_client(jobs, submit_service_job=lose).submit(spec)
    assert jobs.submit(spec).name == spec.name
    assert ended(jobs, spec.name).completed
    assert len(trained(served, spec.name)) == 1


def test_job_that_is_not_listed_yet_is_not_submitted_twice(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec, calls = spec_of(), []

    def paginator(operation: str) -> Any:
        calls.append(operation)
        if len(calls) <= 4:
            empty = SimpleNamespace(paginate=lambda **_: [{"jobSummaryList": []}])
            return empty
        return jobs.queued.batch.get_paginator(operation)

    lagging = with_client(jobs, get_paginator=paginator)
    jobs.submit(spec)
    nothing: dict[str, Any] = {"TrainingJobSummaries": []}
    sagemaker: Any = Client(served.sagemaker, list_training_jobs=lambda **_: nothing)
    adopted = replace(lagging, sagemaker=sagemaker).submit(spec)
    assert adopted.name == spec.name and adopted.created_at is not None
    assert len(calls) > 4 and len(trained(served, spec.name)) == 1


def test_job_that_batch_has_forgotten_is_found_by_its_training_job(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec = spec_of("quick")
    jobs.submit(spec)
    known = ended(jobs, spec.name)
    nothing = SimpleNamespace(paginate=lambda **_: [{"jobSummaryList": []}])
    forgetful = with_client(jobs, get_paginator=lambda operation: nothing)
    assert forgetful.status(spec.name) == known
    assert forgetful.submit(spec) == known and not forgetful.stop(spec.name)
    assert len(trained(served, spec.name)) == 1


def test_job_waits_again_after_a_lack_of_capacity(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    """Batch retries by itself, so the end of an attempt is not the end of the job."""
    spec = spec_of("broken")
    jobs.submit(spec)
    failed = ended(jobs, spec.name)
    assert failed.state == "failed" and failed.reason
    [service_job] = jobs.queued.find(spec.name).values()
    [attempt] = trained(served, spec.name)

    def status_in(state: str, **training: Any) -> tuple[str, str | None, str]:
        answer = {**served.sagemaker.describe_training_job(TrainingJobName=attempt), **training}
        sagemaker: Any = Client(served.sagemaker, describe_training_job=lambda **_: answer)
        found = summarized(replace(jobs, sagemaker=sagemaker), {**service_job, "status": state})
        return found.state, found.reason, found.phase

    assert status_in("RUNNABLE") == ("running", None, QUEUED)
    assert status_in("STARTING")[:2] == ("running", None)
    assert status_in("STARTING", TrainingJobStatus="Stopped")[:2] == ("running", None)
    assert status_in("FAILED")[:2] == ("failed", failed.reason)


def summarized(jobs: BatchJobs, summary: dict[str, Any]) -> JobStatus:
    """Return the status of a service job for which Batch's list has this summary."""
    page = SimpleNamespace(paginate=lambda **_: [{"jobSummaryList": [summary]}])
    found = with_client(jobs, get_paginator=lambda operation: page).status(summary["jobName"])
    assert found is not None
    return found


def test_waiting_job_that_is_terminated_stops_first(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    """Batch does not always report the time of the end."""
    first, second = spec_of(), spec_of(repeat=2)
    jobs.submit(first)
    jobs.submit(second)
    jobs.stop(second.name)
    service_job = dict(jobs.queued.find(second.name)[second.name])
    del service_job["stoppedAt"]
    stopped = summarized(jobs, service_job)
    assert (stopped.state, stopped.reason) == ("stopped", "stopped by nodesweep")
    assert stopped.ended_at is None and stopped.billed_node_seconds == 0.0
    stopping = {**service_job, "status": "RUNNABLE"}
    found = summarized(jobs, stopping)
    assert (found.state, found.reason) == ("stopping", None)
    page = SimpleNamespace(paginate=lambda **_: [{"jobSummaryList": [stopping]}])
    listed = with_client(jobs, get_paginator=lambda operation: page).jobs_of(SWEEP)
    assert [job.state for job in listed] == ["stopping"]


def test_a_further_try_does_not_move_the_deadline_of_the_wait(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec = spec_of()
    jobs.submit(spec)
    [attempt] = wait_until(lambda: trained(served, spec.name))
    service_job = dict(jobs.queued.find(spec.name)[spec.name])
    service_job["createdAt"] -= 3_600_000
    answer = dict(served.sagemaker.describe_training_job(TrainingJobName=attempt))
    created = answer["CreationTime"]

    def created_at() -> datetime | None:
        sagemaker: Any = Client(served.sagemaker, describe_training_job=lambda **_: answer)
        return summarized(replace(jobs, sagemaker=sagemaker), service_job).created_at

    answer["TrainingStartTime"] = created
    assert created_at() == created
    del answer["TrainingStartTime"]
    assert created_at() == datetime.fromtimestamp(service_job["createdAt"] / 1000, UTC)


def test_results_of_a_job_are_found_under_the_name_that_batch_gave_it(
    served: SimpleNamespace,
    platform: PlatformConfig,
    jobs: BatchJobs,
    spec_of: Callable[..., JobSpec],
    tmp_path: Path,
) -> None:
    spec = spec_of("quick")
    jobs.submit(spec)
    job = ended(jobs, spec.name)
    [name] = trained(served, spec.name)
    assert own_name(bind(platform), spec.name) == name
    assert job.name == spec.name and job.output_uri is not None and name in job.output_uri
    assert bind(platform).read_metrics(SWEEP, spec.name) is not None
    lines = [line.text for line in bind(platform).read_log(job, tmp_path)]
    assert any("train_loss" in line for line in lines)
    assert [path.name for path in bind(platform).save_log(spec.name, tmp_path)] == [
        names.log_file(spec.name, "algo-1")
    ]
    assert isinstance(bind(platform).read_utilisation(job), dict)
    assert own_name(bind(platform), "never-sent") == "never-sent"


def test_queue_that_accepts_no_jobs_refuses_them(
    served: SimpleNamespace,
    platform: PlatformConfig,
    jobs: BatchJobs,
    spec_of: Callable[..., JobSpec],
    snapshot: SnapshotAssertion,
) -> None:
    assert platform.batch is not None
    served.batch.update_job_queue(jobQueue=platform.batch.queue, state="DISABLED")
    with pytest.raises(JobRefused) as refused:
        replace(jobs, clock=Clock(wait=never)).submit(spec_of())
    text = str(refused.value).replace(spec_of().name, "<job>").replace(platform.batch.queue, "q")
    assert plain(text) == snapshot
    served.batch.update_job_queue(jobQueue=platform.batch.queue, state="ENABLED")
    assert trained(served, spec_of().name) == []


def never(seconds: float) -> bool:
    pytest.fail(f"a refusal that cannot change is told after {seconds:g} s")


def refusing(code: str, message: str = "") -> Callable[..., None]:
    """Return a call that Batch refuses."""

    def refuse(**members: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": message}}, "SubmitServiceJob")

    return refuse


@pytest.mark.parametrize(
    "message", ["JobQueue q does not exist.", "User: arn:aws:sts::1:me is not authorized"]
)
def test_a_request_that_can_not_succeed_is_refused_at_once(
    jobs: BatchJobs, spec_of: Callable[..., JobSpec], message: str
) -> None:
    refuse = refusing("ClientException", message)
    at_once = replace(with_client(jobs, submit_service_job=refuse), clock=Clock(wait=never))
    with pytest.raises(JobRefused, match=message):
        at_once.submit(spec_of())


@pytest.mark.parametrize("message", ["This token was used.", "Sent with other parameters."])
def test_a_refusal_of_what_may_have_been_accepted_is_not_final_at_once(
    jobs: BatchJobs, spec_of: Callable[..., JobSpec], message: str
) -> None:
    clock = hurried()
    refuse = refusing("ClientException", message)
    refused = replace(with_client(jobs, submit_service_job=refuse), clock=clock)
    with pytest.raises(JobRefused):
        refused.submit(spec_of())
    assert clock.monotonic() >= KNOWN_SECONDS


@pytest.mark.parametrize("code", ["TooManyRequestsException", "AccessDeniedException"])
def test_other_errors_of_batch_are_raised_at_once_for_a_retry(
    jobs: BatchJobs, spec_of: Callable[..., JobSpec], code: str
) -> None:
    other = with_client(jobs, submit_service_job=refusing(code))
    with pytest.raises(ClientError) as raised:
        replace(other, clock=Clock(wait=never)).submit(spec_of())
    assert is_transient(raised.value) == (code == "TooManyRequestsException")


def submitted_twice(
    jobs: BatchJobs, spec: JobSpec
) -> tuple[Callable[..., dict[str, Any]], list[str]]:
    """Return a call after which there are two jobs, as after an expired token, and the IDs of the
    jobs."""
    ids: list[str] = []

    def submit(**members: Any) -> dict[str, Any]:
        for number in (1, 2):
            sent = jobs.queued.batch.submit_service_job(
                **{**members, "clientToken": f"{members['clientToken']}-{number}"}
            )
            ids.append(sent["jobId"])
        return dict(sent)

    return submit, ids


def test_second_job_of_a_name_is_taken_back_and_the_first_adopted(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec = spec_of()
    submit, ids = submitted_twice(jobs, spec)
    adopted = with_client(jobs, submit_service_job=submit).submit(spec)
    assert adopted.created_at is not None and not adopted.has_ended
    second = jobs.queued.batch.describe_service_job(jobId=ids[1])
    assert (second["status"], second["isTerminated"]) == ("FAILED", True)
    assert jobs.queued.find(spec.name)[spec.name]["jobId"] == ids[0]
    assert len(trained(served, spec.name)) == 1
    assert [(job.name, job.state) for job in jobs.jobs_of(SWEEP)] == [(spec.name, "running")]


def test_stop_ends_every_job_of_the_name(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec = spec_of()
    submit, ids = submitted_twice(jobs, spec)
    submit(
        jobName=spec.name,
        jobQueue=jobs.queued.queue.queue,
        serviceJobType="SAGEMAKER_TRAINING",
        serviceRequestPayload=json.dumps(jobs.render(spec)),
        clientToken="of-two-users",
    )
    jobs.queued.batch.terminate_service_job(jobId=ids[0], reason="by another user")
    wait_until(lambda: jobs.queued.find(spec.name)[spec.name]["jobId"] == ids[1])
    assert [(job.name, job.state) for job in jobs.jobs_of(SWEEP)] == [(spec.name, "running")]
    assert jobs.stop(spec.name)
    for job in ids:
        assert jobs.queued.batch.describe_service_job(jobId=job)["isTerminated"]
    ended(jobs, spec.name)
    wait_until(lambda: not jobs.stop(spec.name))


def test_log_follows_the_try_that_wrote_it(
    jobs: BatchJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt lacked capacity and has no lines; the second has another name."""
    tries = iter(["first", "first", None, "second"])
    monkeypatch.setattr(QueuedTraining, "own_name", lambda *_: next(tries))
    lines: dict[str, list[tuple[int, str]]] = {"first": [], "second": [(1, "algo-1: begins")]}
    opened: list[str] = []

    def reader(logs: Any, name: str, since: datetime) -> Any:
        opened.append(name)
        return SimpleNamespace(new_lines=lambda: iter(lines[name]), has_more=False)

    monkeypatch.setattr("nodesweep.launch.sagemaker.batch.CloudWatchLog", reader)
    log = jobs.logs("job", datetime.now(UTC))
    assert [list(log.new_lines()) for _ in range(5)] == [[], [], [], *[lines["second"]] * 2]
    assert opened == ["first", "second"], "asked no more once there was a line"


def test_job_that_batch_stopped_has_its_reason(
    served: SimpleNamespace, jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    spec = spec_of()
    jobs.submit(spec)
    wait_until(lambda: trained(served, spec.name))
    jobs.stop(spec.name)
    assert ended(jobs, spec.name).reason == "stopped by nodesweep"
    service_job = dict(jobs.queued.find(spec.name)[spec.name])

    def reason(text: str, **training: Any) -> str | None:
        [attempt] = trained(served, spec.name)
        answer = {**served.sagemaker.describe_training_job(TrainingJobName=attempt), **training}
        sagemaker: Any = Client(served.sagemaker, describe_training_job=lambda **_: answer)
        summary = {**service_job, "statusReason": text}
        return summarized(replace(jobs, sagemaker=sagemaker), summary).reason

    timeout = "Job attempt duration exceeded timeout"
    assert reason(timeout) == timeout
    assert reason("Received status from SageMaker: Training job stopped") == "stopped on request"
    by_itself = reason(timeout, SecondaryStatus=OVER_TIME)
    assert by_itself is not None and by_itself.startswith(OVER_TIME)


def test_refusal_that_quotes_the_payload_shows_no_value_of_the_environment(
    jobs: BatchJobs, spec_of: Callable[..., JobSpec]
) -> None:
    def refuse(**members: Any) -> None:
        answer = {"Error": {"Code": "ClientException", "Message": members["serviceRequestPayload"]}}
        raise ClientError(answer, "SubmitServiceJob")

    with pytest.raises(JobRefused) as refused:
        with_client(jobs, submit_service_job=refuse).submit(spec_of("program-of-mine"))
    assert "program-of-mine" not in f"{refused.value} {refused.value.__cause__}"


def test_denied_submission_is_known_to_have_made_no_job(platform: PlatformConfig) -> None:
    denied = ClientError(
        {
            "Error": {"Code": "AccessDeniedException"},
            "ResponseMetadata": {"HTTPStatusCode": 403},
        },
        "SubmitServiceJob",
    )
    assert was_refused(denied, bind(platform).sending_calls)
