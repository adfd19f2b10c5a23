"""Read a program's measurements from its log, and from the metrics that the platform found.

Lines such as `name=value;` replace a missing metrics.json (docs/own-code.md). For a metric
definition, the platform reports the last match on any node. The log distinguishes the ranks, so
that the value of the slowest rank can be used; values from the log therefore take precedence.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from nodesweep.configs.training import compile_metric
from nodesweep.scaling.job import JobStatus, LogLine
from nodesweep.scaling.names import METRICS_FILE
from nodesweep.scaling.outcome.cut_numbers import cut_by, whole_number
from nodesweep.scaling.outcome.metrics_values import nested_value
from nodesweep.scaling.outcome.observed import is_observed
from nodesweep.scaling.outcome.plain_lines import fragments, plain_lines, without_colours
from nodesweep.scaling.outcome.projection import reports_steps

NUMBERS = (
    "train_seconds",
    "steps",
    "planned_steps",
    "steady_step_seconds",
    "final_metric",
    "epochs",
    "samples_processed",
    "world_size",
)
"""The names that are read, from lines and from metric definitions of the same name."""
# the value of the slowest rank counts; for all other names, the value of the latest line
_PER_RANK = ("train_seconds", "steady_step_seconds")
# The paths of numbers that have a different name in metrics.json.
_IN_FILE = {
    "planned_steps": ("probe", "planned_steps"),
    "steady_step_seconds": ("steady", "step_seconds"),
    "world_size": ("world", "world_size"),
}
_MOST_LINE_CHARACTERS = 10_000
_MOST_CHECKED = 100  # maximum numbers per line; a number can take five more searches
_WARM_UP_STEPS = 10  # excluded from the steady step time (docs/method.md, "Steady window")
# Lines in which frameworks report the number of processes; programs print `world_size=N;`.
_FRAMEWORKS = (
    re.compile(r"^Num processes: (\d{1,9})$"),  # accelerate: print(accelerator.state)
    re.compile(
        r"distributed processes registered\. Starting with (\d{1,9}) processes"
    ),  # Lightning
)


class UnmatchedMetric(NamedTuple):
    """A metric definition that matched no number in a log; `nearest` is the most similar line."""

    name: str
    regex: str
    nearest: str | None = None


class CutNumber(NamedTuple):
    """A number in a job's log that was ignored because only a part of it would have been read.

    `regex` is the metric definition that matched the part, None for a `name=value` line; `line` is
    "algo-1: text".
    """

    name: str
    word: str
    line: str
    regex: str | None = None

    @property
    def text(self) -> str:
        """The reason and the remedy in words."""
        if self.regex is None:
            said, remedy = "", f"Print {self.name}=1234.5, without separators or units."
        else:
            said = f" by its metric definition {self.regex!r} (training.metric_definitions)"
            remedy = (
                "Make the group match the whole number, e.g. ([-+0-9.eE]+), and match what "
                "follows it; print numbers without separators."
            )
        return (
            f"{self.name} is not read from “{self.line}”: only part of {self.word!r} would be "
            f"read{said}. {remedy}"
        )


class Logged(NamedTuple):
    """The measurements in a log.

    Attributes:
        numbers: values by name (NUMBERS).
        world_sizes: all numbers of processes that the log reports.
        start_unix_seconds: when the program started; None if no line has it.
        first_step_unix_seconds: when the first step was logged; None if no line has a step.
        unmatched: metric definitions that matched nothing on the platform or here; empty if the
            log could not be read.
        steady_seconds: times of the steady steps on the slowest rank, if the log has a line for
            every step.
        cut: for each name whose value is unknown because a number would be read only in part, that
            number.
    """

    numbers: Mapping[str, float] = {}
    world_sizes: frozenset[int] = frozenset()
    start_unix_seconds: float | None = None
    first_step_unix_seconds: float | None = None
    unmatched: tuple[UnmatchedMetric, ...] = ()
    steady_seconds: tuple[float, ...] = ()
    cut: tuple[CutNumber, ...] = ()


def needs_log(metrics: Mapping[str, Any] | None, is_probe: bool = False) -> bool:
    """Return True if metrics.json lacks a number that the log could provide.

    These numbers are the train time, the number of processes and, for a probe, the steps of a full
    run. If metrics.json has observed values, the log is needed too, because values that the program
    reports take precedence.
    """
    if is_observed(metrics) or (is_probe and not reports_steps(metrics)):
        return True
    world = metrics.get("world") if isinstance(metrics, Mapping) else None
    known = isinstance(world, Mapping) and world.get("world_size") is not None
    return not known or not isinstance(metrics, Mapping) or metrics.get("train_seconds") is None


def missing_metrics(job: JobStatus) -> dict[str, str]:
    """Return the expressions of the metric definitions without a value, by metric name."""
    return {
        name: regex
        for name, regex in job.metric_definitions.items()
        if name not in job.final_metrics
    }


def uses_definitions(job: JobStatus, metrics: Mapping[str, Any] | None) -> bool:
    """Return True if a metric definition of the job provides a value that metrics.json lacks.

    The log is then needed to check that the definition matches the whole number.
    """
    return any(
        name in NUMBERS and nested_value(metrics, _IN_FILE.get(name, (name,))) is None
        for name in job.metric_definitions
    )


def read_logged(job: JobStatus, lines: Iterable[LogLine] = ()) -> Logged:
    """Read the final metrics of a job, and its log lines of all nodes in time order.

    A metric definition for one of the NUMBERS, or for step_seconds, replaces the search for
    `name=value;`. A step time in a line without `step=N;` belongs to the next step of the rank. If
    the log shows that a definition matched only part of a number (9.1 of 9.1e-05), the value from
    the platform is ignored too.
    """
    defined, missing = job.metric_definitions, missing_metrics(job)
    patterns = {
        name: compile_metric(regex)
        for name, regex in defined.items()
        if name in (*NUMBERS, _STEP_SECONDS, *missing)
    }
    likely = {name: _Nearest(name, regex) for name, regex in missing.items()}
    by_rank: dict[str, dict[_Rank, float | CutNumber]] = {name: {} for name in NUMBERS}
    steps: dict[int, float] = {}
    steps_of_rank: Counter[_Rank] = Counter()
    cut_steps: dict[int, CutNumber] = {}
    worlds: set[int] = set()
    start = first_step = None
    matched: set[str] | None = None
    for line in _rejoined(lines):
        marked = plain_lines(line.text)
        raw, parts = searchable(line.text), [searchable(part.text) for part in marked]
        texts = list(dict.fromkeys([raw, *parts]))
        whole = f"{line.host}: {without_colours(raw)}"
        found = _fields("\n".join(parts), whole, patterns.keys())
        found |= {name: _matches(name, pattern, texts, whole) for name, pattern in patterns.items()}
        values = {name: _numbers(each) for name, each in found.items()}
        written = next((each for each in found.get(_RANK, ()) if str(each).isdecimal()), "")
        rank = line.host, marked[0].speaker, str(written)
        for name in by_rank.keys() & values.keys():
            for value in values[name]:
                by_rank[name].pop(rank, None)  # keeps the latest line's value last
                by_rank[name][rank] = value
                if name == "world_size" and isinstance(value, float):
                    worlds |= _whole_number(value)
        matched = (matched or set()) | {name for name in missing if values[name]}
        for name in missing.keys() - matched:
            likely[name].consider(whole)
        for part, pattern in product(parts, _FRAMEWORKS):
            worlds.update(int(number) for number in pattern.findall(part))
        if start is None:
            start = next((at for at in values.get(_START, ()) if isinstance(at, float)), None)
        step = next((each for each in found.get(_STEP, ()) if _COUNT.fullmatch(str(each))), None)
        if found.get(_STEP):
            first_step = line.unix_milliseconds / 1000 if first_step is None else first_step
        for seconds in values.get(_STEP_SECONDS, ()):
            steps_of_rank[rank] += 1
            number = int(str(step)) if step is not None else steps_of_rank[rank]
            if isinstance(seconds, CutNumber):
                cut_steps[number] = seconds
            else:
                steps[number] = max(seconds, steps.get(number, 0.0))
    numbers = {
        name: float(value)
        for name, value in job.final_metrics.items()
        if name in NUMBERS and math.isfinite(value)
    }
    worlds |= _whole_number(numbers.get("world_size", math.nan))
    steady = [
        seconds
        for step, seconds in sorted({**steps, **dict.fromkeys(cut_steps)}.items())[_WARM_UP_STEPS:]
        if seconds is not None
    ]
    if steady:
        numbers.setdefault("steady_step_seconds", median(steady))
    cut: list[CutNumber] = []
    for name, of_ranks in by_rank.items():
        if not of_ranks:
            continue
        counting = [*of_ranks.values()] if name in _PER_RANK else [*of_ranks.values()][-1:]
        known = [value for value in counting if isinstance(value, float)]
        cut += [value for value in counting if isinstance(value, CutNumber)][:1]
        if len(known) == len(counting):
            numbers[name] = max(known)
        else:  # the value of the slowest rank or of the latest line is unknown
            numbers.pop(name, None)
    cut += [*cut_steps.values()][:1]
    unmatched = (
        []
        if matched is None
        else [likely[name].unmatched for name in missing if name not in matched]
    )
    return Logged(
        numbers, frozenset(worlds), start, first_step, tuple(unmatched), tuple(steady), tuple(cut)
    )


def _rejoined(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines as the ranks wrote them, even if mpirun split and joined them."""
    begun: dict[tuple[str, str], LogLine] = {}
    for line in lines:
        parts = fragments(line.text)
        for index, (mark, text) in enumerate(parts, start=1):
            begin = begun.pop((line.host, mark), line._replace(text=mark))
            whole = begin._replace(text=begin.text + text)
            if mark and index < len(parts):
                begun[line.host, mark] = whole
            else:
                yield whole
    yield from begun.values()


