"""Where the train time goes at each node count, and which parts of it cost the efficiency.

Only runs that nodesweep observed (infra/image/nodesweep_budget.py) have the parts, by rank.

The efficiency lost from h to N nodes splits into parts without a rest. A part with the share s of
T costs s/E in node-time relative to the baseline's T(N0) N0, since E(N) = T(N0) N0 / (T(N) N). The
loss E(h) - E(N) is E(h) E(N) times what the node-time grew, so a part's is E(h) s(N) - E(N) s(h),
and these sum to E(h) - E(N) because shares sum to 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean, mode, variance
from typing import Any, Literal, NamedTuple

from pydantic import Field

from nodesweep.scaling.analysis.interval import LEVEL, MIN_REPEATS, Interval, welch_freedom
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run
from nodesweep.scaling.outcome.metrics_values import (
    finite_or_none,
    nested_value,
    whole_number_or_none,
)
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
"""The parts in a rank's file; its communication includes waiting for slower ranks."""
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
"""Largest difference of the parts' sum from T, as a share of T."""
LEAST_POINTS, LEAST_POINTS_OF_SINGLE_RUNS = 0.02, 0.05
"""Smallest named cause: with an interval from repeats, and without one."""
_ENOUGH_VALUES, _MOSTLY = 20, 0.75
_NODE = re.compile(r"algo-[1-9]\d{0,3}")


class TimePart(Part):
    """One part of T(N), the mean over processes and runs."""

    name: Name
    seconds: float = Field(description="Its share of T(N), in seconds; all parts sum to T(N).")
    share: float = Field(description="Share of T(N), 0 to 1.")
    by_run: tuple[float, ...] = Field(
        default=(),
        exclude_if=lambda seconds: not seconds,
        description="Its seconds in each run; absent in reports before 27 November 2026.",
    )


class CountBudget(Part):
    """The parts of T at one node count."""

    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Runs behind it: the used ones whose parts are known.")
    parts: tuple[TimePart, ...] = Field(
        description=(
            "forward: from the batch to the backward pass; backward: until the gradients are "
            "computed; communication: not hidden by the backward pass; waiting: for the slowest "
            "process, absent if the processes could not be compared, when communication includes "
            "it; data: for the loader; start: up to the end of the first step."
        )
    )
    slowest_node: str | None = Field(
        description=(
            "Node for which the others mostly wait, left out of the parts; null: none, or unknown."
        )
    )


class LossCause(Part):
    """The contribution of one cause to a loss of efficiency."""

    cause: Cause = Field(description="A part of the time; compute: forward, backward, optimizer.")
    efficiency: float = Field(description="Efficiency that it costs; negative: it gains.")
    interval: Interval | None = Field(
        description="95% interval, from the repeats; null for fewer than 3 runs on a side."
    )
    named: bool = Field(
        description=(
            "True if it is above the noise: at least 2 points with an interval above 0, or at "
            "least 5 points without an interval."
        )
    )


class EfficiencyLoss(Part):
    """The efficiency lost by one doubling of the nodes, by cause."""

    from_nodes: int
    to_nodes: int
    efficiency: float = Field(description="E(from) - E(to), the sum of the causes.")
    causes: tuple[LossCause, ...] = Field(description="Every cause, the largest first.")
    slowest_node: str | None = Field(description="At the larger count; see `slowest_node` above.")


class StepBudget(Part):
    """Where the train time goes, and what the doublings cost."""

    counts: tuple[CountBudget, ...] = Field(description="By node count, ascending.")
    losses: tuple[EfficiencyLoss, ...] = Field(
        description="Each doubling whose counts are both known."
    )


class RunBudget(NamedTuple):
    """One run: seconds on the clock, the share of each part, and the slowest node."""

    seconds: float
    shares: Mapping[Name, float]
    slowest_node: str | None


class _Rank(NamedTuple):
    node: str | None
    seconds: Mapping[Name, float]
    communication: Sequence[float]
    """Seconds of communication per step, or per so many steps."""
    sampling: tuple[Any, Any]


