"""The sequential design of a sweep: which runs come next, and what is known of each node count.

docs/sequential.md. Each count is run once. Then, from the largest count down, the counts that its
limits compare are repeated until it passes or fails, by one-sided bounds whose errors are spent
over counts, limits and looks, so that all answers of a sweep are right in at least 95 %.

`follow` goes through the design from its start with the points that have ended: the same outcomes
give the same next points, after a crash and on a resume, too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Literal

from nodesweep.scaling.formats import format_percent, format_ratio, join_words, nodes_text
from nodesweep.scaling.student import t_quantile

ERROR = 0.05
"""The largest share of sweeps in which any pass, fail or "on the limit" may be wrong."""
ZONE = 0.02
"""A value known to lie within this share of its limit is on the limit: more runs are not worth it.
"""
LEAST_SPREAD = 0.001
"""Runs that took as long as each other are taken to vary by this share: clocks count in steps."""

_ZONE = math.log1p(ZONE)
_LARGEST_LOG = math.log(sys.float_info.max)

Point = tuple[int, int]
"""A point of the sweep, as (nodes, repeat)."""
Times = Mapping[Point, float | None]
"""The points that have ended, with their train time in seconds; None: they gave none."""
Answer = Literal["pass", "fail", "on_the_limit", "undecided"]
RatioCriterion = Literal["efficiency", "doubling_ratio", "faster"]


_WORST_FIRST: tuple[Answer, ...] = ("fail", "undecided", "on_the_limit", "pass")


@dataclass(frozen=True)
class Limits:
    """What a count has to hold: efficiency and doubling ratio, both at least."""

    min_efficiency: float
    min_doubling_ratio: float


@dataclass(frozen=True)
class Judged:
    """A limit at one count, in the limit's unit: `value` with its one-sided bounds.

    `than` is the smaller node count that its time is compared with.
    """

    criterion: RatioCriterion
    than: int
    answer: Answer
    value: float
    low: float
    high: float
    limit: float
    error: float
    """What both bounds together may err by."""

    @property
    def text(self) -> str:
        """efficiency 92 % (80 %–105 %) for at least 75 %."""
        return f"{self.value_text} for at least {self.limit_text}"

    @property
    def limit_text(self) -> str:
        return self._write(self.limit)

    @property
    def value_text(self) -> str:
        """efficiency 92 % (80 %–105 %)."""
        what = (
            f"speedup over {nodes_text(self.than)}"
            if self.criterion == "faster"
            else self.criterion.replace("_", " ")
        )
        span = f"{self._write(self.low)}–{self._write(self.high)}"
        return f"{what} {self._write(self.value)} ({span})"

    def _write(self, number: float) -> str:
        return format_percent(number) if self.criterion == "efficiency" else format_ratio(number)


@dataclass(frozen=True)
class CountAnswer:
    """One count against all its limits, at its last look."""

    nodes: int
    answer: Answer
    limits: tuple[Judged, ...]
    looks: int

    @property
    def text(self) -> str:
        """8 nodes undecided: efficiency 76 % (71 %–82 %) for at least 75 %."""
        why = [each.text for each in self.limits if each.answer == self.answer]
        return f"{self.brief}: {', '.join(why)}" if why else self.brief

    @property
    def brief(self) -> str:
        """The count and its answer in a few words: "8 nodes undecided"."""
        words = {"pass": "pass", "fail": "fail", "on_the_limit": "on the limit"}
        return f"{nodes_text(self.nodes)} {words.get(self.answer, 'undecided')}"


@dataclass(frozen=True)
class Progress:
    """Where a sequential sweep stands. `points`: all that the design has asked for so far;
    `next_points`: those of them that have not ended, () where it is done.

    `answers` has the counts that were looked at, largest first; `reason` why the next points are
    the next, or why there are none.
    """

    points: tuple[Point, ...]
    next_points: tuple[Point, ...]
    answers: tuple[CountAnswer, ...]
    reason: str


def follow(
    times: Times,
    counts: Sequence[int],
    limits: Limits,
    max_repeats: int,
    not_comparable: Collection[int] = (),
    starved: Collection[Point] = (),
) -> Progress:
    """Go through the design with what has ended; points that it has not asked for are left out.

    `not_comparable` counts have a time that is no time to train of the baseline's model: they are
    run once and not looked at. Of the points in `starved` the nodes did not get their CPU: they
    have no time. A count without a time in its first run is left out too.
    """
    design = _Design(
        times, sorted(counts), limits, max_repeats, frozenset(not_comparable), frozenset(starved)
    )
    for step in design.steps():
        if missing := tuple(point for point in step.points if point not in times):
            open_ = () if step.look is None else (step.look.answer_in_full(),)
            return Progress(design.points, missing, (*design.answers, *open_), step.reason())
    return Progress(design.points, (), design.answers, design.end)


def run_through(
    counts: Sequence[int],
    limits: Limits,
    max_repeats: int,
    seconds_of: Callable[[int], float],
) -> tuple[Point, ...]:
    """All points of a sweep whose every run at N nodes takes seconds_of(N), called once a run.

    The same points as follow() asks for in turn, without going through the design anew for each.
    """
    times: dict[Point, float] = {}
    design = _Design(times, sorted(counts), limits, max_repeats, frozenset(), frozenset())
    for step in design.steps():
        for point in step.points:
            times[point] = seconds_of(point[0])
    return design.points


@dataclass(frozen=True)
class _Step:
    """Points that are asked for together, why, and the look that leaves its count open."""

    points: tuple[Point, ...]
    reason: Callable[[], str]
    look: _Look | None = None


class _Design:
    """The design on its way: `planned` repeats of each count, the looks that ended so far."""

    def __init__(
        self,
        times: Times,
        counts: list[int],
        limits: Limits,
        max_repeats: int,
        not_comparable: frozenset[int],
        starved: frozenset[Point],
    ) -> None:
        self.times, self.counts, self.limits = times, counts, limits
        self.max_repeats, self.not_comparable, self.starved = max_repeats, not_comparable, starved
        self.planned = dict.fromkeys(counts, 0)
        self.measured = _Measured(counts)
        self.ended: list[_Look] = []
        self.end = "fewer than two node counts can be compared"

    @property
    def answers(self) -> tuple[CountAnswer, ...]:
        return tuple(look.answer_in_full() for look in self.ended)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(
            (nodes, repeat)
            for nodes, repeats in self.planned.items()
            for repeat in range(1, repeats + 1)
        )

    def ask(
        self, counts: Sequence[int], reason: Callable[[], str], look: _Look | None = None
    ) -> Iterator[_Step]:
        """One run more of each of the counts; goes on where all of them have ended."""
        for nodes in counts:
            self.planned[nodes] += 1
        points = tuple((nodes, self.planned[nodes]) for nodes in counts)
        yield _Step(points, reason, look)
        for point in points:
            if seconds := self.times.get(point):
                self.measured.add(point[0], math.log(seconds))

    def steps(self) -> Iterator[_Step]:
        """Each time that points are asked for."""
        yield from self.ask(self.counts, lambda: "every node count is run once first")
        yield from self.replace_starved()
        if self._is_starved(self.counts[0]):
            self.end = f"nodes were contended in every run of {nodes_text(self.counts[0])}"
            return
        timed = [nodes for nodes in self.counts if self.measured.logs[nodes]]
        comparable = timed[:1] + [each for each in timed[1:] if each not in self.not_comparable]
        for place in reversed(range(1, len(comparable))):
            group = _Comparisons(
                comparable[place], comparable[:place], self.limits, self.measured.place
            )
            yield from self.look_at(group)
            last = self.ended[-1]
            if last.answer == "pass":
                text = last.answer_in_full().text
                self.end = f"{text}; smaller counts need no more runs"
                return
            self.end = f"no count larger than {nodes_text(timed[0])} is known to pass"

    def replace_starved(self) -> Iterator[_Step]:
        """Take the next run of each count whose runs so far were contended, where there is one, as
        in sweeps from before contended runs were repeated as such
        (nodesweep/scaling/planning/queue.py).
        """
        while add := [
            nodes
            for nodes in self.counts
            if self._is_starved(nodes) and (nodes, self.planned[nodes] + 1) in self.times
        ]:
            yield from self.ask(add, str)

    def _is_starved(self, nodes: int) -> bool:
        return (nodes, self.planned[nodes]) in self.starved

    def look_at(self, group: _Comparisons) -> Iterator[_Step]:
        """Repeat what the target's limits compare until they are answered, no repeat is left, or
        the last ones gave no time at all: a program that has lost its clock is not run on.
        """
        error = ERROR / (len(self.counts) - 1)
        last = _Look(group.target, "undecided", 0)
        added: list[Point] = []
        while True:
            if self.measured.freedom:
                # 1/2 + 1/6 + 1/12 + ... = 1: what is spent does not depend on how many may follow
                number = last.number + 1
                last = judge(group, self.measured, error / (number * (number + 1)), number)
            least = min(self.planned[nodes] for nodes in group.repeated)
            is_lost = bool(added) and not any(
                self.times.get(point) or point in self.starved for point in added
            )
            if last.answer != "undecided" or least >= self.max_repeats or is_lost:
                self.ended.append(last)
                return
            add = [nodes for nodes in group.repeated if self.planned[nodes] == least]
            added = [(nodes, least + 1) for nodes in add]
            yield from self.ask(add, partial(_why_more, last, add), last)


class _Measured:
    """The logarithms of all times so far by node count, and of each count what every look needs."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.place = {nodes: place for place, nodes in enumerate(counts)}
        self.logs: dict[int, list[float]] = {nodes: [] for nodes in counts}
        self.means, self.runs = [0.0] * len(counts), [0] * len(counts)
        self.freedom = 0
        self._squares: dict[int, list[float]] = {}

    def add(self, nodes: int, log: float) -> None:
        logs, place = self.logs[nodes], self.place[nodes]
        logs.append(log)
        mean = fmean(logs)
        self.means[place], self.runs[place] = mean, len(logs)
        if len(logs) > 1:
            self.freedom += 1
            self._squares[nodes] = [(value - mean) ** 2 for value in logs]

    @property
    def squares(self) -> float:
        """Of the distances from each count's mean."""
        return math.fsum(chain.from_iterable(self._squares.values()))


