"""FinalMetricDataList: the last value each metric definition matched in the job's log."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import re2

_NO_MESSAGES = re2.Options()
_NO_MESSAGES.log_errors = False  # RE2 would write them to stderr, beside the exception


def compile_expression(regex: str) -> Any:
    """By RE2, so that no expression can keep the platform busy with a line for ever. Raises re2.error."""
    return re2.compile(regex, _NO_MESSAGES)


class MetricMatcher:
    """Applies a job's metric definitions to its log lines; safe to feed from several threads."""

    def __init__(self, definitions: Sequence[dict[str, str]]) -> None:
        self._patterns = [(definition["Name"], compile_expression(definition["Regex"])) for definition in definitions]
        self._last: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def feed(self, line: str, unix_milliseconds: int) -> None:
        """Keep the first group of every match that is a number; the latest line wins, whichever node wrote it."""
        for name, pattern in self._patterns:
            for match in pattern.finditer(line):
                try:
                    value = float(match.group(1))
                except (TypeError, ValueError):
                    continue  # the group took no part, or matched text such as "n/a": no measurement
                if not math.isfinite(value):
                    continue  # JSON has no NaN, and CloudWatch takes none
                with self._lock:
                    self._last[name] = (value, unix_milliseconds / 1000)

    def final(self) -> list[dict[str, Any]]:
        with self._lock:
            last = dict(self._last)
        return [
            {"MetricName": name, "Value": last[name][0], "Timestamp": last[name][1]}
            for name in dict.fromkeys(name for name, _ in self._patterns)
            if name in last
        ]
