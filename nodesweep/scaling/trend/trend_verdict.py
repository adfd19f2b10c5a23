"""A trend -> TrendVerdict: whether its latest sweep alarms, per node count, and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from nodesweep.scaling.analysis.intervals import MIN_REPEATS
from nodesweep.scaling.formats import (
    counted,
    escape_markdown,
    format_percent,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report_part import Part
from nodesweep.scaling.trend.chart import (
    LEARNING_SWEEPS,
    Judgement,
    SweepLevel,
    chart_sweeps,
    sweep_level,
)
from nodesweep.scaling.trend.history import HistoryError, Trend, TrendPoint


class CountVerdict(Part):
    """One node count of the latest sweep. Null where the chart can't say yet."""

    nodes: int = Field(description="N, nodes per job.")
    verdict: Literal["slower", "lost", "no alarm", "cannot alarm"] = Field(
        description=(
            "slower: the chart's sum is above its limit; lost: the reference sweep has runs and"
            " the latest one has none; cannot alarm: too few runs or sweeps."
        )
    )
    n: int = Field(description="Used runs of the latest sweep.")
    learnt: int = Field(description="Sweeps of 3 runs or more, from the reference on.")
    ratio: float | None = Field(description="T(N) over the level of the reference sweeps.")
    sigma: float | None = Field(
        description="Standard deviation of T(N) from sweep to sweep, as a share of it."
    )
    since: str | None = Field(description="Sweep that what is too slow began with.")
    reason: str = Field(description="What the verdict rests on.")


class TrendVerdict(Part):
    """The latest sweep of a trend against its first, or against a pinned one."""

    schema_version: Literal[1] = 1
    sweep_id: str = Field(description="The sweep that is judged, the latest of the trend.")
    reference: str = Field(description="First of the sweeps that the level is learnt from.")
    pinned: bool = Field(description="Whether the reference was named, or is the trend's first.")
    tolerance: float = Field(description="Share by which a sweep may be slower.")
    counts: tuple[CountVerdict, ...] = Field(description="Node counts, ascending.")

    @property
    def alarms(self) -> tuple[int, ...]:
        """Node counts that alarm: slower, or with no completed run any more."""
        return tuple(each.nodes for each in self.counts if each.verdict in ("slower", "lost"))

    @property
    def headline(self) -> str:
        """The verdict over all node counts in one sentence."""
        slower, lost, silent = (
            [nodes_text(each.nodes) for each in self.counts if each.verdict == verdict]
            for verdict in ("slower", "lost", "cannot alarm")
        )
        told = []
        if slower:
            beyond = f"beyond {format_percent(self.tolerance)} and noise"
            told.append(f"Slower at {join_words(slower)}: {beyond}.")
        if lost:
            told.append(f"No run completed at {join_words(lost)}.")
        if silent:
            everywhere = len(silent) == len(self.counts)
            told.append(f"Cannot alarm{'' if everywhere else f' at {join_words(silent)}'}.")
        return " ".join(told) or f"No alarm (tolerance {format_percent(self.tolerance)})."

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands below the headline: the reference, then each node count."""
        how = "pinned" if self.pinned else "the first of the trend"
        return (
            f"Judged: {self.sweep_id}; reference: {self.reference} ({how})",
            *(f"{nodes_text(each.nodes)}: {each.verdict}, {each.reason}" for each in self.counts),
        )


def judge_trend(
    trend: Trend, tolerance: float, reference: str | None = None, sweep: str | None = None
) -> TrendVerdict:
    """Judge the trend's latest sweep, or `sweep`, by the chart of each node count.

    `tolerance` is a share from 0 on; `reference` the sweep that the level is learnt from, with
    those after it (default: the first). Raises HistoryError where the trend has no such sweep up to
    the judged one, or the tolerance is no share.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise HistoryError(
            f"tolerance: got {tolerance}; expected a share from 0 on, e.g. 0.05 for 5 %"
        )
    sweeps = trend.sweeps
    if sweep is not None:
        sweeps = sweeps[: sweeps.index(sweep) + 1]
    if reference is not None and reference not in sweeps:
        raise HistoryError(
            f"reference: {reference} is not in this trend, so it was measured under other"
            f" conditions or has no completed run; those that are: {', '.join(sweeps)}"
        )
    first = sweeps[0] if reference is None else reference
    charted = sweeps[sweeps.index(first) :]
    by_count: dict[int, dict[str, TrendPoint]] = {}
    for point in trend.points:
        if point.sweep_id in charted:
            by_count.setdefault(point.nodes, {})[point.sweep_id] = point
    asked = [nodes for nodes, points in by_count.items() if {first, charted[-1]} & points.keys()]
    return TrendVerdict(
        sweep_id=charted[-1],
        reference=first,
        pinned=reference is not None,
        tolerance=tolerance,
        counts=tuple(
            _judge(nodes, charted, by_count[nodes], tolerance, len(asked))
            for nodes in sorted(asked)
        ),
    )