class _Comparisons:
    """What a count has to hold against smaller ones, the first of which is the baseline:
    T(than)/T(target) is to be at least a number.
    """

    def __init__(
        self, target: int, smaller: Sequence[int], limits: Limits, place_of: Mapping[int, int]
    ) -> None:
        base = smaller[0]
        least = limits.min_efficiency * target / base
        self.target, self._base, self._half = target, base, target / 2
        self._least, self._least_doubling = least, limits.min_doubling_ratio
        # at least as fast as the baseline is less than an efficiency asks for that is above 1/N
        is_base_named = base == self._half or least < 1
        self.than = (base, *(smaller if is_base_named else smaller[1:]))
        self.places = [place_of[nodes] for nodes in self.than]
        self.least_logs = [math.log(least), *[0.0] * (len(self.than) - 1)]
        has_half = self._half in smaller
        if has_half:
            place = self.than.index(int(self._half), 1)
            self.least_logs[place] = math.log(limits.min_doubling_ratio)
        self.repeated = sorted({base, target, *([int(self._half)] if has_half else [])})
        """Counts that are run again while the target is not decided."""

    def at(self, place: int) -> tuple[RatioCriterion, float, float]:
        """(criterion, least, scale): least times scale is what the limit is of."""
        if place == 0:
            return "efficiency", self._least, self._base / self.target
        if self.than[place] == self._half:
            return "doubling_ratio", self._least_doubling, 1.0
        return "faster", 1.0, 1.0


