from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import HIDDEN
from nodesweep.errors import JobRefused, QuotaReached
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.calls import matches_request
from nodesweep.launch.sagemaker.kind import TRAINING
from nodesweep.launch.sagemaker.launcher import submit, with_variables
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.secrets import hide_in_text
from nodesweep.tasks.jobs.training_jobs import JobLimits, watch_training_jobs
from tests.nodesweep.launch.sagemaker.lagging_platform import LaggingPlatform
from tests.nodesweep.launch.sagemaker.rendered import build_request

CREATED = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def client_error(code: str, message: str, operation: str = "CreateTrainingJob") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}, operation
    )


class SageMaker:
    """A platform with prepared statuses: each describe of a job returns its next status, or repeats
    the last."""

    class exceptions:
        ClientError = ClientError

        class ResourceLimitExceeded(ClientError):
            pass

        class ResourceInUse(ClientError):
            pass

    def __init__(self, refuse: Exception | None = None) -> None:
        self.jobs: dict[str, list[str]] = {}
        self.tags: dict[str, list[dict[str, str]]] = {}
        self.created: list[str] = []
        self.stopped: list[str] = []
        self._refuse = refuse

    def create_training_job(self, **request: Any) -> None:
        if self._refuse:
            raise self._refuse
        self.created.append(request["TrainingJobName"])
        self.add(request, ["InProgress"])

    def add(self, request: dict[str, Any], statuses: list[str]) -> None:
        self.jobs[request["TrainingJobName"]] = statuses
        self.tags[f"arn:{request['TrainingJobName']}"] = request["Tags"]

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        if TrainingJobName not in self.jobs:
            raise client_error("ValidationException", "Requested resource not found.")
        statuses = self.jobs[TrainingJobName]
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        return {
            "TrainingJobName": TrainingJobName,
            "TrainingJobArn": f"arn:{TrainingJobName}",
            "TrainingJobStatus": status,
            "SecondaryStatus": status,
            "CreationTime": CREATED,
        }

    def list_training_jobs(self, **query: Any) -> dict[str, Any]:
        return {"TrainingJobSummaries": [self.describe_training_job(name) for name in self.jobs]}

    def list_tags(self, ResourceArn: str) -> dict[str, Any]:
        return {"Tags": self.tags[ResourceArn]}

    def stop_training_job(self, TrainingJobName: str) -> None:
        if TrainingJobName not in self.jobs:
            raise client_error("ValidationException", "Requested resource not found.")
        self.stopped.append(TrainingJobName)


@pytest.fixture
def request_(benchmark_config: BenchmarkConfig) -> dict[str, Any]:
    plan = plan_sweep(benchmark_config, load_catalogue().get("ml.m5.xlarge"))
    return build_request(
        benchmark_config, plan.points[0], ResolvedInputs("bench-1", "image", "s3://bench-bucket/d/")
    )


def test_new_job_is_created_once(request_: dict[str, Any]) -> None:
    platform = SageMaker()
    submit(platform, request_)
    submit(platform, request_)
    assert platform.created == [request_["TrainingJobName"]]


@pytest.mark.parametrize(
    ("status", "state"),
    [("InProgress", "running"), ("Completed", "completed"), ("Failed", "failed")],
)
def test_job_of_ours_is_adopted_whatever_its_status(
    request_: dict[str, Any], status: str, state: str
) -> None:
    platform = SageMaker()
    platform.add(request_, [status])
    assert submit(platform, request_).state == state
    assert platform.created == []


def test_foreign_job_of_that_name_is_refused_with_both_digests(request_: dict[str, Any]) -> None:
    platform = SageMaker()
    platform.add(
        {**request_, "Tags": [{"Key": "nodesweep:request-digest", "Value": "theirs"}]},
        ["InProgress"],
    )
    with pytest.raises(JobRefused, match=r"theirs, \w+ [0-9a-f]{64}"):
        submit(platform, request_)


def test_job_without_our_tag_is_refused_once_its_tags_would_be_known(
    request_: dict[str, Any],
) -> None:
    platform = LaggingPlatform()
    platform.create_training_job(**{**request_, "Tags": []})
    with pytest.raises(JobRefused, match=r"digest missing, \w+ [0-9a-f]{64}"):
        submit(platform, request_, platform.time.clock)
    assert 60 <= platform.time.seconds < 70


class Described(SageMaker):
    """A platform whose descriptions have the request's values, and SageMaker's defaults."""

    def add(self, request: dict[str, Any], statuses: list[str]) -> None:
        super().add(request, statuses)
        self.request = json.loads(json.dumps(request))

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        known = {name: value for name, value in self.request.items() if name != "Tags"}
        known["OutputDataConfig"] = {**known["OutputDataConfig"], "KmsKeyId": ""}
        return {**known, **super().describe_training_job(TrainingJobName)}


@pytest.mark.parametrize(
    "tags",
    [
        [],
        [{"Key": "nodesweep:request-digest", "Value": "rewritten"}],
        [{"Key": "cost-center", "Value": "1"}],
    ],
)
def test_job_whose_tags_were_rewritten_or_lost_is_adopted_by_its_description(
    request_: dict[str, Any], tags: list[dict[str, str]]
) -> None:
    platform = Described()
    platform.add({**request_, "Tags": tags}, ["Completed"])
    assert submit(platform, request_).completed
    assert platform.created == []


