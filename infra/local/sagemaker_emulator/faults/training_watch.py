"""Injects faults into a segment of a job by stopping all nodes or killing one."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
from types import TracebackType
from typing import Self

from sagemaker_emulator.faults.rules import TrainingRule
from sagemaker_emulator.periodic import PeriodicThread

_TICK_SECONDS = 0.02

TimesStruck = Counter[int]
"""Number of times that each rule of a job was applied in all segments, by rule index."""


class TrainingWatch:
    """A context manager that injects faults. `after_seconds` counts from its entry.

    The engine must stop when `halt` is set, either because the user stops the job or because of a
    fault, which is then in `struck`.
    """

    def __init__(
        self,
        rules: Sequence[TrainingRule],
        times_struck: TimesStruck,
        stop: threading.Event,
        kill_node: Callable[[str], None],
    ) -> None:
        self._due = {
            index: rule
            for index, rule in enumerate(rules)
            if times_struck[index] < rule.max_strikes
        }
        self._times_struck = times_struck
        self._stop = stop
        self._kill_node = kill_node
        self._lock = threading.Lock()
        self._began = 0.0
        self._ticks = PeriodicThread("training-faults", self._tick, repeat(_TICK_SECONDS))
        self.halt = threading.Event() if self._due else stop
        self.struck: TrainingRule | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._due:
            self._ticks.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ticks.stop()

    def feed(self, line: str) -> None:
        """Apply the rules that match a line in the log of a node."""
        self._strike_where(
            lambda rule: rule.at_line is not None and re.search(rule.at_line, line) is not None
        )

    def _tick(self) -> None:
        if self._stop.is_set():
            self.halt.set()
        self._strike_where(self._is_time_for)

    def _is_time_for(self, rule: TrainingRule) -> bool:
        return (
            rule.after_seconds is not None and time.monotonic() - self._began >= rule.after_seconds
        )

    def _strike_where(self, is_due: Callable[[TrainingRule], bool]) -> None:
        """Apply the first rule that is due, unless the nodes are already being stopped."""
        with self._lock:
            if self.halt.is_set() or self._ticks.is_over:
                return
            found = next((index for index, rule in self._due.items() if is_due(rule)), None)
            if found is None:
                return
            rule = self._due.pop(found)
            self._times_struck[found] += 1
            if rule.killed_host is None:
                self.struck = rule
                self.halt.set()
                return
        self._kill_node(rule.killed_host)
