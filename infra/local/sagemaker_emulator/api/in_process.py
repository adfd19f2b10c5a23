"""boto3 clients that call the platform's WSGI application directly, without a socket.

The platform itself (channel downloads, artifact uploads, log lines, snapshots) makes the same AWS
calls as its users, so both see the same behavior; a socket would only add a copy and a thread per
call.
"""

from __future__ import annotations

import functools
import io
import secrets
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
"""Settings of all clients; calls inside the process have no transient errors to retry."""

OWN_KEY_ID = f"PLATFORM{secrets.token_hex(16).upper()}"
"""The key id that the platform's own clients sign with; unique to this process."""

ClientFactory = Callable[[str, str], Any]
"""(service name, region) -> boto3 client."""


class _RawBody(io.BytesIO):
    """The response body that botocore reads: a file with `stream`, like urllib3's response."""

    def stream(self, amt: int = 65536, **_: Any) -> Iterator[bytes]:
        while chunk := self.read(amt):
            yield chunk


def client_factory(application: WSGIApplication) -> ClientFactory:
    """Return a factory of clients for `application`, cached by service and region.

    boto3 clients are thread-safe.
    """
    own = botocore.session.Session()
    own.register_component("data_loader", _reader())
    session: Any = boto3.Session(OWN_KEY_ID, "platform", botocore_session=own)

    @functools.cache
    def client(service: str, region: str) -> Any:
        made = session.client(
            service, region_name=region, endpoint_url=_PLACEHOLDER_URL, config=_CONFIG
        )
        made.meta.events.register("before-send.*.*", functools.partial(_send, application))
        return made

    return client


@functools.cache
def _reader() -> Any:
    """Return the loader of API models, which all clients share, so that megabytes are read once."""
    return botocore.session.Session().get_component("data_loader")


def is_own_call(environ: Mapping[str, Any]) -> bool:
    """Return True if a request comes from the platform itself."""
    scope = credential_scope(environ)
    return scope is not None and scope.key_id == OWN_KEY_ID


def _send(application: WSGIApplication, request: Any, **_: Any) -> AWSResponse:
    """Answer botocore's request with the application's response.

    Returning a response keeps botocore off the network.
    """
    # `request` is an AWSPreparedRequest; its body is bytes, str or a file.
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
