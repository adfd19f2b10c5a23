"""The probe design over several arms: dominated cells get no further probes.

From the second pass over the cells on, a cell is dropped if one-sided bounds show that another cell
is both faster and cheaper, or that the cell misses the deadline or the budget per run
(docs/instance-types.md). The bounds are Student's t on logarithms with the spread of all cells
pooled; their error is spent over cells, comparisons and passes, so that a cell on the time-cost
front is dropped in at most 5% of sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.arms import Arm, Cell, Key
from nodesweep.scaling.design.sequential import least_spread
from nodesweep.scaling.formats import format_seconds, format_usd, join_words, pluralize
from nodesweep.scaling.instances.arms import cells_of, cells_out_of_memory, outcomes_by_arm
from nodesweep.scaling.instances.compare import choose_cells, judge_cells
from nodesweep.scaling.instances.progress import SweepProgress, summarise_arm
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.t_distribution import t_quantile

ERROR = 0.05
"""The largest share of sweeps in which a cell that belongs on the front may be dropped."""
FIRST_LOOK = 2
"""The first pass after which cells are dropped, since one run each shows no spread."""


class Sample(NamedTuple):
    """One run of a cell: its train time, and the cost of a whole run (None if unknown)."""

    seconds: float
    usd: float | None


Runs = Mapping[Cell, Mapping[int, Sample | None]]
"""Each cell's repeats that have ended; None for a run without a time."""


@dataclass(frozen=True)
class Passes:
    """The state of the probing.

    `asked`: every (cell, repeat) asked for. `missing`: those of them that have not ended, () once
    all passes are done. `dropped`: dropped cells with reasons. `later`: all that may still be asked
    for after those.
    """

    asked: tuple[tuple[Cell, int], ...]
    missing: tuple[tuple[Cell, int], ...]
    dropped: Mapping[Cell, str] = field(default_factory=dict)
    later: tuple[tuple[Cell, int], ...] = ()


def replay_passes(
    runs: Runs,
    cells: Sequence[Cell],
    repeats: int,
    goals: RecommendationConfig,
    lost: Collection[Cell] = (),
    failing: Collection[Cell] = (),
) -> Passes:
    """Replay the passes with the runs that have ended; the same runs give the same next ones.

    A cell without a time in the first pass is not probed again.

    Args:
        runs: The runs that have ended.
        cells: Every cell of the sweep.
        repeats: Number of passes.
        goals: Deadline and budget.
        lost: Cells that memory rules out, which get no new runs.
        failing: Cells with failed attempts, whose completed runs rule out no other cell.
    """
    asked: list[tuple[Cell, int]] = []
    dropped: dict[Cell, str] = {}
    for repeat in range(1, repeats + 1):
        timed = [cell for cell in cells if repeat == 1 or any(runs.get(cell, {}).values())]
        left = [cell for cell in timed if cell not in dropped]
        now = [(cell, repeat) for cell in left if cell not in lost or repeat in runs.get(cell, {})]
        asked += now
        missing = tuple((cell, each) for cell, each in now if each not in runs.get(cell, {}))
        if missing:
            further = range(repeat + 1, repeats + 1)
            later = tuple((cell, each) for each in further for cell in left if cell not in lost)
            return Passes(tuple(asked), missing, dropped, later)
        if FIRST_LOOK <= repeat < repeats:
            samples = _samples(runs, asked)
            error = ERROR / ((repeats - 2) * len(cells) * (len(cells) + 1))
            dropped |= find_dominated(
                {cell: samples[cell] for cell in left if cell in samples}, goals, error, failing
            )
    return Passes(tuple(asked), (), dropped)


def _samples(runs: Runs, asked: Sequence[tuple[Cell, int]]) -> dict[Cell, list[Sample]]:
    """Return the samples measured so far; cells without any time are left out."""
    found: dict[Cell, list[Sample]] = {}
    for cell, repeat in asked:
        if (sample := runs[cell][repeat]) is not None:
            found.setdefault(cell, []).append(sample)
    return found