def render_verdict_markdown(verdict: TrendVerdict) -> str:
    """The verdict as Markdown, for a Prefect artifact."""
    lines = [
        f"# Trend at {escape_markdown(verdict.sweep_id)}",
        "",
        f"**{escape_markdown(verdict.headline)}**",
        "",
        *(f"- {escape_markdown(line)}" for line in verdict.lines),
    ]
    return "\n".join(lines) + "\n"


def _judge(
    nodes: int,
    sweeps: Sequence[str],
    points: dict[str, TrendPoint],
    tolerance: float,
    node_counts: int,
) -> CountVerdict:
    levels = _levels(sweeps, points)
    latest = points.get(sweeps[-1])
    n = latest.n if latest is not None else 0
    judgement = None
    if levels and levels[-1].sweep_id == sweeps[-1]:
        judged = chart_sweeps(levels, tolerance, node_counts)
        judgement = judged[-1] if judged else None
    verdict: Literal["slower", "lost", "no alarm", "cannot alarm"] = "cannot alarm"
    ratio = sigma = since = None
    if latest is None:
        verdict, reason = "lost", "no run of it completed"
    elif n < MIN_REPEATS:
        reason = f"{counted(n, 'run')} in this sweep; it takes {MIN_REPEATS}"
    elif judgement is None:
        reason = (
            f"{len(levels)} of {LEARNING_SWEEPS} sweeps are learnt from; it can from sweep"
            f" {LEARNING_SWEEPS + 1} on"
        )
    else:
        verdict = "slower" if judgement.alarms else "no alarm"
        ratio = math.exp(levels[-1].log_seconds - judgement.reference)
        sigma, since = math.expm1(judgement.sigma), judgement.since
        reason = _reason(judgement, ratio)
    return CountVerdict(
        nodes=nodes,
        verdict=verdict,
        n=n,
        learnt=len(levels),
        ratio=ratio,
        sigma=sigma,
        since=since,
        reason=reason,
    )


def _levels(sweeps: Sequence[str], points: dict[str, TrendPoint]) -> list[SweepLevel]:
    made = (
        sweep_level(sweep, points[sweep].train_seconds_of_runs)
        for sweep in sweeps
        if sweep in points
    )
    return [level for level in made if level is not None]


def _reason(judgement: Judgement, ratio: float) -> str:
    """E.g. "T is 1.12 of the reference; sum of what is beyond 5 %: 14 %, limit 7 % (from sweep to
    sweep 2 %), since …".
    """
    excess, limit, allowance, sigma = (
        format_percent(math.expm1(value))
        for value in (judgement.excess, judgement.limit, judgement.allowance, judgement.sigma)
    )
    since = f", since {judgement.since}" if judgement.since else ""
    return (
        f"T is {ratio:.2f} of the reference; what lies beyond {allowance} adds up to {excess},"
        f" limit {limit} (a sweep varies by {sigma}){since}"
    )
