"""Numbers of a file that a user's own program may have written: any part may be missing or odd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def dig(metrics: Any, path: Sequence[str]) -> Any:
    """metrics[a][b]…, None where a part is missing or no mapping."""
    for key in path:
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    return metrics


def finite(value: Any) -> float | None:
    """The value as a float, or None where it is missing or not a finite number (json reads NaN)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive(value: Any) -> float | None:
    """Like finite, and None where the number is not above zero."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def whole(value: Any) -> int | None:
    """Like finite, and None where the number is no whole one, or below zero."""
    number = finite(value)
    return int(number) if number is not None and number.is_integer() and number >= 0 else None
