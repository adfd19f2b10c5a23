"""Split the train time at each node count into parts, and find the parts that reduce efficiency.

Only runs that infra/image/nodesweep_budget.py measured have the parts of each rank. These are runs
of the shipped program and runs that nodesweep observed.

The efficiency lost from h to N nodes is the sum of the losses of the parts. A part with the share s
of T takes s/E in node-time relative to the baseline's T(N0) N0, since E(N) = T(N0) N0 / (T(N) N).
The loss E(h) - E(N) is E(h) E(N) times the growth in node-time, so the loss of a part is
E(h) s(N) - E(N) s(h). These losses sum to E(h) - E(N), since shares sum to 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import add
from statistics import fmean, mode, variance
from typing import Any, Literal, NamedTuple

from pydantic import Field

from nodesweep.scaling.analysis.exchange import Exchange, read_exchange
from nodesweep.scaling.analysis.interval import LEVEL, MIN_REPEATS, Interval, welch_freedom
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.outcome.metrics_values import (
    finite_or_none,
    nested_value,
    whole_number_or_none,
)
from nodesweep.scaling.outcome.outcome import TrainClock
from nodesweep.scaling.outcome.timed_passes import PassRatio, read_timed_passes
from nodesweep.scaling.report_part import Part
from nodesweep.scaling.t_distribution import t_quantile

Name = Literal[
    "forward",
    "backward",
    "optimizer",
    "communication",
    "waiting",
    "data",
    "evaluation",
    "checkpoint",
    "start",
    "other",
]
Cause = Literal[
    "compute", "communication", "waiting", "data", "evaluation", "checkpoint", "start", "other"
]
WRITTEN: tuple[Name, ...] = (
    "forward", "backward", "optimizer", "communication", "data", "evaluation", "checkpoint",
    "start", "other",
)  # fmt: skip
"""The parts in the file of a rank, whose communication includes waiting for slower ranks."""
CAUSES: Mapping[Cause, tuple[Name, ...]] = {
    "compute": ("forward", "backward", "optimizer"),
    "communication": ("communication",),
    "waiting": ("waiting",),
    "data": ("data",),
    "evaluation": ("evaluation",),
    "checkpoint": ("checkpoint",),
    "start": ("start",),
    "other": ("other",),
}
MOST_ERROR = 0.03
"""Maximum difference between T and the sum of the parts, as a share of T."""
LEAST_POINTS, LEAST_POINTS_OF_SINGLE_RUNS = 0.02, 0.05
"""Minimum loss of efficiency for its cause to be named, with and without an interval."""
_MOST_EXCHANGE = 100.0
"""Exchanges that would take longer than this multiple of T have wrong numbers, or infinite ones."""
_NOT_OF_STEPS: tuple[Name, ...] = ("start", "evaluation", "checkpoint")
_OF_ONE_RANK: tuple[Name, ...] = ("evaluation", "checkpoint")
"""Parts that often only rank 0 spends time on, while the other ranks wait."""
_ENOUGH_VALUES, _MOSTLY = 20, 0.75
_OWN_CLOCK = (
    "the program reports its own time, and nodesweep only splits the time of the shipped program "
    "and times that it measures itself"
)
_NO_REASON = "the parts of a run are incomplete or do not sum to its time"
_MOST_REASON_CHARACTERS = 200  # a program can write any text
_NODE = re.compile(r"algo-[1-9]\d{0,3}")


class TimePart(Part):
    """One part of T(N), averaged over processes and runs."""

    name: Name
    seconds: float = Field(description="Seconds of the part; all parts sum to T(N).")
    share: float = Field(description="The part as a share of T(N), 0 to 1.")
    by_run: tuple[float, ...] = Field(
        default=(),
        exclude_if=lambda seconds: not seconds,
        description="Seconds of the part in each run; absent in reports before 27 November 2026.",
    )


class WholeExchange(Part):
    """The time that all exchanges of gradients in T would take if no computation hid them."""

    latency_seconds: float = Field(
        description="Time of the all-reduces if each bucket of gradients had 4 KiB."
    )
    transfer_seconds: float = Field(
        description="Additional time due to the actual size of the buckets."
    )
    last_bucket_share: float = Field(
        description="Share of the last bucket, which no backward pass can hide, in this time."
    )


class BatchPasses(Part):
    """The time of the forward and backward pass on one node for a batch smaller than the run's."""

    samples: int = Field(description="Number of samples per process and optimizer step.")
    ratio: float = Field(description="Its time as a share of that of the run's batch, 0 to 1.")
    error: float = Field(description="Standard error of `ratio`, as a share of it.")
    whole: float = Field(
        description="The timed pass of the run's batch as a share of the mean pass in its steps."
    )


