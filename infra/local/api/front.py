"""The one WSGI application of the platform: its own services first, moto for everything else."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast
from uuid import uuid4
from wsgiref.types import StartResponse, WSGIApplication
from xml.sax.saxutils import escape

from werkzeug.wrappers import Response

from infra.local.api.access import Gate
from infra.local.api.in_process import is_own_call
from infra.local.api.protocol import CBOR_PATH, ApiError, JsonService, credential_scope, decode_request, read_body
from infra.local.faults.injector import FaultInjector
from infra.local.server.contract import STATUS_PATH
from infra.local.simulation import elsewhere
from infra.local.state.kept import NotKept

_JSON_CONTENT_TYPE = "application/x-amz-json-1.1"
_LOOPBACK_HOST = re.compile(r"^(127\.\d+\.\d+\.\d+|([a-z0-9.-]+\.)?localhost)(:\d+)?$")
_VIRTUAL_HOST = re.compile(r"^(?P<bucket>[a-z0-9][a-z0-9.-]+)\.localhost(:\d+)?$")

logger = logging.getLogger(__name__)

Observer = Callable[[Mapping[str, Any]], None]
"""Is told the WSGI environ of every request moto has answered without an error. Raises NotKept."""
_INSUFFICIENT_STORAGE = 507


class Front:
    """Routes a request by its target and credential scope; observers learn what moto's state may have changed."""

    def __init__(
        self,
        moto: WSGIApplication,
        status: Callable[[], dict[str, Any]],
        gate: Gate,
        faults: FaultInjector | None = None,
        is_simulated: bool = False,
    ) -> None:
        """Users' calls fail as `faults` say, the platform's own never do.

        In a simulation what nobody can know is taken by name: see `infra.local.simulation.elsewhere`.
        """
        self._moto = moto
        self._status = status
        self._gate = gate
        self._services: dict[str, JsonService] = {}
        self._observers: list[Observer] = []
        self._faults = faults
        self._is_simulated = is_simulated
        self._conditional_writes = threading.Lock()

    def add_services(self, services: Sequence[JsonService]) -> None:
        self._services.update({service.target_prefix: service for service in services})

    def add_observer(self, observer: Observer) -> None:
        self._observers.append(observer)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        start_response = _with_request_id(start_response)
        try:
            answer = self._answer(environ)
            if answer is None:
                return self._pass_to_moto(environ, start_response)
        except ApiError as error:
            answer = _json(error.http_status, error.body())
        except NotKept as error:
            answer = _not_kept(environ, error)
        except Exception:
            logger.exception("%s failed", environ.get("HTTP_X_AMZ_TARGET"))
            answer = _json(500, {"__type": "InternalFailure", "message": "See the platform's server.log."})
        return answer(environ, start_response)

    def _answer(self, environ: dict[str, Any]) -> Response | None:
        """The answer of a service of our own, None for a request that is moto's."""
        _refuse_browsers(environ)
        if environ.get("PATH_INFO") == STATUS_PATH:
            status = self._status()
            return _json(200 if status["running"] else 503, status)
        if refusal := self._gate.refusal(environ):
            return refusal
        if cbor := CBOR_PATH.match(environ.get("PATH_INFO", "")):
            raise ApiError(
                "UnknownOperationException",
                f"{cbor['target']}.{cbor['action']} came by rpc-v2-cbor; the local platform speaks JSON 1.1 only. "
                "Use a client that sends application/x-amz-json-1.1 (boto3, AWS CLI v1).",
            )
        prefix, _, action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")
        service, scope = self._services.get(prefix), credential_scope(environ)
        is_watched = self._faults is not None and self._faults.watches(prefix, action) and not is_own_call(environ)
        if service is None and not is_watched:
            return None
        request = decode_request(read_body(environ))
        if self._faults is not None and is_watched:
            self._faults.check_call(prefix, action, request)
        if service is None or scope is None or scope.service != service.signing_name:
            return None
        return _json(200, service.call(action, scope.region, request)) if service.answers(action, request) else None

    def _pass_to_moto(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """moto's answer, which is given once what it has changed is kept. Raises NotKept where it can't be."""
        _use_path_style(environ)
        refusal = _refusal(environ) if self._is_simulated else None
        answers: list[tuple[str, list[tuple[str, str]], Any]] = []

        def hold_back(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            answers.append((status, headers, exc_info))
            return lambda chunk: None  # moto gives its answers as what it returns

        is_conditional = environ.get("REQUEST_METHOD") == "PUT" and "HTTP_IF_NONE_MATCH" in environ
        if is_conditional:
            read_body(environ)  # before the turn: nobody waits for a client that is slow to send
        try:
            # moto looks and writes in two steps: of two that ask for a key that is not there, one must be refused.
            with self._conditional_writes if is_conditional else nullcontext():
                chunks = self._moto(environ, hold_back)
        except NotImplementedError as error:
            unknown = ApiError("UnknownOperationException", f"The local platform does not model this call: {error}")
            return _json(400, unknown.body())(environ, start_response)
        status = int(answers[-1][0].split()[0])
        if refusal is not None and status >= 400:
            return refusal(environ, start_response)
        if status < 400:
            for observer in self._observers:
                observer(environ)
        start_response(*answers[-1])
        return chunks


def _refuse_browsers(environ: dict[str, Any]) -> None:
    """Jobs are programs, so a web page must not reach the platform, whatever it came to know.

    A page's cross-site request carries Origin; one that had its own name resolved to loopback carries that name.
    """
    host = environ.get("HTTP_HOST", "")
    if "HTTP_ORIGIN" in environ or not _LOOPBACK_HOST.match(host):
        raise ApiError(
            "AccessDeniedException",
            f"The local platform takes requests to a loopback address, none from web pages; this one is for {host!r}.",
            http_status=403,
        )


def _refusal(environ: dict[str, Any]) -> Response | None:
    """What a simulation answers where moto finds nothing, None for requests whose answer is moto's in any case."""
    scope = credential_scope(environ)
    if scope is None or scope.service not in elsewhere.SERVICES:
        return None
    found = elsewhere.refusal(scope.service, environ.get("HTTP_X_AMZ_TARGET", ""), read_body(environ))
    return Response(found[1], status=400, content_type=found[0]) if found else None


def _not_kept(environ: Mapping[str, Any], error: NotKept) -> Response:
    """InternalError with 507, which no client repeats by itself: as JSON, or as XML where the request is S3's."""
    message = f"{error}: make room on the disk of the local platform's state folder, then do it again."
    if "HTTP_X_AMZ_TARGET" in environ:
        return _json(_INSUFFICIENT_STORAGE, {"__type": "InternalError", "message": message})
    body = f"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>{escape(message)}</Message></Error>"
    return Response(body, status=_INSUFFICIENT_STORAGE, content_type="application/xml")


def _with_request_id(start_response: StartResponse) -> StartResponse:
    """Every answer names its request, as AWS's do; moto leaves that out of some."""

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if not any(name.lower().startswith("x-amz") for name, _ in headers):
            headers = [*headers, ("x-amzn-RequestId", str(uuid4()))]
        return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

    return cast(StartResponse, start)


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), status=status, content_type=_JSON_CONTENT_TYPE)


def _use_path_style(environ: dict[str, Any]) -> None:
    """Turn bucket.localhost/key into localhost/bucket/key, the one form moto and the S3 snapshot read."""
    host = _VIRTUAL_HOST.match(environ.get("HTTP_HOST", ""))
    if host is None:
        return
    for variable in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
        environ[variable] = f"/{host['bucket']}{environ.get(variable, '/')}"
    environ["HTTP_HOST"] = environ["HTTP_HOST"].removeprefix(f"{host['bucket']}.")
