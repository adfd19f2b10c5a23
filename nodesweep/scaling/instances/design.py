"""The probe design over several arms, which stops probing cells that cannot be the answer.

The smallest and the largest node count of each arm are probed first, then the node counts between
them, then repeats. The results are examined after each round, and cells that cannot be the answer
are dropped (docs/instance-types.md). The bounds are Student's t on logarithms with the spread of
all cells pooled. Their error is divided among cells and rounds, so that the best cell is dropped in
at most 5% of sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
from nodesweep.scaling.analysis.intervals import next_run_bound
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.arms import Arm, Cell, Key
from nodesweep.scaling.design.sequential import least_spread
from nodesweep.scaling.formats import (
    format_percent,
    format_seconds,
    format_usd,
    join_words,
    pluralize,
)
from nodesweep.scaling.instances.arms import cells_of, cells_out_of_memory, outcomes_by_arm
from nodesweep.scaling.instances.compare import choose_cells, has_no_goal, judge_cells
from nodesweep.scaling.instances.progress import SweepProgress, summarise_arm
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.t_distribution import t_quantile

ERROR = 0.05
"""Maximum share of sweeps in which the best cell is dropped."""
SINGLE_RUN_FACTOR = 1.5
"""Minimum ratio between the values of two cells for single runs to decide between them.

