"""Where the train times of a report come from, and what else they include."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import UNKNOWN, format_seconds, join_words, nodes_text
from nodesweep.scaling.outcome.outcome import PHASE_CLOCKS, TrainClock
from nodesweep.scaling.outcome.projection import Projection
from nodesweep.scaling.report.model import Point, ScalingReport

SOURCES: Mapping[TrainClock, str] = {
    "projected": "probes (projected)",
    "program": "metrics.json",
    "logged": "the program's log",
    "observed": "its optimizer steps, as observed",
    "phase_from_start_line": "the Training phase from the start line",
    "phase_from_first_step": "the Training phase from the first step",
    "training_phase": "the Training phase",
}
"""The source of train times by clock, except the clocks of tables."""
PHASE_HOLDS: Mapping[TrainClock, str] = {
    "phase_from_start_line": (
        "the platform's Training phase, starting at the program's run_start_unix_seconds=… line: "
        "they also include what follows the training"
    ),
    "phase_from_first_step": (
        "the platform's Training phase, starting at the program's first step=… line: they exclude "
        "the first step and include what follows the training"
    ),
    "training_phase": (
        "the platform's full Training phase, which also includes starting the container, "
        "unpacking the code, pip install of packages that are not in the image, loading "
        "libraries and waiting for the other nodes"
    ),
}
"""The part of a sentence that follows "Train times are", by clock."""


def at_start_text(reason: str) -> str:
    """Return a clause that says why requirements.txt is installed at every start."""
    return (
        "every node installs requirements.txt from training.source_dir at the start of every "
        f"job, which is billed, instead of once as a layer of the image: {reason}"
    )


def changed_dataset_text(change: str) -> str:
    """Return a sentence about a dataset that changed while the sweep ran."""
    return (
        "The dataset changed in S3 while the sweep ran, so its jobs may not have trained on the "
        f"same data: {change}."
    )


def source_text(clock: TrainClock | None) -> str:
    """Return the source of the times on a clock, or a dash if there is none."""
    return UNKNOWN if clock is None else SOURCES.get(clock, UNKNOWN)


def source_note(report: ScalingReport) -> str:
    """Return a caption with the source of T and a leading space; "" if there is no source."""
    source = source_text(report.train_clock)
    return "" if source == UNKNOWN or report.baseline is None else f" T from {source}."


def row_source(report: ScalingReport, row: SummaryRow) -> str:
    """Return the source of T at a node count, and any better sources that some of its runs have."""
    if row.train.seconds is None or report.train_clock not in SOURCES:
        return UNKNOWN
    used = [point for point in report.points if point.used and point.nodes == row.nodes]
    others = {point.train_clock for point in used} - {report.train_clock, None}
    known = [text for clock, text in SOURCES.items() if clock in others]
    return source_text(report.train_clock) + (
        f"; {join_words(known)} in some runs" if known else ""
    )


def point_source(report: ScalingReport, point: Point) -> str:
    """Return the best source of a run's train time, and the curve's source if it differs."""
    own = source_text(point.train_clock)
    if point.is_validation_run:
        is_it = report.check is not None and report.check.job_name == point.job_name
        which = "the validation run" if is_it else "the validation run of its node count"
        return f"{own} {format_seconds(point.clocks.train_seconds)}, {which}"
    if point.used and point.projection is not None:
        return _probe_text(point.projection)
    if not point.used or point.train_clock == report.train_clock:
        return own
    return (
        f"{own} {format_seconds(point.clocks.train_seconds)}, used:"
        f" {source_text(report.train_clock)}"
    )


def _probe_text(projection: Projection) -> str:
    """Return "projected from 45 of 300 steps, ± 0.1 s"."""
    error = projection.error_seconds
    known = "error unknown" if error is None else f"± {format_seconds(error)}"
    return f"projected from {projection.steps} of {projection.planned_steps} steps, {known}"


def start_up_text(used: Sequence[Point], clock: TrainClock) -> str | None:
    """Return the start-up time that was excluded from the Training phase, by node count.

    Return None if the whole phase counts as the train time.
    """
    if clock == "training_phase":
        return None
    by_nodes: dict[int, list[float]] = {}
    for point in used:
        whole, rest = point.train_seconds_by["training_phase"], point.train_seconds_by[clock]
        by_nodes.setdefault(point.nodes, []).append(whole - rest)
    each = [
        f"{_range(seconds)} at {nodes_text(nodes)}" for nodes, seconds in sorted(by_nodes.items())
    ]
    return f"excluding start-up: {join_words(each)}"


def is_phase(clock: TrainClock | None) -> bool:
    """Return True for times of the Training phase, whose ratios are not speedups."""
    return clock in PHASE_CLOCKS


def _range(seconds: Sequence[float]) -> str:
    low, high = format_seconds(min(seconds)), format_seconds(max(seconds))
    return low if low == high else f"{low} to {high}"