@dataclass(frozen=True)
class _Bounds:
    """Bounds of the ratios of two times, by the measurements at one look."""

    group: _Comparisons
    error: float
    target: int
    means: Sequence[float]
    runs: Sequence[int]
    spread: float
    below: float
    above: float
    """Student's t for the lower and for the upper bound."""

    def at(self, place: int) -> tuple[float, float, float]:
        """The logarithms of a ratio, its lower and its upper bound."""
        than = self.group.places[place]
        value = self.means[than] - self.means[self.target]
        reach = self.spread * math.sqrt(1 / self.runs[than] + 1 / self.runs[self.target])
        return value, value - self.below * reach, value + self.above * reach

    def answer(self, place: int) -> Answer:
        """Whether the ratio holds its limit."""
        _, low, high = self.at(place)
        limit = self.group.least_logs[place]
        if low >= limit:
            return "pass"
        if high < limit:
            return "fail"
        return "on_the_limit" if limit - _ZONE <= low and high <= limit + _ZONE else "undecided"

    def worst(self) -> Answer:
        """The worst answer. The first limit that fails ends the search: the larger of hundreds of
        counts mostly fail the first one, their efficiency.
        """
        worst = len(_WORST_FIRST) - 1
        for place in range(len(self.group.than)):
            worst = min(worst, _WORST_FIRST.index(self.answer(place)))
            if worst == 0:
                break
        return _WORST_FIRST[worst]


