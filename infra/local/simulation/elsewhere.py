"""Questions that a rehearsal can't answer: of roles, networks, file systems and others' images it knows names only.

A simulated job takes all of them by name, so "there is none" would be wrong of each: the answer is that the operation
is not modelled, which callers take for a check that can't be made. What was made here, through the API, is answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from infra.local.api.protocol import ACCOUNT_ID, SIMULATED_ACCOUNT_ID

_QUERIES = {
    ("iam", "GetRole"): "InvalidAction",
    ("ec2", "DescribeSubnets"): "UnknownOperation",
    ("ec2", "DescribeSecurityGroups"): "UnknownOperation",
}
_ECR_TARGET = "AmazonEC2ContainerRegistry_V20150921.BatchGetImage"
MESSAGE = "A simulation takes roles, networks, file systems and others' images by name and knows nothing of them."
"""Of the error that takes moto's place."""

SERVICES = frozenset({"iam", "ec2", "ecr", "elasticfilesystem"})
"""Whose requests are looked at."""


def refusal(service: str, target: str, body: bytes) -> tuple[str, bytes] | None:
    """(content type, body) of the error that answers where moto finds nothing; None where moto's own answer holds."""
    if service == "ecr":
        if target != _ECR_TARGET or _registry(body) in (None, ACCOUNT_ID, SIMULATED_ACCOUNT_ID):
            return None
        return _json_error()
    if service == "elasticfilesystem":
        return _json_error()
    action = parse_qs(body.decode(errors="replace")).get("Action", [""])[0]
    code = _QUERIES.get((service, action))
    return None if code is None else ("text/xml", _ERRORS[service](code))


def _registry(body: bytes) -> str | None:
    try:
        request: Any = json.loads(body)
    except ValueError:
        return None
    return request.get("registryId") if isinstance(request, dict) else None


def _json_error() -> tuple[str, bytes]:
    error = {"__type": "UnknownOperationException", "message": MESSAGE}
    return "application/x-amz-json-1.1", json.dumps(error).encode()


def _iam_error(code: str) -> bytes:
    error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{MESSAGE}</Message></Error>"
    return f"<ErrorResponse>{error}<RequestId>simulated</RequestId></ErrorResponse>".encode()


def _ec2_error(code: str) -> bytes:
    error = f"<Errors><Error><Code>{code}</Code><Message>{MESSAGE}</Message></Error></Errors>"
    return f"<Response>{error}<RequestID>simulated</RequestID></Response>".encode()


_ERRORS: Mapping[str, Callable[[str], bytes]] = {"iam": _iam_error, "ec2": _ec2_error}
