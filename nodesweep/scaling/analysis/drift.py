"""Withhold a recommendation that could be due to a drift of the machine (docs/statistics.md).

The slope of the log-times over the start times is estimated within node counts, which have
different levels (analysis of covariance: Montgomery, *Design and Analysis of Experiments*, 8th ed.,
section 15.3). If its 95% interval by Student's t excludes 0, the recommendation is repeated with
both bounds and the middle of the interval. The times of each node count are then corrected as if
its runs had started, on average, when the runs of the baseline did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.bounds import scaled_row
from nodesweep.scaling.analysis.deadline import recommend_none
from nodesweep.scaling.analysis.measured_count import measured_counts
from nodesweep.scaling.analysis.price import SECONDS_PER_HOUR
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.formats import format_percent, join_words, nodes_text
from nodesweep.scaling.t_distribution import t_quantile

StartedRun = tuple[int, str | None, float]
"""A run as (nodes, ISO start time, seconds)."""
_LARGEST = 2.0
"""Maximum correction on the log scale; a straight line is meaningless beyond it."""


@dataclass(frozen=True)
class Drift:
    """A change of run times during the sweep; slopes are per hour, on the log scale."""

    hours: Mapping[int, float]
    """Mean start time of the runs by node count, in hours since 1970."""
    slope: float
    low: float
    high: float

    def factors(self, slope: float, base: int) -> dict[int, float]:
        """Return the factors that correct the times by node count to the baseline's start time."""
        return {
            nodes: math.exp(max(-_LARGEST, min(_LARGEST, -slope * (hours - self.hours[base]))))
            for nodes, hours in self.hours.items()
        }


def find_drift(runs: Sequence[StartedRun]) -> Drift | None:
    """Return the drift within node counts; None if it is not significant or cannot be estimated.

    An estimate needs the start time of every run, and runs of a node count that start at different
    times.
    """
    at = {
        nodes: [
            (datetime.fromisoformat(start).timestamp() / SECONDS_PER_HOUR, math.log(seconds))
            for other, start, seconds in runs
            if other == nodes and start is not None
        ]
        for nodes in sorted({nodes for nodes, _, _ in runs})
    }
    freedom = len(runs) - len(at) - 1
    if freedom < 1 or sum(map(len, at.values())) < len(runs):
        return None
    hours = {nodes: fmean(hour for hour, _ in own) for nodes, own in at.items()}
    logs = {nodes: fmean(log for _, log in own) for nodes, own in at.items()}
    pairs = [
        (hour - hours[nodes], log - logs[nodes]) for nodes, own in at.items() for hour, log in own
    ]
    sxx = math.fsum(x * x for x, _ in pairs)
    if sxx == 0:
        return None
    slope = math.fsum(x * y for x, y in pairs) / sxx
    rest = math.fsum((y - slope * x) ** 2 for x, y in pairs)
    reach = t_quantile(freedom, 0.975) * math.sqrt(rest / freedom / sxx)
    if abs(slope) <= reach:
        return None
    return Drift(hours, slope, slope - reach, slope + reach)


def unless_drift(
    recommendation: Recommendation | None,
    rows: Sequence[SummaryRow],
    runs: Sequence[StartedRun],
    goals: RecommendationConfig,
    judge: Callable[[Sequence[SummaryRow]], Recommendation | None],
    is_shuffled: bool = False,
) -> Recommendation | None:
    """Return the recommendation, or one without a choice if correcting a drift could change it.

    Args:
        recommendation: The recommendation.
        rows: The rows behind it.
        runs: The runs behind the rows.
        goals: Limits, deadline and budget.
        judge: Function that makes a recommendation from rows by the same rule.
        is_shuffled: True if the node counts were measured in one shuffled pass per repeat, in which
            case only more repeats help.
    """
    drift = find_drift(runs)
    if drift is None or recommendation is None:
        return recommendation
    base = measured_counts(rows)[0].nodes
    found = {recommendation.chosen.nodes if recommendation.chosen else None}
    open_: set[int] = set()
    for slope in (drift.low, drift.slope, drift.high):
        factors = drift.factors(slope, base)
        again = judge([scaled_row(row, factors, base) for row in rows])
        found.add(again.chosen.nodes if again and again.chosen else None)
        open_.update(again.not_ruled_out if again else ())
    open_.difference_update(recommendation.not_ruled_out)
    if len(found) == 1 and not open_:
        return recommendation
    change = math.expm1(max(-_LARGEST, min(_LARGEST, drift.slope)))
    why = f"runs got {'slower' if change > 0 else 'faster'} during the sweep"
    nodes = sorted({each for each in found if each is not None} | open_)
    what = (
        f"between {join_words(nodes)} nodes"
        if len(nodes) > 1
        else f"whether {nodes_text(nodes[0])} can be recommended"
    )
    remedy = "measure again, in one shuffled pass over all node counts per repeat"
    if is_shuffled:
        remedy = "more repeats even out the drift"
    return recommend_none(
        measured_counts(rows),
        goals,
        lambda _: f"{why}, which could change the answer",
        f"Undecided {what}: {why}, by about {format_percent(abs(change))} per hour, and the node "
        f"counts were not measured at the same time; {remedy}.",
    ).model_copy(update={"not_ruled_out": tuple(nodes)})
