"""A client's handling of responses that are not AWS's, and of missing responses."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

import nodesweep.aws.clients
import nodesweep.aws.platform
import nodesweep.aws.responses
from nodesweep.aws.platform import aws_client
from nodesweep.aws.responses import Silence
from nodesweep.cli.guard import explain
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import (
    CallTimedOut,
    ForeignResponse,
    PlatformUnresponsive,
    error_code,
    is_transient,
)
from tests.hostile_server import DRIPS, PAGE, Words, dripping_server, hostile_server

HTML = {"Content-Type": "text/html"}
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "ListTrainingJobs": ("sagemaker", lambda client: client.list_training_jobs()),
    "CreateTrainingJob": (
        "sagemaker",
        lambda client: client.create_training_job(
            TrainingJobName="a", RoleArn="arn:aws:iam::000000000000:role/r" * 2,
            OutputDataConfig={"S3OutputPath": "s3://b"},
            ResourceConfig={"VolumeSizeInGB": 1}, StoppingCondition={},
        ),
    ),
    "FilterLogEvents": ("logs", lambda client: client.filter_log_events(logGroupName="g")),
    "GetCallerIdentity": ("sts", lambda client: client.get_caller_identity()),
    "ListObjectsV2": ("s3", lambda client: client.list_objects_v2(Bucket="bucket")),
    "GetObject": ("s3", lambda client: client.get_object(Bucket="bucket", Key="key")),
    "PutObject": ("s3", lambda client: client.put_object(Bucket="bucket", Key="key", Body=b"x")),
    "HeadBucket": ("s3", lambda client: client.head_bucket(Bucket="bucket")),
    "HeadObject": ("s3", lambda client: client.head_object(Bucket="bucket", Key="key")),
}  # fmt: skip


Call = Callable[[str, Words], Any]


@pytest.fixture(autouse=True)
def one_try_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    once = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=300)
    monkeypatch.setattr(nodesweep.aws.clients, "_CLIENT_CONFIG", once)


@pytest.fixture(scope="module")
def answers() -> Iterator[tuple[str, list[Words]]]:
    """An endpoint and its next response, shared by all tests, since a new client takes most of a
    second."""
    said = [Words()]
    with hostile_server(lambda path: said[-1]) as endpoint:
        yield endpoint, said


@pytest.fixture
def call(platform: PlatformConfig, answers: tuple[str, list[Words]]) -> Call:
    """Return call("GetObject", Words(…)), which returns what the client makes of that response."""
    endpoint, said = answers
    there = platform.model_copy(update={"endpoint_url": endpoint})

    def ask(operation: str, words: Words) -> Any:
        said.append(words)
        service, send = CALLS[operation]
        return send(aws_client(service, there))

    return ask


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize(
    "words",
    [
        Words(403, PAGE, HTML),
        Words(404, b"404 page not found", {"Content-Type": "text/plain"}),
        Words(200, PAGE, HTML),
        Words(200, b"<html><head/><body>Please log in</body></html>", HTML),
        Words(200, b'{"TrainingJobSumm', {"Content-Type": "application/x-amz-json-1.1"}),
        Words(200, b'{"status": "ok"}', {"Content-Type": "application/json"}),
        Words(200, b"[]"),
        Words(302, b"", {"Location": "/"}),
        Words(301, PAGE, {"Location": "/login", **HTML}),
        Words(307, b"", {"Location": "/"}),
        Words(200, b""),
    ],
    ids=["403", "404", "page", "login", "half", "json", "list", "302", "301", "307", "empty"],
)
def test_answer_that_is_not_aws_names_the_endpoint_and_what_came(
    call: Call, answers: tuple[str, list[Words]], operation: str, words: Words
) -> None:
    with pytest.raises(ForeignResponse) as raised:
        call(operation, words)
    message = str(raised.value)
    for fact in (answers[0], operation, f"HTTP {words.status}"):
        assert fact in message
    assert is_transient(raised.value), "whatever stands in between may go away"
    told, code = explain(raised.value)
    assert (message in told, code) == (True, 1)


@pytest.mark.parametrize("operation", ["ListTrainingJobs", "ListObjectsV2"])
def test_answer_that_breaks_off_is_not_taken_for_a_whole_one(call: Call, operation: str) -> None:
    words = Words(
        200, b"<List" if "Objects" in operation else b'{"A": [', {"x-amz-request-id": "1"}, 1000
    )
    with pytest.raises(ForeignResponse, match="truncated"):
        call(operation, words)


@pytest.mark.parametrize("operation", ["ListTrainingJobs", "ListObjectsV2", "GetObject"])
def test_page_of_a_gateway_in_trouble_is_an_error_that_passes(call: Call, operation: str) -> None:
    with pytest.raises(ClientError) as raised:
        call(operation, Words(503, PAGE, HTML))
    assert (error_code(raised.value), is_transient(raised.value)) == ("503", True)


def test_real_errors_and_answers_stay_what_they_are(call: Call) -> None:
    """Also behind a gateway that lets no x-amz header through."""
    with pytest.raises(ClientError) as raised:
        call(
            "ListTrainingJobs", Words(400, b'{"__type": "AccessDeniedException", "message": "no"}')
        )
    assert error_code(raised.value) == "AccessDeniedException"
    with pytest.raises(ClientError) as raised:
        call("GetObject", Words(404, b"<Error><Code>NoSuchKey</Code></Error>"))
    assert error_code(raised.value) == "NoSuchKey"
    assert (
        call("ListTrainingJobs", Words(200, b'{"TrainingJobSummaries": []}'))[
            "TrainingJobSummaries"
        ]
        == []
    )
    page = call("GetObject", Words(200, PAGE, {"ETag": '"0f"', **HTML}))
    assert page["Body"].read() == PAGE, "an object may be a page"
    assert "events" not in call("FilterLogEvents", Words(200, b"{}", {"x-amzn-RequestId": "1"}))


def test_what_is_shown_of_an_answer_is_short_and_holds_no_secret(call: Call) -> None:
    page = b"<p>token=ghp_" + b"a" * 36 + b"\x1b[31m" + b"x" * 10_000
    place = "https://user:hunter22@login.example/?token=abcdefgh"
    with pytest.raises(ForeignResponse) as raised:
        call("ListTrainingJobs", Words(302, page, {"Location": place, **HTML}))
    message = str(raised.value)
    assert len(message) < 500 and "\x1b" not in message
    assert "ghp_" not in message and "hunter22" not in message and "abcdefgh" not in message
    assert str(pickle.loads(pickle.dumps(raised.value))) == message, "Prefect keeps it"


class Time:
    seconds = 0.0


@pytest.fixture
def silence() -> tuple[Silence, Time]:
    now = Time()
    return Silence("http://there:1", 120.0, 900.0, lambda: now.seconds), now


def test_silence_is_said_every_two_minutes_and_ends_with_an_error(
    silence: tuple[Silence, Time], caplog: pytest.LogCaptureFixture
) -> None:
    heard, now = silence
    reason = ReadTimeoutError(endpoint_url="http://there:1")
    said_at = []
    with pytest.raises(PlatformUnresponsive, match=r"http://there:1 .* 900 s.*Describe") as raised:
        while True:
            heard.begin()
            now.seconds += 60.0
            heard.note_failure("Describe", reason)
            if len(caplog.records) > len(said_at):
                said_at.append(now.seconds)
    assert said_at == [120.0, 240.0, 360.0, 480.0, 600.0, 720.0, 840.0]
    first = (
        "no response from http://there:1 for 120 s; still waiting for Describe, giving up"
        " after 900 s"
    )
    assert caplog.records[0].getMessage() == first
    assert not is_transient(raised.value) and raised.value.__cause__ is reason
    assert explain(raised.value)[1] == 1


@pytest.mark.parametrize("ended_by", ["an answer", "a while in which nobody asked"])
def test_silence_begins_anew(silence: tuple[Silence, Time], ended_by: str) -> None:
    heard, now = silence
    reason = ReadTimeoutError(endpoint_url="http://there:1")
    heard.begin()
    now.seconds += 800.0
    heard.note_failure("Describe", reason)
    if ended_by == "an answer":
        heard.end()
    now.seconds += 130.0
    heard.begin()
    now.seconds += 60.0
    heard.note_failure("Describe", reason)
    now.seconds += 110.0
    heard.begin()
    now.seconds += 731.0
    with pytest.raises(PlatformUnresponsive, match="for 901 s"):
        heard.note_failure("Describe", reason)


def test_platform_that_never_answers_is_given_up(
    platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All clients of one endpoint wait together: of ten calls, 100 s after one another, the tenth
    gives up.
    """
    once = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=0.1)
    monkeypatch.setattr(nodesweep.aws.clients, "_CLIENT_CONFIG", once)
    now = Time()
    outcomes: list[type[BaseException]] = []
    with dripping_server(DRIPS["silent"]) as endpoint:
        there = platform.model_copy(update={"endpoint_url": endpoint})
        calls = [
            (aws_client(CALLS[name][0], there), CALLS[name][1])
            for name in ("ListTrainingJobs", "ListObjectsV2")
        ]
        monkeypatch.setattr(
            nodesweep.aws.responses._SILENCES[endpoint], "_monotonic", lambda: now.seconds
        )
        for client, send in calls * 5:
            with pytest.raises((CallTimedOut, PlatformUnresponsive)) as raised:
                send(client)
            outcomes.append(raised.type)
            now.seconds += 100.0
    assert outcomes == [CallTimedOut] * 9 + [PlatformUnresponsive]
    said = [record.getMessage() for record in caplog.records if record.name == "nodesweep.platform"]
    assert [words.split(";")[0].split(" for ")[1] for words in said] == [
        "200 s",
        "400 s",
        "600 s",
        "800 s",
    ]
    assert endpoint in said[0]
