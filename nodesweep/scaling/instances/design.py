"""The probe design over several instance types: probes where they decide the answer.

The smallest and the largest count of each type come first, then the counts between, then repeats;
an arm gets no further probe once it cannot be the answer (docs/instance-types.md). The bounds are
Student's t on logarithms with the spread of all arms pooled; their error is spent over arms and
looks, so that the arm that answers is dropped in at most 5% of sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean
from typing import NamedTuple

from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
from nodesweep.scaling.analysis.intervals import next_run_bound
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.design.sequential import least_spread
from nodesweep.scaling.formats import (
    format_percent,
    format_seconds,
    format_usd,
    join_words,
    pluralize,
)
from nodesweep.scaling.instances.arms import Arm, arms_of, arms_out_of_memory, outcomes_by_type
from nodesweep.scaling.instances.compare import choose_arms, has_no_goal, judge_arms
from nodesweep.scaling.instances.progress import SweepProgress, summarise_type
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import Key
from nodesweep.scaling.t_distribution import t_quantile

ERROR = 0.05
"""The largest share of sweeps in which the arm that answers may be dropped."""
SINGLE_RUN_FACTOR = 1.5
"""Least factor by which a single run decides: with one run in 20 twice as long, the arm that
answers is still dropped in less than 5% of sweeps (benchmarks/instances/grid.py)."""
SINGLE_RUN_ERRORS = 4.0
"""Least standard errors by which a single run decides."""
MOST_EFFICIENCY = 1.25
"""Largest efficiency assumed for an unseen count, over the next smaller probed one."""


class Sample(NamedTuple):
    """One run of an arm: train time, cost of a whole run, time from submission to end.

    None: unknown.
    """

    seconds: float
    usd: float | None
    waited_seconds: float | None = None


Runs = Mapping[Arm, Mapping[int, Sample | None]]
"""Each arm's repeats that have ended; None for a run without a time."""
Samples = Mapping[Arm, Sequence[Sample]]


@dataclass(frozen=True)
class Rounds:
    """The state of the probing.

    `asked`: every (arm, repeat) asked for. `missing`: those of them that have not ended, () once
    all rounds are done. `dropped`: dropped arms with reasons. `later`: all that may still be asked
    for after those. `number`: that of the last round, from 1.
    """

    asked: tuple[tuple[Arm, int], ...]
    missing: tuple[tuple[Arm, int], ...]
    dropped: Mapping[Arm, str] = field(default_factory=dict)
    later: tuple[tuple[Arm, int], ...] = ()
    number: int = 1


def replay_rounds(
    runs: Runs,
    arms: Sequence[Arm],
    repeats: int,
    goals: RecommendationConfig,
    lost: Collection[Arm] = (),
    failing: Collection[Arm] = (),
) -> Rounds:
    """Replay the rounds with the runs that have ended; the same runs give the same next ones.

    An arm whose first probe has no time is not probed again.

    Args:
        runs: The runs that have ended.
        arms: Every arm of the sweep, by type and ascending count.
        repeats: The most probes of an arm.
        goals: Deadline and budget. Without either, a type's own recommendation needs all counts.
        lost: Arms that memory rules out, which get no new runs.
        failing: Arms with failed attempts, whose completed runs rule out no other arm.
    """
    ends = set(arms) if has_no_goal(goals) else _ends(arms)
    probes = dict.fromkeys(arms, 0)
    asked: list[tuple[Arm, int]] = []
    dropped: dict[Arm, str] = {}
    for number in count(1):
        samples = _samples(runs, asked)
        known = [arm for arm in arms if arm in samples or not probes[arm]]
        error = _error(len(arms), goals, number - 1, repeats)
        beaten = find_beaten(samples, known, goals, error, failing) if samples else {}
        dropped = {arm: why for arm, why in beaten.items() if probes[arm] < repeats}
        left = [arm for arm in known if arm not in beaten and probes[arm] < repeats]
        due = [
            (arm, probes[arm] + 1)
            for arm in left
            if arm not in lost or probes[arm] + 1 in runs.get(arm, {})
        ]
        now = _next(due, ends)
        asked += now
        probes.update(now)
        if missing := tuple((arm, each) for arm, each in now if each not in runs.get(arm, {})):
            later = tuple(
                (arm, each)
                for each in range(1, repeats + 1)
                for arm in left
                if each > probes[arm] and arm not in lost
            )
            return Rounds(tuple(asked), missing, dropped, later, number)
        if not now:
            break
    return Rounds(tuple(asked), (), dropped, (), number)