class CountBudget(Part):
    """The parts of T at one node count."""

    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Number of used runs whose parts are known.")
    parts: tuple[TimePart, ...] = Field(
        description=(
            "forward: from the arrival of the batch to the backward pass; backward: until the "
            "gradients are computed; communication: the part that the backward pass does not hide; "
            "waiting: waiting for the slowest process, which is included in communication if the "
            "processes could not be compared; data: waiting for the loader; start: up to the end "
            "of the first step."
        )
    )
    slowest_node: str | None = Field(
        description=(
            "Node that the other nodes usually wait for, which is left out of the means; null if "
            "there is none or it is unknown."
        )
    )
    exchange: WholeExchange | None = Field(
        default=None,
        exclude_if=lambda exchange: exchange is None,
        description="Time of the gradient exchanges, derived from all-reduces that were timed "
        "before the training; absent if none were timed, and in reports from before 28 November "
        "2026.",
    )
    passes: tuple[BatchPasses, ...] = Field(
        default=(),
        exclude_if=lambda passes: not passes,
        description="Smaller batches whose passes were timed on one node after the training, "
        "descending; absent if there are none.",
    )


class LossCause(Part):
    """The contribution of one cause to a loss of efficiency."""

    cause: Cause = Field(
        description="Part of the time; compute is forward, backward and optimizer together."
    )
    efficiency: float = Field(
        description="Efficiency that the part costs; negative if it gains efficiency."
    )
    interval: Interval | None = Field(
        description="95% interval of `efficiency` from the repeats; null for fewer than 3 runs at "
        "either node count."
    )
    named: bool = Field(
        description=(
            "True if the cost is above the noise: at least 2 points with an interval above 0, or "
            "at least 5 points without an interval."
        )
    )

    @property
    def is_gain(self) -> bool:
        """True if the part gains at least as much efficiency as a named cause must cost."""
        if self.interval is None:
            return self.efficiency <= -LEAST_POINTS_OF_SINGLE_RUNS
        return self.efficiency <= -LEAST_POINTS and self.interval.high < 0


class EfficiencyLoss(Part):
    """The efficiency lost from a node count to a larger one, by cause."""

    from_nodes: int
    to_nodes: int
    efficiency: float = Field(description="E(from) - E(to), the sum of the causes.")
    causes: tuple[LossCause, ...] = Field(description="All causes, the largest first.")
    slowest_node: str | None = Field(description="`CountBudget.slowest_node` at `to_nodes`.")

    @property
    def named(self) -> list[LossCause]:
        """The causes above the noise, the largest first."""
        return [cause for cause in self.causes if cause.named]


class StepBudget(Part):
    """The parts of the train time, and the efficiency that they cost as nodes are added."""

    counts: tuple[CountBudget, ...] = Field(
        description="Parts of the train time by node count, ascending."
    )
    losses: tuple[EfficiencyLoss, ...] = Field(
        description=(
            "Efficiency lost up to each node count, from half of the nodes or, if the parts there "
            "are unknown, from the next smaller node count."
        )
    )


class MissingParts(Part):
    """Runs at one node count whose train time was not split into parts for the same reason."""

    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Number of used runs without parts.")
    reason: str = Field(description="Why the time of these runs was not split.")


class RunBudget(NamedTuple):
    """The parts of one run as shares of its train time `seconds`, and its slowest node."""

    seconds: float
    shares: Mapping[Name, float]
    slowest_node: str | None
    lead: float = 0.0
    """Share of T saved if the slowest node were as fast as the others; 0 without a slowest node."""
    cpu_used: float | None = None
    """Share of the CPU quota that was used; None without a quota or if unknown."""
    exchange: Exchange | None = None
    """Gradient exchanges as shares of T, as if no computation hid them; None if unknown."""
    passes: Mapping[int, PassRatio] | None = None
    """Timed passes at smaller batches, by number of samples; None if none were timed."""


