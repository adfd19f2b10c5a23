"""The node counts that a sweep predicts instead of measuring them: a table, and lines below it."""

from __future__ import annotations

from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.predictions.render import HEADINGS, prediction_rows, term_lines
from nodesweep.scaling.report.table import Table, titled


def predicted_counts_table(report: ScalingReport) -> Table | None:
    """Return a row per predicted node count; None if none was predicted."""
    from pandas import DataFrame

    if report.prediction is None or not report.prediction.counts:
        return None
    rows = prediction_rows(report.prediction)
    return Table(
        titled("Predicted, not measured", report),
        DataFrame(rows, columns=list(HEADINGS), dtype=object),
        HEADINGS,
        "Below each value: its 90% interval.",
    )


def confirmed_lines(report: ScalingReport) -> list[str]:
    """Return a line on each count that was predicted from the smaller ones, then measured."""
    return (
        [] if report.prediction is None else [f"{each.text}." for each in report.prediction.checked]
    )


def predicted_lines(report: ScalingReport) -> list[str]:
    """Return lines on confirmed counts, then on the terms and assumptions of the predictions."""
    if report.prediction is None:
        return []
    prediction = report.prediction
    return [
        *confirmed_lines(report),
        *(f"{line}." for line in term_lines(prediction)),
        *prediction.assumes,
    ]