def find_dominated(
    samples: Mapping[Cell, Sequence[Sample]],
    goals: RecommendationConfig,
    error: float,
    failing: Collection[Cell] = (),
) -> dict[Cell, str]:
    """Return the cells that another one dominates, or that miss a limit, with reasons.

    A dominated cell loses in both time and cost, so each comparison may err by all of `error` (an
    intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300). Cells with failed
    attempts (`failing`) may be dominated, but dominate none: a result takes more than their runs.
    """
    times = {cell: [math.log(each.seconds) for each in own] for cell, own in samples.items()}
    costs = {
        cell: [math.log(each.usd) for each in own if each.usd]
        for cell, own in samples.items()
        if all(each.usd for each in own)
    }
    seconds = [each.seconds for own in samples.values() for each in own]
    is_whole = all(each == round(each) for each in seconds)
    least = least_spread(min(seconds, default=1.0), is_whole)
    by_time, by_cost = _Bounds(times, error, least), _Bounds(costs, error, least)
    found: dict[Cell, str] = {}
    for cell in samples:
        better = [
            other
            for other in samples
            if other != cell
            and other not in failing
            and by_time.is_less(other, cell)
            and by_cost.is_less(other, cell)
        ]
        if better:
            best = min(better, key=lambda other: fmean(times[other]))
            found[cell] = f"{best.text} is faster and cheaper"
        elif goals.deadline_seconds is not None and by_time.is_above(cell, goals.deadline_seconds):
            found[cell] = f"slower than the deadline of {format_seconds(goals.deadline_seconds)}"
        elif goals.budget_usd_per_run is not None and by_cost.is_above(
            cell, goals.budget_usd_per_run
        ):
            found[cell] = f"over the budget of {format_usd(goals.budget_usd_per_run)}"
    return found


class _Bounds:
    """One-sided bounds on means of logarithms, with the spread pooled over all cells."""

    def __init__(self, logs: Mapping[Cell, Sequence[float]], error: float, least: float) -> None:
        self._logs = logs
        freedom = sum(len(values) - 1 for values in logs.values())
        squares = math.fsum(
            (value - fmean(values)) ** 2 for values in logs.values() for value in values
        )
        self._reach = (
            math.inf
            if freedom < 1
            else t_quantile(freedom, 1 - error) * max(least, math.sqrt(squares / freedom))
        )

    def is_less(self, cell: Cell, other: Cell) -> bool:
        """Return True if the cell's mean is significantly below the other's."""
        if cell not in self._logs or other not in self._logs:
            return False
        mine, its = self._logs[cell], self._logs[other]
        return fmean(mine) + self._reach * math.sqrt(1 / len(mine) + 1 / len(its)) < fmean(its)

    def is_above(self, cell: Cell, limit: float) -> bool:
        """Return True if the cell's mean is significantly above the limit."""
        values = self._logs.get(cell)
        if values is None:
            return False
        return fmean(values) - self._reach / math.sqrt(len(values)) > math.log(limit)


def probe_arms(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> SweepProgress:
    """Return the progress: cells are probed until dominated, then a whole run validates one."""
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
    passes = replay_passes(runs, cells_of(config), repeats, goals, lost, failing)
    asked = tuple(Key(*cell, repeat) for cell, repeat in passes.asked)
    missing = tuple(Key(*cell, repeat) for cell, repeat in passes.missing)
    if missing:
        later = tuple(Key(*cell, repeat) for cell, repeat in passes.later)
        return SweepProgress(asked, missing, _pass_text(passes), (), passes.dropped, later)
    check, reason = _check(config, rows_by_arm)
    if check is None:
        return SweepProgress(asked, (), reason, dropped=passes.dropped)
    left = () if check.repeat in runs.get(check.cell, {}) else (check,)
    return SweepProgress((*asked, check), left, reason, dropped=passes.dropped, check=check)


def _sample(run: Run) -> Sample | None:
    if not run.used or not run.train_seconds:
        return None
    return Sample(run.train_seconds, run.whole_run_costs.total_usd)


def _pass_text(passes: Passes) -> str:
    repeat = passes.missing[0][1]
    if repeat == 1:
        return "every instance type is probed at every node count first"
    if not passes.dropped:
        return f"pass {repeat}: no combination is known to be beaten"
    dropped = [f"{cell.text} ({why})" for cell, why in passes.dropped.items()]
    number = pluralize(len(dropped), "combination")
    return f"pass {repeat}: {number} dropped: {join_words(dropped)}"


def _check(
    config: BenchmarkConfig, rows_by_arm: Mapping[Arm, Sequence[SummaryRow]]
) -> tuple[Key | None, str]:
    """Return (point to validate with a whole run, reason); None if there is none to validate."""
    if not any(row.n_projected for rows in rows_by_arm.values() for row in rows):
        return None, "no time is projected, so there is nothing to validate"
    choice = choose_cells(config, judge_cells(config, rows_by_arm))[0]
    if choice.instance_type is None or choice.nodes is None:
        return None, "no instance type is recommended, so none is validated"
    arm = next(arm for arm in rows_by_arm if arm.name == choice.instance_type)
    key = Key(arm, choice.nodes, config.sweep.most_repeats)
    return key, f"{choice.reason.removesuffix('.')}; one full run on {key.cell.text} validates it"