class _Rank(NamedTuple):
    node: str | None
    seconds: Mapping[Name, float]
    communication: Sequence[float]
    """Seconds of communication in each step, or in each group of steps of a fixed size."""
    sampling: tuple[Any, Any]


def find_step_budget(rows: Sequence[SummaryRow], runs: Sequence[Run]) -> StepBudget | None:
    """Return the parts of the train time by node count, or None if they are all unknown.

    Args:
        rows: The summary rows.
        runs: All attempts.
    """
    known = run_budgets(runs)
    if not known:
        return None
    by_nodes = {row.nodes: row for row in rows if row.nodes in known}
    counts = tuple(
        _count(nodes, row.train.seconds or 0.0, known[nodes])
        for nodes, row in sorted(by_nodes.items())
    )
    losses = [
        _loss(by_nodes[fewer], row, known)
        for nodes, row in sorted(by_nodes.items())
        if (fewer := _fewer(nodes, by_nodes)) is not None
    ]
    return StepBudget(counts=counts, losses=tuple(loss for loss in losses if loss is not None))


def run_budgets(runs: Sequence[Run]) -> dict[int, list[RunBudget]]:
    """Return the known parts of the used runs by node count.

    `waiting` is a separate part either in all runs or in none.
    """
    known: dict[int, list[RunBudget]] = {}
    for run in runs:
        if run.used:
            budget = _whole_run_budget(run)
            if budget is not None:
                percent = run.outcome.utilisation.get("quota_used_percent")
                used = None if percent is None else percent / 100
                timed = read_timed_passes(run.outcome.metrics)
                passes = None if timed is None else timed.ratios
                budget = budget._replace(cpu_used=used, passes=passes)
                known.setdefault(run.outcome.nodes, []).append(budget)
    if not all("waiting" in each.shares for group in known.values() for each in group):
        known = {nodes: [_with_waiting_inside(each) for each in known[nodes]] for nodes in known}
    return known


def find_missing_parts(runs: Sequence[Run], clock: TrainClock | None) -> tuple[MissingParts, ...]:
    """Return the number of used runs without parts, by node count and reason.

    The result is empty for simulated nodes, for tables of measured times, and for the times of a
    platform phase, for which a caveat gives the reason.

    Args:
        runs: All attempts.
        clock: The train clock of the summary.
    """
    if clock not in ("program", "logged", "projected", "observed"):
        return ()
    found: Counter[tuple[int, str]] = Counter()
    for run in runs:
        if run.used and run.outcome.platform_kind != "simulated":
            metrics = run.outcome.metrics
            if _whole_run_budget(run) is None:
                found[run.outcome.nodes, _reason(metrics, clock)] += 1
    return tuple(
        MissingParts(nodes=nodes, n=n, reason=reason)
        for (nodes, reason), n in sorted(found.items())
    )


def _reason(metrics: Mapping[str, Any] | None, clock: TrainClock) -> str:
    """Return the reason why a run has no parts, from its metrics if they have one."""
    for place in (("observed", "not_split"), ("not_split",)):
        written = nested_value(metrics, place)
        text = " ".join(written.split()) if isinstance(written, str) else ""
        if text:
            return text[:_MOST_REASON_CHARACTERS]
    is_split = clock == "observed" or nested_value(metrics, ("budget",)) is not None
    return _NO_REASON if is_split else _OWN_CLOCK


def _whole_run_budget(run: Run) -> RunBudget | None:
    """Return the parts of a run; the parts of a probe are extended to its projected time.

    The time of checkpoints that the probe left out is added to the checkpoint part, and the rest of
    the projected time to the parts of the steps.
    """
    outcome = run.outcome
    projection = outcome.projection
    if projection is None:
        return read_run_budget(outcome.metrics, run.train_seconds)
    measured = read_run_budget(outcome.metrics, projection.measured_seconds)
    if measured is None:
        return None
    seconds = {name: share * measured.seconds for name, share in measured.shares.items()}
    saved = sum(part.seconds for part in projection.parts if part.name == "checkpoints")
    longer = projection.train_seconds - measured.seconds - saved
    of_steps = sum(each for name, each in seconds.items() if name not in _NOT_OF_STEPS)
    if min(of_steps, of_steps + longer) <= 0:
        return None
    growth, whole = 1 + longer / of_steps, projection.train_seconds
    shares = {
        name: each * (1 if name in _NOT_OF_STEPS else growth) / whole
        for name, each in seconds.items()
    }
    shares["checkpoint"] += saved / whole
    grown = measured.seconds * growth / whole
    exchange = measured.exchange and measured.exchange.times(grown)
    return RunBudget(whole, shares, measured.slowest_node, measured.lead * grown, exchange=exchange)


