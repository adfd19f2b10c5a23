"""Parse the metrics.json of a training program, within limits: its content is the program's own."""

from __future__ import annotations

import json
from typing import Any

from nodesweep.scaling import names

MAX_METRICS_BYTES = 8 * 1024 * 1024
"""Maximum size of metrics.json, which takes a multiple of that in memory.

The shipped program keeps 1,000 step times: tens of KB.
"""
MAX_BUDGET_FILES, MAX_BUDGET_BYTES = 1024, 64 * 1024
_MAX_METRICS_DEPTH = 32
_TOO_DEEP = f"its {names.METRICS_FILE} is nested more than {_MAX_METRICS_DEPTH} levels deep"


class Unusable(Exception):
    """The program's output exceeds a limit, which the message names."""


def parse_metrics(content: bytes | None) -> Any:
    """Return the content of a metrics.json.

    Raises:
        Unusable: it is nested too deeply.
        ValueError: it is not JSON.
    """
    if content is None:
        return None
    try:
        metrics = json.loads(content)
    except RecursionError:
        raise Unusable(_TOO_DEEP) from None
    level, depth = [metrics], 0
    while level:  # not recursive; the depth is limited because later code recurses
        depth += 1
        if depth > _MAX_METRICS_DEPTH:
            raise Unusable(_TOO_DEEP)
        lists = [
            value if isinstance(value, list) else value.values()
            for value in level
            if isinstance(value, dict | list)
        ]
        level = [value for values in lists for value in values if isinstance(value, dict | list)]
    return metrics


def with_budgets(metrics: Any, budgets: list[bytes]) -> dict[str, Any] | None:
    """Return the metrics with the parts of the other ranks' times; None if they are no mapping."""
    if not isinstance(metrics, dict):
        return None
    if isinstance(metrics.get("budget"), list):
        metrics["budget"] += map(_budget_of_rank, budgets)
    return metrics


def _budget_of_rank(content: bytes) -> Any:
    """Return a rank's file; None, which is no rank's, if it is unreadable."""
    try:
        return parse_metrics(content)
    except (Unusable, ValueError):
        return None
