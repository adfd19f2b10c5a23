"""The probe design over several instance types: dominated arms get no further probes.

From the second pass over the arms on, an arm is dropped if one-sided bounds show that another arm
is both faster and cheaper, or that the arm misses the deadline or the budget per run
(docs/instance-types.md). The bounds are Student's t on logarithms with the spread of all arms
pooled; their error is spent over arms, comparisons and passes, so that an arm on the time-cost
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
from nodesweep.scaling.design.sequential import least_spread
from nodesweep.scaling.formats import format_seconds, format_usd, join_words, pluralize
from nodesweep.scaling.instances.arms import Arm, arms_of, arms_out_of_memory, outcomes_by_type
from nodesweep.scaling.instances.compare import choose_arms, judge_arms
from nodesweep.scaling.instances.progress import SweepProgress, summarise_type
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import Key
from nodesweep.scaling.t_distribution import t_quantile

ERROR = 0.05
"""The largest share of sweeps in which an arm that belongs on the front may be dropped."""
FIRST_LOOK = 2
"""The first pass after which arms are dropped, since one run each shows no spread."""


class Sample(NamedTuple):
    """One run of an arm: its train time, and the cost of a whole run (None if unknown)."""

    seconds: float
    usd: float | None


Runs = Mapping[Arm, Mapping[int, Sample | None]]
"""Each arm's repeats that have ended; None for a run without a time."""


@dataclass(frozen=True)
class Passes:
    """The state of the probing.

    `asked`: every (arm, repeat) asked for. `missing`: those of them that have not ended, () once
    all passes are done. `dropped`: dropped arms with reasons. `later`: all that may still be asked
    for after those.
    """

    asked: tuple[tuple[Arm, int], ...]
    missing: tuple[tuple[Arm, int], ...]
    dropped: Mapping[Arm, str] = field(default_factory=dict)
    later: tuple[tuple[Arm, int], ...] = ()


def replay_passes(
    runs: Runs,
    arms: Sequence[Arm],
    repeats: int,
    goals: RecommendationConfig,
    lost: Collection[Arm] = (),
    failing: Collection[Arm] = (),
) -> Passes:
    """Replay the passes with the runs that have ended; the same runs give the same next ones.

    An arm without a time in the first pass is not probed again.

    Args:
        runs: The runs that have ended.
        arms: Every arm of the sweep.
        repeats: Number of passes.
        goals: Deadline and budget.
        lost: Arms that memory rules out, which get no new runs.
        failing: Arms with failed attempts, whose completed runs rule out no other arm.
    """
    asked: list[tuple[Arm, int]] = []
    dropped: dict[Arm, str] = {}
    for repeat in range(1, repeats + 1):
        timed = [arm for arm in arms if repeat == 1 or any(runs.get(arm, {}).values())]
        left = [arm for arm in timed if arm not in dropped]
        now = [(arm, repeat) for arm in left if arm not in lost or repeat in runs.get(arm, {})]
        asked += now
        missing = tuple((arm, each) for arm, each in now if each not in runs.get(arm, {}))
        if missing:
            further = range(repeat + 1, repeats + 1)
            later = tuple((arm, each) for each in further for arm in left if arm not in lost)
            return Passes(tuple(asked), missing, dropped, later)
        if FIRST_LOOK <= repeat < repeats:
            samples = _samples(runs, asked)
            error = ERROR / ((repeats - 2) * len(arms) * (len(arms) + 1))
            dropped |= find_dominated(
                {arm: samples[arm] for arm in left if arm in samples}, goals, error, failing
            )
    return Passes(tuple(asked), (), dropped)


def _samples(runs: Runs, asked: Sequence[tuple[Arm, int]]) -> dict[Arm, list[Sample]]:
    """Return the samples measured so far; arms without any time are left out."""
    found: dict[Arm, list[Sample]] = {}
    for arm, repeat in asked:
        if (sample := runs[arm][repeat]) is not None:
            found.setdefault(arm, []).append(sample)
    return found