def _ends(arms: Sequence[Arm]) -> set[Arm]:
    """Return the smallest and the largest count of each type.

    They are the D-optimal points of a line, such as log T over log N (Atkinson, Donev and Tobias,
    *Optimum Experimental Designs, with SAS*, 2007, chapter 11).
    """
    by_type: dict[str, list[Arm]] = {}
    for arm in arms:
        by_type.setdefault(arm.instance_type, []).append(arm)
    return {end for own in by_type.values() for end in (own[0], own[-1])}


def _next(due: Sequence[tuple[Arm, int]], ends: Collection[Arm]) -> list[tuple[Arm, int]]:
    """Return the probes of the next round: of the ends first, then of the least probed arms."""
    first = [(arm, repeat) for arm, repeat in due if arm in ends and repeat == 1] or due
    least = min((repeat for _, repeat in first), default=0)
    return [(arm, repeat) for arm, repeat in first if repeat == least]


def _samples(runs: Runs, asked: Sequence[tuple[Arm, int]]) -> dict[Arm, list[Sample]]:
    """Return the samples measured so far; arms without any time are left out."""
    found: dict[Arm, list[Sample]] = {}
    for arm, repeat in asked:
        if (sample := runs[arm][repeat]) is not None:
            found.setdefault(arm, []).append(sample)
    return found


def _error(arms: int, goals: RecommendationConfig, look: int, repeats: int) -> float:
    """Return the error of each bound at a look, so that all looks together err by ERROR.

    The first look after repeats is the second. Those of a race without surprises share the error
    equally, any others a last such share. The answer to a goal may be dropped wrongly by its own
    limits, or by one bound for each other arm: on the limit which that misses, or on what it is
    worse in. Without a goal, each arm on the time-cost front may be dropped by each other.
    """
    usual = repeats + 1
    share = 0.5 ** max(0, look - 1 - usual) / (usual + 1)
    return ERROR * share / (arms**2 if has_no_goal(goals) else arms + 1)


def find_beaten(
    samples: Samples,
    arms: Sequence[Arm],
    goals: RecommendationConfig,
    error: float,
    failing: Collection[Arm] = (),
) -> dict[Arm, str]:
    """Return the arms that cannot be the answer, with reasons.

    With goals, an arm is beaten if it misses a limit, or if for each goal another one that meets
    all limits is better: cheaper for a deadline, faster for a budget. Without, it is beaten if
    another is faster and cheaper. Each bound may err by all of `error`, also where several must
    hold (an intersection-union test: Berger, *Technometrics* 24(4), 1982, pp. 295-300).

    Args:
        samples: The measured runs.
        arms: These arms and those never probed, by type and ascending count.
        goals: Deadline and budget.
        error: The largest probability of each bound to be wrong.
        failing: Arms with failed attempts, which may be beaten, but beat none: a result takes more
            than their runs.
    """
    judge = _Judge(samples, goals, error, failing)
    found: dict[Arm, str] = {}
    base: Arm | None = None
    for arm in arms:
        if arm in samples:
            base = arm
            why = judge.why_beaten(arm)
        elif base is None or base.instance_type != arm.instance_type:
            continue
        elif why := judge.why_beaten(base, 1 / MOST_EFFICIENCY, base.nodes / arm.nodes):
            why = f"not probed: {why}, even at an efficiency of {format_percent(MOST_EFFICIENCY)}"
        if why is not None:
            found[arm] = why
    return found