Even if one run in 20 takes twice as long, the best cell is dropped in less than 5% of sweeps
(benchmarks/instances/grid.py).
"""
SINGLE_RUN_ERRORS = 4.0
"""Minimum distance between two values, in standard errors, for single runs to decide."""
MOST_EFFICIENCY = 1.25
"""Maximum efficiency assumed at an unprobed node count, relative to the next smaller probed one."""


class Sample(NamedTuple):
    """The train time, cost and time from submission to end of one run; None if unknown.

    The values of a probe are projected to a full run.
    """

    seconds: float
    usd: float | None
    waited_seconds: float | None = None


Runs = Mapping[Cell, Mapping[int, Sample | None]]
"""The repeats of each cell that have ended; None for a run without a time."""
Samples = Mapping[Cell, Sequence[Sample]]


@dataclass(frozen=True)
class Rounds:
    """The state of the probing.

    `asked` lists every (cell, repeat) requested so far. `missing` lists those of them that have not
    ended, and is empty once all rounds are done. `dropped` maps each dropped cell to the reason.
    `later` lists every (cell, repeat) that can still be requested. `number` is the number of the
    last round, starting from 1.
    """

    asked: tuple[tuple[Cell, int], ...]
    missing: tuple[tuple[Cell, int], ...]
    dropped: Mapping[Cell, str] = field(default_factory=dict)
    later: tuple[tuple[Cell, int], ...] = ()
    number: int = 1


def replay_rounds(
    runs: Runs,
    cells: Sequence[Cell],
    repeats: int,
    goals: RecommendationConfig,
    lost: Collection[Cell] = (),
    failing: Collection[Cell] = (),
) -> Rounds:
    """Replay the rounds with the runs that have ended.

    The same runs always give the same next probes. A cell whose first probe has no time is not
    probed again.

    Args:
        runs: The runs that have ended.
        cells: Every cell of the sweep, by arm and ascending node count.
        repeats: Maximum number of probes of a cell.
        goals: Deadline and budget. Without either, the first round probes every node count, since
            the recommendations for the arms need them all.
        lost: Cells that memory rules out, which get no new runs.
        failing: Cells with failed attempts, whose completed runs cannot rule out other cells.
    """
    ends = set(cells) if has_no_goal(goals) else _ends(cells)
    probes = dict.fromkeys(cells, 0)
    asked: list[tuple[Cell, int]] = []
    dropped: dict[Cell, str] = {}
    number = 0
    while True:
        number += 1
        samples = _samples(runs, asked)
        known = [cell for cell in cells if cell in samples or not probes[cell]]
        error = _error(len(cells), goals, number - 1, repeats)
        beaten = find_beaten(samples, known, goals, error, failing) if samples else {}
        dropped = {cell: why for cell, why in beaten.items() if probes[cell] < repeats}
        left = [cell for cell in known if cell not in beaten and probes[cell] < repeats]
        due = [
            (cell, probes[cell] + 1)
            for cell in left
            if cell not in lost or probes[cell] + 1 in runs.get(cell, {})
        ]
        now = _next(due, ends)
        asked += now
        probes.update(now)
        if missing := tuple((cell, each) for cell, each in now if each not in runs.get(cell, {})):
            later = tuple(
                (cell, each)
                for each in range(1, repeats + 1)
                for cell in left
                if each > probes[cell] and cell not in lost
            )
            return Rounds(tuple(asked), missing, dropped, later, number)
        if not now:
            break
    return Rounds(tuple(asked), (), dropped, (), number)


def _ends(cells: Sequence[Cell]) -> set[Cell]:
    """Return the cells of each arm with the smallest and the largest node count.

    These are the D-optimal points for fitting a line, such as log T over log N (Atkinson, Donev and
    Tobias, *Optimum Experimental Designs, with SAS*, 2007, chapter 11).
    """
    by_arm: dict[Arm, list[Cell]] = {}
    for cell in cells:
        by_arm.setdefault(cell.arm, []).append(cell)
    return {end for own in by_arm.values() for end in (own[0], own[-1])}


def _next(due: Sequence[tuple[Cell, int]], ends: Collection[Cell]) -> list[tuple[Cell, int]]:
    """Return the probes of the next round, starting with one probe of each end."""
    first = [(cell, repeat) for cell, repeat in due if cell in ends and repeat == 1] or due
    least = min((repeat for _, repeat in first), default=0)
    return [(cell, repeat) for cell, repeat in first if repeat == least]


def _samples(runs: Runs, asked: Sequence[tuple[Cell, int]]) -> dict[Cell, list[Sample]]:
    """Return the samples measured so far, excluding cells that have no time."""
    found: dict[Cell, list[Sample]] = {}
    for cell, repeat in asked:
        if (sample := runs[cell][repeat]) is not None:
            found.setdefault(cell, []).append(sample)
    return found


def _error(cells: int, goals: RecommendationConfig, look: int, repeats: int) -> float:
    """Return the error of each bound at a look, such that all looks together spend at most ERROR.

    The first look, which has single runs, spends no error. The looks of the usual number of rounds
    spend equal parts, and all further looks together spend one more part. With a goal, the best
    cell can be wrongly dropped by its own two limits or by one bound against each other cell.
    Without a goal, each cell on the time-cost front can be wrongly dropped by each other cell.
    """
    usual = repeats + 1
    share = 0.5 ** max(0, look - 1 - usual) / (usual + 1)
    return ERROR * share / (cells**2 if has_no_goal(goals) else cells + 1)


def find_beaten(
    samples: Samples,
    cells: Sequence[Cell],
    goals: RecommendationConfig,
    error: float,
    failing: Collection[Cell] = (),
) -> dict[Cell, str]:
    """Return the cells that cannot be the answer, and why.

    With goals, a cell is beaten if it misses a limit, or if for each goal another cell that meets
    all limits is better: cheaper for a deadline, faster for a budget. Without goals, it is beaten
    if another cell is faster and cheaper. Each bound can use the full `error` even if several
    bounds must hold (an intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300).

    Args:
        samples: The measured runs.
        cells: The measured and the unprobed cells, by arm and ascending node count.
        goals: Deadline and budget.
        error: Maximum probability that a bound is wrong.
        failing: Cells with failed attempts. They can be beaten but cannot beat other cells, since a
            result takes more time and money than their completed runs show.
    """
    judge = _Judge(samples, goals, error, failing)
    found: dict[Cell, str] = {}
    base: Cell | None = None
    for cell in cells:
        if cell in samples:
            base = cell
            why = judge.why_beaten(cell)
        elif base is None or base.arm != cell.arm:
            continue
        elif why := judge.why_beaten(base, 1 / MOST_EFFICIENCY, base.nodes / cell.nodes):
            why = f"not probed: {why}, even at an efficiency of {format_percent(MOST_EFFICIENCY)}"
        if why is not None:
            found[cell] = why
    return found


class _Judge:
    """The bounds on times and costs at one look, and the cells that are sure to meet all limits."""

    def __init__(
        self,
        samples: Samples,
        goals: RecommendationConfig,
        error: float,
        failing: Collection[Cell],
    ) -> None:
        times = {cell: [each.seconds for each in own] for cell, own in samples.items()}
        waits = {
            cell: [each.waited_seconds for each in own if each.waited_seconds]
            for cell, own in samples.items()
        }
        if any(len(own) < len(samples[cell]) for cell, own in waits.items()):
            waits = times
        costs = {
            cell: [each.usd for each in own if each.usd]
            for cell, own in samples.items()
            if all(each.usd for each in own)
        }
        seconds = [each for own in times.values() for each in own]
        least = least_spread(min(seconds), all(each == round(each) for each in seconds))
        self._goals = goals
        self._times = _Bounds(times, error, least)
        self._waits = _Bounds(waits, error, least)
        self._costs = _Bounds(costs, error, least)
        self._by_cost = bool(costs)
        self._rivals = sorted(
            (
                cell
                for cell in samples
                if cell not in failing
                and self._waits.is_below(cell, goals.deadline_seconds)
                and self._costs.is_below(cell, goals.budget_usd_per_run)
            ),
            key=lambda cell: fmean(times[cell]),
        )

    def why_beaten(self, cell: Cell, share: float = 1.0, of_time: float = 1.0) -> str | None:
        """Return why a cell cannot be the answer, or None if it can.

        Args:
            cell: The cell.
            share: Factor for the cost and times of the cell, which turns a probed node count into
                a lower bound for a larger one that is not probed.
            of_time: Additional factor for the times of the cell.
        """
        goals = self._goals
        cheaper = [each for each in self._rivals if self._costs.is_less(each, cell, share)]
        faster = [each for each in self._rivals if self._times.is_less(each, cell, share * of_time)]
        if has_no_goal(goals):
            both = [each for each in faster if each in cheaper]
            return f"{both[0].text} is faster and cheaper" if both else None
        deadline, budget = goals.deadline_seconds, goals.budget_usd_per_run
        if self._waits.is_above(cell, deadline, share * of_time):
            return f"misses the deadline of {format_seconds(deadline)}"
        if self._costs.is_above(cell, budget, share):
            return f"over the budget of {format_usd(budget)}"
        better = []
        if deadline is not None and self._by_cost:
            better.append((cheaper, "costs less and meets the deadline"))
        elif deadline is not None:
            better.append((faster, "is faster and meets the deadline"))
        if budget is not None:
            better.append((faster, "is faster and within the budget"))
        if not all(those for those, _ in better):
            return None
        return ", and ".join(f"{those[0].text} {why}" for those, why in better)


class _Bounds:
    """One-sided bounds on means of logarithms, with the spread pooled over all cells."""

    def __init__(self, values: Mapping[Cell, Sequence[float]], error: float, least: float) -> None:
        self._values = values
        logs = {cell: [math.log(each) for each in own] for cell, own in values.items()}
        self._means = {cell: fmean(own) for cell, own in logs.items()}
        freedom = sum(len(own) - 1 for own in logs.values())
        squares = math.fsum(
            (each - self._means[cell]) ** 2 for cell, own in logs.items() for each in own
        )
        self._spread = max(least, math.sqrt(squares / max(freedom, 1)))
        self._t = t_quantile(freedom, 1 - error) if freedom else math.inf

    def is_less(self, cell: Cell, other: Cell, share: float = 1.0) -> bool:
        """Return True if the mean is significantly below `share` times that of the other cell."""
        if cell not in self._means or other not in self._means:
            return False
        reach = self._reach(len(self._values[cell]), len(self._values[other]))
        return self._means[cell] + reach < self._means[other] + math.log(share)

    def is_above(self, cell: Cell, limit: float | None, share: float = 1.0) -> bool:
        """Return True if `share` times the mean is significantly above the limit."""
        if limit is None or cell not in self._means:
            return False
        reach = self._reach(len(self._values[cell]))
        return self._means[cell] + math.log(share) - reach > math.log(limit)

    def is_below(self, cell: Cell, limit: float | None) -> bool:
        """Return True if the upper bounds of the mean and of the next run meet the limit.

        The bound of the next run is ignored if there are fewer than three runs. Return True if
        there is no limit.
        """
        if limit is None:
            return True
        if cell not in self._means:
            return False
        values = self._values[cell]
        is_low = self._means[cell] + self._reach(len(values)) < math.log(limit)
        return is_low and (next_run_bound(values) or 0.0) <= limit

    def _reach(self, *runs: int) -> float:
        """Return the distance of a bound from a mean, or from the difference of two means.

        `runs` are the numbers of runs behind the means.
        """
        error = self._spread * math.sqrt(math.fsum(1 / each for each in runs))
        if min(runs) == 1:
            return max(math.log(SINGLE_RUN_FACTOR), SINGLE_RUN_ERRORS * error)
        return self._t * error


def probe_arms(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> SweepProgress:
    """Return the progress of a probe sweep, which ends with a full run to validate the choice."""
    rows_by_arm: dict[Arm, tuple[SummaryRow, ...]] = {}
    runs: dict[Cell, dict[int, Sample | None]] = {}
    for arm, own in outcomes_by_arm(config, outcomes).items():
        rows, own_runs = summarise_arm(config.of_arm(arm.name), own)
        rows_by_arm[arm] = rows
        for run in own_runs:
            known = runs.setdefault(Cell(arm, run.outcome.nodes), {})
            known[run.outcome.repeat] = _sample(run) or known.get(run.outcome.repeat)
    lost = cells_out_of_memory(config, outcomes)
    goals, repeats = config.report.recommendation, config.sweep.repeats
    failing = {
        Cell(arm, row.nodes)
        for arm, rows in rows_by_arm.items()
        for row in rows
        if row.per_result is not None
    }
    cells = cells_of(config)
    rounds = replay_rounds(runs, cells, repeats, goals, lost, failing)
    asked = tuple(Key(*cell, repeat) for cell, repeat in rounds.asked)
    missing = tuple(Key(*cell, repeat) for cell, repeat in rounds.missing)
    if missing:
        later = tuple(Key(*cell, repeat) for cell, repeat in rounds.later)
        reason = _round_text(rounds, cells, config.sweep.arm_kind)
        return SweepProgress(asked, missing, reason, (), rounds.dropped, later)
    check, reason = _check(config, rows_by_arm)
    if check is None:
        return SweepProgress(asked, (), reason, dropped=rounds.dropped)
    left = () if check.repeat in runs.get(check.cell, {}) else (check,)
    return SweepProgress((*asked, check), left, reason, dropped=rounds.dropped, check=check)


def _sample(run: Run) -> Sample | None:
    if not run.used or not run.train_seconds:
        return None
    waited = run.outcome.whole_run_clocks.submit_to_end_seconds
    return Sample(run.train_seconds, run.whole_run_costs.total_usd, waited)


def _round_text(rounds: Rounds, cells: Sequence[Cell], arm: str) -> str:
    if rounds.number == 1:
        what = (
            f"every {arm} is probed at every node count"
            if len(rounds.asked) >= len(cells)
            else f"the smallest and the largest node count of every {arm} are probed"
        )
        return f"{what} first"
    if not rounds.dropped:
        return f"round {rounds.number}: no combination is ruled out"
    dropped = [f"{cell.text} ({why})" for cell, why in rounds.dropped.items()]
    much = pluralize(len(dropped), "combination")
    return f"round {rounds.number}: {much} dropped: {join_words(dropped)}"


def _check(
    config: BenchmarkConfig, rows_by_arm: Mapping[Arm, Sequence[SummaryRow]]
) -> tuple[Key | None, str]:
    """Return (point of the validation run, reason); the point is None if no run is needed."""
    if not any(row.n_projected for rows in rows_by_arm.values() for row in rows):
        return None, "no time is projected, so there is nothing to validate"
    choice = choose_cells(config, judge_cells(config, rows_by_arm))[0]
    if choice.name is None or choice.nodes is None:
        return None, f"no {config.sweep.arm_kind} is recommended, so none is validated"
    arm = next(arm for arm in rows_by_arm if arm.name == choice.name)
    key = Key(arm, choice.nodes, config.sweep.most_repeats)
    return key, f"{choice.reason.removesuffix('.')}; one full run on {key.cell.text} validates it"
