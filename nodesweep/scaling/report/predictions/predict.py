"""Predict times for node counts that were not measured, from a report with a step budget.

inputs.py reads the report, draws.py computes the intervals, and physics.py contains the model. The
rules of the report then apply to measured and predicted node counts alike (docs/recommendation.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.clocks import ClockStatistics
from nodesweep.scaling.analysis.cost import CostSpread, RunCosts
from nodesweep.scaling.analysis.interval import MIN_REPEATS, Interval
from nodesweep.scaling.analysis.price import charged_hours, node_cost_usd
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.fits.assumption import assumption
from nodesweep.scaling.formats import format_percent, format_seconds, join_words, nodes_text
from nodesweep.scaling.predict.draws import Measurement, Outlook, look_ahead
from nodesweep.scaling.predict.physics import PART_OF, Term
from nodesweep.scaling.report.headline import SCALING, failed_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.predictions.checked import check_predictions
from nodesweep.scaling.report.predictions.inputs import (
    NotPredictable,
    choose_counts,
    place_of,
    projected_counts,
    read_measurements,
    read_passes,
)
from nodesweep.scaling.report.predictions.model import (
    CountPrediction,
    NextJob,
    PredictedTerm,
    Predictions,
    cost_text,
)

_OPEN = 0.02
"""A term has only bounds, and no single value, if these differ by more than this share of T."""
_OPEN_REASONS: Mapping[Term, str] = {
    "communication": "they don't separate latency, bandwidth and what the backward pass hides",
    "waiting": "they don't show whether one node is always slow or the slowest node varies",
    "data": "they don't show whether the nodes share the source",
    "fixed": "they don't show how it grows",
}
_OPEN_TIMED = "they don't show how latency grows, nor how much slower an exchange is in a step"


def predict(
    report: ScalingReport,
    asked: Sequence[int] | None = None,
    batches: Sequence[ScalingReport] = (),
    confirming: int = 0,
) -> Predictions:
    """Return the predictions for node counts that were not measured.

    Args:
        report: The report of a sweep of at least two node counts, one of them with several nodes.
        asked: Node counts; None: see choose_counts().
        batches: Reports of one-node runs of the same program with different global batches, which
            show the compute time for more batches per process.
        confirming: Number of runs with which the sweep itself confirms a predicted node count. The
            next job is then one of these runs, and the noise of all runs together applies to every
            node count. 0 if the sweep does not confirm predictions.

    Raises:
        NotPredictable: The report, one of `batches` or a node count allows no prediction.
    """
    seen = _look(report, asked, batches, confirming)
    measured, outlooks, rows = seen.measured, seen.outlooks, seen.rows
    answer = None
    if seen.shows_noise:
        rules = RecommendationConfig.model_validate(report.limits)
        _refuse_withheld(report, rules)
        answer = recommend(seen.judged, rules)
    counts = tuple(
        _count(each, row, measured, seen.passes) for each, row in zip(outlooks, rows, strict=True)
    )
    job = None
    if answer is not None:
        job = _next_job(answer, counts, seen, report, confirming)
    return Predictions(
        sweep_id=report.sweep_id,
        headline=_headline(answer, counts, job, report),
        chosen=None if answer is None or answer.chosen is None else answer.chosen.nodes,
        measured_nodes=tuple(each.place.nodes for each in measured),
        counts=counts,
        judged=() if answer is None else answer.judged,
        next_job=job,
        checked=check_predictions(report),
        assumes=_assumes(report, measured, counts),
    )


def rows_judged(report: ScalingReport) -> Sequence[SummaryRow]:
    """Return the rows that the recommendation of a report's own predictions compares.

    Without predictions that have intervals, they are the measured rows.
    """
    if report.prediction is None or not report.prediction.judged:
        return report.summary
    asked = [count.nodes for count in report.prediction.counts]
    return _look(report, asked, confirming=1).judged


class _Seen(NamedTuple):
    """The measurements of a report, and the predictions from them.

    `rows` holds the predicted rows, and `judged` both these and the measured rows, as the rules
    compare them. `passes` maps other batches to the seconds of the forward and backward pass.
    """

    measured: list[Measurement]
    passes: Mapping[float, list[float]]
    outlooks: list[Outlook]
    rows: list[SummaryRow]
    judged: list[SummaryRow]
    shows_noise: bool


def _look(
    report: ScalingReport,
    asked: Sequence[int] | None,
    batches: Sequence[ScalingReport] = (),
    confirming: int = 0,
) -> _Seen:
    """Predict a row for each node count; takes the same arguments as predict()."""
    measured = read_measurements(report)
    places = [place_of(measured, nodes) for nodes in choose_counts(measured, asked)]
    passes: dict[float, list[float]] = {}
    for other in batches:
        passes |= read_passes(report, measured, other)
    by_nodes = {row.nodes: row for row in report.summary}
    like = by_nodes[measured[-1].place.nodes]
    # node counts that lack an interval, or are compared with predictions, use the noise of all runs
    pooled = [
        (each.place, each.work)
        for each in measured
        if confirming or by_nodes[each.place.nodes].n < MIN_REPEATS
    ]
    of_pooled: list[Outlook] = []
    outlooks: list[Outlook] = []
    for each in look_ahead(measured, sorted([*pooled, *places]), passes):
        (outlooks if each.terms else of_pooled).append(each)
    base, runs = measured[0].place.nodes, sum(len(each.runs["gradients"]) for each in measured)
    rows = [_row(each, like, report, base, runs) for each in outlooks]
    measured_rows = [
        _row(each, by_nodes[each.place.nodes], report, base, runs) for each in of_pooled
    ]
    # a node count whose runs were contended can be both predicted and measured
    judged = by_nodes | {row.nodes: row for row in (*measured_rows, *rows)}
    return _Seen(
        measured,
        passes,
        outlooks,
        rows,
        [judged[nodes] for nodes in sorted(judged)],
        shows_noise=runs > len(measured),
    )


def _refuse_withheld(report: ScalingReport, rules: RecommendationConfig) -> None:
    """Refuse a report that withholds a recommendation, for example because the times drifted.

    A sweep that is undecided under the bounds of its design is not refused, because its times are
    sound.

    Raises:
        NotPredictable: The report withholds its recommendation.
    """
    own = report.recommendation
    if own is None or own.chosen is not None or own.basis not in ("interval", "point"):
        return
    by_rows = recommend(report.summary, rules)
    if by_rows is not None and by_rows.chosen is not None:
        raise NotPredictable(
            f"{report.sweep_id}: the report withholds its recommendation: {own.reason}"
        )


def _row(
    outlook: Outlook, like: SummaryRow, report: ScalingReport, base: int, runs: int
) -> SummaryRow:
    """Return an outlook as a row of the summary, so that the rules for measured rows apply to it.

    Args:
        outlook: The outlook.
        like: The row that provides the time outside T and the warm pool per node: the row of the
            same node count if it was measured, otherwise the row of the largest measured one.
        report: The report.
        base: Number of nodes of the baseline.
        runs: Number of runs from whose noise the intervals are computed.
    """
    nodes, within, efficient = outlook.place.nodes, outlook.interval, outlook.efficiency_interval
    train = like.train.model_copy(
        update={
            "seconds": outlook.seconds,
            "seconds_interval": within,
            "next_run_seconds": None if within is None else within.high,
            "speedup": outlook.efficiency * nodes / base,
            "speedup_interval": None if efficient is None else efficient.scaled(nodes / base),
            "efficiency": outlook.efficiency,
            "efficiency_interval": efficient,
            "doubling_ratio": outlook.doubling_ratio,
            "doubling_ratio_interval": outlook.doubling_interval,
            "karp_flatt": None,
            "n": runs,
        }
    )
    billable = _with_time_around(like.clocks.billable, like.train, train)
    waited = _with_time_around(like.clocks.submit_to_end, like.train, train)
    usd = node_cost_usd(nodes, billable.seconds, report.price)
    pool = like.costs.warm_pool_usd
    pool = None if pool is None else pool * nodes / like.nodes
    total = None if usd is None else usd + (pool or 0.0)
    ends = None
    if total is not None and within is not None:
        per_second = node_cost_usd(nodes, 1.0, report.price) or 0.0
        low, high = (total + (end - outlook.seconds) * per_second for end in within.bounds)
        ends = Interval(low=low, high=high, level=within.level)
    costs = dict.fromkeys(RunCosts.model_fields) | {
        "run_usd": usd,
        "on_demand_usd": usd,
        "warm_pool_usd": pool,
        "total_usd": total,
        "node_hours": charged_hours(nodes, billable.seconds, report.price),
    }
    return like.model_copy(
        update={
            "nodes": nodes,
            "n": runs,
            "world_size": outlook.place.processes,
            "global_batch_size": round(outlook.place.batch * outlook.place.processes),
            "clocks": like.clocks.model_copy(
                update={"train": train, "billable": billable, "submit_to_end": waited}
            ),
            "costs": RunCosts(**costs),
            "cost_spread": CostSpread(
                interval=ends, next_run_usd=None if ends is None else ends.high
            ),
            "per_result": like.per_result if like.nodes == nodes else None,
            "spot_usd_per_result": None,
            "flags": tuple(
                flag for flag in like.flags if like.nodes == nodes or flag == "throughput_only"
            ),
        }
    )


def _with_time_around(
    clock: ClockStatistics, was: ClockStatistics, train: ClockStatistics
) -> ClockStatistics:
    """Return a clock of the whole job with the predicted instead of the measured train time."""
    around = None
    if clock.seconds is not None and was.seconds is not None:
        around = clock.seconds - was.seconds
    seconds, most = (
        None if around is None or inside is None else around + inside
        for inside in (train.seconds, train.next_run_seconds)
    )
    return clock.model_copy(
        update={
            "seconds": seconds,
            "seconds_interval": None,
            "next_run_seconds": most,
            "n": train.n if clock.n == was.n else clock.n,
        }
    )


def _count(
    outlook: Outlook, row: SummaryRow, measured: Sequence[Measurement], passes: Collection[float]
) -> CountPrediction:
    terms = []
    for term, (low, likely, high) in outlook.terms.items():
        is_open = high - low > _OPEN * outlook.seconds
        if term == "compute":
            source = _compute_source(outlook.place.batch, measured, passes)
        else:
            source = _source(term, measured, is_open)
        seconds = None if is_open else likely
        terms.append(PredictedTerm(name=term, seconds=seconds, low=low, high=high, source=source))
    return CountPrediction(
        nodes=row.nodes,
        seconds=outlook.seconds,
        interval=outlook.interval,
        speedup=row.train.speedup or 0.0,
        efficiency=outlook.efficiency,
        efficiency_interval=outlook.efficiency_interval,
        doubling_ratio=outlook.doubling_ratio,
        doubling_ratio_interval=outlook.doubling_interval,
        usd=row.costs.total_usd,
        usd_interval=row.cost_spread.interval,
        node_hours=row.costs.node_hours,
        terms=tuple(terms),
    )


def _is_covered(batch: float, sizes: Sequence[float]) -> bool:
    return batch >= sizes[0] * (1 - 1e-9)


def _compute_source(
    batch: float, measured: Sequence[Measurement], passes: Collection[float]
) -> str:
    timed, run = _timed_batches(measured), _run_batches(measured, passes)
    sizes = sorted(run | timed)
    known = join_words(f"{size:g}" for size in sizes)
    if not _is_covered(batch, sizes):
        line = ", likely on their line" if len(sizes) > 1 else ""
        return (
            f"bounds only{line}: {batch:g} samples per process are fewer than the {known} measured"
        )
    if _is_among(batch, run):
        return f"measured at {batch:g} samples per process"
    if _is_among(batch, timed):
        return (
            f"from passes timed at {batch:g} samples per process on one node, which take longer in "
            "a step"
        )
    return f"between batches measured: {known} samples per process"


def _run_batches(measured: Sequence[Measurement], passes: Collection[float]) -> set[float]:
    """Return the batches of all runs."""
    return {*(each.place.batch for each in measured), *passes}


def _timed_batches(measured: Sequence[Measurement]) -> set[float]:
    """Return the batches whose passes were timed after a run."""
    return {size for each in measured for size in each.ratios}


def _is_among(batch: float, sizes: Collection[float]) -> bool:
    return any(abs(size - batch) <= 1e-9 * batch for size in sizes)


def _source(term: Term, measured: Sequence[Measurement], is_open: bool) -> str:
    nodes = [
        each.place.nodes for each in measured if term in ("data", "fixed") or each.place.nodes > 1
    ]
    if not any(each.runs[PART_OF[term]].any() for each in measured if each.place.nodes in nodes):
        return f"none measured at {join_words(nodes)} nodes"
    source, why = f"from {join_words(nodes)} nodes", _OPEN_REASONS[term]
    if term == "communication" and all(
        each.exchange is not None for each in measured if each.place.nodes > 1
    ):
        source, why = f"{source} and timed all-reduces", _OPEN_TIMED
    return f"bounds only, {source}: {why}" if is_open else source


def _next_job(
    answer: Recommendation,
    counts: Sequence[CountPrediction],
    seen: _Seen,
    report: ScalingReport,
    confirming: int,
) -> NextJob | None:
    """Return the job that measures the largest predicted node count that could be recommended."""
    open_ = {*answer.not_ruled_out, *([answer.chosen.nodes] if answer.chosen else [])}
    chosen = [index for index, each in enumerate(counts) if each.nodes in open_]
    if not chosen:
        return None
    count, place = counts[chosen[-1]], seen.outlooks[chosen[-1]].place
    if confirming and any(row.n and row.nodes == count.nodes for row in report.summary):
        return None  # this node count was already measured, but its nodes were contended
    share = _share_run(report) if confirming else 1.0
    compute = count.terms[0]
    rest = sum(each.high - each.low for each in count.terms[1:])
    is_widest = compute.seconds is None and compute.high - compute.low > rest
    known = _run_batches(seen.measured, seen.passes) | _timed_batches(seen.measured)
    is_known = _is_among(place.batch, known)
    if is_widest and not is_known and not confirming:
        processes = place.processes // place.nodes
        return NextJob(
            nodes=1,
            global_batch_size=round(place.batch * processes),
            seconds=compute.high,
            usd=node_cost_usd(1, compute.high, report.price),
            node_hours=charged_hours(1, compute.high, report.price),
            reason=(
                f"compute at {place.batch:g} samples per process, if it makes equally many steps; "
                "pass its report as --batches"
            ),
        )
    left_out = (1 - share) * count.seconds
    saved = node_cost_usd(count.nodes, left_out, report.price)
    hours = charged_hours(count.nodes, left_out, report.price)
    return NextJob(
        nodes=count.nodes,
        global_batch_size=round(place.batch * place.processes),
        seconds=count.seconds - left_out,
        usd=None if count.usd is None else count.usd - (saved or 0.0),
        node_hours=None if count.node_hours is None else count.node_hours - (hours or 0.0),
        reason=f"T({count.nodes})",
        runs=max(1, confirming),
        share=share,
    )


def _share_run(report: ScalingReport) -> float:
    """Return the share of T that a short job runs, which is the mean at the largest node count."""
    ran = [
        (point.nodes, point.projection.measured_seconds / point.projection.train_seconds)
        for point in report.points
        if point.used and point.projection is not None
    ]
    most = max((nodes for nodes, _ in ran), default=0)
    return fmean(share for nodes, share in ran if nodes == most) if ran else 1.0


def _headline(
    answer: Recommendation | None,
    counts: Sequence[CountPrediction],
    job: NextJob | None,
    report: ScalingReport,
) -> str:
    if answer is None:
        return (
            "Predicted, not measured: no recommendation, because no node count ran twice and the "
            "noise of a run is unknown. Run each node count once more to measure the noise."
        )
    predicted = {count.nodes for count in counts}
    projected = projected_counts(report)
    if answer.chosen is None:
        clause = f"no node count is recommended: {answer.reason.rstrip('.')}"
    else:
        nodes = answer.chosen.nodes
        kind = "projected from short runs" if nodes in projected else "measured"
        kind = "predicted" if nodes in predicted else kind
        clause = f"the recommendation is {nodes_text(nodes)} ({kind}): {answer.chosen.reason}"
        clause += SCALING.get(report.policy or "", "")
    how = f"Using the noise of all {'short ' if projected else ''}runs together"
    if counts:
        how = f"Based partly on predictions{' from short runs' if projected else ''}"
    notes = [f"{how}, {clause}"]
    judged = [each for each in answer.judged if each.nodes in predicted and each.answer != "pass"]
    open_ = [each.nodes for each in judged if each.answer == "undecided"]
    missed = [each.nodes for each in judged if each.answer != "undecided"]
    if answer.chosen is not None:
        notes += [f"{join_words(open_)} nodes are undecided"] if open_ else []
        notes += [f"{join_words(missed)} nodes fail the limits"] if missed else []
    if failed := failed_text(report.summary, len(report.points)):
        notes.append(failed)
    if job is not None:
        notes.append(f"next: {_job_text(job, predicted)}")
    return "; ".join(notes) + "."


def _job_text(job: NextJob, predicted: Collection[int]) -> str:
    cost = cost_text(job.usd, job.node_hours)
    about = f"about {format_seconds(job.seconds)}{'' if cost is None else f', {cost}'}"
    if job.share < 1:
        about += f", {format_percent(job.share)} of T({job.nodes})"
    if job.runs > 1:
        about = f"each {about}"
    if (
        job.nodes not in predicted
    ):  # a job with a different global batch than planned for its node count
        about = f"global batch {job.global_batch_size}, {about}"
    return f"{job.runs_text} on {nodes_text(job.nodes)} ({about}) would measure {job.reason}"


def _assumes(
    report: ScalingReport, measured: Sequence[Measurement], counts: Sequence[CountPrediction]
) -> tuple[str, ...]:
    found = []
    if short := projected_counts(report).difference(
        point.nodes for point in report.points if point.used and point.is_validation_run
    ):
        found.append(
            f"Times at {join_words(sorted(short))} nodes are projected from short runs; no whole "
            "run has validated them."
        )
    if not counts:
        return tuple(found)
    found += [
        assumption(
            report.platform.kind,
            report.platform.instance_type,
            measured[-1].place.nodes,
            counts[-1].nodes,
        ),
        "All processes are replicas of the model that exchange gradients in a ring; memory effects "
        "(a cache that a smaller batch fits, swapping) are not modeled.",
        "The bounds allow for a gradient exchange that becomes longer than the backward pass "
        "beyond the measured node counts, but not between them.",
    ]
    if report.policy in SCALING:
        found.append("The larger batch is assumed to train the model as well as the measured ones.")
    budget = report.step_budget
    if budget is not None and all(part.name != "waiting" for part in budget.counts[-1].parts):
        found.append("Communication includes waiting for the slowest process.")
    return tuple(found)
