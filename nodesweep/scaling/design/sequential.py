"""The sequential design: its next runs, and its verdict on each node count so far.

Each node count is run once. Then, from the largest node count down to the first that passes, the
runs that its limits compare are repeated until it passes, fails or is on the limit. After each
round of repeats, a look evaluates the node count. The bounds are one-sided, and their error is
spread over node counts, limits and looks, so that all verdicts are right in at least 95% of sweeps
(docs/sequential.md).
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING

from nodesweep.scaling.design.base import (
    Answer,
    Attempt,
    CountAnswer,
    Design,
    Judged,
    Measured,
    Point,
    Progress,
    RatioCriterion,
)
from nodesweep.scaling.design.costs import (
    NOISE,
    DesignCost,
    Estimate,
    full_cost,
    reference_minutes,
)
from nodesweep.scaling.formats import format_percent, join_words, nodes_text
from nodesweep.scaling.t_distribution import t_quantile

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
    from nodesweep.scaling.analysis.advice import Recommendation
    from nodesweep.scaling.analysis.rows import SummaryRow
    from nodesweep.scaling.analysis.verdicts import JudgedCount

ERROR = 0.05
"""Maximum share of sweeps in which any verdict (pass, fail or on the limit) is wrong."""
ZONE = 0.02
"""Relative distance from a limit within which a value counts as on the limit."""
LEAST_SPREAD = 0.001
"""Minimum relative spread to assume, since a coarse clock can make different times equal."""


def least_spread(seconds: float, is_whole: bool) -> float:
    """Return the minimum assumed spread of runs of this length, relative to their time.

    If the clock counts whole seconds, it is at least half a second, the largest rounding error.
    """
    return max(LEAST_SPREAD, 0.5 / seconds) if is_whole else LEAST_SPREAD


SIMULATED_SWEEPS = 50

_ZONE = math.log1p(ZONE)
_LARGEST_LOG = math.log(sys.float_info.max)

Times = Mapping[Point, float | None]
"""The train times in seconds of the points that have ended; None for a run without a time."""


_WORST_FIRST: tuple[Answer, ...] = ("fail", "undecided", "on_the_limit", "pass")


@dataclass(frozen=True)
class Limits:
    """The minimum efficiency and doubling ratio of a node count that passes."""

    min_efficiency: float
    min_doubling_ratio: float


def replay(
    times: Times,
    counts: Sequence[int],
    limits: Limits,
    max_repeats: int,
    not_comparable: Collection[int] = (),
    contended: Collection[Point] = (),
) -> Progress:
    """Replay the design with the points that have ended, and return its progress.

    The same outcomes give the same next points, even after a crash or on a resume. Points that the
    design has not requested are ignored. A node count whose first run gave no time is left out.

    Args:
        times: The train times of the points that have ended.
        counts: The sweep's node counts.
        limits: The limits to pass.
        max_repeats: Maximum number of runs at a node count.
        not_comparable: Node counts not shown to train the same model as the baseline. They are run
            once and not evaluated.
        contended: Points on CPU-throttled or contended nodes, whose times are not used.
    """
    design = _Design(
        times, sorted(counts), limits, max_repeats, frozenset(not_comparable), frozenset(contended)
    )
    for step in design.steps():
        if missing := tuple(point for point in step.points if point not in times):
            open_ = () if step.look is None else (step.look.answer_in_full(),)
            return Progress(design.points, missing, (*design.answers, *open_), step.reason())
    return Progress(design.points, (), design.answers, design.end)


def simulate_points(
    counts: Sequence[int],
    limits: Limits,
    max_repeats: int,
    seconds_of: Callable[[int], float],
) -> tuple[Point, ...]:
    """Return all points of a simulated sweep whose runs at N nodes take seconds_of(N).

    seconds_of is called once per run. Successive replay() calls would request the same points, but
    take more time.
    """
    times: dict[Point, float] = {}
    design = _Design(times, sorted(counts), limits, max_repeats, frozenset(), frozenset())
    for step in design.steps():
        for point in step.points:
            times[point] = seconds_of(point[0])
    return design.points


@dataclass(frozen=True)
class _Step:
    """Points requested together, the reason, and the look that left the target undecided."""

    points: tuple[Point, ...]
    reason: Callable[[], str]
    look: _Look | None = None


class _Design:
    """The state of the replay: the planned repeats of each node count, and the targets' last looks.

    A target is the node count that is being evaluated.
    """

    def __init__(
        self,
        times: Times,
        counts: list[int],
        limits: Limits,
        max_repeats: int,
        not_comparable: frozenset[int],
        contended: frozenset[Point],
    ) -> None:
        self.times, self.counts, self.limits = times, counts, limits
        self.max_repeats, self.not_comparable, self.contended = (
            max_repeats,
            not_comparable,
            contended,
        )
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
        """Yield a step for one more run at each node count; once resumed, add the times.

        The caller resumes when all of these runs have ended.
        """
        for nodes in counts:
            self.planned[nodes] += 1
        points = tuple((nodes, self.planned[nodes]) for nodes in counts)
        yield _Step(points, reason, look)
        for point in points:
            if seconds := self.times.get(point):
                self.measured.add(point[0], seconds)

    def steps(self) -> Iterator[_Step]:
        """Yield the design's steps in order, then set `end` to the reason why it is done."""
        yield from self.ask(self.counts, lambda: "every node count is run once first")
        yield from self.replace_contended()
        if self._is_contended(self.counts[0]):
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
                self.end = f"{text}; smaller node counts need no more runs"
                return
            self.end = f"no node count larger than {nodes_text(timed[0])} is known to pass"

    def replace_contended(self) -> Iterator[_Step]:
        """Yield steps for the next recorded run of node counts that had only contended runs.

        Only old sweeps have such runs, from before contended runs were repeated
        (nodesweep/scaling/planning/queue.py).
        """
        while add := [
            nodes
            for nodes in self.counts
            if self._is_contended(nodes) and (nodes, self.planned[nodes] + 1) in self.times
        ]:
            yield from self.ask(add, str)

    def _is_contended(self, nodes: int) -> bool:
        return (nodes, self.planned[nodes]) in self.contended

    def look_at(self, group: _Comparisons) -> Iterator[_Step]:
        """Yield steps that repeat the runs that the target's limits compare, until it is decided.

        Leave it undecided if no repeat is left, or if none of the last runs gave a time, since a
        program that reports no times is not worth more runs.
        """
        error = ERROR / (len(self.counts) - 1)
        last = _Look(group.target, "undecided", 0)
        added: list[Point] = []
        while True:
            if self.measured.freedom:
                # 1/2 + 1/6 + 1/12 + ... = 1: the error spent here does not depend on how many looks
                # follow
                number = last.number + 1
                last = judge(group, self.measured, error / (number * (number + 1)), number)
            least = min(self.planned[nodes] for nodes in group.repeated)
            is_lost = bool(added) and not any(
                self.times.get(point) or point in self.contended for point in added
            )
            if last.answer != "undecided" or least >= self.max_repeats or is_lost:
                self.ended.append(last)
                return
            add = [nodes for nodes in group.repeated if self.planned[nodes] == least]
            added = [(nodes, least + 1) for nodes in add]
            yield from self.ask(add, partial(_why_more, last, add), last)


