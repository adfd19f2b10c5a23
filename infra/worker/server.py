"""Prefect's server with a guard in front, as `make up` and compose.yaml start it.

    python -m nodesweep.infra.worker server

Whoever can start a flow run executes code on the worker, so:

- every call requires the password in PREFECT_SERVER_API_AUTH_STRING, without which the server does
  not start;
- CORS allows the UI's origin only;
- requests for other host names are rejected, which stops DNS rebinding: a web page can resolve its
  own name to 127.0.0.1 to become same-origin, but its requests carry that name;
- no page may show the UI in a frame, and the UI's pages submit forms to their own origin only.

Concurrency leases are stored in Prefect's home instead of in memory, Prefect's default: a run
renews its lease every 225 s and would lose its slot when the server restarts. A secret can come
from the file in NAME_FILE, where compose mounts secrets, so that the container's configuration does
not show it. Prefect itself reads secrets only from the environment.

With SQLite, which has one writer, requests that write take turns. When they did not, five of six
calls from 24 concurrent clients were refused or dropped after up to 61 s. With turns, every call
succeeded within 7 s (2 busy cores, 2026-11-27).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

DATABASE_PASSWORD = "PREFECT_SERVER_DATABASE_PASSWORD"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_AUTH = "PREFECT_API_AUTH_STRING"
SECRETS = (DATABASE_PASSWORD, SERVER_AUTH, CLIENT_AUTH)
"""Secrets that can also come from a file named in NAME_FILE."""
LEASE_STORAGE = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
LEASES_IN_FILES = "prefect.server.concurrency.lease_storage.filesystem"
_ADDRESSES = ("PREFECT_UI_API_URL", "PREFECT_API_URL")
_AUTHORIZATION = b"authorization"
_QUERIES = ("/filter", "/count", "/paginate", "/history", "/lateness")
_POLICY_VIOLATION = 1008  # RFC 6455; Prefect closes a websocket with it after a wrong token
_PAGE_HEADERS = {
    b"x-frame-options": b"DENY",
    b"content-security-policy": b"frame-ancestors 'none'; base-uri 'self'; form-action 'self'",
    b"x-content-type-options": b"nosniff",
}


class SecretError(Exception):
    """A secret is missing or unusable; the message names it."""


def with_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with each NAME_FILE replaced by NAME and the file's content.

    Raises:
        SecretError: A file can't be read or is empty.
    """
    named = dict(environment)
    for secret in SECRETS:
        path = named.pop(f"{secret}_FILE", None)
        if path is not None:
            named[secret] = _read_secret(f"{secret}_FILE", path)
    return named


def _read_secret(variable: str, path: str) -> str:
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise SecretError(
            f"{variable}: {path} can't be read ({error.strerror}); user {os.getuid()} must be able"
            " to read it"
        ) from None
    if not secret:
        raise SecretError(f"{variable}: {path} is empty; it must contain the secret")
    return secret


def check_password(variable: str, password: str) -> None:
    """Reject a password that is not ASCII, since Prefect's server would fail every call with it.

    Args:
        variable: Source of the password, for the message.
        password: The user:password string.

    Raises:
        SecretError: The password is not ASCII.
    """
    if not password.isascii():
        raise SecretError(
            f"{variable} contains a character that is not ASCII, which Prefect's server can't"
            " compare; choose a password of ASCII letters, digits and punctuation"
        )


def become_worker(pool: str) -> NoReturn:
    """Replace this process with the pool's worker, so that SIGTERM reaches it directly.

    Raises:
        SecretError: The password is unusable.
    """
    command = [
        sys.executable,
        "-m",
        "prefect",
        "worker",
        "start",
        "--pool",
        pool,
        "--type",
        "process",
    ]
    environment = with_secrets(os.environ)
    check_password(CLIENT_AUTH, environment.get(CLIENT_AUTH, ""))
    os.execve(sys.executable, [*command, "--with-healthcheck"], environment)