def contradiction(planned: int, nodes: int, confirmed: Mapping[str, Sequence[int]]) -> str | None:
    """Return an error if a job did not run with the `planned` number of processes, else None.

    `confirmed` maps each source to the numbers of processes that it reports.
    """
    others = [
        (number, source)
        for source, numbers in confirmed.items()
        for number in numbers
        if number != planned
    ]
    if not others:
        return None
    counted = " and ".join(f"{number} (by its {source})" for number, source in others)
    asked = "1 process was" if planned == 1 else f"{planned} processes were"
    return (
        f"world size: {asked} planned on {nodes} {'node' if nodes == 1 else 'nodes'}, but the "
        f"program ran with {counted}. Its time does not count for the planned job: have the "
        "program join the process group of its launcher (training.distribution), or plan for the "
        "number of processes that it starts (training.distribution.processes_per_node)"
    )


LOG = "log"
FILE = METRICS_FILE


_Rank = tuple[str, str, str]
"""The node, the process according to the marks of a line, and the number in its rank=N."""
_RANK, _STEP, _STEP_SECONDS, _START = "rank", "step", "step_seconds", "run_start_unix_seconds"
# `name=value` as a separate word, followed by a semicolon, comma, blank or line end.
_NAMES = "|".join((*NUMBERS, _RANK, _STEP, _STEP_SECONDS, _START))
_FIELD = re.compile(
    rf"(?:^|[\s;,])(?P<name>{_NAMES})=(?P<value>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
)
_ENDS = re.compile(r"[;,\s]|$")
_COUNT = re.compile(r"\d{1,18}")  # int() refuses more than 4300 digits


