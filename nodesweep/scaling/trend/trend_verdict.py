"""Judge a sweep of a trend at each node count, and put the verdict into words."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from nodesweep.scaling.formats import (
    escape_markdown,
    format_percent,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report_part import Part
from nodesweep.scaling.trend.chart import (
    FOUND_WITHIN,
    LEARNING_SWEEPS,
    Judgement,
    chart_sweeps,
    sweep_level,
)
from nodesweep.scaling.trend.history import HistoryError, Trend

if TYPE_CHECKING:
    from pandas import DataFrame


Verdict = Literal["slower", "faster", "lost", "no alarm", "cannot alarm"]
_WITHIN = f"within {FOUND_WITHIN} sweeps"


class CountVerdict(Part):
    """The verdict on the judged sweep at one node count; null: unknown, or too few sweeps."""

    nodes: int = Field(description="N, nodes per job.")
    verdict: Verdict = Field(
        description=(
            "slower: the chart's sum of slowdowns is above its limit; faster: the sum of speedups "
            "was above its limit, the new level is not learned yet, and this sweep is faster than "
            "the reference; lost: the reference sweep or most sweeps have runs, but this sweep has "
            "none; cannot alarm: too few sweeps, or this sweep was contended or is not expected to "
            "have runs."
        )
    )
    n: int = Field(description="Used runs of the judged sweep.")
    learnt: int = Field(
        description="Number of sweeps with an uncontended time, from the reference to this sweep."
    )
    ratio: float | None = Field(
        description="Median T(N) of this sweep divided by the chart's reference level."
    )
    level_since: str | None = Field(
        default=None,
        description="First sweep that the current reference level is computed from; later than the "
        "original reference sweep if sweeps have become faster since.",
    )
    noticeable: float | None = Field(
        default=None,
        description="Smallest step, as a share of T(N), that raises an alarm within 4 sweeps in 9 "
        "of 10 cases.",
    )
    sigma: float | None = Field(
        description="Sweep-to-sweep standard deviation of T(N), as a share of T(N)."
    )
    since: str | None = Field(
        description="Sweep at which the chart's sum of slowdowns began; null: the sum is 0."
    )
    reason: str = Field(description="The numbers behind the verdict.")


class TrendVerdict(Part):
    """The verdict on a sweep of a trend, judged by the level of the sweeps from `reference` on."""

    schema_version: Literal[1] = 1
    sweep_id: str = Field(description="Id of the judged sweep.")
    reference: str = Field(
        description="First of the sweeps from which the chart's level is learned."
    )
    pinned: bool = Field(
        description="True if the reference was requested; false: it is the trend's first sweep."
    )
    tolerance: float = Field(description="Share by which a sweep may be slower without an alarm.")
    counts: tuple[CountVerdict, ...] = Field(description="Node counts, ascending.")

    @property
    def alarms(self) -> tuple[int, ...]:
        """Node counts with an alarm, because the sweep is slower there or has no completed run."""
        return tuple(each.nodes for each in self.counts if each.verdict in ("slower", "lost"))

    @property
    def headline(self) -> str:
        """The verdict over all node counts in one sentence."""
        slower, faster, lost, silent = (
            [nodes_text(each.nodes) for each in self.counts if each.verdict == verdict]
            for verdict in ("slower", "faster", "lost", "cannot alarm")
        )
        sentences = []
        if slower:
            beyond = f"by more than both {format_percent(self.tolerance)} and noise"
            sentences.append(f"Slower at {join_words(slower)} {beyond}.")
        if lost:
            sentences.append(f"No run completed at {join_words(lost)}.")
        if faster:
            sentences.append(f"Faster at {join_words(faster)}.")
        if silent:
            everywhere = len(silent) == len(self.counts)
            sentences.append(f"Cannot alarm{'' if everywhere else f' at {join_words(silent)}'}.")
        noticeable = [each.noticeable for each in self.counts if each.noticeable is not None]
        if not sentences:
            sentences.append(f"No alarm (tolerance {format_percent(self.tolerance)}).")
        if noticeable and not self.alarms:
            step = format_percent(max(noticeable))
            sentences.append(f"A step of at least {step} would be noticed {_WITHIN}.")
        return " ".join(sentences)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines below the headline: the reference, then each node count."""
        how = "pinned" if self.pinned else "the first of the trend"
        return (
            f"Judged: {self.sweep_id}; reference: {self.reference} ({how})",
            *(f"{nodes_text(each.nodes)}: {each.verdict}, {each.reason}" for each in self.counts),
        )