def find_dominated(
    samples: Mapping[Arm, Sequence[Sample]],
    goals: RecommendationConfig,
    error: float,
    failing: Collection[Arm] = (),
) -> dict[Arm, str]:
    """Return the arms that another one dominates, or that miss a limit, with reasons.

    A dominated arm loses in both time and cost, so each comparison may err by all of `error` (an
    intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300). Arms with failed
    attempts (`failing`) may be dominated, but dominate none: a result takes more than their runs.
    """
    times = {arm: [math.log(each.seconds) for each in own] for arm, own in samples.items()}
    costs = {
        arm: [math.log(each.usd) for each in own if each.usd]
        for arm, own in samples.items()
        if all(each.usd for each in own)
    }
    seconds = [each.seconds for own in samples.values() for each in own]
    is_whole = all(each == round(each) for each in seconds)
    least = least_spread(min(seconds, default=1.0), is_whole)
    by_time, by_cost = _Bounds(times, error, least), _Bounds(costs, error, least)
    found: dict[Arm, str] = {}
    for arm in samples:
        better = [
            other
            for other in samples
            if other != arm
            and other not in failing
            and by_time.is_less(other, arm)
            and by_cost.is_less(other, arm)
        ]
        if better:
            best = min(better, key=lambda other: fmean(times[other]))
            found[arm] = f"{best.text} is faster and cheaper"
        elif goals.deadline_seconds is not None and by_time.is_above(arm, goals.deadline_seconds):
            found[arm] = f"slower than the deadline of {format_seconds(goals.deadline_seconds)}"
        elif goals.budget_usd_per_run is not None and by_cost.is_above(
            arm, goals.budget_usd_per_run
        ):
            found[arm] = f"over the budget of {format_usd(goals.budget_usd_per_run)}"
    return found


class _Bounds:
    """One-sided bounds on means of logarithms, with the spread pooled over all arms."""

    def __init__(self, logs: Mapping[Arm, Sequence[float]], error: float, least: float) -> None:
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

    def is_less(self, arm: Arm, other: Arm) -> bool:
        """Return True if the arm's mean is significantly below the other's."""
        if arm not in self._logs or other not in self._logs:
            return False
        mine, its = self._logs[arm], self._logs[other]
        return fmean(mine) + self._reach * math.sqrt(1 / len(mine) + 1 / len(its)) < fmean(its)

    def is_above(self, arm: Arm, limit: float) -> bool:
        """Return True if the arm's mean is significantly above the limit."""
        values = self._logs.get(arm)
        if values is None:
            return False
        return fmean(values) - self._reach / math.sqrt(len(values)) > math.log(limit)


def probe_types(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> SweepProgress:
    """Return the progress: arms are probed until dominated, then a whole run validates one."""
    rows_by_type: dict[str, tuple[SummaryRow, ...]] = {}
    runs: dict[Arm, dict[int, Sample | None]] = {}
    for name, own in outcomes_by_type(config, outcomes).items():
        rows, own_runs = summarise_type(config.of_type(name), own)
        rows_by_type[name] = rows
        for run in own_runs:
            known = runs.setdefault(Arm(name, run.outcome.nodes), {})
            known[run.outcome.repeat] = _sample(run) or known.get(run.outcome.repeat)
    lost = arms_out_of_memory(config, outcomes)
    goals, repeats = config.report.recommendation, config.sweep.repeats
    failing = {
        Arm(name, row.nodes)
        for name, rows in rows_by_type.items()
        for row in rows
        if row.per_result is not None
    }
    passes = replay_passes(runs, arms_of(config), repeats, goals, lost, failing)
    asked = tuple(Key(*arm, repeat) for arm, repeat in passes.asked)
    missing = tuple(Key(*arm, repeat) for arm, repeat in passes.missing)
    if missing:
        later = tuple(Key(*arm, repeat) for arm, repeat in passes.later)
        return SweepProgress(asked, missing, _pass_text(passes), (), passes.dropped, later)
    check, reason = _check(config, rows_by_type)
    if check is None:
        return SweepProgress(asked, (), reason, dropped=passes.dropped)
    left = () if check.repeat in runs.get(Arm(check.instance_type, check.nodes), {}) else (check,)
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
        return f"pass {repeat}: no arm is known to be beaten"
    dropped = [f"{arm.text} ({why})" for arm, why in passes.dropped.items()]
    return f"pass {repeat}: {pluralize(len(dropped), 'arm')} dropped: {join_words(dropped)}"


def _check(
    config: BenchmarkConfig, rows_by_type: Mapping[str, Sequence[SummaryRow]]
) -> tuple[Key | None, str]:
    """Return (point to validate with a whole run, reason); None if there is none to validate."""
    if not any(row.n_projected for rows in rows_by_type.values() for row in rows):
        return None, "no time is projected, so there is nothing to validate"
    choice = choose_arms(config, judge_arms(config, rows_by_type))[0]
    if choice.instance_type is None or choice.nodes is None:
        return None, "no instance type is recommended, so none is validated"
    arm = Arm(choice.instance_type, choice.nodes)
    return Key(*arm, config.sweep.most_repeats), (
        f"{choice.reason.removesuffix('.')}; one full run on {arm.text} validates it"
    )
