"""Extracts metrics from a job's log, for FinalMetricDataList and CloudWatch."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import re2

from sagemaker_emulator.jobs.utilisation import put_values
from sagemaker_emulator.periodic import PeriodicThread

NAMESPACE = "/aws/sagemaker/TrainingJobs"
"""CloudWatch namespace of log metrics (dimension TrainingJobName) and node metrics (Host)."""
_PUBLISH_SECONDS = 1.0

logger = logging.getLogger(__name__)

OnValue = Callable[[str, float, int], None]
"""Called with (metric, value, Unix milliseconds) from several threads."""

_NO_MESSAGES = re2.Options()
_NO_MESSAGES.log_errors = False  # RE2 would also write errors to stderr


def compile_expression(regex: str) -> Any:
    """Compile an expression with RE2, which runs in linear time and so cannot block the platform.

    Raises:
        re2.error: If the expression is invalid.
    """
    return re2.compile(regex, _NO_MESSAGES)


class MetricMatcher:
    """Applies the metric definitions of a job to its log lines (thread-safe)."""

    def __init__(
        self,
        definitions: Sequence[dict[str, str]],
        on_value: OnValue = lambda name, value, at: None,
    ) -> None:
        self._patterns = [
            (definition["Name"], compile_expression(definition["Regex"]))
            for definition in definitions
        ]
        self._on_value = on_value
        self._last: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def feed(self, line: str, unix_milliseconds: int) -> None:
        """Record the first group of every match if it is a finite number, keeping the last one."""
        for name, pattern in self._patterns:
            for match in pattern.finditer(line):
                try:
                    value = float(match.group(1))
                except (TypeError, ValueError):
                    # The group did not match, or it matched text such as "n/a".
                    continue
                if not math.isfinite(value):
                    continue  # JSON and CloudWatch have no NaN
                with self._lock:
                    self._last[name] = (value, unix_milliseconds / 1000)
                self._on_value(name, value, unix_milliseconds)

    def final(self) -> list[dict[str, Any]]:
        with self._lock:
            last = dict(self._last)
        return [
            {"MetricName": name, "Value": last[name][0], "Timestamp": last[name][1]}
            for name in dict.fromkeys(name for name, _ in self._patterns)
            if name in last
        ]


class PublishedMetrics:
    """A context manager that writes metric values of a job to CloudWatch once a second.

    The values have the dimension TrainingJobName.
    """

    def __init__(self, cloudwatch: Any, job_name: str) -> None:
        self._cloudwatch = cloudwatch
        self._job_name = job_name
        self._lock = threading.Lock()
        self._waiting: list[dict[str, Any]] = []
        self._publisher: PeriodicThread | None = None

    def __enter__(self) -> Self:
        pauses = itertools.repeat(_PUBLISH_SECONDS)
        self._publisher = PeriodicThread(
            f"published-metrics {self._job_name}", self.publish, pauses
        )
        self._publisher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._publisher is not None:
            self._publisher.stop()
        self.publish()

    def add(self, name: str, value: float, unix_milliseconds: int) -> None:
        """Queue a value for the next PutMetricData call."""
        datum = {
            "MetricName": name,
            "Dimensions": [{"Name": "TrainingJobName", "Value": self._job_name}],
            "Timestamp": datetime.fromtimestamp(unix_milliseconds / 1000, UTC),
            "Value": value,
            "StorageResolution": 1,
        }
        with self._lock:
            self._waiting.append(datum)

    def publish(self) -> None:
        """Write the queued values, or log an error and drop them, since jobs must not stop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        try:
            put_values(self._cloudwatch, NAMESPACE, waiting)
        except Exception:
            logger.exception(
                "%s: %d metric values could not be written", self._job_name, len(waiting)
            )
