"""boto3 clients that call the platform's WSGI application directly, without a socket.

The platform (channel downloads, artifact uploads, log lines, snapshots) makes the same AWS calls as
its users, so both see the same behavior. A socket would only add a copy and a thread per call.
"""

from __future__ import annotations

import functools
import io
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from wsgiref.types import WSGIApplication

import boto3
import botocore.session
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from moto.core.request import Request
from werkzeug.test import run_wsgi_app

from sagemaker_emulator.api.protocol import credential_scope

_PLACEHOLDER_URL = "http://127.0.0.1"
_CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
"""Settings of all clients. Calls within a process have no transient errors to retry."""

OWN_KEY_ID = f"PLATFORM{secrets.token_hex(16).upper()}"
"""The key id that these clients sign with, which is unique to this process."""

ClientFactory = Callable[[str, str], Any]
"""Returns the boto3 client of a service (by name) in a region."""

_ONE_AT_A_TIME = threading.Lock()
"""Held while a client is created, since threads can't share a session for that."""


class _RawBody(io.BytesIO):
    """The response body that botocore reads, which needs a `stream` method as in urllib3."""

    def stream(self, amt: int = 65536, **_: Any) -> Iterator[bytes]:
        while chunk := self.read(amt):
            yield chunk


def client_factory(application: WSGIApplication) -> ClientFactory:
    """Return a factory of clients for `application`, cached by service and region.

    The clients can be shared between threads.
    """

    @functools.cache
    def client(service: str, region: str) -> Any:
        with _ONE_AT_A_TIME:
            made = _session().client(
                service, region_name=region, endpoint_url=_PLACEHOLDER_URL, config=_CONFIG
            )
        made.meta.events.register("before-send.*.*", functools.partial(_send, application))
        return made

    return client


@functools.cache
def _session() -> Any:
    """Return the session of all clients in this process, which reads megabytes of API models.

    Like a server (sagemaker_emulator/environment.py), it ignores the user's profiles.
    """
    own = botocore.session.Session(
        {"profile": (None, None, None, None), "config_file": (None, None, os.devnull, None)}
    )
    return boto3.Session(OWN_KEY_ID, "platform", botocore_session=own)


def is_own_call(environ: Mapping[str, Any]) -> bool:
    """Return True if the platform made this request itself."""
    scope = credential_scope(environ)
    return scope is not None and scope.key_id == OWN_KEY_ID


def _send(application: WSGIApplication, request: Any, **_: Any) -> AWSResponse:
    """Return the application's response to a request, instead of letting botocore send it."""
    # `request` is an AWSPreparedRequest, whose body is bytes, str or a file.
    body = request.body.read() if hasattr(request.body, "read") else request.body
    environ = Request.from_primitives(request.method, request.url, request.headers, body).environ
    environ["RAW_URI"] = environ["REQUEST_URI"] = request.url.removeprefix(_PLACEHOLDER_URL) or "/"
    chunks, status, headers = run_wsgi_app(application, environ, buffered=True)
    return AWSResponse(
        request.url,
        int(status.split()[0]),
        HTTPHeaders.from_pairs(headers),
        _RawBody(b"".join(chunks)),
    )
