"""Parse a metrics.json and the other ranks' files, which a user's program may have written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from nodesweep.scaling import names

MAX_METRICS_BYTES = 8 * 1024 * 1024
"""Maximum size of metrics.json, which takes a multiple of that in memory.

The shipped program keeps 1,000 step times: tens of KB.
"""
BUDGET_FILE = re.compile(r"nodesweep-budget-\d{1,6}\.json")
"""File to which every rank except 0 writes the parts of its time."""
MAX_BUDGET_FILES, MAX_BUDGET_BYTES = 1024, 64 * 1024
_MAX_DEPTH = 32


class UnusableMetrics(Exception):
    """The file exceeds a limit, which the message names.

    Not a ValueError: tarfile catches those while reading a header.
    """


def parse_metrics(content: bytes, budgets: Iterable[bytes] = ()) -> Any:
    """Return the contents of a metrics.json, with the other ranks' files in its `budget`.

    Args:
        content: The file.
        budgets: The files of the other ranks; an unreadable one becomes None and is ignored.

    Raises:
        UnusableMetrics: The JSON is nested too deeply.
        ValueError: It is not UTF-8 JSON.
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
    while level:  # not recursive; the depth is limited because later code recurses
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
