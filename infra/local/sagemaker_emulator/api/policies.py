"""IAM policy evaluation for SimulatePrincipalPolicy, based only on actions and resources.

Statements with a Condition never apply, since the context of a request is not modelled.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

ALLOWED, EXPLICIT_DENY, IMPLICIT_DENY = "allowed", "explicitDeny", "implicitDeny"


def decision(policies: Sequence[Mapping[str, Any]], action: str, resource: str) -> str:
    """Return IAM's decision on an action on a resource, given all policies.

    Args:
        policies: The policy documents.
        action: An action such as "s3:GetObject".
        resource: An ARN, or "*".
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
    """Return True if a statement covers the action (ignoring case) and the resource."""
    actions = [
        name.lower() for name in _listed(statement.get("Action", statement.get("NotAction", [])))
    ]
    resources = _listed(statement.get("Resource", statement.get("NotResource", ["*"])))
    return (_matches(actions, action.lower()) == ("NotAction" not in statement)) and (
        _matches(resources, resource) == ("NotResource" not in statement)
    )


def _matches(patterns: Sequence[str], text: str) -> bool:
    """Return True if a pattern with IAM's wildcards * and ? matches. Brackets are literal."""
    return any(
        re.match(fnmatch.translate(pattern.replace("[", "[[]")), text, re.DOTALL)
        for pattern in patterns
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
