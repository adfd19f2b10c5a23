"""Clients of a local platform find its key, and name its path where they cannot read it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.exceptions import EndpointConnectionError

import nodesweep.aws.api_models
from nodesweep.aws import local_keys, local_status
from nodesweep.aws.local_keys import ForeignPlatform, NoLocalKeys, local_session
from nodesweep.aws.local_status import STATUS_PATH
from nodesweep.aws.platform import aws_client
from nodesweep.cli.commands.stack import stack_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.written.from_stack import LocalEndpoint
from nodesweep.errors import CallTimedOut, ForeignResponse
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.server import contract
from sagemaker_emulator.server.contract import CREDENTIALS_FILE, SERVICE
from tests.hostile_server import DRIPS, PAGE, Words, dripping_server, hostile_server


def status_of(folder: Path, endpoint: str, path: str) -> bytes:
    """Return the response of the folder's platform, as if served at this endpoint."""
    nonce = parse_qs(urlsplit(path).query).get("nonce", [""])[0]
    status = {"service": SERVICE, "running": True, "state_dir": str(folder)}
    if nonce:
        secret = access_keys(folder).user.secret
        status["proof"] = contract.proof_of(secret, endpoint, nonce)
    return json.dumps(status).encode()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """A server that responds as the platform of this state folder, once the folder has a key."""

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if (tmp_path / "stopping").exists() else 200)
            self.end_headers()
            here = f"http://127.0.0.1:{self.server.server_port}"
            self.wfile.write(status_of(tmp_path, here, self.path))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def local(platform: PlatformConfig, endpoint: str, tmp_path: Path) -> PlatformConfig:
    return platform.model_copy(
        update={
            "endpoint_url": endpoint,
            "credentials": "platform",
            "state_directory": str(tmp_path),
        }
    )


def test_both_sides_agree_on_the_address_and_the_file() -> None:
    ours, theirs = (
        (side.STATUS_PATH, side.SERVICE, side.SERVER_FILE, side.proof_of("k", "http://x:1", "0"))
        for side in (local_status, contract)
    )
    assert ours == theirs and local_status.KEYS_FILE == CREDENTIALS_FILE


def test_the_key_is_that_of_the_state_folder(endpoint: str, tmp_path: Path) -> None:
    key = access_keys(tmp_path).user
    found = local_session(endpoint, "us-east-1", tmp_path).get_credentials()
    assert found is not None and (found.access_key, found.secret_key) == (key.id, key.secret)
    (tmp_path / "stopping").touch()
    assert local_session(endpoint + "/", None, tmp_path).get_credentials().access_key == key.id