def find_step_budget(rows: Sequence[SummaryRow], runs: Sequence[Run]) -> StepBudget | None:
    """Return the parts of the time at each node count; None if none is known.

    Args:
        rows: The summary.
        runs: All attempts.
    """
    known: dict[int, list[RunBudget]] = {}
    for run in runs:
        if run.used and run.outcome.train_clock == "observed":
            budget = read_run_budget(run.outcome.metrics, run.train_seconds)
            if budget is not None:
                known.setdefault(run.outcome.nodes, []).append(budget)
    if not known:
        return None
    if not all("waiting" in each.shares for group in known.values() for each in group):
        known = {nodes: [_with_waiting_inside(each) for each in known[nodes]] for nodes in known}
    by_nodes = {row.nodes: row for row in rows if row.nodes in known}
    counts = tuple(
        _count(nodes, row.train.seconds or 0.0, known[nodes])
        for nodes, row in sorted(by_nodes.items())
    )
    losses = [
        _loss(by_nodes[nodes // 2], row, known)
        for nodes, row in sorted(by_nodes.items())
        if nodes % 2 == 0 and nodes // 2 in by_nodes
    ]
    return StepBudget(counts=counts, losses=tuple(loss for loss in losses if loss is not None))


def read_run_budget(
    metrics: Mapping[str, Any] | None, train_seconds: float | None
) -> RunBudget | None:
    """Return the parts of one run; None if rank 0's are unknown or don't sum to its train time.

    They are the mean over the processes. If one node is slower than the others, it is left out: its
    own excess is what the others wait for.
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
    slowest, transferred = None, [1.0] * len(read)
    is_compared = world == 1
    if len(read) == world > 1 and (compared := _compare(read)) is not None:
        is_compared = True
        transferred, slowest = compared
    counted = [
        (each, part)
        for each, part in zip(read, transferred, strict=True)
        if slowest is None or each.node != slowest
    ]
    shares: dict[Name, float] = {
        name: fmean(_share(each, name) for each, _ in counted) for name in WRITTEN
    }
    if is_compared:
        moved = fmean(_share(each, "communication") * part for each, part in counted)
        shares["waiting"] = shares["communication"] - moved
        shares["communication"] = moved
    return RunBudget(train_seconds, shares, slowest)


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
        (written.get("steps_per_value"), written.get("split_every")),
    )


def _share(rank: _Rank, name: Name) -> float:
    return rank.seconds[name] / sum(rank.seconds.values())


def _compare(ranks: Sequence[_Rank]) -> tuple[list[float], str | None] | None:
    """Return (share of each rank's communication that is no waiting, the slowest node).

    The ranks of a synchronous step end it together, so the one that came last waited for none, and
    its communication is the step's; whatever another's is longer, it waited. None if the steps of
    the ranks can't be compared.
    """
    if len({rank.sampling for rank in ranks}) > 1:
        return None
    steps = list(zip(*(rank.communication for rank in ranks), strict=False))
    if not steps:
        return None
    least = [min(step) for step in steps]
    sums = [sum(step[place] for step in steps) for place in range(len(ranks))]
    transferred = [min(1.0, sum(least) / total) if total > 0 else 1.0 for total in sums]
    waited = [0.0] * len(ranks)  # by the others for this one
    for step, own in zip(steps, least, strict=True):
        waited[step.index(own)] += sum(step) - own * len(step)
    most = max(waited)
    node = ranks[waited.index(most)].node
    is_one = len(steps) >= _ENOUGH_VALUES and most >= _MOSTLY * sum(waited) > 0
    is_alone = {rank.node for rank in ranks} == {node}
    return transferred, None if is_alone or not is_one else node


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
        slowest_node=_slowest(runs),
    )


def _slowest(runs: Sequence[RunBudget]) -> str | None:
    """Return the node that is the slowest in most runs, or None."""
    node = mode(run.slowest_node for run in runs)
    is_mostly = sum(run.slowest_node == node for run in runs) >= _MOSTLY * len(runs)
    return node if is_mostly else None


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
        slowest_node=_slowest(known[row.nodes]),
    )


def _cause(
    cause: Cause,
    half: Sequence[RunBudget],
    runs: Sequence[RunBudget],
    before: float,
    after: float,
) -> LossCause:
    """Return a cause's part of the loss, with Welch's interval of the difference of means."""
    names = CAUSES[cause]
    cost = before * _mean_share(runs, names) - after * _mean_share(half, names)
    reach = _reach(_weighted(runs, names, before), _weighted(half, names, after))
    interval = None if reach is None else Interval(low=cost - reach, high=cost + reach)
    named = cost >= LEAST_POINTS_OF_SINGLE_RUNS
    if interval is not None:
        named = cost >= LEAST_POINTS and interval.low > 0
    return LossCause(cause=cause, efficiency=cost, interval=interval, named=named)


def _weighted(runs: Sequence[RunBudget], names: Sequence[Name], weight: float) -> list[float]:
    """Return each run's time in these parts, relative to the runs' mean time, times a weight."""
    mean = fmean(run.seconds for run in runs)
    return [
        weight * sum(run.shares.get(name, 0.0) for name in names) * run.seconds / mean
        for run in runs
    ]


def _reach(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return half of the 95% interval of a difference of means; None for too few runs.

    The degrees of freedom are rounded down.
    """
    if min(len(ours), len(theirs)) < MIN_REPEATS:
        return None
    parts = [variance(side) / len(side) for side in (ours, theirs)]
    total = sum(parts)
    if not total:
        return 0.0
    freedom = welch_freedom([part / total for part in parts], [len(ours), len(theirs)])
    return float(t_quantile(max(1, int(freedom)), (1 + LEVEL) / 2) * total**0.5)
