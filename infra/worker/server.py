"""Prefect's server as `make up` and compose.yaml start it. python -m nodesweep.infra.worker server

It is Prefect's own application with a guard in front: whoever can start a flow run makes the worker
run code, so

- every call needs the password, PREFECT_SERVER_API_AUTH_STRING; without one the server does not
  start;
- a page of another origin than the UI's is not allowed to call it (CORS);
- a request that was sent to another host name than the server's is refused. A web page can have its
  own name resolved to 127.0.0.1 and is of the same origin then (DNS rebinding), but its requests
  carry its name;
- no page shows the UI in a frame, and the UI's own pages send no form elsewhere.

The leases of concurrency limits lie in Prefect's home, and not in memory, Prefect's default: a run
renews its own every 225 s, and loses its place where a server that has started anew does not
know it.

A secret comes from a file where an environment variable NAME_FILE names one, as a compose secret is
mounted: Prefect reads it from the environment only, and the container's configuration shall not
show it.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

DATABASE_PASSWORD = "PREFECT_SERVER_DATABASE_PASSWORD"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_AUTH = "PREFECT_API_AUTH_STRING"
SECRETS = (DATABASE_PASSWORD, SERVER_AUTH, CLIENT_AUTH)
"""Each may be given as a file by NAME_FILE."""
LEASE_STORAGE = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
LEASES_IN_FILES = "prefect.server.concurrency.lease_storage.filesystem"
_ADDRESSES = ("PREFECT_UI_API_URL", "PREFECT_API_URL")
_AUTHORIZATION = b"authorization"
_POLICY_VIOLATION = 1008  # by which Prefect closes a websocket whose token is wrong (RFC 6455)
_PAGE_HEADERS = {
    b"x-frame-options": b"DENY",
    b"content-security-policy": b"frame-ancestors 'none'; base-uri 'self'; form-action 'self'",
    b"x-content-type-options": b"nosniff",
}


class SecretError(Exception):
    """A secret is missing, or its file can't be used; the message names it."""


def with_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """With each secret in place of its file; unchanged where no file is named.
    Raises SecretError.
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
    """Raise SecretError for one that Prefect's server can't compare: it answers every call with an
    internal error then.
    """
    if not password.isascii():
        raise SecretError(
            f"{variable} contains a character that is not ASCII, which Prefect's server can't"
            " compare; choose a password of ASCII letters, digits and punctuation"
        )


def become_worker(pool: str) -> NoReturn:
    """This process becomes the pool's worker, so that SIGTERM reaches it. Raises SecretError."""
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
    """Serve until SIGTERM. Raises SecretError."""
    environment = with_secrets(os.environ)
    if not environment.get(SERVER_AUTH):
        raise SecretError(
            f"{SERVER_AUTH} is not set: set it to user:password, or name a file in"
            f" {SERVER_AUTH}_FILE"
        )
    check_password(SERVER_AUTH, environment[SERVER_AUTH])
    environment.setdefault(
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS", ",".join(trusted_origins(environment)) or "null"
    )
    environment.setdefault(LEASE_STORAGE, LEASES_IN_FILES)
    os.environ.clear()
    os.environ.update(environment)
    import uvicorn  # after the environment is set: Prefect reads it when it is imported
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    uvicorn.run(
        guarded_application(trusted_hosts(environment)),
        host=host,
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


def trusted_hosts(environment: Mapping[str, str]) -> list[str]:
    """The names under which the server is called: loopback's, the UI's address and
    PREFECT_API_URL's.
    """
    hosts = {urlsplit(environment.get(name, "")).hostname for name in _ADDRESSES} | {
        "127.0.0.1",
        "localhost",
    }
    return sorted(host for host in hosts if host)


def trusted_origins(environment: Mapping[str, str]) -> list[str]:
    """The origin of the UI, where its address is known."""
    parts = urlsplit(environment.get("PREFECT_UI_API_URL", ""))
    return [f"{parts.scheme}://{parts.netloc}"] if parts.netloc else []


def guarded_application(hosts: list[str]) -> Any:
    """Prefect's application, for requests to these hosts only."""
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    application = Guard(create_app(final=True))
    return TrustedHostMiddleware(application, allowed_hosts=hosts, www_redirect=False)


class Guard:
    """Refuses a password or token that Prefect's server would compare and fail at, since it is no
    ASCII text, and adds to every answer what a browser needs to keep the page out of others'
    frames.
    """

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
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
        body = b'{"exception_message": "Unauthorized: the password holds no other than ASCII"}'
        headers = [(b"content-type", b"application/json")]
        await send_guarded({"type": "http.response.start", "status": 401, "headers": headers})
        await send_guarded({"type": "http.response.body", "body": body})


def _is_comparable(header: bytes) -> bool:
    """Return True if the password in an Authorization header is ASCII. Prefect itself refuses a
    header without one.
    """
    try:
        return base64.b64decode(header.partition(b" ")[2]).isascii()
    except ValueError:
        return True


def _first_message_checked(receive: Any, send: Any) -> Any:
    """Receive for one websocket, whose first message brings the token (Prefect's protocol). One
    that can't be compared closes it as a wrong token does.
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
    """Return True if Prefect's server can read a token in a message, right or wrong."""
    try:
        brought = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    token = brought.get("token") if isinstance(brought, dict) else 0
    return token is None or (isinstance(token, str) and token.isascii())