def searchable(line: str) -> str:
    """Return the part of a line that is searched: its first 10,000 characters as valid UTF-8."""
    return line[:_MOST_LINE_CHARACTERS].rstrip().encode(errors="replace").decode()


class _Nearest:
    """Finds the line that has a number and the most words of a metric definition.

    Of several such lines, the last one counts.
    """

    def __init__(self, name: str, regex: str) -> None:
        literal = _NOT_LITERAL.sub(" ", regex)
        self._words = {
            word.lower() for word in _LETTERS.findall(f"{literal} {name.replace('_', ' ')}")
        }
        self._likeness = 0
        self.unmatched = UnmatchedMetric(name, regex)

    def consider(self, line: str) -> None:
        text = line.lower()
        likeness = sum(len(word) for word in self._words if word in text)
        if likeness and likeness >= self._likeness and _DIGIT.search(text.partition(": ")[2]):
            self._likeness = likeness
            self.unmatched = self.unmatched._replace(nearest=line[:_NEAREST_CHARACTERS])


# Parts of an expression that are not literal: character classes, escapes and starts of groups.
_NOT_LITERAL = re.compile(r"\\[pP]\{\w*\}|\\.|\[[^\]]*\]|\(\?[^:)>]*[:)>]")
_LETTERS = re.compile(r"[A-Za-z]{3,}")
_DIGIT = re.compile(r"\d")
_NEAREST_CHARACTERS = 200


def _fields(
    text: str, line: str, defined: Collection[str]
) -> dict[str, list[str | CutNumber | None]]:
    """Return all values in a line by name, except for names with a metric definition."""
    fields: dict[str, list[str | CutNumber | None]] = {}
    for found in _FIELD.finditer(text):
        name, value = found["name"], found["value"]
        if name in defined:
            continue
        if word := whole_number(text, *found.span("value")):
            cut = CutNumber(name, word, line[:_NEAREST_CHARACTERS])
            fields.setdefault(name, []).append(cut)
        elif _ENDS.match(text, found.end()):
            fields.setdefault(name, []).append(value)
    return fields


def _matches(
    name: str, pattern: Any, texts: Sequence[str], line: str
) -> list[str | CutNumber | None]:
    """Return the values that a metric definition matches in the first of the texts with a match.

    The texts are the raw line and its parts without marks.
    """
    for text in texts:
        found: list[str | CutNumber | None] = []
        for match in pattern.finditer(text):
            is_checked = len(found) < _MOST_CHECKED and _finite_number(match[1]) is not None
            word = cut_by(pattern, text, match) if is_checked else None
            if word is not None:
                regex = pattern.pattern
                return [CutNumber(name, word, line[:_NEAREST_CHARACTERS], regex)]
            found.append(match[1])
        if found:
            return found
    return []


def _numbers(values: Iterable[str | CutNumber | None]) -> list[float | CutNumber]:
    numbers: list[float | CutNumber] = []
    for value in values:
        number = value if isinstance(value, CutNumber) else _finite_number(value)
        if number is not None:
            numbers.append(number)
    return numbers


def _finite_number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole_number(value: float) -> set[int]:
    return {int(value)} if math.isfinite(value) and value.is_integer() and value > 0 else set()
