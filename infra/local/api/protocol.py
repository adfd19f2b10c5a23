"""The AWS JSON 1.1 protocol as the platform's own services speak it: a request,
an answer, an error.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ACCOUNT_ID = "000000000000"
"""No AWS account has this number, so none of the platform's ARNs can be mistaken for a real one."""

SIMULATED_ACCOUNT_ID = "000000000001"
"""The account of a platform whose jobs are simulated: a report recognises their ARNs by it.
No AWS account either.
"""

DEFAULT_REGION = "us-east-1"
CBOR_PATH = re.compile(r"^/service/(?P<target>[^/]+)/operation/(?P<action>[^/]+)$")
"""Where a request of AWS's other protocol, rpc-v2-cbor, names what it calls."""
SCOPE = (
    r"(?P<id>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[a-z0-9-]+|US|EU)/(?P<service>[a-z0-9-]+)"
    r"/aws4_request"
)
_OLD_REGIONS = {"US": "us-east-1", "EU": "eu-west-1"}
"""S3's first names of its regions."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256"
    rf" Credential={SCOPE},\s*SignedHeaders=(?P<headers>[^,\s]+),"
    r"\s*Signature=(?P<signature>[0-9a-f]+)"
)
CAPITAL_MESSAGE = {"ResourceInUse", "ResourceLimitExceeded", "ResourceNotFound"}
"""SageMaker's modelled errors spell their member "Message"; everything else spells it "message"."""

Action = Callable[[str, dict[str, Any]], dict[str, Any]]
"""(region, request) -> answer. Raises ApiError."""


class ApiError(Exception):
    """An error as an AWS service answers it: a code clients branch on and a message people read."""

    def __init__(self, code: str, message: str, http_status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.http_status = http_status


def validation_error(message: str) -> ApiError:
    return ApiError("ValidationException", message)


@dataclass(frozen=True)
class CredentialScope:
    """Who has signed with Signature Version 4, for which service and region."""

    key_id: str
    service: str
    region: str


def authorization(environ: Mapping[str, Any]) -> re.Match[str] | None:
    """The parts of a Signature Version 4 header;
    None where there is no header, or one of any other form.

    moto takes the scope from a fixed place in it, so what precedes or follows the one form could
    name another service.
    """
    return _AUTHORIZATION.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))


def credential_scope(environ: Mapping[str, Any]) -> CredentialScope | None:
    """The scope of a signed request, None for an unsigned or presigned one."""
    found = authorization(environ)
    if found is None:
        return None
    region = _OLD_REGIONS.get(found["region"], found["region"])
    return CredentialScope(found["id"], found["service"], region)


def use_known_region(environ: dict[str, Any]) -> None:
    """Have a request that was signed for a region by its old name, as s3cmd does, name it as all
    others do; once its signature is checked.
    """
    found = authorization(environ)
    if found is not None and found["region"] in _OLD_REGIONS:
        header, (start, end) = environ["HTTP_AUTHORIZATION"], found.span("region")
        region = _OLD_REGIONS[found["region"]]
        environ["HTTP_AUTHORIZATION"] = f"{header[:start]}{region}{header[end:]}"


@dataclass(frozen=True)
class JsonService:
    """One service of the platform's own: the actions it answers and those it refuses rather
    than leave to moto.
    """

    target_prefix: str
    signing_name: str
    """The service in the credential scope of its requests."""
    actions: Mapping[str, Action]
    refused: frozenset[str]
    check: Callable[[str, dict[str, Any]], None]
    """(action, request): raises ApiError for a request that breaks the service's model."""
    claims: Callable[[str, dict[str, Any]], bool] = lambda action, request: True
    """False sends an action on to moto, for actions (tags) that serve many kinds of resource."""
    paths: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(HTTP method, path) -> action, of a service that is called by paths
    (rest-json) and not by a target.
    """

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
    """The whole body of a WSGI request, put back so that the next one can read it too."""
    is_chunked = "CONTENT_LENGTH" not in environ and "HTTP_TRANSFER_ENCODING" in environ
    length = -1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length)
    environ["wsgi.input"] = io.BytesIO(body)
    environ["wsgi.input_terminated"] = True  # the stream ends with it: nobody has to count
    return body


def decode_request(body: bytes) -> dict[str, Any]:
    """The request's JSON object. An empty body is an empty request, as AWS reads it."""
    if not body:
        return {}
    try:
        request = json.loads(body)
    except RecursionError as error:
        raise ApiError("SerializationException", "The request body is nested too deep.") from error
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