def read_run_budget(
    metrics: Mapping[str, Any] | None, train_seconds: float | None
) -> RunBudget | None:
    """Return the parts of one run; None if rank 0 has none or they don't sum to the train time.

    The parts are means over the processes. If one node is slower than the others, its processes are
    left out, since the others wait for its excess. Waiting for a checkpoint or an evaluation that
    only one process does is part of the checkpoint or evaluation.
    """
    written = nested_value(metrics, ("budget",))
    world = whole_number_or_none(nested_value(metrics, ("world", "world_size")))
    if not isinstance(written, list) or not world or not train_seconds:
        return None
    ranks = {number: rank for number, rank in map(_read_rank, written) if rank and number < world}
    if 0 not in ranks:
        return None
    if abs(sum(ranks[0].seconds.values()) - train_seconds) > MOST_ERROR * train_seconds:
        return None
    read = list(ranks.values())
    compared = _compare(read) if len(read) == world else None
    slowest = None if compared is None else compared.slowest_node
    counted = [place for place, each in enumerate(read) if slowest is None or each.node != slowest]
    shares: dict[Name, float] = {
        name: fmean(_share(read[place], name) for place in counted) for name in WRITTEN
    }
    lead = 0.0
    if compared is not None:
        moved = fmean(
            _share(read[place], "communication") * compared.transferred[place] for place in counted
        )
        shares["waiting"] = shares["communication"] - moved
        shares["communication"] = moved
        for name in _OF_ONE_RANK:
            own = fmean(
                sum(each[name] for r, each in enumerate(compared.own_seconds) if r != place)
                / sum(read[place].seconds.values())
                for place in counted
            )
            own = min(own, shares["waiting"])
            shares["waiting"] -= own
            shares[name] += own
        lead = fmean(
            _share(read[place], "communication") * compared.lead[place] for place in counted
        )
        lead = min(lead, shares["waiting"])
    exchange = read_exchange(metrics)
    if exchange is not None:
        exchange = exchange.times(1 / train_seconds)
    return RunBudget(train_seconds, shares, slowest, lead, exchange=exchange)


def _read_rank(written: Any) -> tuple[int, _Rank | None]:
    number = whole_number_or_none(nested_value(written, ("rank",)))
    seconds = {name: finite_or_none(nested_value(written, ("seconds", name))) for name in WRITTEN}
    known = {name: max(0.0, value) for name, value in seconds.items() if value is not None}
    values = nested_value(written, ("communication_seconds",))
    if number is None or len(known) < len(WRITTEN) or not isinstance(values, list):
        return 0, None
    if not sum(known.values()):
        return 0, None
    node = nested_value(written, ("node",))
    return number, _Rank(
        node if isinstance(node, str) and _NODE.fullmatch(node) else None,
        known,
        [finite_or_none(value) or 0.0 for value in values],
        (repr(written.get("steps_per_value")), repr(written.get("split_every"))),
    )


def _share(rank: _Rank, name: Name) -> float:
    return rank.seconds[name] / sum(rank.seconds.values())


class _Compared(NamedTuple):
    transferred: Sequence[float]
    """For each rank, the share of its communication that is not waiting."""
    own_seconds: Sequence[Mapping[Name, float]]
    """For each rank, the seconds that every other rank waited for work that only this rank did."""
    slowest_node: str | None
    lead: Sequence[float]
    """For each rank, the share of communication saved without the excess of the slowest node."""


