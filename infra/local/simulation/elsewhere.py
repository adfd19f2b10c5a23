"""Questions that a rehearsal can't answer: of roles, networks, file systems and others' images it
knows names only.

A simulated job takes all of them by name, so "there is none" would be wrong of each: the answer is
that the operation is not modelled, which callers take for a check that can't be made. What was made
here, through the API, is answered.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from nodesweep.infra.local.api.protocol import ACCOUNT_ID, SIMULATED_ACCOUNT_ID

_QUERIES = {("iam", "GetRole"), ("ec2", "DescribeSubnets"), ("ec2", "DescribeSecurityGroups")}
_ECR_TARGET = "AmazonEC2ContainerRegistry_V20150921.BatchGetImage"
MESSAGE = (
    "A simulation takes roles, networks, file systems and others' images by name"
    " and knows nothing of them."
)
"""Of the error that takes moto's place."""

SERVICES = frozenset({"iam", "ec2", "ecr", "elasticfilesystem"})
"""Whose requests are looked at."""


def is_unknowable(service: str, target: str, body: bytes) -> bool:
    """Whether a simulation can't know the answer where moto finds nothing;
    False where moto's own answer holds.
    """
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
