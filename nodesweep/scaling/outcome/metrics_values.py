"""Read values that can be missing or invalid, because a user's program can have written them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def nested_value(metrics: Any, path: Sequence[str]) -> Any:
    """Return metrics[a][b]…; None if a key is missing or a value is not a mapping."""
    for key in path:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return metrics


def finite_or_none(value: Any) -> float | None:
    """Return the value as a float; None if it is not a finite number (json accepts NaN)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive_or_none(value: Any) -> float | None:
    """Return the value as a float; None if it is not a finite number above zero."""
    number = finite_or_none(value)
    return number if number is not None and number > 0 else None


def whole_number_or_none(value: Any) -> int | None:
    """Return the value as an int; None if it is not a whole number of at least zero."""
    number = finite_or_none(value)
    return int(number) if number is not None and number.is_integer() and number >= 0 else None
