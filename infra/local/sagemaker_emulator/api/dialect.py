"""Determines the protocol of a request, and returns errors in the format of the called service.

Clients parse responses by the protocol of the service, so they cannot read an error in a different
protocol. botocore's models contain the protocol of every service. The operation is in the target
header, the action parameter or the path of a request.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4
from xml.sax.saxutils import escape

from botocore.exceptions import UnknownServiceError
from botocore.serialize import CBORSerializer
from werkzeug.wrappers import Response

from sagemaker_emulator.api.protocol import (
    CAPITAL_MESSAGE,
    CBOR_PATH,
    credential_scope,
    read_body,
)
from sagemaker_emulator.api.validation import service_model

JSON_CONTENT_TYPE = "application/x-amz-json-1.1"
_REQUEST_ID = "nodesweep.request_id"
_CONTENT_TYPES = {
    "json": JSON_CONTENT_TYPE,
    "rest-json": "application/json",
    "cbor": "application/cbor",
    "query": "text/xml",
    "ec2": "text/xml",
    "rest-xml": "application/xml",
    "s3": "application/xml",
}
_UNKNOWN_OPERATION = {
    "json": ("UnknownOperationException", 400),
    "rest-json": ("UnknownOperationException", 404),
    "cbor": ("UnknownOperationException", 404),
    "query": ("InvalidAction", 400),
    "ec2": ("InvalidAction", 400),
    "rest-xml": ("InvalidAction", 400),
    "s3": ("NotImplemented", 501),
}
"""Error code and HTTP status of an unknown operation, by protocol.