class _Measured:
    """The logarithms of all times by node count, and the statistics that every look uses."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.place = {nodes: place for place, nodes in enumerate(counts)}
        self.logs: dict[int, list[float]] = {nodes: [] for nodes in counts}
        self.means, self.runs = [0.0] * len(counts), [0] * len(counts)
        self.freedom = 0
        self.is_whole = True
        """True if every time is a number of whole seconds."""
        self._squares: dict[int, list[float]] = {}

    def add(self, nodes: int, seconds: float) -> None:
        logs, place = self.logs[nodes], self.place[nodes]
        logs.append(math.log(seconds))
        self.is_whole = self.is_whole and seconds == round(seconds)
        mean = fmean(logs)
        self.means[place], self.runs[place] = mean, len(logs)
        if len(logs) > 1:
            self.freedom += 1
            self._squares[nodes] = [(value - mean) ** 2 for value in logs]

    @property
    def squares(self) -> float:
        """The sum of squared distances from the mean of each node count."""
        return math.fsum(chain.from_iterable(self._squares.values()))


class _Comparisons:
    """A node count's limits against smaller ones, baseline first: T(than)/T(target) >= a number."""

    def __init__(
        self, target: int, smaller: Sequence[int], limits: Limits, place_of: Mapping[int, int]
    ) -> None:
        base = smaller[0]
        least = limits.min_efficiency * target / base
        self.target, self._base, self._half = target, base, target / 2
        self._least, self._least_doubling = least, limits.min_doubling_ratio
        # an efficiency limit of 1/N or more implies being at least as fast as the baseline
        is_base_named = base == self._half or least < 1
        self.than = (base, *(smaller if is_base_named else smaller[1:]))
        self.places = [place_of[nodes] for nodes in self.than]
        self.least_logs = [math.log(least), *[0.0] * (len(self.than) - 1)]
        has_half = self._half in smaller
        if has_half:
            place = self.than.index(int(self._half), 1)
            self.least_logs[place] = math.log(limits.min_doubling_ratio)
        self.repeated = sorted({base, target, *([int(self._half)] if has_half else [])})
        """Node counts that are run again while the target is undecided."""

    def at(self, place: int) -> tuple[RatioCriterion, float, float]:
        """Return (criterion, least, scale); the limit is least times scale."""
        if place == 0:
            return "efficiency", self._least, self._base / self.target
        if self.than[place] == self._half:
            return "doubling_ratio", self._least_doubling, 1.0
        return "faster", 1.0, 1.0


