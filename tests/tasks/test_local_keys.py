"""Clients of a local platform come by its key, and say where it lies where they can't."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from cli.commands.stack import stack_client
from cli.local_platform import answers
from configs.models import PlatformConfig
from infra.local.api.access import access_keys
from infra.local.server.contract import CREDENTIALS_FILE, SERVICE, STATUS_PATH
from tasks import local_keys, local_status
from tasks.errors import ForeignAnswer
from tasks.local_keys import NoLocalKeys, local_session
from tasks.platform import aws_client
from tests.tasks.hostile_server import DRIPS, PAGE, Words, dripping_server, hostile_server


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """What says of itself that it is a platform, with this state folder."""

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if (tmp_path / "stopping").exists() else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"service": SERVICE, "state_dir": str(tmp_path)}).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def local(platform: PlatformConfig, endpoint: str) -> PlatformConfig:
    return platform.model_copy(update={"endpoint_url": endpoint, "credentials": "platform"})


def test_both_sides_agree_on_the_address_and_the_file() -> None:
    theirs = (local_status.STATUS_PATH, local_status.SERVICE, local_keys._KEYS_FILE)
    assert theirs == (STATUS_PATH, SERVICE, CREDENTIALS_FILE)


def test_the_key_is_that_of_the_state_folder(endpoint: str, tmp_path: Path) -> None:
    key = access_keys(tmp_path).user
    found = local_session(endpoint, "us-east-1").get_credentials()
    assert found is not None and (found.access_key, found.secret_key) == (key.id, key.secret)
    (tmp_path / "stopping").touch()
    assert local_session(endpoint + "/", None).get_credentials().access_key == key.id


def test_clients_need_nothing_of_the_users_own_set_up(
    local: PlatformConfig, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = access_keys(tmp_path).user
    monkeypatch.setenv("AWS_PROFILE", "not-here")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-user")
    client = aws_client("s3", local)
    assert client.meta.endpoint_url == endpoint
    assert client._request_signer._credentials.access_key == key.id
    assert client._endpoint.http_session._proxy_config.proxy_url_for(endpoint) is None
    monkeypatch.delenv("AWS_PROFILE")
    assert stack_client("us-east-1", endpoint)._request_signer._credentials.access_key == key.id
    assert aws_client("ecr", local) is aws_client("ecr", local), "clients are kept"


def test_who_may_not_read_the_folder_is_told_where_the_key_lies(
    endpoint: str, tmp_path: Path
) -> None:
    with pytest.raises(
        NoLocalKeys,
        match=rf"{endpoint} can't be read from {tmp_path}/aws-credentials: No such file",
    ):
        local_session(endpoint, None)
    (tmp_path / "aws-credentials").write_text("[default]\n")
    with pytest.raises(NoLocalKeys, match="it is damaged"):
        local_session(endpoint, None)


def test_no_platform_there_is_a_lost_connection() -> None:
    """So that a run waits for one that is away for a moment."""
    with pytest.raises(EndpointConnectionError, match=r"http://127\.0\.0\.1:9"):
        local_session("http://127.0.0.1:9", None)


@pytest.mark.parametrize("drip", DRIPS)
def test_platform_that_never_gets_to_the_end_of_its_answer_is_given_up(
    drip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_keys, "_ANSWER_SECONDS", 0.3)
    began = time.monotonic()
    with (
        dripping_server(DRIPS[drip]) as endpoint,
        pytest.raises(ReadTimeoutError, match=f'Read timeout on endpoint URL: "{endpoint}"'),
    ):
        local_session(endpoint, None)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "words", [Words(502, PAGE), Words(200, b'{"service"', {}, 1000)], ids=["gateway", "cut off"]
)
def test_status_that_a_gateway_could_not_get_is_asked_for_again(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = access_keys(tmp_path).user
    status = json.dumps({"service": SERVICE, "state_dir": str(tmp_path)}).encode()
    coming = [words, words, Words(200, status)]
    monkeypatch.setattr(local_keys, "_PAUSES_SECONDS", (0.01, 0.01))
    with hostile_server(lambda path: coming.pop(0)) as endpoint:
        assert local_session(endpoint, None).get_credentials().access_key == key.id
        coming += [words] * 3
        with pytest.raises(ForeignAnswer, match="it is not nodesweep's local platform"):
            local_session(endpoint, None)
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
    platform: PlatformConfig, words: Words
) -> None:
    with hostile_server(lambda path: words) as endpoint:
        with pytest.raises(
            ForeignAnswer,
            match=rf"{endpoint} gave /_nodesweep/status .*not nodesweep's local platform",
        ):
            local_session(endpoint, None)
        assert not answers(platform.model_copy(update={"endpoint_url": endpoint}))
