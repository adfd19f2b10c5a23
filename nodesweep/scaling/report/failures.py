"""Describe the failed runs of a sweep for a terminal and an exit message, once per cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodesweep.scaling.formats import nodes_text, pluralize
from nodesweep.scaling.outcome.program_error import failure_cause
from nodesweep.scaling.report.model import Point, ScalingReport

MAX_CAUSES_SHOWN = 3
LINES_SHOWN = 10
_REASON_CHARACTERS = 400


def failure_lines(report: ScalingReport) -> list[str]:
    """Return lines for each cause: its first run, the error, the remedy and the last log lines."""
    causes: dict[str, list[Point]] = {}
    for point in (*report.points, *report.other_points):
        if point.status != "Completed":
            causes.setdefault(failure_cause(point.reason, point.program_error), []).append(point)
    lines = [
        line
        for points in list(causes.values())[:MAX_CAUSES_SHOWN]
        for line in _cause_lines(points, report.instances is not None)
    ]
    if len(causes) > MAX_CAUSES_SHOWN:
        more = pluralize(len(causes) - MAX_CAUSES_SHOWN, "more cause")
        lines.append(f"The report lists {more}.")
    if any(point.log_tail for points in causes.values() for point in points):
        lines.append(f"The full log of every node: nodesweep logs {report.sweep_id}")
    return lines


def _cause_lines(points: Sequence[Point], has_types: bool) -> Iterator[str]:
    first = points[0]
    error = first.program_error
    others = f" (and {len(points) - 1} more like it)" if len(points) > 1 else ""
    reason = (first.reason or "no reason was given")[:_REASON_CHARACTERS]
    nodes = f"{first.nodes} x {first.instance_type}" if has_types else nodes_text(first.nodes)
    yield (
        f"{nodes}, repeat {first.repeat}, attempt {first.attempt}{others}: {first.status}: "
        f"{error.text if error else reason}"
    )
    yield from (f"    {line}" for line in first.log_tail[-LINES_SHOWN:])
