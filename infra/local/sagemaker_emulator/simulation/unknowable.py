"""Recognizes queries that a simulation cannot answer.

A simulation accepts any role, network, file system, or image in a different registry by name, so
"not found" would be wrong. Instead, the operation is refused as not modeled, and callers skip the
check. Queries about resources that were created through the API get moto's response.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from sagemaker_emulator.api.protocol import ACCOUNT_ID, SIMULATED_ACCOUNT_ID

_QUERIES = {("iam", "GetRole"), ("ec2", "DescribeSubnets"), ("ec2", "DescribeSecurityGroups")}
_ECR_TARGET = "AmazonEC2ContainerRegistry_V20150921.BatchGetImage"
MESSAGE = (
    "A simulation accepts roles, networks, file systems and other accounts' images by name and"
    " does not check them."
)
"""Message of the error that replaces moto's."""

SERVICES = frozenset({"iam", "ec2", "ecr", "elasticfilesystem"})
"""Services with queries that a simulation might be unable to answer."""


def is_unknowable(service: str, target: str, body: bytes) -> bool:
    """Return True if "not found" would be the wrong response to a query."""
    if service == "ecr":
        return target == _ECR_TARGET and _registry(body) not in (
            None,
            ACCOUNT_ID,
            SIMULATED_ACCOUNT_ID,
        )
    if service == "elasticfilesystem":
        return True
    return (service, parse_qs(body.decode(errors="replace")).get("Action", [""])[0]) in _QUERIES


def _registry(body: bytes) -> str | None:
    try:
        request: Any = json.loads(body)
    except ValueError:
        return None
    return request.get("registryId") if isinstance(request, dict) else None