@pytest.mark.parametrize(
    "change",
    [
        {"HyperParameters": {"seed": "2"}},
        {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1}},
        {"InputDataConfig": []},
        {"Environment": {"MORE": "1"}},
        {"AlgorithmSpecification": {"TrainingImage": "another", "TrainingInputMode": "File"}},
    ],
)
def test_job_whose_description_is_another_requests_is_refused(
    request_: dict[str, Any], change: dict[str, Any]
) -> None:
    platform = Described()
    platform.add(
        {
            **request_,
            **change,
            "Tags": [{"Key": "nodesweep:request-digest", "Value": "theirs"}],
        },
        ["Completed"],
    )
    asked = {**request_, "Environment": request_.get("Environment", {"A": "1"})}
    with pytest.raises(JobRefused, match="digest theirs"):
        submit(platform, asked)


def test_description_has_the_value_where_the_request_has_a_reference() -> None:
    request = {"TrainingJobName": "a", "Environment": {"TOKEN": "${MINE}", "B": "1"}, "Tags": []}
    described = {"TrainingJobName": "a", "Environment": {"TOKEN": "s3cr3t", "B": "1"}}
    assert matches_request(described, request)
    assert not matches_request({**described, "Environment": {"TOKEN": "s3cr3t", "B": "2"}}, request)


@pytest.mark.parametrize("lag_seconds", [0.0, 6.0, 40.0])
def test_job_that_was_just_accepted_is_not_doubted(
    request_: dict[str, Any], lag_seconds: float
) -> None:
    """Neither the description nor the tags of the job are known yet."""
    platform = LaggingPlatform(describe_lag=lag_seconds, tags_lag=lag_seconds)
    accepted = submit(platform, request_, platform.time.clock)
    assert accepted.name == request_["TrainingJobName"]
    assert accepted.state == "running"
    assert list(platform.jobs) == [request_["TrainingJobName"]]


@pytest.mark.parametrize("lag_seconds", [6.0, 40.0])
def test_job_that_is_there_already_is_adopted_once_it_is_known(
    request_: dict[str, Any], lag_seconds: float
) -> None:
    """After a create whose response was lost, boto3 repeats the call and learns that the name is in
    use."""
    platform = LaggingPlatform(describe_lag=lag_seconds, tags_lag=lag_seconds + 5)
    platform.create_training_job(**request_)
    assert submit(platform, request_, platform.time.clock).state == "running"
    assert lag_seconds <= platform.time.seconds < lag_seconds + 20


def test_quota_is_not_a_refusal_for_good(request_: dict[str, Any]) -> None:
    error = SageMaker.exceptions.ResourceLimitExceeded(
        {
            "Error": {
                "Code": "ResourceLimitExceeded",
                "Message": "The account-level service limit is 0",
            }
        },
        "x",
    )
    with pytest.raises(QuotaReached, match="service limit is 0"):
        submit(SageMaker(refuse=error), request_)


def test_refused_request_says_why(request_: dict[str, Any]) -> None:
    with pytest.raises(JobRefused, match=r"SageMaker refused bench-1-n\d-r1-a1"):
        submit(SageMaker(refuse=client_error("ValidationException", "bad image")), request_)


def test_unknown_name_describes_as_none() -> None:
    assert TRAINING.describe(SageMaker(), "nobody") is None


def test_what_a_described_job_was_given_is_hidden_from_then_on(request_: dict[str, Any]) -> None:
    """A command that creates a report or shows a log knows only the sweep's ID."""
    platform = SageMaker()
    platform.add(request_, ["Completed"])
    of_platform = platform.describe_training_job

    def with_secrets(TrainingJobName: str) -> dict[str, Any]:
        given = {"Environment": {"SESSION": "k1ttens4ndMittens"}}
        return {**of_platform(TrainingJobName), **given}

    platform.describe_training_job = with_secrets  # type: ignore[method-assign]
    assert hide_in_text("it printed k1ttens4ndMittens") == "it printed k1ttens4ndMittens"
    TRAINING.describe(platform, request_["TrainingJobName"])
    assert hide_in_text("it printed k1ttens4ndMittens") == f"it printed {HIDDEN}"


def test_stop_tells_a_running_job_from_one_that_is_gone() -> None:
    platform = SageMaker()
    platform.jobs = {"b": ["InProgress"]}
    assert [TRAINING.stop(platform, name) for name in ("gone", "b")] == [False, True]


def test_a_stop_that_is_denied_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(TrainingJobName: str) -> None:
        raise client_error("AccessDeniedException", "no")

    platform = SageMaker()
    monkeypatch.setattr(platform, "stop_training_job", denied)
    with pytest.raises(ClientError, match="AccessDenied"):
        TRAINING.stop(platform, "a")