def test_clients_need_nothing_of_the_users_own_set_up(
    local: PlatformConfig, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = access_keys(tmp_path).user
    nodesweep.aws.api_models._reader.cache_clear()  # the first client of a process
    monkeypatch.setenv("AWS_PROFILE", "not-here")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-user")
    client = aws_client("s3", local)
    assert client.meta.endpoint_url == endpoint
    assert client._request_signer._credentials.access_key == key.id
    assert client._endpoint.http_session._proxy_config.proxy_url_for(endpoint) is None
    monkeypatch.delenv("AWS_PROFILE")
    made = stack_client("us-east-1", LocalEndpoint(endpoint, str(tmp_path)))
    assert made._request_signer._credentials.access_key == key.id
    assert aws_client("ecr", local) is aws_client("ecr", local), "clients are kept"


def test_who_may_not_read_the_folder_is_told_where_the_key_lies(
    endpoint: str, tmp_path: Path
) -> None:
    with pytest.raises(
        NoLocalKeys,
        match=rf"{endpoint} .*{tmp_path}/aws-credentials: {os.strerror(errno.ENOENT)}",
    ):
        local_session(endpoint, None, tmp_path)
    (tmp_path / "aws-credentials").write_text("[default]\n")
    (tmp_path / "aws-credentials").chmod(0o600)
    with pytest.raises(NoLocalKeys, match="damaged"):
        local_session(endpoint, None, tmp_path)


def test_no_platform_there_is_a_lost_connection(tmp_path: Path) -> None:
    """A run then waits for a platform that is away for a moment."""
    with pytest.raises(EndpointConnectionError, match=r"http://127\.0\.0\.1:9"):
        local_session("http://127.0.0.1:9", None, tmp_path)


@pytest.mark.parametrize("drip", DRIPS)
def test_platform_that_never_gets_to_the_end_of_its_answer_is_given_up(
    drip: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_keys, "_ANSWER_SECONDS", 0.3)
    began = time.monotonic()
    with (
        dripping_server(DRIPS[drip]) as endpoint,
        pytest.raises(CallTimedOut, match=f"{endpoint} .* {STATUS_PATH} "),
    ):
        local_session(endpoint, None, tmp_path)
    assert time.monotonic() - began < 300, "it would go on forever"


@pytest.mark.parametrize(
    "words", [Words(502, PAGE), Words(200, b'{"service"', {}, 1000)], ids=["gateway", "cut off"]
)
def test_status_that_a_gateway_could_not_get_is_asked_for_again(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = access_keys(tmp_path).user
    coming = [words, words, None]
    monkeypatch.setattr(local_keys, "_PAUSES_SECONDS", (0.01, 0.01))

    def answer(path: str) -> Words:
        return coming.pop(0) or Words(200, status_of(tmp_path, endpoint, path))

    with hostile_server(answer) as endpoint:
        assert local_session(endpoint, None, tmp_path).get_credentials().access_key == key.id
        coming += [words] * 3
        with pytest.raises(ForeignResponse, match=endpoint):
            local_session(endpoint, None, tmp_path)
    assert not coming


@pytest.mark.parametrize(
    "words",
    [
        Words(200, PAGE),
        Words(200, b'{"status": "ok"}'),
        Words(200, b'{"running": true, "state_dir": "/tmp"}'),
        Words(200, b'{"service": "nodesweep-local", "running'),
        Words(200, b"[" * 100_000),
        Words(403, PAGE),
        Words(302, b"", {"Location": "/_nodesweep/status"}),
    ],
    ids=["page", "ok", "like ours", "half", "deep", "403", "circle"],
)
def test_program_that_answers_on_the_port_is_not_taken_for_the_platform(
    words: Words, tmp_path: Path
) -> None:
    access_keys(tmp_path)
    with (
        hostile_server(lambda path: words) as endpoint,
        pytest.raises(
            ForeignResponse,
            match=rf"{endpoint} .* /_nodesweep/status: ",
        ),
    ):
        local_session(endpoint, None, tmp_path)


def test_key_that_the_answering_server_names_is_not_used(tmp_path: Path) -> None:
    """The server claims to be the platform, and names a folder with a key that anyone may read."""
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    for folder in (theirs, own):
        folder.mkdir()
        access_keys(folder)
    with (
        hostile_server(lambda path: Words(200, status_of(theirs, endpoint, path))) as endpoint,
        pytest.raises(ForeignPlatform, match=rf"{endpoint} .* {own}: "),
    ):
        local_session(endpoint, None, own)


def test_proof_of_the_platform_elsewhere_is_no_proof_here(endpoint: str, tmp_path: Path) -> None:
    """The server forwards every request, including the nonce, to the own platform."""
    access_keys(tmp_path)

    def ask_the_own(path: str) -> Words:
        with urllib.request.urlopen(endpoint + path, timeout=300) as answer:
            return Words(200, answer.read())

    assert local_session(endpoint, None, tmp_path)
    with hostile_server(ask_the_own) as relay, pytest.raises(ForeignPlatform, match=relay):
        local_session(relay, None, tmp_path)


def test_who_takes_the_port_of_a_platform_that_died_sees_signed_requests_and_no_key(
    local: PlatformConfig, tmp_path: Path
) -> None:
    key = access_keys(tmp_path).user
    seen: list[str] = []
    is_dead = False

    def answer(path: str) -> Words:
        return Words(200, b"{}") if is_dead else Words(200, status_of(tmp_path, endpoint, path))

    with hostile_server(answer, seen) as endpoint:
        client = aws_client("logs", local.model_copy(update={"endpoint_url": endpoint}))
        is_dead = True
        with pytest.raises(ForeignResponse):
            client.describe_log_groups()
    assert f"Credential={key.id}" in seen[-1], "a request of the run"
    assert not any(key.secret in request for request in seen)


def test_aws_itself_is_called_with_the_credentials_that_boto3_finds(
    platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    aws = platform.model_copy(update={"endpoint_url": None, "credentials": "chain"})
    assert aws_client("sns", aws)._request_signer._credentials.access_key == "of-the-user"


def test_localhost_is_called_where_the_platform_listens(local: PlatformConfig) -> None:
    """Another program may hold that name's IPv6 address."""
    access_keys(Path(local.state_directory))
    named = str(local.endpoint_url).replace("127.0.0.1", "localhost")
    client = aws_client("s3", local.model_copy(update={"endpoint_url": named}))
    assert client.meta.endpoint_url == local.endpoint_url
