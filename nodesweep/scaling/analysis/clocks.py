"""Statistics by node count on one clock, such as means, intervals, speedup and efficiency.

The arithmetic is the same for all four clocks, which are never mixed (docs/method.md, "Clocks",
"Speedup" and "Repeats and intervals").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from nodesweep.scaling.analysis.intervals import (
    Interval,
    Residuals,
    geometric_mean,
    mean_interval,
    next_run_bound,
    paired_ratio,
    paired_ratio_interval,
    ratio_interval,
    residuals_of,
)
from nodesweep.scaling.report_part import Part

ClockName = Literal["train", "steady", "billable", "submit_to_end"]
RepeatTime = tuple[int, float]


class ClockStatistics(Part):
    """Statistics of one node count on one clock; an unknown value is null, never 0."""

    n: int = Field(description="Number of runs behind these statistics.")
    seconds: float | None = Field(
        description="Geometric mean T(N); on the steady clock, seconds per sample."
    )
    seconds_interval: Interval | None = Field(
        description="95% interval of T(N); null for fewer than 3 runs."
    )
    next_run_seconds: float | None = Field(
        default=None,
        description=(
            "Upper 95% prediction bound: the next run in this session is shorter with a "
            "probability of 95%; null for fewer than 3 runs."
        ),
    )
    speedup: float | None = Field(
        description=(
            "S(N) = T(N0)/T(N). In shuffled sweeps, it is the geometric mean of the ratios of the "
            "repeats, which is the same number if no run is missing."
        )
    )
    speedup_interval: Interval | None = Field(
        description="95% interval of S(N), from the runs at both N0 and N."
    )
    efficiency: float | None = Field(description="E(N) = S(N) x N0/N.")
    efficiency_interval: Interval | None = Field(description="95% interval of E(N).")
    doubling_ratio: float | None = Field(
        description=(
            "S(N)/S(N/2), ideally 2, at the larger node count N; null if N/2 was not measured."
        )
    )
    doubling_ratio_interval: Interval | None = Field(
        description="95% interval of the doubling ratio."
    )
    karp_flatt: float | None = Field(
        description=(
            "Serial fraction (1/S - 1/R)/(1 - 1/R) with R = N/N0; null at the baseline."
            " If it grows with N, so does the overhead."
        )
    )


class RowClocks(Part):
    """Statistics of one node count on each of the four clocks."""

    train: ClockStatistics = Field(description="Time of the training itself, used in the headline.")
    steady: ClockStatistics = Field(
        description="Seconds per sample in the steady window of the training loop."
    )
    billable: ClockStatistics = Field(
        description="Billed time, which determines the cost; its ratio is not a speedup."
    )
    submit_to_end: ClockStatistics = Field(
        description="Waiting time of the user, from the acceptance of the job to its end."
    )


def clock_statistics(
    runs_by_nodes: Mapping[int, Sequence[RepeatTime]],
    baseline: int | None,
    paired: bool = False,
    work: Mapping[int, float] | None = None,
) -> dict[int, ClockStatistics]:
    """Return the statistics of each node count.

    Args:
        runs_by_nodes: (repeat, seconds above zero) of each run, by node count.
        baseline: N0. If it is None or has no runs on this clock, the ratios are unknown.
        paired: True to pair the runs by repeat in the intervals of ratios (docs/statistics.md).
        work: Work of a run by node count, if it differs between node counts. S, E and D then
            compare work per second (scaled speedup: Gustafson, CACM 31(5), 1988).
    """
    rest = None
    if paired:
        rest = residuals_of([dict(runs) for _, runs in sorted(runs_by_nodes.items())])
    return {
        nodes: _at(nodes, runs_by_nodes, baseline, paired, rest, work or {})
        for nodes in runs_by_nodes
    }


def karp_flatt(speedup: float, times_nodes: float) -> float | None:
    """Return the experimentally determined serial fraction, or None at the baseline.

    See Karp and Flatt, CACM 33(5), 1990, with N/N0 instead of N if the baseline is not one node.

    Args:
        speedup: S(N).
        times_nodes: N/N0.
    """
    if times_nodes <= 1:
        return None
    return (1 / speedup - 1 / times_nodes) / (1 - 1 / times_nodes)


def _at(
    nodes: int,
    runs_by_nodes: Mapping[int, Sequence[RepeatTime]],
    baseline: int | None,
    paired: bool,
    rest: Residuals | None,
    work: Mapping[int, float],
) -> ClockStatistics:
    own = runs_by_nodes[nodes]
    base: Sequence[RepeatTime] = runs_by_nodes.get(baseline, ()) if baseline is not None else ()
    half: Sequence[RepeatTime] = runs_by_nodes.get(nodes // 2, ()) if nodes % 2 == 0 else ()
    runs = _seconds(own)
    to_base, to_half = (
        work.get(nodes, 1.0) / work.get(other, 1.0) for other in (baseline or nodes, nodes // 2)
    )
    speedup = _ratio(base, own, paired, to_base)
    share = baseline / nodes if baseline is not None else None
    # At N0 the runs are compared with themselves, so the ratio is 1 and has no spread.
    interval = _ratio_interval(base, own, paired, rest, to_base) if nodes != baseline else None
    return ClockStatistics(
        n=len(runs),
        seconds=geometric_mean(runs) if runs else None,
        seconds_interval=mean_interval(runs),
        next_run_seconds=next_run_bound(runs),
        speedup=speedup,
        speedup_interval=interval,
        efficiency=None if speedup is None or share is None else speedup * share,
        efficiency_interval=None if interval is None or share is None else interval.scaled(share),
        doubling_ratio=_ratio(half, own, paired, to_half) if base else None,
        doubling_ratio_interval=_ratio_interval(half, own, paired, rest, to_half) if base else None,
        karp_flatt=None if speedup is None or share is None else karp_flatt(speedup, 1 / share),
    )


def _seconds(runs: Sequence[RepeatTime]) -> list[float]:
    return [seconds for _, seconds in runs]


def _ratio(
    numerator: Sequence[RepeatTime],
    denominator: Sequence[RepeatTime],
    paired: bool,
    work: float,
) -> float | None:
    if not numerator or not denominator:
        return None
    if paired and (ratio := paired_ratio(dict(numerator), dict(denominator))) is not None:
        return ratio * work
    return geometric_mean(_seconds(numerator)) / geometric_mean(_seconds(denominator)) * work


def _ratio_interval(
    numerator: Sequence[RepeatTime],
    denominator: Sequence[RepeatTime],
    paired: bool,
    rest: Residuals | None,
    work: float,
) -> Interval | None:
    interval = (
        paired_ratio_interval(dict(numerator), dict(denominator), rest)
        if paired
        else ratio_interval(_seconds(numerator), _seconds(denominator))
    )
    return interval and interval.scaled(work)