def judge_trend(
    trend: Trend,
    tolerance: float,
    reference: str | None = None,
    sweep: str | None = None,
    nodes: int | None = None,
) -> TrendVerdict:
    """Judge a sweep of a trend by the chart of each node count.

    Args:
        trend: The trend that the sweep belongs to.
        tolerance: Share by which a sweep may be slower, at least 0.
        reference: First of the sweeps from which the level is learned, or None for the trend's
            first sweep.
        sweep: The sweep to judge, or None for the latest.
        nodes: The only node count to report, or None for those of the first and the judged sweep
            and of most sweeps.

    Raises:
        HistoryError: The reference is not among the sweeps up to the judged one, or the tolerance
            is not a share of at least 0.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise HistoryError(
            f"tolerance: got {tolerance}; expected a share of at least 0, e.g. 0.05 for 5%"
        )
    sweeps = trend.sweeps
    if sweep is not None:
        sweeps = sweeps[: sweeps.index(sweep) + 1]
    if reference is not None and reference not in sweeps:
        raise HistoryError(
            f"reference: {reference} is not in this trend, so it was measured under other"
            f" conditions or has no completed run; sweeps in this trend: {', '.join(sweeps)}"
        )
    first = sweeps[0] if reference is None else reference
    charted = sweeps[sweeps.index(first) :]
    if sweep is None and trend.failed_sweep is not None:
        charted += (trend.failed_sweep,)
    points = trend.points[trend.points["sweep_id"].isin(charted)]
    usual = points["nodes"].value_counts() > len(charted) / 2
    expected = {
        *points["nodes"][points["sweep_id"].isin([first, charted[-1]])],
        *usual.index[usual],
    }
    return TrendVerdict(
        sweep_id=charted[-1],
        reference=first,
        pinned=reference is not None,
        tolerance=tolerance,
        counts=tuple(
            _judge(
                int(each),
                charted,
                points[points["nodes"] == each].set_index("sweep_id"),
                tolerance,
                expected,
            )
            for each in (sorted(expected) if nodes is None else [nodes])
        ),
    )


def render_verdict_markdown(verdict: TrendVerdict) -> str:
    """Return the verdict as Markdown, for a Prefect artifact."""
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
    points: DataFrame,
    tolerance: float,
    expected: Set[int],
) -> CountVerdict:
    is_contended = points["contended"]
    times = points["train_seconds_of_runs"][~is_contended]
    levels = [sweep_level(sweep, times[sweep]) for sweep in sweeps if sweep in times]
    n = int(points["n"].get(sweeps[-1], 0))
    judged = chart_sweeps(levels, tolerance, len(expected))
    verdict: Verdict = "cannot alarm"
    ratio = sigma = since = level_since = noticeable = None
    if not n and nodes not in expected:
        reason = "neither the reference nor this sweep nor most sweeps have runs"
    elif not n:
        verdict, reason = "lost", "none of its runs completed"
    elif is_contended[sweeps[-1]]:
        reason = "its nodes got less CPU than they requested, so T is not a valid measurement"
    elif not judged:
        reason = (
            f"the reference needs {LEARNING_SWEEPS} sweeps and has {len(levels)}; alarms start "
            f"with sweep {LEARNING_SWEEPS + 1}"
        )
    else:
        judgement = judged[-1]
        ratio = math.exp(levels[-1].log_seconds - judgement.reference)
        is_faster = judgement.faster_since is not None and ratio < 1
        verdict = "slower" if judgement.alarms else "faster" if is_faster else "no alarm"
        sigma, since = math.expm1(judgement.sigma), judgement.since
        level_since = judgement.reference_since
        noticeable = math.expm1(judgement.noticeable)
        reason = _reason(judgement, ratio, levels[0].sweep_id)
    return CountVerdict(
        nodes=nodes,
        verdict=verdict,
        n=n,
        learnt=len(levels),
        ratio=ratio,
        level_since=level_since,
        noticeable=noticeable,
        sigma=sigma,
        since=since,
        reason=reason,
    )


def _reason(judgement: Judgement, ratio: float, first: str) -> str:
    excess, limit, allowance, sigma, noticeable = (
        format_percent(math.expm1(value))
        for value in (
            judgement.excess,
            judgement.limit,
            judgement.allowance,
            judgement.sigma,
            judgement.noticeable,
        )
    )
    clauses = [
        f"T is {ratio:.2f} times the reference; the excess over {allowance} adds up to "
        f"{excess}, limit {limit} (sweeps vary by {sigma})"
        + (f", since {judgement.since}" if judgement.since else "")
    ]
    if not judgement.alarms and math.log(ratio) > judgement.allowance + judgement.limit:
        clauses.append("too few runs so far to rule out slow hosts")
    if judgement.faster_since:
        clauses.append(
            f"a new level is learned from {judgement.faster_since} on; choose another with"
            " --reference SWEEP"
        )
    elif judgement.reference_since != first:
        clauses.append(
            f"the reference is the faster level since {judgement.reference_since}; choose another"
            " with --reference SWEEP"
        )
    clauses.append(f"a step of at least {noticeable} would be noticed {_WITHIN}")
    return "; ".join(clauses)