def serve(monkeypatch: pytest.MonkeyPatch, sagemaker: SageMaker, logs: SimpleNamespace) -> None:
    """Let the watch call these clients, for a sweep that nobody stops."""
    monkeypatch.setattr(
        "nodesweep.tasks.jobs.training_jobs.read_stop_mark", lambda store, sweep: None
    )
    clients = {"logs": logs, "sagemaker": sagemaker, "s3": SimpleNamespace()}
    monkeypatch.setattr(
        "nodesweep.launch.registry.aws_client", lambda service, *_: clients[service]
    )


def test_log_of_a_job_is_said_once_over_several_watches(
    benchmark_config: BenchmarkConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each watch ends when the first job ends, and the next watch continues at the same line."""
    platform = SageMaker()
    platform.jobs = {"a": ["Completed"]}
    event = {"timestamp": 2e12, "eventId": "1", "logStreamName": "a/algo-1-1", "message": "line"}
    logs = SimpleNamespace(filter_log_events=lambda **query: {"events": [event]})
    serve(monkeypatch, platform, logs)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.log")
    # what is remembered goes by it
    backend = backend_of(benchmark_config.platform.model_copy(update={"bucket": "of-this-test"}))
    for _ in range(2):
        [ended] = watch_training_jobs(backend, "s", ["a"], 1.0, JobLimits(600.0, 3600.0), CREATED)
        assert ended.name == "a"
    said = [record.getMessage() for record in caplog.records if record.name == "nodesweep.log"]
    assert said == ["algo-1: line"]


def test_each_look_tells_how_the_jobs_stand(
    benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Training(SageMaker):
        def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
            description = super().describe_training_job(TrainingJobName)
            return {**description, "SecondaryStatus": "Training"}

    platform = Training()
    platform.jobs = {"a": ["InProgress", "InProgress", "Completed"]}
    line = {
        "timestamp": 2e12,
        "logStreamName": "a/algo-1-1",
        "eventId": "1",
        "message": "step 7/16",
    }
    logs = SimpleNamespace(filter_log_events=lambda **query: {"events": [line]})
    serve(monkeypatch, platform, logs)
    told: list[Any] = []
    backend = backend_of(benchmark_config.platform.model_copy(update={"bucket": "of-that-test"}))
    limits = JobLimits(1e9, 1e9)
    watch_training_jobs(backend, "s", ["a"], 0.01, limits, CREATED, on_poll=told.append)
    assert "7 of 16" not in told[0]["a"].text and "7 of 16" in told[1]["a"].text
    assert len(told) == 2


def test_a_reference_becomes_the_variable_when_the_job_is_started() -> None:
    request = {
        "TrainingJobName": "a",
        "Environment": {"HF_TOKEN": "${TOKEN_OF_MINE}", "B": "a ${B}"},
    }
    sent = with_variables(request, {"TOKEN_OF_MINE": "s3cr3t"})
    assert sent == {"TrainingJobName": "a", "Environment": {"HF_TOKEN": "s3cr3t", "B": "a ${B}"}}
    assert request["Environment"]["HF_TOKEN"] == "${TOKEN_OF_MINE}"
    assert with_variables({"TrainingJobName": "a"}, {}) == {"TrainingJobName": "a"}
    with pytest.raises(JobRefused, match=r"HF_TOKEN is \$\{TOKEN_OF_MINE\}.* not"):
        with_variables(request, {})


def test_a_variable_that_is_too_long_is_refused_by_its_name() -> None:
    request = {"TrainingJobName": "a", "Environment": {"HF_TOKEN": "${TOKEN_OF_MINE}"}}
    with pytest.raises(JobRefused, match=r"HF_TOKEN is \$\{TOKEN_OF_MINE\}.* 513 ") as refused:
        with_variables(request, {"TOKEN_OF_MINE": "s3cr3t!" + "x" * 506})
    assert "s3cr3t" not in str(refused.value)
    assert with_variables(request, {"TOKEN_OF_MINE": "x" * 512})["Environment"] == {
        "HF_TOKEN": "x" * 512
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ValidationException", JobRefused),
        ("ResourceLimitExceeded", QuotaReached),
        ("AccessDenied", ClientError),
    ],
)
def test_a_refusal_that_quotes_the_environment_is_told_without_it(
    request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", 's3cr3t"quoted')
    request = {
        **request_,
        "Environment": {"HF_TOKEN": "${TOKEN_OF_MINE}", "PLAIN": "s3cr3t", "ONE": "1"},
    }
    message = (
        'Value \'{HF_TOKEN=s3cr3t"quoted, PLAIN=s3cr3t, ONE=1}\' or "s3cr3t\\"quoted" at'
        " 'environment'"
    )
    error = client_error(code, message)
    if code == "ResourceLimitExceeded":
        error = SageMaker.exceptions.ResourceLimitExceeded(
            {"Error": {"Code": code, "Message": message}}, "x"
        )
    with pytest.raises(kind, match="at 'environment'") as refused:
        submit(SageMaker(refuse=error), request)
    told = "".join(traceback.format_exception(refused.value)) + str(
        getattr(refused.value, "response", "")
    )
    assert "s3cr3t" not in told and "quoted" not in told
    assert "HF_TOKEN=(hidden), PLAIN=(hidden), ONE=1" in str(refused.value)
