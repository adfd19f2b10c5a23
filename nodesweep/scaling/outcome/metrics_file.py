"""Parse metrics.json and the files of the other ranks, which a user's program can have written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from nodesweep.scaling import names

MAX_METRICS_BYTES = 8 * 1024 * 1024
"""Maximum size of metrics.json; parsing it takes several times as much memory.

The file of the shipped program has 1,000 step times, which take tens of KB.
"""
BUDGET_FILE = re.compile(r"nodesweep-budget-\d{1,6}\.json")
"""The name of the file to which a rank other than 0 writes the parts of its time."""
MAX_BUDGET_FILES, MAX_BUDGET_BYTES = 1024, 64 * 1024
_MAX_DEPTH = 32


class UnusableMetrics(Exception):
    """The file exceeds the limit in the message.

    This is not a ValueError, because tarfile catches these while it reads a header.
    """


def parse_metrics(content: bytes, budgets: Iterable[bytes] = ()) -> Any:
    """Return the contents of a metrics.json, adding the files of the other ranks to its `budget`.

    Args:
        content: The content of metrics.json.
        budgets: The contents of the other ranks' files; an unreadable file becomes None.

    Raises:
        UnusableMetrics: The JSON is nested too deeply.
        ValueError: The content is not JSON in UTF-8.
    """
    metrics = _parse(content)
    if isinstance(metrics, dict) and isinstance(metrics.get("budget"), list):
        metrics["budget"] += map(_parse_budget, budgets)
    return metrics


def _parse_budget(content: bytes) -> Any:
    try:
        return _parse(content)
    except (UnusableMetrics, ValueError):
        return None


def _parse(content: bytes) -> Any:
    too_deep = f"its {names.METRICS_FILE} is nested more than {_MAX_DEPTH} levels deep"
    try:
        value = json.loads(content)
    except RecursionError:
        raise UnusableMetrics(too_deep) from None
    level, depth = [value], 0
    while level:  # without recursion; the depth is limited because later code is recursive
        depth += 1
        if depth > _MAX_DEPTH:
            raise UnusableMetrics(too_deep)
        lists = [
            value if isinstance(value, list) else value.values()
            for value in level
            if isinstance(value, dict | list)
        ]
        level = [value for values in lists for value in values if isinstance(value, dict | list)]
    return value