Source: "Common Errors" in the API references of the services; for S3, its table of error codes.
"""
_INTERNAL_ERROR = {"ec2": "InternalError", "s3": "InternalError"}
_INTERNAL_FAILURE = "InternalFailure"


def request_id(environ: dict[str, Any]) -> str:
    """Return the request id, which is in the header and the body of the response."""
    return str(environ.setdefault(_REQUEST_ID, str(uuid4())))


def protocol_of(environ: Mapping[str, Any], service: str | None = None) -> str:
    """Return the protocol of a request: json, rest-json, cbor, query, ec2, rest-xml or s3.

    s3 is separate because its errors have a different format from other rest-xml services.

    Args:
        environ: The WSGI environ of the request.
        service: The signed service, for requests without an Authorization header.
    """
    scope = credential_scope(environ)
    name = scope.service if scope is not None else service
    if name == "s3":
        return "s3"  # the content type describes the object, not the protocol
    content_type = str(environ.get("CONTENT_TYPE", ""))
    is_cbor_call = environ.get("REQUEST_METHOD") == "POST" and CBOR_PATH.match(
        str(environ.get("PATH_INFO", ""))
    )
    if (
        is_cbor_call
        or "cbor" in str(environ.get("HTTP_SMITHY_PROTOCOL", ""))
        or "cbor" in content_type
    ):
        return "cbor"
    if environ.get("HTTP_X_AMZ_TARGET"):
        return "json"
    if "form-urlencoded" in content_type:
        return "ec2" if name == "ec2" else "query"
    if "x-amz-json" in content_type:
        return "json"
    if name is None:
        return "rest-json" if "json" in content_type else "s3"
    return "rest-xml" if _speaks_xml(str(name)) else "rest-json"


@functools.cache
def _speaks_xml(signing_name: str) -> bool:
    """Return True if the protocol of the service is rest-xml, according to botocore."""
    try:
        return service_model(signing_name).metadata["protocol"] == "rest-xml"
    except UnknownServiceError:
        # The signing name differs from the model name. All such services use rest-json.
        return False


def error_response(
    environ: dict[str, Any], code: str, message: str, http_status: int = 400
) -> Response:
    """Return an error response in the protocol of the request."""
    return wrapped_error(environ, protocol_of(environ), code, message, http_status)


def wrapped_error(
    environ: dict[str, Any], protocol: str, code: str, message: str, http_status: int
) -> Response:
    """Return an error response in the given protocol."""
    headers = {"Content-Type": _CONTENT_TYPES[protocol]}
    if protocol == "rest-json":
        headers["x-amzn-ErrorType"] = code
    if protocol == "cbor":
        headers["smithy-protocol"] = "rpc-v2-cbor"
    if protocol in ("json", "rest-json"):
        name = "Message" if code in CAPITAL_MESSAGE else "message"
        body = json.dumps({"__type": code, name: message}).encode()
    elif protocol == "cbor":
        body = _cbor_texts({"__type": code, "message": message})
    else:
        body = _xml(protocol, code, message, http_status, request_id(environ)).encode()
    return Response(body, status=http_status, headers=headers)


def unknown_operation(environ: dict[str, Any], message: str | None = None) -> Response:
    """Return the error response to a call that the platform does not model."""
    protocol = protocol_of(environ)
    code, http_status = _UNKNOWN_OPERATION[protocol]
    text = message or f"The local platform does not model this call: {operation_name(environ)}"
    return wrapped_error(environ, protocol, code, text, http_status)


def internal_error(environ: dict[str, Any]) -> Response:
    """Return the error response to a call that failed inside the platform.

    The server log contains the reason and the request id.
    """
    protocol = protocol_of(environ)
    code = _INTERNAL_ERROR.get(protocol, _INTERNAL_FAILURE)
    message = (
        "The request processing has failed because of an internal error of the local platform: see"
        f" its server.log (request {request_id(environ)})."
    )
    return wrapped_error(environ, protocol, code, message, 500)


def repaired_error(environ: dict[str, Any], http_status: int, body: bytes) -> Response | None:
    """Return a replacement for a moto error that is not in the protocol of the request, else None.

    moto sends HTML, plain text or nothing for unknown paths and methods and for bare exceptions.
    """
    if environ.get("REQUEST_METHOD") == "HEAD":
        return None  # a response to HEAD has no body
    protocol = protocol_of(environ)
    text = body.strip()
    is_page = text[:14].lower().startswith((b"<!doctype html", b"<html"))
    if text.startswith(b"{" if protocol in ("json", "rest-json") else b"<") and not is_page:
        return None
    if http_status >= 500:
        return internal_error(environ)
    if http_status in (404, 405):
        return unknown_operation(environ)
    code = "ValidationError" if protocol in ("query", "rest-xml") else "ValidationException"
    return wrapped_error(environ, protocol, code, text.decode(errors="replace"), http_status)


def content_type_of(environ: Mapping[str, Any]) -> str:
    """Return the content type of errors in the protocol of the request."""
    return _CONTENT_TYPES[protocol_of(environ)]


def called_operation(environ: Mapping[str, Any]) -> tuple[str, str]:
    """Return the target prefix and operation of a request, or empty strings without X-Amz-Target.

    For AWS Batch, the prefix is "batch" and the operation depends on the path. It is empty for an
    unknown path.
    """
    prefix, _, action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")
    scope = credential_scope(environ)
    if scope is not None and scope.service == "batch":
        return "batch", _operations_by_path("batch").get(str(environ.get("PATH_INFO")), "")
    return prefix, action


@functools.cache
def _operations_by_path(service: str) -> Mapping[str, str]:
    model = service_model(service)
    return {model.operation_model(name).http["requestUri"]: name for name in model.operation_names}


def operation_name(environ: dict[str, Any]) -> str:
    """Return `service.Operation` if both are in the request, else the service, method and path."""
    if found := CBOR_PATH.match(str(environ.get("PATH_INFO", ""))):
        return f"{found['target']}.{found['action']}"
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return str(target)
    scope = credential_scope(environ)
    service = scope.service if scope is not None else "?"
    if "form-urlencoded" in str(environ.get("CONTENT_TYPE", "")):
        if isinstance(environ["wsgi.input"], io.BytesIO):
            environ["wsgi.input"].seek(0)  # the service has read it already
        action = parse_qs(read_body(environ).decode(errors="replace")).get("Action")
        return f"{service}.{action[0]}" if action else service
    return f"{service}: {environ.get('REQUEST_METHOD')} {environ.get('PATH_INFO')}"


def _xml(protocol: str, code: str, message: str, http_status: int, identity: str) -> str:
    error = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if protocol == "s3":
        content = f"<Error>{error}<RequestId>{identity}</RequestId></Error>"
    elif protocol == "ec2":
        content = (
            f"<Response><Errors><Error>{error}</Error></Errors>"
            f"<RequestID>{identity}</RequestID></Response>"
        )
    else:
        kind = "Sender" if http_status < 500 else "Receiver"
        wrapped = f"<Error><Type>{kind}</Type>{error}</Error><RequestId>{identity}</RequestId>"
        content = f"<ErrorResponse>{wrapped}</ErrorResponse>"
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{content}"


def _cbor_texts(texts: Mapping[str, str]) -> bytes:
    serializer: Any = CBORSerializer()
    body = bytearray([0xA0 | len(texts)])  # major type 5 (map) of up to 23 pairs
    for text in (part for pair in texts.items() for part in pair):
        serializer._serialize_type_string(body, text, None, None)
    return bytes(body)
