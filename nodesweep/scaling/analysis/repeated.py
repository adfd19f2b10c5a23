"""Detect work that was repeated on every node (docs/recommendation.md, "Repeated work").

If the programs on the nodes never find each other, every node does all of the work. T(N) is then
T(N0), and N nodes use N/N0 times the CPU seconds. A job that does not scale for a different reason
can look the same, so nodes that were seen to be connected are exempt, and nothing is reported if
the CPU seconds are unknown. Runs that confirmed their world size are exempt unless connections were
looked for and never seen: a program can print $WORLD_SIZE and divide nothing. Runs that trained
more samples on more nodes are exempt, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation, sentence
from nodesweep.scaling.analysis.deadline import recommend_none
from nodesweep.scaling.analysis.measured_count import measured_counts
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.formats import format_percent, format_speedup, join_words, nodes_text
from nodesweep.scaling.outcome.attainment import CONNECTED
from nodesweep.scaling.outcome.cpu_speed import QUOTA_USED

REPEATED = "the work was repeated there instead of divided"
_LEAST_TIME_SHARE = 0.9
"""Minimum T(N)/T(N0) of repeated work. It allows two nodes to have divided a fifth of the work."""
_CPU_MARGIN = 0.2
"""Allowed relative difference between the CPU seconds of N nodes and N/N0 times those of N0."""
_CPU = "cpu_percent"
_REMEDY = (
    "have each rank process only its share of the work (by RANK and WORLD_SIZE, or with the "
    "launcher that the program is written for)"
)


class Metered(Protocol):
    """A run, such as a point of a report, with the measurements that show repeated work."""

    @property
    def nodes(self) -> int:
        """The number of nodes of the job."""

    @property
    def used(self) -> bool:
        """True if the statistics include the run."""

    @property
    def utilisation(self) -> Mapping[str, float]:
        """Measured utilization in percent by name."""

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds in each secondary status."""


@dataclass(frozen=True)
class RepeatedCount:
    """A node count at which every node did all of the work.

    `never_connected` is True if connections between the nodes were sampled but never seen, and
    `is_confirmed` if the runs confirmed their world size.
    """

    nodes: int
    time_share: float
    cpu_ratio: float
    never_connected: bool
    is_confirmed: bool


def find_repeated(
    rows: Sequence[SummaryRow], points: Sequence[Metered]
) -> tuple[RepeatedCount, ...]:
    """Return the node counts at which work was repeated, ascending.

    `points` are the runs behind the rows.
    """
    measured = measured_counts(rows)
    found = []
    for count in measured[1:]:
        base = measured[0]
        connection_flags = [
            point.utilisation[CONNECTED]
            for point in points
            if point.used and point.nodes == count.nodes and CONNECTED in point.utilisation
        ]
        ratio = _cpu_ratio(points, count.nodes, base.nodes, count.seconds / base.seconds)
        is_confirmed = "world_size_unconfirmed" not in count.row.flags
        grew = (count.row.samples_ratio or 1.0) > 1 + _CPU_MARGIN
        is_exempt = is_confirmed and (grew or not connection_flags)
        if is_exempt or any(connection_flags) or ratio is None:
            continue
        expected = count.nodes / base.nodes
        time_share = count.seconds / base.seconds
        if time_share >= _LEAST_TIME_SHARE and abs(ratio / expected - 1) <= _CPU_MARGIN:
            found.append(
                RepeatedCount(count.nodes, time_share, ratio, bool(connection_flags), is_confirmed)
            )
    return tuple(found)


def recommend_none_for_repeated(
    rows: Sequence[SummaryRow], points: Sequence[Metered], goals: RecommendationConfig
) -> Recommendation | None:
    """Return a recommendation without a choice if work was repeated, else None.

    Only runs that divide the work can show how many nodes are worth it.
    """
    repeated = find_repeated(rows, points)
    if not repeated:
        return None
    measured = measured_counts(rows)
    at = [each.nodes for each in repeated]
    return recommend_none(
        measured,
        goals,
        lambda count: REPEATED if count.nodes in at else "there is no divided work to compare with",
        _reason(repeated, measured[0].nodes),
    )


def _reason(repeated: Sequence[RepeatedCount], base_nodes: int) -> str:
    is_seen = all(each.never_connected for each in repeated)
    at = join_words(each.nodes for each in repeated)
    times = join_words(format_percent(each.time_share) for each in repeated)
    cpu = join_words(format_speedup(each.cpu_ratio) for each in repeated)
    was = "was repeated" if is_seen else "seems to have been repeated"
    why = f"took {times} of the time and {cpu} the CPU seconds of {nodes_text(base_nodes)}"
    if is_seen:
        why += ", and their programs never connected to each other"
    remedy = _REMEDY
    if not any(each.is_confirmed for each in repeated):
        why += ", and no run confirmed its world size"
        remedy += " and print world_size=N"
    return sentence(
        f"No recommendation, since the work {was} instead of divided: {at} nodes {why}", remedy
    )


def _cpu_ratio(
    points: Sequence[Metered], nodes: int, base_nodes: int, time_ratio: float
) -> float | None:
    """Return the ratio of the CPU seconds of all nodes to the baseline, or None if unknown.

    The CPU seconds are computed from the used share of the CPU quota during the training or, if
    that is unknown, from the mean CPU use in the Training phase.
    """
    used, base_used = (_median_use(points, count, QUOTA_USED) for count in (nodes, base_nodes))
    if used is not None and base_used:
        return used / base_used * time_ratio * nodes / base_nodes
    busy, base_busy = (_median_use(points, count, _CPU) for count in (nodes, base_nodes))
    if busy is None or not base_busy:
        return None
    return busy / base_busy * nodes / base_nodes


def _median_use(points: Sequence[Metered], nodes: int, name: str) -> float | None:
    """Return the median CPU use of the used runs at a node count, or None if unknown.

    The unit is percent of the quota for QUOTA_USED, otherwise CPU seconds of a node x 100.
    """
    of_count = [point for point in points if point.used and point.nodes == nodes]
    if name == QUOTA_USED:
        values = [point.utilisation.get(name) for point in of_count]
    else:
        values = [
            point.utilisation[name] * point.phases["Training"]
            if name in point.utilisation and "Training" in point.phases
            else None
            for point in of_count
        ]
    known = [value for value in values if value is not None]
    return median(known) if known else None