@dataclass(frozen=True)
class _Bounds:
    """Confidence bounds on ratios of mean times, from the runs available at one look."""

    group: _Comparisons
    error: float
    target: int
    means: Sequence[float]
    runs: Sequence[int]
    spread: float
    below: float
    above: float
    """Quantile of Student's t for the upper bound; `below` is the quantile for the lower bound."""

    def at(self, place: int) -> tuple[float, float, float]:
        """Return the logarithms of a ratio and of its lower and upper bound."""
        than = self.group.places[place]
        value = self.means[than] - self.means[self.target]
        reach = self.spread * math.sqrt(1 / self.runs[than] + 1 / self.runs[self.target])
        return value, value - self.below * reach, value + self.above * reach

    def answer(self, place: int) -> Answer:
        """Return the answer for one limit."""
        _, low, high = self.at(place)
        limit = self.group.least_logs[place]
        if low >= limit:
            return "pass"
        if high < limit:
            return "fail"
        return "on_the_limit" if limit - _ZONE <= low and high <= limit + _ZONE else "undecided"

    def worst(self) -> Answer:
        """Return the worst answer over all limits.

        The search stops at the first failed limit, since most large node counts already fail on
        efficiency.
        """
        worst = len(_WORST_FIRST) - 1
        for place in range(len(self.group.than)):
            worst = min(worst, _WORST_FIRST.index(self.answer(place)))
            if worst == 0:
                break
        return _WORST_FIRST[worst]