class _Judge:
    """The bounds on times and costs at one look, and the arms that meet all limits for sure."""

    def __init__(
        self,
        samples: Samples,
        goals: RecommendationConfig,
        error: float,
        failing: Collection[Arm],
    ) -> None:
        times = {arm: [each.seconds for each in own] for arm, own in samples.items()}
        waits = {
            arm: [each.waited_seconds for each in own if each.waited_seconds]
            for arm, own in samples.items()
        }
        if any(len(own) < len(samples[arm]) for arm, own in waits.items()):
            waits = times
        costs = {
            arm: [each.usd for each in own if each.usd]
            for arm, own in samples.items()
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
                arm
                for arm in samples
                if arm not in failing
                and self._waits.is_below(arm, goals.deadline_seconds)
                and self._costs.is_below(arm, goals.budget_usd_per_run)
            ),
            key=lambda arm: fmean(times[arm]),
        )

    def why_beaten(self, arm: Arm, share: float = 1.0, of_time: float = 1.0) -> str | None:
        """Return why an arm cannot be the answer; None if it may be.

        Args:
            arm: The arm.
            share: Share of its cost that is judged.
            of_time: Further share of its times.
        """
        goals = self._goals
        cheaper = [each for each in self._rivals if self._costs.is_less(each, arm, share)]
        faster = [each for each in self._rivals if self._times.is_less(each, arm, share * of_time)]
        if has_no_goal(goals):
            both = [each for each in faster if each in cheaper]
            return f"{both[0].text} is faster and cheaper" if both else None
        deadline, budget = goals.deadline_seconds, goals.budget_usd_per_run
        if self._waits.is_above(arm, deadline, share * of_time):
            return f"slower than the deadline of {format_seconds(deadline)}"
        if self._costs.is_above(arm, budget, share):
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
    """One-sided bounds on means of logarithms, with the spread pooled over all arms."""

    def __init__(self, values: Mapping[Arm, Sequence[float]], error: float, least: float) -> None:
        self._values = values
        logs = {arm: [math.log(each) for each in own] for arm, own in values.items()}
        self._means = {arm: fmean(own) for arm, own in logs.items()}
        freedom = sum(len(own) - 1 for own in logs.values())
        squares = math.fsum(
            (each - self._means[arm]) ** 2 for arm, own in logs.items() for each in own
        )
        self._spread = max(least, math.sqrt(squares / max(freedom, 1)))
        self._t = t_quantile(freedom, 1 - error) if freedom else math.inf

    def is_less(self, arm: Arm, other: Arm, share: float = 1.0) -> bool:
        """Return True if the arm's mean is significantly below this share of the other's."""
        if arm not in self._means or other not in self._means:
            return False
        reach = self._reach(len(self._values[arm]), len(self._values[other]))
        return self._means[arm] + reach < self._means[other] + math.log(share)

    def is_above(self, arm: Arm, limit: float | None, share: float = 1.0) -> bool:
        """Return True if this share of the arm's mean is significantly above the limit."""
        if limit is None or arm not in self._means:
            return False
        reach = self._reach(len(self._values[arm]))
        return self._means[arm] + math.log(share) - reach > math.log(limit)

    def is_below(self, arm: Arm, limit: float | None) -> bool:
        """Return True if the mean, and of three or more runs the next one, is below the limit."""
        if limit is None:
            return True
        if arm not in self._means:
            return False
        values = self._values[arm]
        is_low = self._means[arm] + self._reach(len(values)) < math.log(limit)
        return is_low and (next_run_bound(values) or 0.0) <= limit

    def _reach(self, *runs: int) -> float:
        """Return the distance of a bound from a mean, or from a difference of two."""
        error = self._spread * math.sqrt(math.fsum(1 / each for each in runs))
        if min(runs) == 1:
            return max(math.log(SINGLE_RUN_FACTOR), SINGLE_RUN_ERRORS * error)
        return self._t * error


def probe_types(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> SweepProgress:
    """Return the progress: arms are probed until beaten, then a whole run validates one."""
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
    arms = arms_of(config)
    rounds = replay_rounds(runs, arms, repeats, goals, lost, failing)
    asked = tuple(Key(*arm, repeat) for arm, repeat in rounds.asked)
    missing = tuple(Key(*arm, repeat) for arm, repeat in rounds.missing)
    if missing:
        later = tuple(Key(*arm, repeat) for arm, repeat in rounds.later)
        reason = _round_text(rounds, arms)
        return SweepProgress(asked, missing, reason, (), rounds.dropped, later)
    check, reason = _check(config, rows_by_type)
    if check is None:
        return SweepProgress(asked, (), reason, dropped=rounds.dropped)
    left = () if check.repeat in runs.get(Arm(check.instance_type, check.nodes), {}) else (check,)
    return SweepProgress((*asked, check), left, reason, dropped=rounds.dropped, check=check)


def _sample(run: Run) -> Sample | None:
    if not run.used or not run.train_seconds:
        return None
    waited = run.outcome.whole_run_clocks.submit_to_end_seconds
    return Sample(run.train_seconds, run.whole_run_costs.total_usd, waited)


def _round_text(rounds: Rounds, arms: Sequence[Arm]) -> str:
    if rounds.number == 1:
        what = (
            "every instance type is probed at every node count"
            if len(rounds.asked) >= len(arms)
            else "the smallest and the largest node count of every instance type are probed"
        )
        return f"{what} first"
    if not rounds.dropped:
        return f"round {rounds.number}: no arm is known to be beaten"
    dropped = [f"{arm.text} ({why})" for arm, why in rounds.dropped.items()]
    return f"round {rounds.number}: {pluralize(len(dropped), 'arm')} dropped: {join_words(dropped)}"


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