def _compare(ranks: Sequence[_Rank]) -> _Compared | None:
    """Compare the communication of the ranks step by step.

    In synchronous training, all ranks finish a step together. The rank that arrives last does not
    wait, so each other rank waits for as long as its communication exceeds that of the last rank.
    Return None if the steps of the ranks cannot be compared.
    """
    if len(ranks) == 1:
        return _Compared([1.0], [dict.fromkeys(_OF_ONE_RANK, 0.0)], None, [0.0])
    if len({rank.sampling for rank in ranks}) > 1:
        return None
    steps = list(zip(*(rank.communication for rank in ranks), strict=False))
    if not steps:
        return None
    least = [min(step) for step in steps]
    sums = [sum(step[place] for step in steps) for place in range(len(ranks))]
    transferred = [min(1.0, sum(least) / total) if total > 0 else 1.0 for total in sums]
    waited = [0.0] * len(ranks)  # seconds that all other ranks together waited for each rank
    for step, own in zip(steps, least, strict=True):
        waited[step.index(own)] += sum(step) - own * len(step)
    own = [_own_seconds(rank, ranks, total) for rank, total in zip(ranks, waited, strict=True)]
    left = [
        total - (len(ranks) - 1) * sum(seconds.values())
        for total, seconds in zip(waited, own, strict=True)
    ]
    most = max(left)
    node = ranks[left.index(most)].node
    is_one = len(steps) >= _ENOUGH_VALUES and most >= _MOSTLY * sum(left) > 0
    others = [place for place, rank in enumerate(ranks) if rank.node != node]
    if node is None or not is_one or not others:
        return _Compared(transferred, own, None, [0.0] * len(ranks))
    sooner = _lead_seconds(steps, sums, others)
    lead = [min(1.0, sooner / total) if total > 0 else 0.0 for total in sums]
    return _Compared(transferred, own, node, lead)


def _lead_seconds(
    steps: Sequence[Sequence[float]], sums: Sequence[float], others: Sequence[int]
) -> float:
    """Return the seconds saved in all steps if a node were as fast as the others on average.

    The steps of the node are assumed to vary as before.

    Args:
        steps: The seconds of communication of each rank in each step.
        sums: The sum over the steps for each rank.
        others: The indices of the ranks on other nodes.
    """
    own = [place for place in range(len(sums)) if place not in others]
    shift = fmean(sums[place] for place in others) - fmean(sums[place] for place in own)
    earlier = [max(0.0, shift) / len(steps) if place in own else 0.0 for place in range(len(sums))]
    return sum(min(map(add, step, earlier)) - min(step) for step in steps)


def _own_seconds(rank: _Rank, ranks: Sequence[_Rank], waited: float) -> dict[Name, float]:
    """Return the seconds that every other rank waited for extra work of this rank, by part.

    Args:
        rank: One of the ranks.
        ranks: All ranks.
        waited: Seconds that all other ranks together waited for `rank`.
    """
    others = [each for each in ranks if each is not rank]
    more = {
        name: max(0.0, rank.seconds[name] - fmean(each.seconds[name] for each in others))
        for name in _OF_ONE_RANK
    }
    total = sum(more.values())
    part = min(1.0, waited / len(others) / total) if total else 0.0
    return {name: seconds * part for name, seconds in more.items()}


def _with_waiting_inside(run: RunBudget) -> RunBudget:
    shares = dict(run.shares)
    shares["communication"] += shares.pop("waiting", 0.0)
    return run._replace(shares=shares)


def _mean_share(runs: Sequence[RunBudget], names: Sequence[Name]) -> float:
    return fmean(sum(run.shares.get(name, 0.0) for name in names) for run in runs)


def _count(nodes: int, seconds: float, runs: Sequence[RunBudget]) -> CountBudget:
    shares = {
        name: _mean_share(runs, [name])
        for names in CAUSES.values()
        for name in names
        if name in runs[0].shares
    }
    return CountBudget(
        nodes=nodes,
        n=len(runs),
        parts=tuple(
            TimePart(
                name=name,
                seconds=share * seconds,
                share=share,
                by_run=tuple(run.shares[name] * run.seconds for run in runs),
            )
            for name, share in shares.items()
        ),
        slowest_node=most_runs_slowest(runs),
        exchange=_mean_exchange(runs, seconds),
        passes=_mean_passes(runs),
    )


