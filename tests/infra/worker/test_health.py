"""The image's health check, the passwords of a container, and the clients that the server
trusts."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from nodesweep.infra.worker import health
from nodesweep.infra.worker.server import (
    DATABASE_PASSWORD,
    SECRETS,
    SERVER_AUTH,
    Guard,
    OneWriter,
    SecretError,
    serve,
    trusted_hosts,
    trusted_origins,
    with_secrets,
)


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response({"/health": 200, "/late": 503}[self.path])
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_health_is_an_answer_of_200(port: int) -> None:
    assert health.problem(port, "/health") is None
    late = str(health.problem(port, "/late"))
    assert all(fact in late for fact in ("/late", str(port), "503"))


def test_nobody_there_is_a_problem_that_is_named(port: int) -> None:
    assert "Connection refused" in str(health.problem(1, "/health"))


def test_check_ends_with_1_and_asks_no_proxy(port: int) -> None:
    def check(path: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(Path(health.__file__)), str(port), path]
        proxy = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
        return subprocess.run(
            command, env=proxy, capture_output=True, text=True, timeout=300, check=False
        )

    assert check("/health").returncode == 0
    failed = check("/late")
    assert failed.returncode == 1 and "503" in failed.stderr


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_the_files_and_its_name_is_gone(tmp_path: Path, secret: str) -> None:
    (tmp_path / "password").write_text("of the file\n")
    got = with_secrets(
        {"PREFECT_SERVER_DATABASE_HOST": "postgres", f"{secret}_FILE": str(tmp_path / "password")}
    )
    assert got == {"PREFECT_SERVER_DATABASE_HOST": "postgres", secret: "of the file"}


def test_without_a_file_the_environment_stays() -> None:
    assert with_secrets({"PREFECT_HOME": "/x"}) == {"PREFECT_HOME": "/x"}


def test_password_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    name = f"{DATABASE_PASSWORD}_FILE"
    with pytest.raises(SecretError, match=r"PASSWORD_FILE: .*/gone "):
        with_secrets({name: str(tmp_path / "gone")})
    (tmp_path / "empty").touch()
    with pytest.raises(SecretError, match="/empty "):
        with_secrets({name: str(tmp_path / "empty")})


def test_a_server_without_a_password_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SERVER_AUTH, f"{SERVER_AUTH}_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SecretError, match="PREFECT_SERVER_API_AUTH_STRING is not"):
        serve("127.0.0.1", 0)


def test_a_password_that_is_no_ascii_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's server would respond to every call with an internal error."""
    monkeypatch.setenv(SERVER_AUTH, "nodesweep:Gänseblümchen")
    with pytest.raises(SecretError, match=f"{SERVER_AUTH} .*ASCII"):
        serve("127.0.0.1", 0)


async def _asked(headers: list[tuple[bytes, bytes]]) -> tuple[int, dict[bytes, bytes]]:
    """Return status and headers of the response from the guard, or from the application behind
    it."""
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await Guard(application)({"type": "http", "headers": headers}, None, send)
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    ("password", "status"),
    [(b"nodesweep:secret", 200), ("nodesweep:Gänse".encode(), 401), (b"\xff\xfe", 401)],
)
def test_a_password_that_prefect_can_not_compare_is_a_wrong_one(
    password: bytes, status: int
) -> None:
    header = (b"authorization", b"Basic " + base64.b64encode(password))
    assert asyncio.run(_asked([header]))[0] == status


def test_prefect_reads_the_first_of_two_passwords_and_neither_may_fail_it() -> None:
    headers = [
        (b"authorization", b"Basic " + base64.b64encode(password))
        for password in ("nodesweep:Gänse".encode(), b"nodesweep:secret")
    ]
    assert asyncio.run(_asked(headers))[0] == 401
    assert asyncio.run(_asked(headers[::-1]))[0] == 401


