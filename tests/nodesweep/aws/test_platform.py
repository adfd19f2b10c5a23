from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from urllib3 import HTTPResponse

import nodesweep.aws.platform
from infra.local.tests.platform_client import ROLE_ARN, serve_platform
from nodesweep.aws.platform import OUTAGE_JITTER, OUTAGE_PAUSES_SECONDS, aws_client, patient
from nodesweep.configs.models import PlatformConfig
from nodesweep.polling import Cancelled, Clock
from tests.nodesweep.test_errors import client_error


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses of a retried call, none of which takes any time."""
    made: list[float] = []
    clock = Clock(wait=lambda seconds: bool(made.append(seconds)))
    monkeypatch.setattr(nodesweep.aws.platform, "Clock", lambda: clock)
    return made


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    @patient
    def look_at_it() -> str:
        if left:
            raise left.pop(0)
        return "seen"

    return look_at_it


def test_patient_call_waits_an_outage_out(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nodesweep.platform")
    outage = [client_error("InternalError", 500)] * len(OUTAGE_PAUSES_SECONDS)
    assert failing(*outage)() == "seen"
    least, most = OUTAGE_JITTER
    within = (
        least * pause <= made <= most * pause
        for made, pause in zip(pauses, OUTAGE_PAUSES_SECONDS, strict=True)
    )
    assert all(within) and 300 < sum(pauses) < 900
    assert "(InternalError)" in caplog.messages[0]


def test_patient_call_gives_up_with_the_last_error(pauses: list[float]) -> None:
    outage = [client_error("InternalError", 500)] * (1 + len(OUTAGE_PAUSES_SECONDS))
    with pytest.raises(ClientError, match="InternalError"):
        failing(*outage)()
    assert len(pauses) == len(OUTAGE_PAUSES_SECONDS)


def test_patient_call_does_not_repeat_what_no_repetition_helps(pauses: list[float]) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        failing(client_error("AccessDenied", 403))()
    assert pauses == []


def test_patient_call_ends_at_once_when_the_run_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodesweep.aws.platform, "Clock", lambda: Clock(wait=lambda seconds: True))
    with pytest.raises(Cancelled):
        failing(client_error("InternalError", 500))()


def test_a_body_for_the_local_platform_is_signed_by_its_checksum_alone(tmp_path: Path) -> None:
    sent: list[dict[str, str]] = []

    def note(request: Any, **_: Any) -> None:
        sent.append({name.lower(): as_text(value) for name, value in request.headers.items()})

    for served in serve_platform(tmp_path):
        platform = PlatformConfig(
            region="us-east-1",
            bucket="signed",
            role_arn=ROLE_ARN,
            endpoint_url=served.endpoint,
            credentials="platform",
            state_directory=str(served.state_dir),
        )
        s3 = aws_client("s3", platform)
        s3.create_bucket(Bucket="signed")
        s3.meta.events.register("before-send.s3.PutObject", note)
        s3.put_object(Bucket="signed", Key="a", Body=b"some bytes")
    [headers] = sent
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-checksum-crc32" in headers["authorization"], "it is one of the signed headers"


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_bytes_are_sent_at_once_and_a_stream_is_asked_about_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait for "100 Continue" doubles the time of a small object."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    s3 = aws_client("s3", PlatformConfig(region="us-east-1", bucket="data", role_arn=ROLE_ARN))
    asked: list[bool] = []

    def answer(request: Any, **_: Any) -> AWSResponse:
        asked.append("Expect" in request.headers)
        body = HTTPResponse(io.BytesIO(), preload_content=False)
        return AWSResponse(request.url, 200, {"x-amz-request-id": "1"}, body)

    s3.meta.events.register("before-send.s3", answer, unique_id="answer")
    s3.put_object(Bucket="data", Key="a", Body=b"some")
    s3.upload_part(Bucket="data", Key="a", UploadId="u", PartNumber=1, Body=b"some")
    s3.put_object(Bucket="data", Key="a", Body=io.BufferedReader(io.BytesIO(b"some")))
    assert asked == [False, False, True]
