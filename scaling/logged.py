"""What a program said of itself in its log: `name=value;` lines, read of every rank, and DescribeTrainingJob's metrics.

A program that writes no metrics.json is measured by these (docs/training-code.md). FinalMetricDataList has the last
value that a metric definition matched, whichever node it came from; the log itself tells the ranks apart, so that the
slowest one counts. Where the log has a value, FinalMetricDataList has nothing to add.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from scaling.names import METRICS_FILE

NUMBERS = (
    "train_seconds",
    "steps",
    "steady_step_seconds",
    "final_metric",
    "epochs",
    "samples_processed",
    "world_size",
)
"""The names that are read, from lines and from metric definitions of the same name."""
_PER_RANK = ("train_seconds", "steady_step_seconds")  # the slowest rank's; of the others the latest line's
_MOST_LINE_CHARACTERS = 10_000
_WARM_UP_STEPS = 10  # left out of the steady step time (METHODOLOGY 6)
# How launchers and frameworks say how many processes found each other; a program's own line is `world_size=N;`.
_FRAMEWORKS = (
    re.compile(r"^Num processes: (\d+)$"),  # accelerate: print(accelerator.state)
    re.compile(r"distributed processes registered\. Starting with (\d+) processes"),  # Lightning
)


class LogLine(NamedTuple):
    """A line of one node's log and when the platform took it."""

    unix_milliseconds: int
    host: str
    text: str

    @property
    def at(self) -> str:
        """That time in UTC, as ISO 8601 spells it to the millisecond."""
        moment = datetime.fromtimestamp(self.unix_milliseconds / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Logged(NamedTuple):
    """What the log says. `world_sizes` are all numbers of processes in it; a time is None where no line tells it."""

    numbers: Mapping[str, float] = {}
    world_sizes: frozenset[int] = frozenset()
    start_unix_seconds: float | None = None
    first_step_unix_seconds: float | None = None


def needs_log(metrics: Mapping[str, Any] | None) -> bool:
    """Whether metrics.json leaves open what only the log can tell: the train time, or how many processes there were."""
    world = metrics.get("world") if isinstance(metrics, Mapping) else None
    known = isinstance(world, Mapping) and world.get("world_size") is not None
    return not known or not isinstance(metrics, Mapping) or metrics.get("train_seconds") is None


def read_logged(description: Mapping[str, Any], lines: Iterable[LogLine] = ()) -> Logged:
    """Read a DescribeTrainingJob answer and the job's log lines, of all nodes and in time order.

    A metric definition of one of the NUMBERS replaces the search for `name=value;`, so that any wording can be read.
    """
    given = (description.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
    patterns = {name: _line_pattern(name) for name in NUMBERS}
    patterns |= {each["Name"]: re.compile(each["Regex"]) for each in given if each["Name"] in NUMBERS}
    by_rank: dict[str, dict[tuple[str, str], float]] = {name: {} for name in NUMBERS}
    steps: dict[int, float] = {}
    worlds: set[int] = set()
    start = first_step = None
    for line in lines:
        text = line.text[:_MOST_LINE_CHARACTERS].rstrip()
        rank = line.host, _matched(_RANK, text) or ""
        for name, pattern in patterns.items():
            for value in _numbers(pattern, text):
                by_rank[name].pop(rank, None)  # so that the latest line's is the last
                by_rank[name][rank] = value
                if name == "world_size":
                    worlds |= _whole(value)
        for pattern in _FRAMEWORKS:
            worlds.update(int(found) for found in pattern.findall(text))
        if start is None:
            start = next(_numbers(_START, text), None)
        if (step := _matched(_STEP, text)) is not None:
            first_step = line.unix_milliseconds / 1000 if first_step is None else first_step
            for seconds in _numbers(_STEP_SECONDS, text):
                steps[int(step)] = max(seconds, steps.get(int(step), 0.0))
    numbers = {
        metric["MetricName"]: float(metric["Value"])
        for metric in description.get("FinalMetricDataList") or ()
        if metric["MetricName"] in NUMBERS and math.isfinite(metric["Value"])
    }
    worlds |= _whole(numbers.get("world_size", math.nan))
    steady = [seconds for step, seconds in sorted(steps.items())][_WARM_UP_STEPS:]
    if steady:
        numbers.setdefault("steady_step_seconds", median(steady))
    for name, found in by_rank.items():
        if found:
            numbers[name] = max(found.values()) if name in _PER_RANK else list(found.values())[-1]
    return Logged(numbers, frozenset(worlds), start, first_step)


def contradiction(planned: int, nodes: int, said: Mapping[str, Sequence[int]]) -> str | None:
    """Why a job did not run as one of `planned` processes, by what the places in `said` say; None where it did."""
    others = [(number, place) for place, numbers in said.items() for number in numbers if number != planned]
    if not others:
        return None
    told = " and ".join(f"{number} (by its {place})" for number, place in others)
    asked = "1 process was" if planned == 1 else f"{planned} processes were"
    return (
        f"world size: {asked} planned on {nodes} {'node' if nodes == 1 else 'nodes'}, the program ran with {told}. Its "
        "time is not that of the planned job: have the program join the process group of its launcher "
        "(training.distribution), or plan what it starts (training.distribution.processes_per_node)"
    )


LOG = "log"
FILE = METRICS_FILE


def _line_pattern(name: str, value: str = r"[-+0-9.eE]+") -> re.Pattern[str]:
    """`name=value` as a word of its own, ended by a semicolon, a comma, a blank or the line."""
    return re.compile(rf"(?:^|[\s;,]){name}=({value})(?=[;,\s]|$)")


_RANK = _line_pattern("rank", r"\d+")
_STEP = _line_pattern("step", r"\d+")
_STEP_SECONDS = _line_pattern("step_seconds")
_START = _line_pattern("run_start_unix_seconds")


def _matched(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _numbers(pattern: re.Pattern[str], text: str) -> Iterator[float]:
    """The first group of every match that is a finite number, as the platform reads it."""
    for match in pattern.finditer(text):
        try:
            value = float(match[1])
        except (TypeError, ValueError):
            continue
        if math.isfinite(value):
            yield value


def _whole(value: float) -> set[int]:
    return {int(value)} if math.isfinite(value) and value.is_integer() and value > 0 else set()
