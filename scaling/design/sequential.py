"""The sequential design of a sweep: which runs come next, and what is known of each node count.

docs/sequential.md. Each count is run once. Then, from the largest count down, the counts that its
limits compare are repeated until it passes or fails, by one-sided bounds whose errors are spent
over counts, limits and looks, so that all answers of a sweep are right in at least 95 %.

`follow` goes through the design from its start with the points that have ended: the same outcomes
give the same next points, after a crash and on a resume, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from scipy.special import stdtrit

from scaling.formats import format_percent, format_ratio, join_words, nodes_text

ERROR = 0.05
"""The largest share of sweeps in which any pass, fail or "on the limit" may be wrong."""
ZONE = 0.02
"""A value known to lie within this share of its limit is on the limit: more runs are not worth it.
"""
LEAST_SPREAD = 0.001
"""Runs that took as long as each other are taken to vary by this share: clocks count in steps."""

Point = tuple[int, int]
"""A point of the sweep, as (nodes, repeat)."""
Times = Mapping[Point, float | None]
"""The points that have ended, with their train time in seconds; None: they gave none."""
Answer = Literal["pass", "fail", "on_the_limit", "undecided"]
RatioCriterion = Literal["efficiency", "doubling_ratio", "faster"]


_WORST_FIRST: tuple[Answer, ...] = ("fail", "undecided", "on_the_limit", "pass")


class _Comparison(NamedTuple):
    """T(than)/T(target) is to be at least `least`; times `scale` it is what the limit is of."""

    criterion: RatioCriterion
    than: int
    least: float
    scale: float


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


_Step = tuple[str, tuple[CountAnswer, ...]]
"""Why points are asked for, and the answer that is still open."""


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
    have no time, and a count whose runs were all starved is run again while it has a repeat left.
    A count without a time in its first run is left out too.
    """
    design = _Design(
        times, sorted(counts), limits, max_repeats, frozenset(not_comparable), frozenset(starved)
    )
    for reason, open_ in design.steps():
        points = design.points
        if missing := tuple(point for point in points if point not in times):
            return Progress(points, missing, (*design.answers, *open_), reason)
    return Progress(design.points, (), tuple(design.answers), design.end)


class _Design:
    """The design on its way: `planned` repeats of each count, the answers so far."""

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
        self.planned = dict.fromkeys(counts, 1)
        self.answers: list[CountAnswer] = []
        self.end = "fewer than two node counts can be compared"

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(
            (nodes, repeat)
            for nodes, repeats in self.planned.items()
            for repeat in range(1, repeats + 1)
        )

    def logs(self) -> dict[int, list[float]]:
        """The logarithms of the times of the points asked for so far."""
        known: dict[int, list[float]] = {nodes: [] for nodes in self.counts}
        for nodes, repeat in self.points:
            if seconds := self.times.get((nodes, repeat)):
                known[nodes].append(math.log(seconds))
        return known

    def steps(self) -> Iterator[_Step]:
        """Each time that points are asked for: why. Goes on where all of them have ended."""
        yield "every node count is run once first", ()
        yield from self.replace_starved()
        if self._is_starved(self.counts[0]):
            self.end = f"the nodes were starved of CPU in every run of {nodes_text(self.counts[0])}"
            return
        timed = [nodes for nodes, logs in self.logs().items() if logs]
        targets = [nodes for nodes in timed[1:] if nodes not in self.not_comparable]
        for target in reversed(targets):
            smaller = [
                nodes
                for nodes in timed
                if nodes < target and (nodes == timed[0] or nodes in targets)
            ]
            yield from self.look_at(target, list(_comparisons(target, smaller, self.limits)))
            last = self.answers[-1]
            if last.answer == "pass":
                self.end = f"{last.text}; smaller counts need no more runs"
                return
            self.end = f"no count larger than {nodes_text(timed[0])} is known to pass"

    def replace_starved(self) -> Iterator[_Step]:
        """One run more of each count that was starved in all of its runs, while it has one left."""
        while add := [
            nodes
            for nodes in self.counts
            if self._is_starved(nodes) and self.planned[nodes] < self.max_repeats
        ]:
            for nodes in add:
                self.planned[nodes] += 1
            yield f"the nodes were starved of CPU; {_one_more(add)}", ()

    def _is_starved(self, nodes: int) -> bool:
        return (nodes, self.planned[nodes]) in self.starved

    def look_at(self, target: int, comparisons: Sequence[_Comparison]) -> Iterator[_Step]:
        """Repeat what the target's limits compare until they are answered, no repeat is left, or
        the last ones gave no time at all: a program that has lost its clock is not run on.
        """
        half = {each.than for each in comparisons if each.criterion == "doubling_ratio"}
        group = sorted({comparisons[0].than, target, *half})
        error = ERROR / (len(self.counts) - 1)
        last = CountAnswer(target, "undecided", (), 0)
        added: list[Point] = []
        while True:
            logs = self.logs()
            if _freedom(logs):
                # 1/2 + 1/6 + 1/12 + ... = 1: what is spent does not depend on how many may follow
                look = last.looks + 1
                last = judge(target, comparisons, logs, error / (look * (look + 1)), look)
            least = min(self.planned[nodes] for nodes in group)
            is_lost = bool(added) and not any(
                self.times.get(point) or point in self.starved for point in added
            )
            if last.answer != "undecided" or least >= self.max_repeats or is_lost:
                self.answers.append(last)
                return
            add = [nodes for nodes in group if self.planned[nodes] == least]
            for nodes in add:
                self.planned[nodes] += 1
            added = [(nodes, self.planned[nodes]) for nodes in add]
            why = last.text if last.limits else "one run of each shows no spread"
            yield f"{why}; {_one_more(add)}", (last,)


