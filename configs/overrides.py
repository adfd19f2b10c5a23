"""Set fields of a config by dotted name, for --set, a form's settings and sweep.variants."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from nodesweep.configs.section import truncate
from nodesweep.configs.strict_yaml import MAX_DEPTH
from nodesweep.configs.workload import drop_overridden_amounts


def override(raw: dict[str, Any], settings: Iterable[tuple[str, Any]]) -> None:
    """Set fields of a plain config in place, and remove the amounts of work that they replace.

    Args:
        raw: The config before validation.
        settings: Dotted names, such as training.batch.size, and values, in order.

    Raises:
        ValueError: A name has too many parts, or one of them is a value and not a section; the
            message begins with the name.
    """
    given: dict[str, Any] = {}
    for key, value in settings:
        _set(raw, key, deepcopy(value))
        _set(given, key, deepcopy(value))
    drop_overridden_amounts(raw, given)


def _set(raw: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    if len(sections) >= MAX_DEPTH:
        raise ValueError(
            f"{truncate(key)}=…: the name has {len(sections) + 1} parts; at most {MAX_DEPTH} are"
            " allowed"
        )
    node: Any = raw
    for depth, part in enumerate(sections, start=1):
        if node.get(part) is None:  # YAML parses an empty section as null
            node[part] = {}
        node = node[part]
        if not isinstance(node, dict):
            section = truncate(".".join(sections[:depth]))
            raise ValueError(f"{truncate(key)}=…: {section} is a value, not a section")
    node[last] = value