async def _opened(first: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the messages that an application reads from a websocket with this first one, and those
    sent."""
    read, sent = [], []
    messages = iter([{"type": "websocket.connect"}, first, {"type": "websocket.receive"}])

    async def application(scope: Any, receive: Any, send: Any) -> None:
        read.extend([await receive(), await receive()])
        if read[-1]["type"] != "websocket.disconnect":
            read.append(await receive())

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await Guard(application)({"type": "websocket", "headers": []}, receive, send)
    return read, sent


NO_TOKENS = {
    "no ASCII": '{"type": "auth", "token": "nodesweep:Gänse"}',
    "escaped": '{"type": "auth", "token": "nodesweep:G\\u00e4nse"}',
    "surrogate": '{"type": "auth", "token": "\\ud800"}',
    "number": '{"type": "auth", "token": 1}',
    "list": '{"type": "auth", "token": ["nodesweep:secret"]}',
    "bool": '{"type": "auth", "token": true}',
    "no object": '["auth"]',
    "no JSON": "auth",
    "nested": "[" * 100_000,
    "empty": "",
    "bytes": None,
}


@pytest.mark.parametrize("name", NO_TOKENS)
def test_a_token_that_prefect_can_not_compare_closes_a_websocket_as_a_wrong_one(name: str) -> None:
    text = NO_TOKENS[name]
    first = {"type": "websocket.receive", "text": text, "bytes": None if text else b"auth"}
    read, sent = asyncio.run(_opened(first))
    assert read[1:] == [{"type": "websocket.disconnect", "code": 1008}]
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "Invalid token"}]


@pytest.mark.parametrize(
    "text",
    ['{"type": "auth", "token": "nodesweep:secret"}', '{"type": "auth"}', '{"type": "other"}'],
)
def test_any_other_first_message_of_a_websocket_is_prefects_to_judge(text: str) -> None:
    first = {"type": "websocket.receive", "text": text}
    read, sent = asyncio.run(_opened(first))
    assert read[1:] == [first, {"type": "websocket.receive"}] and sent == []


@pytest.mark.parametrize("header", [b"", b"Basic", b"Basic %%%", b"Bearer abc"])
def test_what_is_no_password_is_prefects_to_refuse(header: bytes) -> None:
    assert asyncio.run(_asked([(b"authorization", header)]))[0] == 200


def test_no_page_shows_the_ui_in_a_frame() -> None:
    _, headers = asyncio.run(_asked([]))
    assert headers[b"x-frame-options"] == b"DENY"
    policy = headers[b"content-security-policy"].decode()
    assert policy == "frame-ancestors 'none'; base-uri 'self'; form-action 'self'"


def test_trusted_are_the_names_of_the_server_and_the_origin_of_its_page() -> None:
    environment = {
        "PREFECT_API_URL": "http://server:4200/api",
        "PREFECT_UI_API_URL": "https://sweeps.example:8443/api",
    }
    assert trusted_hosts(environment) == ["127.0.0.1", "localhost", "server", "sweeps.example"]
    assert trusted_origins(environment) == ["https://sweeps.example:8443"]
    assert (trusted_hosts({}), trusted_origins({})) == (["127.0.0.1", "localhost"], [])


class _Writers:
    """Requests to an application behind OneWriter, and the number that it handles
    simultaneously."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.done: list[str] = []
        self.may_end = asyncio.Event()
        self._application = OneWriter(self._handle)

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/unauthorized":
            await receive()
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if scope["path"] == "/fails":
                raise ValueError
            await self.may_end.wait()
        finally:
            self.inside -= 1
        await send({"type": "http.response.start"})
        await receive()  # as a server that waits for its client to leave
        self.done.append(scope["path"])

    async def request(
        self, path: str, method: str = "POST", body: asyncio.Event | None = None
    ) -> None:
        """Send a request, the second half of whose body arrives once `body` is set."""
        messages = [{"type": "http.request", "more_body": body is not None}]
        messages += [{"type": "http.request", "more_body": False}] if body else []

        async def receive() -> Any:
            if not messages:
                return {"type": "http.disconnect"}
            if body is not None and len(messages) == 1:
                await body.wait()
            return messages.pop(0)

        async def send(message: Any) -> None:
            await asyncio.sleep(0)

        await self._application({"type": "http", "method": method, "path": path}, receive, send)


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_writes_take_turns_in_order_and_reads_none() -> None:
    async def story() -> None:
        writers = _Writers()
        writes = [asyncio.create_task(writers.request(f"/{number}")) for number in range(5)]
        await _settled()
        assert writers.inside == 1
        reads = [
            asyncio.create_task(writers.request("/read", "GET")),
            asyncio.create_task(writers.request("/flow_runs/filter")),
        ]
        await _settled()
        assert writers.inside == 3
        writers.may_end.set()
        await asyncio.gather(*writes, *reads)
        written = [path for path in writers.done if path[1:].isdigit()]
        assert written == [f"/{number}" for number in range(5)]

    asyncio.run(story())


def test_a_slow_client_and_one_without_the_password_hold_up_nobody() -> None:
    async def story() -> None:
        writers, body = _Writers(), asyncio.Event()
        slow = asyncio.create_task(writers.request("/slow", body=body))
        stranger = asyncio.create_task(writers.request("/unauthorized"))
        await _settled()
        quick = asyncio.create_task(writers.request("/quick"))
        writers.may_end.set()
        await asyncio.gather(quick, stranger)
        assert not slow.done()
        body.set()
        await slow

    asyncio.run(story())


def test_a_request_that_fails_or_leaves_gives_its_turn_back() -> None:
    async def story() -> None:
        writers = _Writers()
        with pytest.raises(ValueError):
            await writers.request("/fails")
        holds = asyncio.create_task(writers.request("/holds"))
        await _settled()
        leaves = asyncio.create_task(writers.request("/leaves"))
        await _settled()
        leaves.cancel()
        writers.may_end.set()
        await holds
        await writers.request("/next")
        assert writers.done == ["/holds", "/next"]

    asyncio.run(story())