def _comparisons(target: int, smaller: Sequence[int], limits: Limits) -> Iterator[_Comparison]:
    """What the target has to hold against smaller counts; the first of them is the baseline."""
    base = smaller[0]
    least = limits.min_efficiency * target / base
    yield _Comparison("efficiency", base, least, base / target)
    for nodes in smaller:
        if nodes * 2 == target:
            yield _Comparison("doubling_ratio", nodes, limits.min_doubling_ratio, 1.0)
        elif nodes != base or least < 1:
            yield _Comparison("faster", nodes, 1.0, 1.0)


def judge(
    target: int,
    comparisons: Sequence[_Comparison],
    logs: Mapping[int, Sequence[float]],
    error: float,
    look: int,
) -> CountAnswer:
    """One look at a count with at most `error` of being wrong.

    Bounds of a ratio of two times: Student's t on the logarithms, with the spread of all counts
    pooled. To pass, a count must pass every limit, so each may err by all of `error`
    (an intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300); it fails by any
    of them, so there they share it (Bonferroni).
    """
    freedom = _freedom(logs)
    spread = max(LEAST_SPREAD, math.sqrt(_squares(logs) / freedom))
    below = float(stdtrit(freedom, 1 - error))
    above = float(stdtrit(freedom, 1 - error / len(comparisons)))
    judged = []
    for criterion, than, least, scale in comparisons:
        value = fmean(logs[than]) - fmean(logs[target])
        reach = spread * math.sqrt(1 / len(logs[than]) + 1 / len(logs[target]))
        low, high = value - below * reach, value + above * reach
        answer = _answer(low, high, math.log(least))
        shown = [math.exp(number) * scale for number in (value, low, high)]
        spent = error * (1 + 1 / len(comparisons))
        judged.append(
            Judged(criterion, than, answer, shown[0], shown[1], shown[2], least * scale, spent)
        )
    answers = {each.answer for each in judged}
    worst = next(each for each in _WORST_FIRST if each in answers)
    return CountAnswer(target, worst, tuple(judged), look)


def _answer(low: float, high: float, limit: float) -> Answer:
    if low >= limit:
        return "pass"
    if high < limit:
        return "fail"
    zone = math.log1p(ZONE)
    return "on_the_limit" if limit - zone <= low and high <= limit + zone else "undecided"


def _freedom(logs: Mapping[int, Sequence[float]]) -> int:
    return sum(len(values) - 1 for values in logs.values() if values)


def _squares(logs: Mapping[int, Sequence[float]]) -> float:
    """Of the distances from each count's mean."""
    return math.fsum(
        (value - fmean(values)) ** 2 for values in logs.values() if values for value in values
    )


def _one_more(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return f"one more run at {nodes_text(counts[0])}"
    return f"one more run each at {join_words(counts)} nodes"
