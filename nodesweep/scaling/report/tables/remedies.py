"""Changes that would help, with their predicted E and T, as a table and as lines for a terminal."""

from __future__ import annotations

from nodesweep.scaling.analysis.remedies import PredictedRemedy, Prediction
from nodesweep.scaling.formats import (
    format_interval,
    format_percent,
    format_seconds,
    nodes_text,
    pluralize,
)
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Table, evenly_spaced, titled, with_note

MAX_COUNTS, MAX_LINES = 4, 3


def remedies_table(report: ScalingReport) -> Table | None:
    """Return a table of E and T as measured and with each change; None without predictions."""
    from pandas import DataFrame

    changes = _predicted(report)
    if report.remedies is None or not changes:
        return None
    at = report.remedies.nodes
    rows = {row.nodes: row for row in report.summary}
    predicted = [{each.nodes: each for each in change.predictions} for change in changes]
    counts = sorted({at, *evenly_spaced(list(predicted[0])[1:], MAX_COUNTS)})
    columns = {
        "change": [
            "none, as measured",
            *(
                with_note(f"{each.change}.", f"Assumes {each.assumes}. Source: {each.source}.")
                for each in changes
            ),
        ]
    }
    for nodes in counts:
        measured = rows[nodes].train
        columns[f"E({nodes})"] = [
            _cell(measured.efficiency, measured.seconds),
            *(
                _cell(each[nodes].efficiency, each[nodes].seconds, _between(each[nodes]))
                for each in predicted
            ),
        ]
    return Table(
        titled("What would help", report),
        DataFrame(columns, dtype=object),
        {"change": "one at a time, at every node count"}
        | {f"E({nodes})": f"efficiency and T at {nodes_text(nodes)}" for nodes in counts},
        "Predicted from the parts of T, not measured; sorted by the time saved at "
        f"{nodes_text(at)}.",
    )


def remedy_lines(report: ScalingReport) -> list[str]:
    """Return lines about the changes with the largest predicted savings, and how many remain."""
    lines = [
        f"{change.change}: at {nodes_text(each.nodes)}, a predicted efficiency of"
        f" {' '.join(filter(None, [format_percent(each.efficiency), _between(each)]))} and T of"
        f" {format_seconds(each.seconds)}."
        for change in _predicted(report)[:MAX_LINES]
        for each in change.predictions
        if report.remedies is not None and each.nodes == report.remedies.nodes
    ]
    others = 0 if report.remedies is None else len(report.remedies.ranked) - len(lines)
    if others:
        more = pluralize(others, "more change" if lines else "change")
        unknown = "" if lines else "; their effects could not be predicted"
        lines.append(f"The report lists {more} that may help{unknown}.")
    return lines


def _predicted(report: ScalingReport) -> list[PredictedRemedy]:
    ranked = () if report.remedies is None else report.remedies.ranked
    return [change for change in ranked if change.predictions]


def _between(prediction: Prediction) -> str:
    return format_interval(prediction.interval, format_percent)


def _cell(efficiency: float | None, seconds: float | None, between: str = "") -> str:
    note = ", ".join(filter(None, [between, format_seconds(seconds)]))
    return with_note(format_percent(efficiency), note)
