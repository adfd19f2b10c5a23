"""Write the headline, a sentence with the node count, its speedup and cost, and the evidence."""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.scaling.analysis.advice import DEADLINE_SCOPE, Recommendation
from nodesweep.scaling.analysis.bounds import speedup_ends
from nodesweep.scaling.analysis.hour_value import hour_value_ranges
from nodesweep.scaling.analysis.measured_count import (
    attempts_text,
    cost_change,
    faster_text,
    is_unknown,
    rounded,
)
from nodesweep.scaling.analysis.speedup import Baseline, SummaryRow
from nodesweep.scaling.analysis.throughput import THROUGHPUT_ONLY
from nodesweep.scaling.analysis.verdicts import not_ruled_out
from nodesweep.scaling.design.base import Check
from nodesweep.scaling.design.registry import judged_by
from nodesweep.scaling.formats import (
    format_percent,
    format_seconds,
    format_speedup,
    join_words,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.outcome.outcome import OWN_CLOCKS, PlatformKind, TrainClock
from nodesweep.scaling.report.sources import is_phase
from nodesweep.scaling.report.tables.cells import time_unit

# The qualifier comes first, so that the result cannot be quoted without it.
_QUALIFIERS: dict[PlatformKind, str] = {
    "aws": "",
    "emulated": "On emulated nodes",
    "simulated": "On simulated nodes",
    "measured": "",
    "slurm": "",
}
_PHASE = ", which includes more than the training,"
_PHASE_WITHOUT_START_UP = " minus the start-up shown in the log"
SCALING = {"fixed_per_replica": ", throughput scaling with a batch that grows with the nodes"}


def write_headline(
    kind: PlatformKind,
    baseline: Baseline | None,
    rows: Sequence[SummaryRow],
    jobs: int,
    recommendation: Recommendation | None,
    clock: TrainClock | None = None,
    policy: str | None = None,
    check: Check | None = None,
    other_checks: Sequence[Check] = (),
    sweep_id: str | None = None,
    slower: Sequence[str] = (),
    lost: str | None = None,
) -> str:
    """Return a sentence with the recommendation, its numbers and how many jobs did not complete.

    It also mentions unconfirmed world sizes, contended nodes with the command that repeats their
    runs, throughput scaling (docs/method.md, "Batch policy"), and projected times with their
    validation run.

    Args:
        kind: Kind of platform.
        baseline: Baseline of the rows; None if nothing completed.
        rows: Rows of the summary.
        jobs: Number of attempts.
        recommendation: Recommendation for the same rows; None if fewer than two node counts were
            measured or if the times are phases of the platform.
        clock: The train clock.
        policy: The batch policy.
        check: Validation run of a probe sweep.
        other_checks: Validation runs at other node counts.
        sweep_id: The sweep, for commands.
        slower: Sentences on why more nodes are slower; only the first is used.
        lost: What costs efficiency beyond the recommended node count, used if `slower` is empty;
            None if unknown.
    """
    sentence = _result(
        kind, baseline, rows, jobs, recommendation, clock, SCALING.get(policy or "", "")
    )
    if recommendation is not None and recommendation.reason.startswith(THROUGHPUT_ONLY):
        sentence += f"; {_settled_by(kind, clock)}"
    why = slower[0] if slower else lost
    sentence += f"; {why}" if why else ""
    if clock == "projected" and baseline is not None:
        sentence += "; projected from probes"
        sentence += _validated_by(recommendation, check, other_checks)
    if (failed := failed_text(rows, jobs)) and baseline is not None:
        sentence += f"; {failed}"
    contended = [row.nodes for row in rows if "starved" in row.flags]
    is_reason = (
        recommendation is not None
        and recommendation.chosen is None
        and "contended" in recommendation.reason
    )
    if contended and not is_reason:
        sentence += (
            "; contended: the nodes did not get the CPU they requested at "
            f"{join_words(map(nodes_text, contended))}"
        )
    if is_reason and sweep_id is not None:
        sentence += (
            f"; `nodesweep run CONFIG --resume {sweep_id}` repeats the contended runs, ideally "
            "while nothing else runs on this machine"
        )
    if unconfirmed := [row.nodes for row in rows if "world_size_unconfirmed" in row.flags]:
        sentence += f"; world size unconfirmed at {join_words(map(nodes_text, unconfirmed))}"
    return sentence + "."


def failed_text(rows: Sequence[SummaryRow], jobs: int) -> str | None:
    """Return how many of the jobs did not complete, as a clause; None if all completed."""
    failed = sum(row.n_failed for row in rows)
    return f"{failed} of {pluralize(jobs, 'job')} did not complete" if failed else None


def _validated_by(
    recommendation: Recommendation | None, check: Check | None, other_checks: Sequence[Check]
) -> str:
    """Return the results of the validation runs, unless the recommendation already has them."""
    deciding = [each.text for each in other_checks if each.decides]
    texts = [*([check.text] if check else []), *deciding]
    if recommendation is not None and any(text in recommendation.reason for text in texts):
        return ""
    if texts:
        how = "validated by" if check else "whose rejections are validated by"
        return f", {how} {'a full run' if len(texts) == 1 else 'full runs'}: {'; '.join(texts)}"
    if not other_checks:
        return ", not validated"
    also = join_words(each.text for each in other_checks)
    return f", not validated there; full runs elsewhere: {also}"


def _result(
    kind: PlatformKind,
    baseline: Baseline | None,
    rows: Sequence[SummaryRow],
    jobs: int,
    recommendation: Recommendation | None,
    clock: TrainClock | None,
    scaling: str,
) -> str:
    if baseline is None:
        return qualified(kind, f"Nothing to compare: {_why_nothing(rows, jobs)}")
    if is_phase(clock):
        times = [
            f"{format_seconds(row.train.seconds)} on {nodes_text(row.nodes)}"
            for row in rows
            if row.n
        ]
        phase = _PHASE if clock == "training_phase" else _PHASE_WITHOUT_START_UP
        why = "No recommendation: no program reported a train time"
        return qualified(
            kind, f"{why}; the platform's Training phase{phase} took {join_words(times)}"
        )
    if recommendation is None:
        one = f"{nodes_text(baseline.nodes)} ({_time(baseline, clock)})"
        return qualified(kind, f"Only one node count, {one}, so there is no speedup to show")
    if recommendation.chosen is None:
        return qualified(kind, recommendation.reason.removesuffix("."))
    by_nodes = {row.nodes: row for row in rows}
    chosen, base = by_nodes[recommendation.chosen.nodes], by_nodes[baseline.nodes]
    cheapest = _rule_text(recommendation, chosen, rows)
    better = _faster_but(chosen, rows, recommendation)
    undecided = recommendation.undecided
    design = judged_by(recommendation)
    notes = design.limit_notes(recommendation.judged) if design else []
    notes += [not_ruled_out(undecided)] if undecided else []
    notes += [design.promise] if design else []
    open_ = "".join(f"; {note}" for note in notes)
    if chosen is not base:
        advice = (
            f"{_advice(kind, 'Run it on', chosen.nodes)}{cheapest}:"
            f" {_compare(chosen, base, baseline, clock, scaling)}"
        )
        return f"{advice}; {better}{open_}" if better else f"{advice}{open_}"
    relative = ", the relative baseline" if baseline.relative else ""
    advice = (
        f"{_advice(kind, 'Stay on', base.nodes)}{relative} ({_time(baseline, clock)}){cheapest}"
    )
    why = better or "no larger count was faster"
    attempts = attempts_text(base)
    tries = "" if attempts is None else f"; {attempts} there"
    return f"{advice}: {why}{_repeats_note(rows)}{scaling}{tries}{open_}"


def _settled_by(kind: PlatformKind, clock: TrainClock | None) -> str:
    """Return a clause that explains how to show that the runs converge at every node count."""
    if kind == "measured":
        place = "final_metric to each file" if clock in OWN_CLOCKS else "the column final_metric"
        return (
            f"to settle it, add {place} and give `--goal minimize` or `maximize`, or keep the "
            "global batch constant"
        )
    how = (
        "sweep.design: full, since probes have no final metric, and "
        if clock == "projected"
        else ""
    )
    return (
        f"to settle it, rerun with {how}a program that logs final_metric=… (or set "
        "training.metric_definitions.final_metric) and stays within report.parity.tolerance or "
        "reaches report.parity.target_metric; or use training.batch.policy: fixed_global"
    )


def _why_nothing(rows: Sequence[SummaryRow], jobs: int) -> str:
    spot = sum(row.n_spot for row in rows)
    if not spot:
        return f"none of {pluralize(jobs, 'job')} completed with a train time"
    if spot == jobs - sum(row.n_failed for row in rows):
        return "all completed runs were on spot capacity, which never counts toward the headline"
    return (
        f"none of {pluralize(jobs, 'job')} completed on demand with a train time, and spot runs "
        "never count toward the headline"
    )


def _rule_text(
    recommendation: Recommendation, chosen: SummaryRow, rows: Sequence[SummaryRow]
) -> str:
    clock = recommendation.deadline_clock
    if recommendation.rule == "hour_value":
        ranges = hour_value_ranges(rows)
        # these limits are not part of the ranges
        limited = {
            each.nodes
            for each in recommendation.judged
            for v in each.verdicts
            if v.criterion in ("budget", "completes") and v.answer != "pass"
        }
        is_limited = any(each.nodes in limited for each in ranges)
        at = [each.text for each in ranges if each.nodes == chosen.nodes and not is_limited]
        worth = at[0] if at else "at the given value of an hour"
        return f", the least cost plus waiting {worth}"
    if clock is None:
        return ""
    scope = DEADLINE_SCOPE[clock]
    if getattr(chosen.clocks, clock).next_run_seconds is None and chosen.night_sigma is None:
        scope += f"; n = {chosen.n} shows no spread, but the next run may take twice as long"
    return f", the cheapest count that meets the deadline ({scope})"


def qualified(kind: PlatformKind, text: str) -> str:
    """Return the sentence, preceded by the kind of nodes if these were not real."""
    qualifier = _QUALIFIERS[kind]
    return f"{qualifier}, {text[0].lower()}{text[1:]}" if qualifier else text


def _advice(kind: PlatformKind, verb: str, nodes: int) -> str:
    """Return "Run it on 4 nodes" or "On emulated nodes, 4 are the best choice"."""
    qualifier = _QUALIFIERS[kind]
    if not qualifier:
        return f"{verb} {nodes_text(nodes)}"
    return f"{qualifier}, {nodes} {'is' if nodes == 1 else 'are'} the best choice"


def _compare(
    row: SummaryRow, base: SummaryRow, baseline: Baseline, clock: TrainClock | None, scaling: str
) -> str:
    """Return "3.6x faster than 1 node at 46.2 s (95%: 3.4x–3.8x), 9% more expensive".

    If there is no ratio because the baseline was contended, return only the time.
    """
    if is_unknown(base):
        parts = [format_seconds(row.train.seconds), attempts_text(row)]
        return ", ".join(filter(None, parts))
    of = (
        f"the relative baseline of {nodes_text(base.nodes)}"
        if baseline.relative
        else nodes_text(base.nodes)
    )
    text = (
        f"{faster_text(row.train.speedup)} {of} at {_time(baseline, clock)}"
        f" ({_interval(row, base)}){scaling}"
    )
    if "superlinear" in row.flags and not row.superlinear_by_noise:
        text += ", superlinear: repeat the baseline first"
    return ", ".join(filter(None, [text, cost_change(row, base), attempts_text(row)]))


def _interval(row: SummaryRow, base: SummaryRow) -> str:
    ends = speedup_ends(row, base)
    if ends is not None:
        low, high = map(format_speedup, ends)
        return f"{low}–{high}, since nodes were contended"
    interval = row.train.speedup_interval
    if interval is not None:
        level = format_percent(interval.level)
        return f"{level}: {format_speedup(interval.low)}–{format_speedup(interval.high)}"
    return _no_interval([row, base])


def _no_interval(rows: Sequence[SummaryRow]) -> str:
    return (
        "one run each, no interval"
        if all(row.n == 1 for row in rows)
        else "too few runs for an interval"
    )


def _repeats_note(rows: Sequence[SummaryRow]) -> str:
    """Return a note about missing intervals; "" if every measured node count has an interval."""
    measured = [row for row in rows if row.train.seconds is not None]
    return (
        ""
        if all(row.train.seconds_interval for row in measured)
        else f" ({_no_interval(measured)})"
    )


def _faster_but(
    chosen: SummaryRow, rows: Sequence[SummaryRow], recommendation: Recommendation
) -> str | None:
    """Return the fastest node count and why it was not chosen; None if it was chosen."""
    fastest = max(rows, key=lambda row: (rounded(row.train.speedup or 0.0), -row.nodes))
    if rounded(fastest.train.speedup or 0.0) <= rounded(chosen.train.speedup or 0.0):
        return None
    why = next(choice.reason for choice in recommendation.rejected if choice.nodes == fastest.nodes)
    ran = "was" if fastest.nodes == 1 else "were"
    gain = format_speedup(fastest.train.speedup)
    by = (
        "" if fastest.train.speedup == 1 else "barely " if gain == format_speedup(1) else f"{gain} "
    )
    return f"{nodes_text(fastest.nodes)} {ran} {by}faster, but {why}"


def _time(baseline: Baseline, clock: TrainClock | None) -> str:
    return f"{format_seconds(baseline.train_seconds)}{time_unit(clock)}"
