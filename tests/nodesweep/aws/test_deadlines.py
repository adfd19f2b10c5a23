"""A call to a platform ends by its deadline, however slowly its response arrives."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ResponseStreamingError

import nodesweep.aws.deadlines
import nodesweep.aws.responses
from nodesweep.aws.responses import client_of
from nodesweep.cli.guard import explain
from nodesweep.errors import CallTimedOut, PlatformUnresponsive, is_transient
from tests.hostile_server import DRIPS, Words, dripping_server, hostile_server

OBJECT = {"ETag": '"0f"', "x-amz-request-id": "1"}
SOON = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=0.1)
MULTIPART_CHUNK_BYTES = 5 << 20
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "ListTrainingJobs": ("sagemaker", lambda client: client.list_training_jobs()),
    "DescribeTrainingJob": (
        "sagemaker",
        lambda client: client.get_waiter("training_job_completed_or_stopped").wait(
            TrainingJobName="a"
        ),
    ),
    "ListObjectsV2": (
        "s3",
        lambda client: list(client.get_paginator("list_objects_v2").paginate(Bucket="bucket")),
    ),
}


SESSION = boto3.Session("a", "b", region_name="us-east-1")
"""Shared, as by the clients of a local platform."""


def client_at(endpoint: str, service: str, config: Config = SOON) -> Any:
    return client_of(SESSION, service, endpoint_url=endpoint, config=config)


@pytest.mark.parametrize(
    ("drip", "operation"),
    [
        ("silent", "ListTrainingJobs"),
        *(("body", each) for each in CALLS),
        ("head", "ListObjectsV2"),
    ],
)
def test_answer_without_an_end_is_given_up_and_named(drip: str, operation: str) -> None:
    service, send = CALLS[operation]
    with dripping_server(DRIPS[drip]) as endpoint:
        client = client_at(endpoint, service)
        with pytest.raises(CallTimedOut) as raised:
            send(client)
    waited = raised.value.kwargs["seconds"]
    assert waited >= 0.1
    said = (
        f"{endpoint} did not complete its response to {operation} within {waited:.0f} s."
        " Check the network"
    )
    assert said in str(raised.value) and "platform.endpoint_url" in str(raised.value)
    assert is_transient(raised.value), "another connection may be a better one"
    assert explain(raised.value)[1] == 1
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value), "Prefect keeps it"


def test_drips_of_all_calls_together_are_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodesweep.aws.responses, "GIVE_UP_SECONDS", 0.5)
    with dripping_server(DRIPS["head"]) as endpoint:
        calls = [
            client_at(endpoint, "sagemaker").list_training_jobs,
            client_at(endpoint, "s3").list_buckets,
        ]
        with pytest.raises(PlatformUnresponsive):
            for call in calls * 10:
                with suppress(CallTimedOut):
                    call()


def test_service_is_named_where_the_config_names_no_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with dripping_server(DRIPS["body"]) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        session = boto3.Session("a", "b", region_name="eu-west-1")
        with pytest.raises(CallTimedOut) as raised:
            client_of(session, "sagemaker", config=SOON).list_training_jobs()
    assert "sagemaker in eu-west-1" in str(raised.value)


@pytest.mark.parametrize("size", [0, 25_600, 3 * nodesweep.aws.deadlines.PIECE_BYTES + 1])
def test_body_that_comes_is_whole(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    with hostile_server(lambda path: Words(200, data, OBJECT)) as endpoint:
        s3 = client_at(endpoint, "s3", Config(read_timeout=300))
        read = [s3.get_object(Bucket="bucket", Key="key")["Body"] for _ in range(6)]
        assert read[0].read() == data
        assert b"".join(read[1].iter_chunks(1000)) == data
        assert read[2].read(size + 1) == data
        assert read[3].read(3) + read[3].read() == data
        with read[4] as stream:
            assert stream.read(3) == data[:3]
        buffer = bytearray(3)
        assert read[5].readinto(buffer) == len(data[:3]) and buffer.startswith(data[:3])


def test_small_body_is_read_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    run = nodesweep.aws.deadlines._Call.run

    def counted(call: Any, *arguments: Any) -> Any:
        calls.append(call)
        return run(call, *arguments)

    with hostile_server(lambda path: Words(200, b"data", OBJECT)) as endpoint:
        s3 = client_at(endpoint, "s3", Config(read_timeout=300))
        body = s3.get_object(Bucket="bucket", Key="key")["Body"]
        monkeypatch.setattr(nodesweep.aws.deadlines._Call, "run", counted)
        assert body.read() == b"data"
    assert len(calls) == 1


def test_body_that_breaks_off_is_no_whole_one() -> None:
    with hostile_server(lambda path: Words(200, b"half", OBJECT, 1000)) as endpoint:
        s3 = client_at(endpoint, "s3", Config(read_timeout=300))
        with pytest.raises(Exception) as raised:
            s3.get_object(Bucket="bucket", Key="key")["Body"].read()
    assert is_transient(raised.value)


def test_call_that_was_given_up_sends_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3's next try of a CreateTrainingJob would start a job that no run knows."""
    monkeypatch.setattr(nodesweep.aws.deadlines, "READ_TIMEOUTS_PER_ANSWER", 0.001)
    sent: list[str] = []
    before = threading.enumerate()
    # A busy machine never pauses for longer than this read timeout, after which boto3 would retry.
    twice = Config(retries={"mode": "standard", "total_max_attempts": 2}, read_timeout=300)
    with dripping_server(DRIPS["head"]) as endpoint:
        client = client_at(endpoint, "sagemaker", twice)
        client.meta.events.register_last(
            "before-send", lambda event_name, **_: sent.append(event_name)
        )
        with pytest.raises(CallTimedOut):
            client.list_training_jobs()
        calls = [
            each
            for each in threading.enumerate()
            if each.name == "platform-call" and each not in before
        ]
    for call in calls:  # the server has broken off, which is tried again
        call.join(300)
        assert call.daemon and not call.is_alive()
    assert sent == ["before-send.sagemaker.ListTrainingJobs"]


