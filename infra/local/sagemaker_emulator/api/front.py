"""The platform's WSGI application, which passes calls that it does not handle to moto."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast
from wsgiref.types import StartResponse, WSGIApplication
from xml.parsers.expat import ExpatError

from botocore.model import OperationNotFoundError
from werkzeug.wrappers import Response

from sagemaker_emulator.api.access import Gate
from sagemaker_emulator.api.addressing import use_path_style
from sagemaker_emulator.api.checksums import check_body, check_signed_hash
from sagemaker_emulator.api.dialect import (
    JSON_CONTENT_TYPE,
    called_operation,
    content_type_of,
    error_response,
    internal_error,
    operation_name,
    repaired_error,
    request_id,
    unknown_operation,
)
from sagemaker_emulator.api.in_process import is_own_call
from sagemaker_emulator.api.moto_operations import unmodelled_s3_operation
from sagemaker_emulator.api.protocol import (
    ApiError,
    JsonService,
    credential_scope,
    decode_request,
    read_body,
    use_known_region,
)
from sagemaker_emulator.api.s3_bodies import use_modelled_xml
from sagemaker_emulator.api.s3_queries import check_bucket_name, check_numbers, check_xml
from sagemaker_emulator.faults.injector import FaultInjector
from sagemaker_emulator.server.contract import STATUS_PATH
from sagemaker_emulator.simulation import unknowable
from sagemaker_emulator.state.unsaved import NotSaved

_LOOPBACK_HOST = re.compile(r"^(127\.\d+\.\d+\.\d+|([a-z0-9.-]+\.)?localhost)(:\d+)?$")
_NONCE = re.compile(r"nonce=(?P<nonce>[0-9a-f]{32,128})")

logger = logging.getLogger(__name__)

Observer = Callable[[Mapping[str, Any]], None]
"""Called with the WSGI environ of every request that moto handled without an error.