def _mean_passes(runs: Sequence[RunBudget]) -> tuple[BatchPasses, ...]:
    timed = [run.passes for run in runs if run.passes is not None]
    sizes = set[int]().union(*timed).intersection(*timed)
    return tuple(
        BatchPasses(
            samples=size,
            ratio=fmean(each[size].ratio for each in timed),
            error=math.hypot(*(each[size].error for each in timed)) / len(timed),
            whole=fmean(each[size].whole for each in timed),
        )
        for size in sorted(sizes, reverse=True)
    )


def _mean_exchange(runs: Sequence[RunBudget], seconds: float) -> WholeExchange | None:
    known = [
        run.exchange
        for run in runs
        if run.exchange is not None and sum(run.exchange[:2]) <= _MOST_EXCHANGE
    ]
    if not known:
        return None
    latency, transfer, last = map(fmean, zip(*known, strict=True))
    return WholeExchange(
        latency_seconds=latency * seconds,
        transfer_seconds=transfer * seconds,
        last_bucket_share=last,
    )


def most_runs_slowest(runs: Sequence[RunBudget]) -> str | None:
    """Return the node that is the slowest in at least three quarters of the runs, if any."""
    node = mode(run.slowest_node for run in runs)
    is_mostly = sum(run.slowest_node == node for run in runs) >= _MOSTLY * len(runs)
    return node if is_mostly else None


def _fewer(nodes: int, known: Collection[int]) -> int | None:
    """Return half of the node count if it is known, else the next smaller known one, if any."""
    if nodes % 2 == 0 and nodes // 2 in known:
        return nodes // 2
    return max((each for each in known if each < nodes), default=None)


def _loss(
    half: SummaryRow, row: SummaryRow, known: Mapping[int, Sequence[RunBudget]]
) -> EfficiencyLoss | None:
    before, after = half.train.efficiency, row.train.efficiency
    if before is None or after is None:
        return None
    causes = [_cause(cause, known[half.nodes], known[row.nodes], before, after) for cause in CAUSES]
    return EfficiencyLoss(
        from_nodes=half.nodes,
        to_nodes=row.nodes,
        efficiency=before - after,
        causes=tuple(sorted(causes, key=lambda each: -each.efficiency)),
        slowest_node=most_runs_slowest(known[row.nodes]),
    )


def _cause(
    cause: Cause,
    half: Sequence[RunBudget],
    runs: Sequence[RunBudget],
    before: float,
    after: float,
) -> LossCause:
    """Return the loss from one cause, with Welch's interval for a difference of means.

    Args:
        cause: The cause.
        half: The runs at the smaller node count.
        runs: The runs at the larger node count.
        before: Efficiency at the smaller node count.
        after: Efficiency at the larger node count.
    """
    names = CAUSES[cause]
    cost = before * _mean_share(runs, names) - after * _mean_share(half, names)
    reach = welch_reach(_weighted(runs, names, before), _weighted(half, names, after))
    interval = None if reach is None else Interval(low=cost - reach, high=cost + reach)
    named = cost >= LEAST_POINTS_OF_SINGLE_RUNS
    if interval is not None:
        named = cost >= LEAST_POINTS and interval.low > 0
    return LossCause(cause=cause, efficiency=cost, interval=interval, named=named)


def _weighted(runs: Sequence[RunBudget], names: Sequence[Name], weight: float) -> list[float]:
    """Return the time of each run in the parts, relative to the mean run time, times `weight`."""
    mean = fmean(run.seconds for run in runs)
    return [
        weight * sum(run.shares.get(name, 0.0) for name in names) * run.seconds / mean
        for run in runs
    ]


def welch_reach(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return half the width of Welch's 95% interval for a difference of means.

    The degrees of freedom are rounded down. Return None if a side has fewer than MIN_REPEATS
    values.
    """
    if min(len(ours), len(theirs)) < MIN_REPEATS:
        return None
    parts = [variance(side) / len(side) for side in (ours, theirs)]
    total = sum(parts)
    if not total:
        return 0.0
    freedom = welch_freedom([part / total for part in parts], [len(ours), len(theirs)])
    return float(t_quantile(max(1, int(freedom)), (1 + LEVEL) / 2) * total**0.5)
