"""Report times that do not look like measurements (docs/statistics.md, "Odd data").

Nothing is excluded or corrected automatically.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.clocks import ClockStatistics
from nodesweep.scaling.analysis.deadline import recommend_none
from nodesweep.scaling.analysis.intervals import MIN_REPEATS
from nodesweep.scaling.analysis.measured_count import measured_counts
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.formats import (
    counts_text,
    format_ratio,
    format_seconds,
    nodes_text,
)

# Rounding a shorter time to whole seconds, by up to half a second either way, spans more than 1% of
# the time.
COARSE_SECONDS = 100
# No network or cache changes the node-time by this factor in one doubling, but minutes or
# milliseconds that were entered as seconds do.
UNIT_FACTOR = 20
# If more nodes take longer, a slow network can exceed UNIT_FACTOR. For example, 8 nodes that take 3
# times as long as 1 node have 24 times the node-time. Minutes among seconds give a factor of 60/E.
SLOWER_FACTOR = 50
# Of three runs, one is an outlier if its distance from the median is more than this many times the
# distance of the third run, and more than this share of the median.
OUTLIER_TIMES, OUTLIER_SHARE = 5, 0.05
# By chance, every run is slower than the one before in 1 of 24 orders of 4 runs, and 1 of 120 of 5.
DRIFT_FROM_REPEATS = 4
DRIFT_SHARE = 0.02

_CONFIRM = "If they are correct, confirm them with --confirm-units."

Times = Mapping[int, Sequence[float]]
"""Seconds of the used runs by node count, in order of the repeats."""


def find_odd(
    times: Times,
    statistics_at: Mapping[int, ClockStatistics],
    least_repeats: int = MIN_REPEATS,
    are_rates: bool = False,
) -> Iterator[str]:
    """Yield a note on each property of the times that is unusual for measurements.

    Args:
        times: Seconds of the used runs by node count.
        statistics_at: Statistics of the same times by node count.
        least_repeats: Minimum number of runs of a node count for its spread to be checked.
        are_rates: True if the times are seconds per sample, computed from rates in a table.
    """
    yield from _coarse(times, least_repeats)
    yield from _without_spread(times, least_repeats)
    yield from _unit_mistakes(times, are_rates)
    yield from _fast_after_slow(statistics_at)
    yield from _outliers(times, are_rates)
    yield from _drift(times)


def _coarse(times: Times, least_repeats: int) -> Iterator[str]:
    values = [seconds for at in times.values() for seconds in at]
    repeated = any(len(at) >= least_repeats for at in times.values())
    if repeated and all(seconds == round(seconds) for seconds in values):
        shortest = min(values)
        if shortest < COARSE_SECONDS:
            yield (
                "Whole seconds: no time has decimals, and the shortest is "
                f"{format_seconds(shortest)}, so rounding can hide differences of more than 1%"
                ". Give the times with decimals."
            )


def _without_spread(times: Times, least_repeats: int) -> Iterator[str]:
    same = [nodes for nodes, at in times.items() if len(at) >= least_repeats and min(at) == max(at)]
    if same:
        yield (
            f"No variance at {counts_text(same)}: all runs took exactly the same time, which "
            "measured times never do. Intervals there are too narrow or a single value; check "
            "whether one run was entered several times or the times were rounded."
        )


def _unit_mistakes(times: Times, are_rates: bool) -> Iterator[str]:
    for nodes, factor in other_unit(times).items():
        if are_rates:
            yield (
                f"A different unit at {nodes_text(nodes)}? The rate per node differs from the rate "
                f"of neighboring node counts by a factor of about {factor:.0f}, which no network "
                "causes: batches instead of samples are a factor of the batch size. Check the "
                "rates of that node count before you rely on these results."
            )
            continue
        yield (
            f"A different unit at {nodes_text(nodes)}? The node-time differs from the node-time of "
            f"neighboring node counts by a factor of about {factor:.0f}, which no network "
            "causes: minutes instead of seconds are a factor of 60, milliseconds 1000. Check "
            "the times of that node count before you rely on these results."
        )


def other_unit(times: Times) -> dict[int, float]:
    """Return the node counts whose times may be in a different unit, each with a factor.

    Their node-time is more than UNIT_FACTOR times, or less than 1/UNIT_FACTOR times, the node-times
    of both nearest node counts. The returned factor is the ratio to one of them.
    """
    counts = sorted(times)
    spent = {nodes: nodes * statistics.median(times[nodes]) for nodes in counts}
    odd: dict[int, float] = {}
    for index, nodes in enumerate(counts) if len(counts) > 2 else ():
        first = min(max(index - 1, 0), len(counts) - 3)
        ratios = [spent[nodes] / spent[o] for o in counts[first : first + 3] if o != nodes]
        if min(ratios) > UNIT_FACTOR or max(ratios) < 1 / UNIT_FACTOR:
            odd[nodes] = max(ratios[0], 1 / ratios[0])
    return odd


def doubtful_units(times: Times) -> list[tuple[int, int, float]]:
    """Return (N, N, factor) for each pair of node counts whose times seem to differ in their unit.

    Both N are the same if two runs of one node count differ by more than UNIT_FACTOR. Otherwise,
    the larger of two neighboring node counts has less than 1/UNIT_FACTOR of the node-time of the
    smaller one, or it takes more than twice as long with more than SLOWER_FACTOR times the
    node-time. Neither parallelism nor its overhead explains such factors.
    """
    found = [
        (nodes, nodes, max(at) / min(at))
        for nodes, at in sorted(times.items())
        if max(at) > UNIT_FACTOR * min(at)
    ]
    for few, many in pairwise(sorted(times)):
        longer = statistics.median(times[many]) / statistics.median(times[few])
        ratio = longer * many / few
        if ratio < 1 / UNIT_FACTOR or (ratio > SLOWER_FACTOR and longer > 2):
            found.append((few, many, max(ratio, 1 / ratio)))
    return found


def recommend_none_for_units(
    rows: Sequence[SummaryRow], times: Times, goals: RecommendationConfig, are_rates: bool = False
) -> Recommendation | None:
    """Return a recommendation without a choice if the times may be in different units, else None.

    `are_rates` is True if the times are seconds per sample, computed from rates in a table.
    """
    doubtful = doubtful_units(times)
    measured = measured_counts(rows)
    if not doubtful or len(measured) < 2:
        return None
    few, many, factor = doubtful[0]
    where = f"at {nodes_text(few)}" if few == many else f"at {few} and {many} nodes"
    if are_rates:
        return recommend_none(
            measured,
            goals,
            lambda _: "the rates may not all be in samples per second",
            f"No recommendation until the rates are checked: the rates {where} differ by a factor "
            f"of about {factor:,.0f} per node. Give all rates in samples per second without "
            f"thousands separators: 1.505 for 1505 is a factor of 1000. {_CONFIRM}",
        )
    why = "the times may not all be in seconds"
    reason = (
        f"No recommendation until the times are checked: the node-times {where} differ by a factor "
        f"of about {factor:,.0f}. Give all times in seconds without thousands separators: minutes "
        f"among seconds are a factor of 60, and 5.940 for 5940 is a factor of 1000. {_CONFIRM}"
    )
    return recommend_none(measured, goals, lambda _: why, reason)


def _fast_after_slow(statistics_at: Mapping[int, ClockStatistics]) -> Iterator[str]:
    found = [
        (nodes, at.doubling_ratio)
        for nodes, at in statistics_at.items()
        if at.doubling_ratio is not None
        and at.efficiency is not None
        and (2 if at.doubling_ratio_interval is None else at.doubling_ratio_interval.low) >= 2
        and at.doubling_ratio > 2.1
        and at.efficiency < 1
    ]
    for nodes, ratio in found:
        half = nodes_text(nodes // 2)
        yield (
            f"The doubling ratio at {nodes_text(nodes)} is {format_ratio(ratio)}, although "
            "efficiency is below 100% and doubling the nodes can give at most 2. Either the runs "
            f"on {half} were slow, or the runs on {nodes_text(nodes)} did less work. Repeat the "
            f"runs on {half} before you trust the ratio."
        )


def _outliers(times: Times, are_rates: bool) -> Iterator[str]:
    unit = " per sample" if are_rates else ""
    for nodes, at in times.items():
        if len(at) != MIN_REPEATS:
            continue
        low, middle, high = sorted(at)
        below, above = middle - low, high - middle
        far, odd = max((below, low), (above, high))
        if far > OUTLIER_SHARE * middle and far > OUTLIER_TIMES * min(below, above):
            yield (
                f"One outlier out of three at {nodes_text(nodes)}: {format_seconds(odd)}{unit}, "
                f"compared to a median of {format_seconds(middle)}{unit}. It is included in the "
                "mean and its interval; check the log of that run, and repeat this node count at "
                "least twice."
            )


def _drift(times: Times) -> Iterator[str]:
    """Yield a note if every repeat is slower, or faster, than the one before at all node counts.

    Node counts with fewer than DRIFT_FROM_REPEATS runs are ignored.
    """
    long = {nodes: at for nodes, at in times.items() if len(at) >= DRIFT_FROM_REPEATS}
    steps = [later - earlier for at in long.values() for earlier, later in pairwise(at)]
    far = [at for at in long.values() if abs(at[-1] / at[0] - 1) > DRIFT_SHARE]
    if steps and len(far) == len(long):
        way = "slower" if min(steps) > 0 else "faster" if max(steps) < 0 else None
        if way is not None:
            yield (
                f"Drift: at {counts_text(list(long))}, every repeat was {way} than the one before, "
                "so the machine or the data changed during the sweep. Find the cause, then "
                "rerun the sweep with sweep.order shuffled, which keeps drift out of the ratios."
            )


def find_confounded(order: Sequence[int]) -> Iterator[str]:
    """Yield a note if the runs of each node count were executed in a row.

    `order` lists the node count of each used run, in the order in which the runs started.
    """
    blocks = 1 + sum(a != b for a, b in pairwise(order))
    counts = set(order)
    if len(counts) > 1 and blocks == len(counts) < len(order):
        yield (
            "Order and node count are confounded: the runs of each node count were executed in a "
            "row, so a machine that slowed down or sped up meanwhile looks like a slower or "
            "faster node count. Intervals are then too narrow (docs/statistics.md). Run one "
            "shuffled pass over all node counts per repeat (sweep.order)."
        )


def find_even_steps(counts: Sequence[int]) -> Iterator[str]:
    """Yield a note on the node counts at which all steady steps of a probe took equally long."""
    if counts:
        yield (
            f"No variance among the steps of the probes at {counts_text(counts)}: all took exactly "
            "the same time, which measured steps never do, so the error of the projection there is "
            "unknown, not 0. Have the program time its steps with more digits."
        )