It can raise NotSaved.
"""
_INSUFFICIENT_STORAGE = 507


class Front:
    """Routes requests by target and credential scope, and notifies observers of calls to moto."""

    def __init__(
        self,
        moto: WSGIApplication,
        status: Callable[[], dict[str, Any]],
        gate: Gate,
        faults: FaultInjector | None = None,
        is_simulated: bool = False,
    ) -> None:
        """Set up the front end.

        Args:
            moto: The moto application, for requests that the platform's services do not handle.
            status: Returns the status of the platform.
            gate: Authenticates requests.
            faults: Faults to inject into calls of users, but not of the platform itself.
            is_simulated: Refuse lookups that a simulation cannot answer; see
             `sagemaker_emulator.simulation.unknowable`.
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
        start_response = _with_request_id(start_response, request_id(environ))
        try:
            _refuse_browsers(environ)
            use_path_style(environ)
            answer = self._own_response(environ)
            if answer is None:
                return self._pass_to_moto(environ, start_response)
        except ApiError as error:
            answer = error_response(environ, error.code, error.message, error.http_status)
        except NotSaved as error:
            room = "free space on the disk of the local platform's state folder, then retry"
            answer = error_response(
                environ, "InternalError", f"{error}: {room}", _INSUFFICIENT_STORAGE
            )
        except Exception:
            logger.exception("%s failed (request %s)", operation_name(environ), request_id(environ))
            answer = internal_error(environ)
        return answer(environ, start_response)

    def _own_response(self, environ: dict[str, Any]) -> Response | None:
        """Return the platform's response to a request, or None if moto must handle it."""
        if environ.get("PATH_INFO") == STATUS_PATH:
            status = self._status()
            if nonce := _NONCE.fullmatch(environ.get("QUERY_STRING", "")):
                status |= {"proof": self._gate.proof(status["endpoint"], nonce["nonce"])}
            return _json(200 if status["running"] else 503, status)
        if refusal := self._gate.refusal(environ):
            return refusal
        use_known_region(environ)
        prefix, action = called_operation(environ)
        scope = credential_scope(environ)
        service = self._services.get(prefix)
        is_watched = (
            self._faults is not None
            and self._faults.watches(prefix, action)
            and not is_own_call(environ)
        )
        if service is None and not is_watched:
            return None
        request = decode_request(read_body(environ))
        if self._faults is not None and is_watched:
            self._faults.check_call(prefix, action, request)
        if service is None or scope is None or scope.service != service.signing_name:
            return None
        return (
            _json(200, service.call(action, scope.region, request))
            if service.answers(action, request)
            else None
        )

    def _pass_to_moto(
        self, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Return moto's response once the observers have saved the changes of the request.

        Raises:
            NotSaved: If a change cannot be saved.
            ApiError: If the body (checksum, hash or XML), a number in the query, or the name of a
                new bucket is invalid.
        """
        scope = credential_scope(environ)
        if unmodelled_s3_operation(environ, scope):
            return unknown_operation(environ)(environ, start_response)
        check_numbers(environ, scope)
        check_bucket_name(environ, scope)
        is_unknowable = self._is_simulated and _is_unknowable(environ)
        answers: list[tuple[str, list[tuple[str, str]], Any]] = []

        def keep_start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            answers.append((status, headers, exc_info))
            return lambda chunk: None  # moto returns the body and never calls write()

        is_put = environ.get("REQUEST_METHOD") == "PUT"
        is_conditional = is_put and "HTTP_IF_NONE_MATCH" in environ
        if is_put and ("CONTENT_LENGTH" in environ or "HTTP_TRANSFER_ENCODING" in environ):
            # Read the body before taking the lock, so that a slow client blocks nobody. Read it in
            # one go because reading 64 KiB at a time, as moto does, doubles the time of a large
            # PutObject.
            check_body(environ, read_body(environ))
        if scope is not None and scope.service == "s3":
            check_signed_hash(environ, read_body(environ))
        check_xml(environ, read_body(environ))
        use_modelled_xml(environ)
        try:
            # moto checks whether the key exists and writes it in two steps. Without the lock, two
            # conditional writes of a missing key could both succeed.
            with self._conditional_writes if is_conditional else nullcontext():
                chunks = self._moto(environ, keep_start)
        except (NotImplementedError, OperationNotFoundError):
            return unknown_operation(environ)(environ, start_response)
        except ExpatError as error:
            message = f"The XML you provided was not well-formed: {error}"
            raise ApiError("MalformedXML", message) from error
        status_line, headers, exc_info = answers[-1]
        status = int(status_line.split()[0])
        if is_unknowable and status >= 400:
            return unknown_operation(environ, unknowable.MESSAGE)(environ, start_response)
        if status >= 400:
            body = b"".join(chunks)
            if repaired := repaired_error(environ, status, body):
                return repaired(environ, start_response)
            start_response(status_line, _typed(headers, content_type_of(environ)), exc_info)
            return [body]
        for observer in self._observers:
            observer(environ)
        start_response(status_line, headers, exc_info)
        return chunks


def _refuse_browsers(environ: dict[str, Any]) -> None:
    """Refuse requests from web pages, which could otherwise run programs as jobs.

    Cross-site requests have an Origin header. After DNS rebinding, when the name of a web page
    resolves to loopback, the name is in the Host header.
    """
    host, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN")
    if origin is not None or not _LOOPBACK_HOST.match(host):
        of_page = "" if origin is None else f" and Origin {origin!r}"
        raise ApiError(
            "AccessDeniedException",
            "The local platform only accepts requests to a loopback address, and none from web"
            f" pages; this request has Host {host!r}{of_page}.",
            http_status=403,
        )


def _is_unknowable(environ: dict[str, Any]) -> bool:
    scope = credential_scope(environ)
    if scope is None or scope.service not in unknowable.SERVICES:
        return False
    return unknowable.is_unknowable(
        scope.service, environ.get("HTTP_X_AMZ_TARGET", ""), read_body(environ)
    )


def _typed(headers: list[tuple[str, str]], content_type: str) -> list[tuple[str, str]]:
    """Return the headers of an error with `content_type` instead of moto's default, text/html."""
    return [
        (
            name,
            (
                content_type
                if name.lower() == "content-type" and value.startswith("text/html")
                else value
            ),
        )
        for name, value in headers
    ]


def _with_request_id(start_response: StartResponse, identity: str) -> StartResponse:
    """Return a start_response that adds the request id, which some of moto's responses lack."""

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if not any(name.lower() == "x-amzn-requestid" for name, _ in headers):
            headers = [*headers, ("x-amzn-RequestId", identity)]
        return (
            start_response(status, headers, exc_info)
            if exc_info
            else start_response(status, headers)
        )

    return cast(StartResponse, start)


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), status=status, content_type=JSON_CONTENT_TYPE)
