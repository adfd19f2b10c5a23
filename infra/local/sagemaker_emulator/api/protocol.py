"""AWS's JSON 1.1 protocol, as used by the services that the platform implements."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ACCOUNT_ID = "000000000000"
"""The platform's account. No AWS account has this id, so ARNs cannot be mistaken for real ones."""

SIMULATED_ACCOUNT_ID = "000000000001"
"""Account of a platform with simulated jobs, which lets reports recognize their ARNs.

No AWS account has this id either.
"""

DEFAULT_REGION = "us-east-1"
CBOR_PATH = re.compile(r"^/service/(?P<target>[^/]+)/operation/(?P<action>[^/]+)$")
"""Path of a request in AWS's rpc-v2-cbor protocol, which contains the operation."""
SCOPE = (
    r"(?P<id>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[a-z0-9-]+|US|EU)/(?P<service>[a-z0-9-]+)"
    r"/aws4_request"
)
_OLD_REGIONS = {"US": "us-east-1", "EU": "eu-west-1"}
"""The original names of S3 regions."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256"
    rf" Credential={SCOPE},\s*SignedHeaders=(?P<headers>[^,\s]+),"
    r"\s*Signature=(?P<signature>[0-9a-f]+)"
)
CAPITAL_MESSAGE = {"ResourceInUse", "ResourceLimitExceeded", "ResourceNotFound"}
"""SageMaker errors whose text is in "Message". All other errors use "message"."""

Action = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Returns the response to a request in a region, or raises ApiError."""


class ApiError(Exception):
    """An error response of an AWS service: a code for clients and a message for people."""

    def __init__(self, code: str, message: str, http_status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.http_status = http_status


def validation_error(message: str) -> ApiError:
    return ApiError("ValidationException", message)


@dataclass(frozen=True)
class CredentialScope:
    """The key id, service and region of a Signature Version 4 request."""

    key_id: str
    service: str
    region: str


def authorization(environ: Mapping[str, Any]) -> re.Match[str] | None:
    """Match a Signature Version 4 header, or return None if it is missing or malformed.

    The whole header must match: moto reads the scope from a fixed position, so additional text
    could name a different service.
    """
    return _AUTHORIZATION.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))


def credential_scope(environ: Mapping[str, Any]) -> CredentialScope | None:
    """Return the scope of a signed request, or None for an unsigned or presigned request."""
    found = authorization(environ)
    if found is None:
        return None
    region = _OLD_REGIONS.get(found["region"], found["region"])
    return CredentialScope(found["id"], found["service"], region)


def use_known_region(environ: dict[str, Any]) -> None:
    """Replace an old region name in the credential scope (sent by s3cmd) with the current name.

    Call this after the signature has been verified.
    """
    found = authorization(environ)
    if found is not None and found["region"] in _OLD_REGIONS:
        header, (start, end) = environ["HTTP_AUTHORIZATION"], found.span("region")
        region = _OLD_REGIONS[found["region"]]
        environ["HTTP_AUTHORIZATION"] = f"{header[:start]}{region}{header[end:]}"


@dataclass(frozen=True)
class JsonService:
    """A service that the platform implements, with its actions.

    Actions in `refused` fail instead of being passed to moto.
    """

    target_prefix: str
    signing_name: str
    """The name of the service in the credential scope of requests."""
    actions: Mapping[str, Action]
    refused: frozenset[str]
    check: Callable[[str, dict[str, Any]], None]
    """Called with (action, request); raises ApiError if the request violates the model."""
    claims: Callable[[str, dict[str, Any]], bool] = lambda action, request: True
    """Called with (action, request); returns False to pass the call to moto."""

    def answers(self, action: str, request: dict[str, Any]) -> bool:
        if action in self.refused:
            return True
        return action in self.actions and self.claims(action, request)

    def call(self, action: str, region: str, request: dict[str, Any]) -> dict[str, Any]:
        if action in self.refused:
            raise ApiError(
                "UnknownOperationException",
                f"The local platform does not model {self.target_prefix}.{action}. "
                f"It models: {', '.join(sorted(self.actions))}.",
            )
        self.check(action, request)
        return self.actions[action](region, request)


def read_body(environ: dict[str, Any]) -> bytes:
    """Return the whole body of a WSGI request, which can be read again afterwards."""
    is_chunked = "CONTENT_LENGTH" not in environ and "HTTP_TRANSFER_ENCODING" in environ
    length = -1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length)
    environ["wsgi.input"] = io.BytesIO(body)
    environ["wsgi.input_terminated"] = True  # the stream ends with the body
    return body


def decode_request(body: bytes | str) -> dict[str, Any]:
    """Parse the JSON object in a body. As on AWS, an empty body is an empty request.

    Members that are null are left out, since AWS treats them as absent.

    Raises:
        SerializationException: If the body is not a JSON object, or is nested too deeply.
    """
    if not body:
        return {}
    try:
        request = json.loads(body, object_hook=_without_nulls)
    except RecursionError as error:
        raise ApiError(
            "SerializationException", "The request body is nested too deeply."
        ) from error
    except ValueError as error:
        raise ApiError(
            "SerializationException", f"The request body is not JSON: {error}"
        ) from error
    if not isinstance(request, dict):
        raise ApiError(
            "SerializationException",
            f"Start of structure or map expected, got {type(request).__name__}",
        )
    return request


def _without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
