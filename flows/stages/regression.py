"""Compare a sweep with its benchmark's history; an alarm sends an event and fails the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nodesweep.errors import RegressionEstablished
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.formats import join_words
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.trend.history import (
    HistoryError,
    Trend,
    history_frame,
    parse_history,
    read_history,
)
from nodesweep.scaling.trend.trend_verdict import TrendVerdict, judge_trend, render_verdict_markdown
from nodesweep.tasks.calls import announce_regression, publish_trend, put_objects, read_history_of

logger = logging.getLogger("nodesweep.regression")


def alarm_on_regression(
    store: Store,
    name: str,
    report: ScalingReport,
    tolerance: float,
    reference: str | None = None,
) -> TrendVerdict | None:
    """Check the sweep against its trend's control chart, and store the verdict in the bucket.

    Args:
        store: The store of the benchmark's history.
        name: The benchmark's name.
        report: The sweep's report.
        tolerance: Fraction by which a sweep may be slower.
        reference: First sweep from which the level is learned, or None for the trend's first.

    Returns:
        The verdict, or None if neither this sweep nor an earlier one has a completed run.

    Raises:
        RegressionEstablished: The sweep raises an alarm; the event has been sent.
        HistoryError: The trend has no sweep `reference`.
    """
    trends = _trends(store, name, report)
    earlier = {sweep for trend in trends for sweep in trend.sweeps} - {report.sweep_id}
    own_type = [
        trend
        for trend in trends
        if report.instances is None
        or (
            report.sweep_id in trend.sweeps  # variants may be of the same type
            if report.instances.variants
            else trend.platform.instance_type == report.platform.instance_type
        )
    ]
    known = {
        nodes
        for trend in own_type
        for nodes in trend.points["nodes"][trend.points["sweep_id"].isin(earlier)]
    }
    lost = [row.nodes for row in report.summary if not row.n and row.nodes in known]
    trend = next((trend for trend in trends if report.sweep_id in trend.sweeps), None)
    verdict = None
    if trend is not None:
        if earlier.isdisjoint(trend.sweeps) and earlier:
            logger.warning(
                "%s starts a new trend: the %d earlier sweeps of %s were measured under other"
                " conditions",
                report.sweep_id,
                len(earlier),
                name,
            )
        verdict = judge_trend(trend, tolerance, reference, report.sweep_id)
        _store_verdict(store, verdict)
        logger.info("%s", "\n".join((verdict.headline, *verdict.lines)))
    found = [each for each in verdict.counts if each.verdict == "slower"] if verdict else []
    slower = [each.nodes for each in found]
    if not slower and not lost:
        return verdict
    levels = [each.level_since for each in found if each.level_since]
    before = max(levels or [verdict.reference if verdict else max(earlier)])
    alarms = []
    if slower:
        alarms.append(
            f"on {_counts_text(slower)}, sweep {report.sweep_id} is slower than the level since "
            f"{before} by more than both {tolerance:.0%} and noise"
        )
    if lost:
        alarms.append(f"sweep {report.sweep_id} has no completed run on {_counts_text(lost)}")
    announce_regression(report.sweep_id, before, "; ".join(alarms))
    raise RegressionEstablished("; ".join(alarms))


def _counts_text(counts: Sequence[int]) -> str:
    """Return node counts such as "2 and 4 nodes"."""
    return f"{join_words(counts)} node{'' if list(counts) == [1] else 's'}"


def _trends(store: Store, name: str, report: ScalingReport) -> tuple[Trend, ...]:
    """Return the trends up to this sweep, whose own rows come from its report, not the bucket."""
    frames = [history_frame(report)]
    for uri, body in read_history_of(store, name).items():
        sweep = uri.rpartition("/")[2].partition(".")[0]
        if sweep >= report.sweep_id:
            continue
        try:
            frames.append(parse_history(body, uri))
        except HistoryError as error:  # leaves out one sweep, not the trend
            logger.warning("history file left out: %s", error)
    return read_history(frames)


def _store_verdict(store: Store, verdict: TrendVerdict) -> None:
    key = names.report_key(store.prefix, verdict.sweep_id, names.TREND_JSON)
    put_objects(store, {key: verdict.model_dump_json(indent=2).encode() + b"\n"})
    publish_trend(verdict.sweep_id, render_verdict_markdown(verdict))