@dataclass(frozen=True)
class _Look:
    """One look at a count: its answer, and in `compared` what it was made of.

    Numbers as they are shown are made for those looks alone that are shown.
    """

    nodes: int
    answer: Answer
    number: int
    compared: _Bounds | None = None

    def answer_in_full(self) -> CountAnswer:
        if self.compared is None:
            return CountAnswer(self.nodes, self.answer, (), self.number)
        group = self.compared.group
        spent = self.compared.error * (1 + 1 / len(group.than))
        judged = []
        for place, than in enumerate(group.than):
            criterion, least, scale = group.at(place)
            value, low, high = (_exp(number) * scale for number in self.compared.at(place))
            answer = self.compared.answer(place)
            judged.append(Judged(criterion, than, answer, value, low, high, least * scale, spent))
        return CountAnswer(self.nodes, self.answer, tuple(judged), self.number)


def judge(group: _Comparisons, measured: _Measured, error: float, number: int) -> _Look:
    """One look at a count with at most `error` of being wrong.

    Bounds of a ratio of two times: Student's t on the logarithms, with the spread of all counts
    pooled. To pass, a count must pass every limit, so each may err by all of `error`
    (an intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300); it fails by any
    of them, so there they share it (Bonferroni).
    """
    freedom = measured.freedom
    bounds = _Bounds(
        group,
        error,
        measured.place[group.target],
        tuple(measured.means),
        tuple(measured.runs),
        spread=max(LEAST_SPREAD, math.sqrt(measured.squares / freedom)),
        below=t_quantile(freedom, 1 - error),
        above=t_quantile(freedom, 1 - error / len(group.than)),
    )
    return _Look(group.target, bounds.worst(), number, bounds)


def _exp(number: float) -> float:
    """Of two times that differ by far, a bound is more than a float holds: then about the largest
    that it does.
    """
    return math.exp(min(number, _LARGEST_LOG))


def _why_more(look: _Look, counts: Sequence[int]) -> str:
    why = "one run of each shows no spread" if look.compared is None else look.answer_in_full().text
    return f"{why}; {_one_more(counts)}"


def _one_more(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return f"one more run at {nodes_text(counts[0])}"
    return f"one more run each at {join_words(counts)} nodes"
