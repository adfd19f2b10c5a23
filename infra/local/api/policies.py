"""What IAM policies allow, as SimulatePrincipalPolicy tells it: by actions and resources alone.

A statement with a Condition counts as one whose condition isn't met, since a simulation is given no
context here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

ALLOWED, EXPLICIT_DENY, IMPLICIT_DENY = "allowed", "explicitDeny", "implicitDeny"


def decision(policies: Sequence[Mapping[str, Any]], action: str, resource: str) -> str:
    """IAM's decision on an action ("s3:GetObject") on a resource
    (an ARN, or "*") under all of the documents.
    """
    effects = {
        statement["Effect"]
        for policy in policies
        for statement in _listed(policy.get("Statement", []))
        if "Condition" not in statement and _concerns(statement, action, resource)
    }
    if "Deny" in effects:
        return EXPLICIT_DENY
    return ALLOWED if "Allow" in effects else IMPLICIT_DENY


def _concerns(statement: Mapping[str, Any], action: str, resource: str) -> bool:
    """Whether a statement speaks of the action, in upper or lower case, and of the resource."""
    actions = [
        name.lower() for name in _listed(statement.get("Action", statement.get("NotAction", [])))
    ]
    resources = _listed(statement.get("Resource", statement.get("NotResource", ["*"])))
    return (_matches(actions, action.lower()) == ("NotAction" not in statement)) and (
        _matches(resources, resource) == ("NotResource" not in statement)
    )


def _matches(patterns: Sequence[str], text: str) -> bool:
    """By IAM's two wildcards, * and ?; a bracket is a bracket."""
    return any(
        re.match(fnmatch.translate(pattern.replace("[", "[[]")), text, re.DOTALL)
        for pattern in patterns
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
