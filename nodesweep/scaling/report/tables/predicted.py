"""Tables of the node counts that a sweep predicted instead of measuring, and lines below them."""

from __future__ import annotations

from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.predictions.render import (
    HEADINGS,
    TERM_HEADINGS,
    prediction_rows,
    term_rows,
)
from nodesweep.scaling.report.table import Table, titled


def predicted_counts_table(report: ScalingReport) -> Table | None:
    """Return a table of the predicted node counts; None if there are none."""
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


def predicted_terms_table(report: ScalingReport) -> Table | None:
    """Return a table of the parts of the predicted times; None if there are none."""
    from pandas import DataFrame

    if report.prediction is None or not report.prediction.counts:
        return None
    rows = DataFrame(term_rows(report.prediction), columns=list(TERM_HEADINGS), dtype=object)
    return Table(titled("Parts of the predicted times", report), rows, TERM_HEADINGS)


def confirmed_lines(report: ScalingReport) -> list[str]:
    """Return a line for each node count that was predicted from smaller ones and then measured."""
    return (
        [] if report.prediction is None else [f"{each.text}." for each in report.prediction.checked]
    )


def predicted_lines(report: ScalingReport) -> list[str]:
    """Return lines about confirmed predictions, followed by the assumptions of all predictions."""
    if report.prediction is None:
        return []
    return [*confirmed_lines(report), *report.prediction.assumes]