class FakeTime:
    """The clock of deadlines, which a test moves for whatever takes time."""

    now = 0.0
    seconds_per_look = 0.0

    def monotonic(self) -> float:
        self.now += self.seconds_per_look
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(nodesweep.aws.deadlines, "time", fake)
    return fake


class Disk(io.BytesIO):
    """Each read takes 100 s, or never ends."""

    def __init__(self, clock: FakeTime, over: threading.Event | None = None) -> None:
        super().__init__(bytes(2_000_000))
        self._clock, self._over = clock, over

    def read(self, size: int | None = -1) -> bytes:
        self._clock.now += 100.0
        if self._over is not None:
            self._clock.now += 100.0
            self._over.wait(300)
        return super().read(size)


MINUTE = Config(
    retries={"mode": "standard", "total_max_attempts": 1},
    read_timeout=60,
    request_checksum_calculation="when_required",
    s3={"payload_signing_enabled": False},
)


def test_body_that_drips_is_given_up(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodesweep.aws.deadlines, "_SLICE_SECONDS", 0.01)
    with dripping_server(DRIPS["body"]) as endpoint:
        body = client_at(endpoint, "s3", MINUTE).get_object(Bucket="bucket", Key="key")["Body"]
        clock.seconds_per_look = 10.0
        with pytest.raises(ResponseStreamingError, match=r"/bucket/key .* 1,000") as raised:
            body.read(1000)
    assert is_transient(raised.value)


def test_body_that_is_sent_has_time_while_it_moves(clock: FakeTime) -> None:
    over = threading.Event()
    with hostile_server(lambda path: Words(200, b"", OBJECT)) as endpoint:
        s3 = client_at(endpoint, "s3", MINUTE)
        s3.put_object(Bucket="bucket", Key="key", Body=Disk(clock))
        assert clock.now > 1_000, "many times the deadline of one answer"
        with pytest.raises(CallTimedOut, match="200 s"):
            s3.put_object(Bucket="bucket", Key="key", Body=Disk(clock, over))
        over.set()


def test_upload_of_many_calls_has_no_deadline_of_one(clock: FakeTime, tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(path: str) -> Words:
        what = "parts" if "partNumber" in path else path.partition("?")[2].partition("=")[0]
        asked.append(what)
        clock.now += 800.0 if what == "uploadId" else 100.0
        root = {"uploads": "InitiateMultipartUploadResult"}.get(what, "CompleteMultipartUpload")
        body = f"<{root}><UploadId>1</UploadId></{root}>".encode() if what != "parts" else b""
        return Words(200, body, OBJECT)

    file = tmp_path / "large"
    file.write_bytes(bytes(3 * MULTIPART_CHUNK_BYTES))
    transfer = TransferConfig(
        multipart_threshold=1, multipart_chunksize=MULTIPART_CHUNK_BYTES, use_threads=False
    )
    with hostile_server(answer) as endpoint:
        client_at(endpoint, "s3", MINUTE).upload_file(str(file), "bucket", "key", Config=transfer)
    assert asked == ["uploads", "parts", "parts", "parts", "uploadId"]


def test_wait_for_credentials_is_no_wait_for_an_answer(clock: FakeTime) -> None:
    """A user may have to type the code of a second factor."""
    with hostile_server(lambda path: Words(200, b"{}", {"x-amzn-RequestId": "1"})) as endpoint:
        client = client_at(endpoint, "sagemaker", MINUTE)

        def type_code(**_: Any) -> None:
            clock.now += 1_000.0

        client.meta.events.register("request-created", type_code)
        assert client.list_training_jobs()["ResponseMetadata"]["HTTPStatusCode"] == 200