def serve(host: str, port: int) -> None:
    """Serve until SIGTERM.

    Raises:
        SecretError: The password is missing or unusable.
    """
    environment = with_secrets(os.environ)
    if not environment.get(SERVER_AUTH):
        raise SecretError(
            f"{SERVER_AUTH} is not set: set it to user:password, or set"
            f" {SERVER_AUTH}_FILE to a file that contains it"
        )
    check_password(SERVER_AUTH, environment[SERVER_AUTH])
    environment.setdefault(
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS", ",".join(trusted_origins(environment)) or "null"
    )
    environment.setdefault(LEASE_STORAGE, LEASES_IN_FILES)
    os.environ.clear()
    os.environ.update(environment)
    import uvicorn  # after the environment is set: Prefect reads it on import
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    uvicorn.run(
        guarded_application(trusted_hosts(environment), _is_sqlite(settings)),
        host=host,
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


def trusted_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the host names the server accepts: loopback, the UI's, and PREFECT_API_URL's."""
    hosts = {urlsplit(environment.get(name, "")).hostname for name in _ADDRESSES} | {
        "127.0.0.1",
        "localhost",
    }
    return sorted(host for host in hosts if host)


def trusted_origins(environment: Mapping[str, str]) -> list[str]:
    """Return the UI's origin; empty if its address is unknown."""
    parts = urlsplit(environment.get("PREFECT_UI_API_URL", ""))
    return [f"{parts.scheme}://{parts.netloc}"] if parts.netloc else []


def _is_sqlite(settings: Any) -> bool:
    url = settings.database.connection_url
    return url is None or url.get_secret_value().startswith("sqlite")


def guarded_application(hosts: list[str], one_writer: bool = True) -> Any:
    """Return Prefect's ASGI application, restricted to requests for these hosts.

    With `one_writer`, requests that can write take turns.
    """
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    application = create_app(final=True)
    guard = Guard(OneWriter(application) if one_writer else application)
    return TrustedHostMiddleware(guard, allowed_hosts=hosts, www_redirect=False)


class OneWriter:
    """ASGI middleware that lets one request write at a time, in the order of their arrival.

    With SQLite alone, each request polls a lock for up to 60 s, or fails immediately if it has
    already read. A turn begins once the whole body that the application reads has arrived, and ends
    when the response begins, so neither a slow client nor one without the password holds it.
    """

    def __init__(self, application: Any) -> None:
        self._application, self._turn = application, asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI connection; only requests that can write wait."""
        if scope["type"] != "http" or _only_reads(scope["method"], scope["path"]):
            await self._application(scope, receive, send)
            return
        messages: list[Any] = []
        turn = ExitStack()
        had_turn = False

        async def receive_in_turn() -> Any:
            nonlocal had_turn
            if not had_turn:
                while not messages or messages[-1].get("more_body"):
                    messages.append(await receive())
                await self._turn.acquire()
                had_turn = True
                turn.callback(self._turn.release)
            return messages.pop(0) if messages else await receive()

        async def send_after_turn(message: Any) -> None:
            turn.close()
            await send(message)

        with turn:
            await self._application(scope, receive_in_turn, send_after_turn)


def _only_reads(method: str, path: str) -> bool:
    """Return True for a request that cannot write; Prefect's API also takes queries as POST."""
    return method in ("GET", "HEAD", "OPTIONS") or path.endswith(_QUERIES)


class Guard:
    """ASGI middleware that rejects non-ASCII credentials and adds browser security headers.

    Prefect's server fails with an internal error when it compares a non-ASCII password or token.
    """

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI connection; only HTTP and websocket connections are guarded."""
        if scope["type"] == "websocket":
            await self._application(scope, _first_message_checked(receive, send), send)
            return
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent = {name.lower() for name, _ in message["headers"]}
                added = [pair for pair in _PAGE_HEADERS.items() if pair[0] not in sent]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if all(_is_comparable(value) for name, value in scope["headers"] if name == _AUTHORIZATION):
            await self._application(scope, receive, send_guarded)
            return
        body = b'{"exception_message": "Unauthorized: the password must be ASCII"}'
        headers = [(b"content-type", b"application/json")]
        await send_guarded({"type": "http.response.start", "status": 401, "headers": headers})
        await send_guarded({"type": "http.response.body", "body": body})


def _is_comparable(header: bytes) -> bool:
    """Return True if the password in an Authorization header is ASCII.

    Prefect itself rejects a header without one.
    """
    try:
        return base64.b64decode(header.partition(b" ")[2]).isascii()
    except ValueError:
        return True


def _first_message_checked(receive: Any, send: Any) -> Any:
    """Wrap `receive` of a websocket, whose first message carries the token (Prefect's protocol).

    A token that can't be compared closes the websocket, just as a wrong token does.
    """
    is_first = True

    async def receive_checked() -> Any:
        nonlocal is_first
        message = await receive()
        if message["type"] != "websocket.receive" or not is_first:
            return message
        is_first = False
        if _brings_token(message.get("text")):
            return message
        await send(
            {"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "Invalid token"}
        )
        return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}

    return receive_checked


def _brings_token(text: str | None) -> bool:
    """Return True if Prefect's server can read the message's token, whether it is right or not."""
    try:
        brought = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    token = brought.get("token") if isinstance(brought, dict) else 0
    return token is None or (isinstance(token, str) and token.isascii())
