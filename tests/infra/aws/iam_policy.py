"""IAM's evaluation of identity policies, to the extent that the stack's policies need it.

It follows "Policy evaluation logic" of the IAM user guide: a statement allows an action if action,
resource, and every condition match, unless a Deny matches too. An unknown condition operator raises
an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Access:
    """An API call's requirement: an action on a resource, with the call's condition keys."""

    action: str
    resource: str
    context: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """A key with several values has a tuple."""

    def __str__(self) -> str:
        where = " ".join(f"{key}={value}" for key, value in self.context.items())
        return f"{self.action} on {self.resource}" + (f" ({where})" if where else "")


@dataclass(frozen=True)
class Grant:
    """One action of one statement on one of its resources."""

    sid: str
    action: str
    resource: str


def grants_of(policies: Sequence[Mapping[str, Any]]) -> set[Grant]:
    """Return all grants of the Allow statements."""
    return {
        Grant(statement["Sid"], action, resource)
        for policy in policies
        for statement in policy["Statement"]
        if statement["Effect"] == "Allow"
        for action in as_list(statement["Action"])
        for resource in as_list(statement["Resource"])
    }


def grants_used(policies: Sequence[Mapping[str, Any]], access: Access) -> set[Grant]:
    """Return the grants that allow the access; empty if it is denied."""
    used: set[Grant] = set()
    for statement in (statement for policy in policies for statement in policy["Statement"]):
        matching = {
            Grant(statement["Sid"], action, resource)
            for action in as_list(statement["Action"])
            for resource in as_list(statement["Resource"])
            if matches(action.lower(), access.action.lower()) and matches(resource, access.resource)
        }
        if not matching or not conditions_hold(statement.get("Condition", {}), access.context):
            continue
        if statement["Effect"] == "Deny":
            return set()
        used |= matching
    return used


def refused(policies: Sequence[Mapping[str, Any]], accesses: Iterable[Access]) -> list[str]:
    """Return the accesses that are not allowed, as sorted text."""
    return sorted({str(access) for access in accesses if not grants_used(policies, access)})


def unused(policies: Sequence[Mapping[str, Any]], accesses: Iterable[Access]) -> list[str]:
    """Return statements' actions and resources that allowed none of the accesses."""
    used = {grant for access in accesses for grant in grants_used(policies, access)}
    return sorted(_parts(grants_of(policies)) - _parts(used))


def _parts(grants: Iterable[Grant]) -> set[str]:
    return {f"{grant.sid}: {part}" for grant in grants for part in (grant.action, grant.resource)}


def conditions_hold(
    conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str | tuple[str, ...]]
) -> bool:
    """Return True if every operator holds on every key.

    A key missing from the call fails its operator, except with …IfExists and ForAllValues.
    """
    for operator, keys in conditions.items():
        if operator == "Null":
            if any((key not in context) != (wanted == "true") for key, wanted in keys.items()):
                return False
            continue
        compare = _OPERATORS[operator.removesuffix("IfExists").removeprefix(_EVERY_VALUE)]
        for key, wanted in keys.items():
            if key not in context:
                if not operator.endswith("IfExists") and not operator.startswith(_EVERY_VALUE):
                    return False
                continue
            found = context[key]
            values = found if isinstance(found, tuple) else (found,)
            if not all(
                any(compare(str(one), value) for one in as_list(wanted)) for value in values
            ):
                return False
    return True


def matches(pattern: str, text: str) -> bool:
    """Return True if the text matches; `*` is any characters, `?` is one."""
    expression = "".join(
        {"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern
    )
    return re.fullmatch(expression, text, re.DOTALL) is not None


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as its only element."""
    return list(value) if isinstance(value, list) else [value]


def _equal(wanted: str, found: str) -> bool:
    return wanted == found


def _at_most(wanted: str, found: str) -> bool:
    return float(found) <= float(wanted)


_EVERY_VALUE = "ForAllValues:"
"""Prefix of operators for which each value of a key must match; true for a missing key."""
_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": _equal,
    "StringLike": matches,
    "ArnEquals": matches,  # in IAM, both Arn operators accept wildcards
    "ArnLike": matches,
    "Bool": _equal,
    "NumericLessThanEquals": _at_most,
}