@dataclass(frozen=True)
class _Look:
    """One look at a node count: the answer, and in `compared` the data behind the answer.

    answer_in_full() computes the numbers to display, which few looks need.
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
    """Evaluate a node count against its limits, with an error probability of at most `error`.

    The bounds on a ratio of two times come from Student's t on the logarithms, using the pooled
    spread of all node counts. To pass, a node count must pass every limit, so each limit may err by
    all of `error` (an intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300).
    It fails if it fails any limit, so for failures the limits share `error` (Bonferroni). `number`
    is the number of this look, from 1.
    """
    freedom = measured.freedom
    place = measured.place[group.target]
    least = least_spread(_exp(measured.means[place]), measured.is_whole)
    bounds = _Bounds(
        group,
        error,
        place,
        tuple(measured.means),
        tuple(measured.runs),
        spread=max(least, math.sqrt(measured.squares / freedom)),
        below=t_quantile(freedom, 1 - error),
        above=t_quantile(freedom, 1 - error / len(group.than)),
    )
    return _Look(group.target, bounds.worst(), number, bounds)


def _exp(number: float) -> float:
    """Return e**number, capped because bounds on very unequal times would overflow."""
    return math.exp(min(number, _LARGEST_LOG))


def _why_more(look: _Look, counts: Sequence[int]) -> str:
    why = (
        ("a single run of each shows no spread")
        if look.compared is None
        else look.answer_in_full().text
    )
    return f"{why}; {_one_more(counts)}"


def _one_more(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return f"one more run at {nodes_text(counts[0])}"
    return f"one more run each at {join_words(counts)} nodes"


def sequential_cost(
    counts: Sequence[int], goals: RecommendationConfig, max_repeats: int
) -> DesignCost:
    """Simulate the sequential design's node-hours on the reference curve, with a fixed seed.

    The minimum is the cost of the cheapest simulated sweep; one of these sweeps is without noise.
    The maximum is the cost of every repeat of every node count.
    """
    limits = Limits(goals.min_efficiency, goals.min_doubling_ratio)
    minutes = {nodes: reference_minutes(nodes) for nodes in counts}
    node_minutes = {nodes: nodes * minutes[nodes] for nodes in counts}
    generator = random.Random(1)

    def hours(draw: Callable[[], float]) -> float:
        points = simulate_points(
            counts, limits, max_repeats, lambda nodes: minutes[nodes] * math.exp(draw())
        )
        return sum(node_minutes[nodes] for nodes, _ in points) / 60

    runs = [hours(lambda: generator.gauss(0, NOISE)) for _ in range(SIMULATED_SWEEPS)]
    least = hours(lambda: 0.0)
    return DesignCost(min(least, *runs), fmean(runs), full_cost(counts, max_repeats))


class Sequential(Design):
    """The design that repeats runs only until every limit is decided."""

    name = "sequential"
    jobs_text = "at most {} jobs: one per node count, then the repeats needed to decide the limits"
    promise = f"the sequential design's error rate is at most {format_percent(ERROR)} per sweep"
    bounds_text = "the one-sided bounds of the sequential design, error rate at most 5% per sweep"

    def progress(
        self, config: BenchmarkConfig, rows: Sequence[SummaryRow], attempts: Sequence[Attempt]
    ) -> Progress:
        """Return the progress from a replay of the attempts.

        Times that include start-up cannot be compared, so they are not used (docs/method.md,
        "Clocks").
        """
        has_ratios = any(row.train.efficiency is not None for row in rows)
        times: dict[Point, float | None] = {}
        for nodes, repeat, seconds, contended in attempts:
            if times.get((nodes, repeat)) is None:
                times[nodes, repeat] = seconds if has_ratios and not contended else None
        without_cpu = {
            (each.nodes, each.repeat)
            for each in attempts
            if each.contended and times[each.nodes, each.repeat] is None
        }
        goals = config.report.recommendation
        return replay(
            times,
            config.sweep.node_counts,
            Limits(goals.min_efficiency, goals.min_doubling_ratio),
            config.sweep.max_repeats,
            [row.nodes for row in rows if "throughput_only" in row.flags],
            without_cpu,
        )

    def recommend(
        self,
        rows: Sequence[SummaryRow],
        goals: RecommendationConfig,
        progress: Progress,
    ) -> Recommendation | None:
        """Return the recommendation, based on the design's verdicts unless other rules apply."""
        # imported here because a plan needs none of these modules
        from nodesweep.scaling.analysis.recommend import recommend
        from nodesweep.scaling.design.advice import recommend_sequential

        return recommend(rows, goals, partial(recommend_sequential, progress=progress))

    def limit_notes(self, judged: Sequence[JudgedCount]) -> list[str]:
        """Return a note on the node counts that are on the limit, if there are any."""
        counts = [each.nodes for each in judged if each.answer == "on_the_limit"]
        if not counts:
            return []
        return [
            f"{join_words(counts)} nodes are on the limit, within {format_percent(ZONE)} of it: "
            "whether they pass makes no practical difference"
        ]

    def caveats(self, measured: Measured, general: Sequence[str]) -> Sequence[str]:
        """Return caveats on the runs that the design skipped, then the general ones."""
        from nodesweep.scaling.design.advice import skipped_run_notes

        made = {(each.nodes, each.repeat) for each in measured.outcomes}
        return (*skipped_run_notes(measured.config, measured.progress, made), *general)

    def estimate(self, config: BenchmarkConfig) -> Estimate | None:
        """Return the cost with the maximum number of repeats of the config's design, at least 2.

        None for several arms, a single node count, or a config that the design does not suit.
        """
        sweep = config.sweep
        if sweep.arm_count > 1 or len(sweep.node_counts) < 2:
            return None
        if self.rules.unsuited(config):
            return None
        repeats = max(2, sweep.arm_repeats)
        cost = sequential_cost(sweep.node_counts, config.report.recommendation, repeats)
        return Estimate(f"sequential, up to {repeats}", cost)
