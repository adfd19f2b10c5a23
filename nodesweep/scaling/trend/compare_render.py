"""Render a Comparison for a terminal, as a table, a headline and lines of details."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nodesweep.scaling.analysis.intervals import MIN_REPEATS
from nodesweep.scaling.analysis.parity import FinalMetric
from nodesweep.scaling.formats import (
    UNKNOWN,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
    format_speedup,
    format_usd,
    format_value,
    join_words,
    nodes_text,
)
from nodesweep.scaling.report.table import kind_label
from nodesweep.scaling.report.tables.cells import time_unit
from nodesweep.scaling.trend.compare import ComparedRow, Comparison


def render_comparison_terminal(comparison: Comparison) -> Group:
    """Return the comparison for rich's Console.print."""
    label = [Text(comparison.label, style="bold red")] if comparison.label else []
    details = [Text(f"- {line}", style="dim") for line in _details(comparison)]
    return Group(
        *label, _table(comparison), Text(comparison_headline(comparison), style="bold"), *details
    )


def comparison_title(comparison: Comparison) -> str:
    """Return a title with both sweeps and the kind of platform they ran on."""
    sides = (comparison.a, comparison.b)
    kinds = dict.fromkeys(kind_label(side.platform, side.train_clock) for side in sides)
    title = (
        f"B {comparison.b.sweep_id} against A {comparison.a.sweep_id}"
        f" ({' against '.join(reversed(kinds))})"
    )
    return f"{title}, {comparison.label}" if comparison.label else title


def comparison_headline(comparison: Comparison) -> str:
    """Return the verdict over all node counts in one sentence."""
    tolerance = format_percent(comparison.tolerance)
    lost = (
        f"No run of B completed at {join_words(map(nodes_text, comparison.lost))}"
        if comparison.lost
        else None
    )
    if comparison.regressions:
        at = join_words(map(nodes_text, comparison.regressions))
        found = f"Regression established at {at}: B takes over {tolerance} longer than A."
        return f"{lost}. {found}" if lost else found
    if lost:
        return f"{lost}."
    silent = [nodes_text(row.nodes) for row in comparison.rows if not row.ratio_interval]
    if len(silent) == len(comparison.rows):
        return f"Cannot alarm: an alarm requires {MIN_REPEATS} runs in both A and B."
    none = f"No regression established (tolerance {tolerance})."
    return f"{none} Cannot alarm at {join_words(silent)}." if silent else none


def _ratio_cell(row: ComparedRow) -> str:
    interval = row.ratio_interval
    if interval is None:
        return format_ratio(row.ratio)
    return (
        f"{format_ratio(row.ratio)} [{format_ratio(interval.low)}, {format_ratio(interval.high)}]"
    )


def _metric_cell(metric: FinalMetric | None) -> str:
    if metric is None:
        return UNKNOWN
    return " ".join(part for part in (metric.name, format_value(metric.value)) if part)


def _details(comparison: Comparison) -> list[str]:
    """Return lines that explain each verdict and list the differences and the missing data."""
    lines = [_row_line(row) for row in comparison.rows]
    lines += [f"{difference.accepted}: {difference.text}" for difference in comparison.differences]
    if comparison.unknown_conditions:
        lines.append(f"Unknown for both sweeps: {join_words(comparison.unknown_conditions)}.")
    for name, counts in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if counts:
            lines.append(f"Only in {name}, not compared: {join_words(map(nodes_text, counts))}.")
    return [*lines, *comparison.notes]


def _row_line(row: ComparedRow) -> str:
    beside = [f"n = {row.n_a} and {row.n_b}"]
    for what, in_a, in_b in (
        ("S", format_speedup(row.a_speedup), format_speedup(row.b_speedup)),
        ("cost", format_usd(row.a_total_usd), format_usd(row.b_total_usd)),
        ("cost per result", format_usd(row.a_usd_per_result), format_usd(row.b_usd_per_result)),
        ("metric", _metric_cell(row.a_final_metric), _metric_cell(row.b_final_metric)),
    ):
        if (in_a, in_b) != (UNKNOWN, UNKNOWN):
            beside.append(f"{what} {in_a} in A, {in_b} in B")
    line = f"{nodes_text(row.nodes)}: {row.verdict}, {row.reason} ({'; '.join(beside)})."
    return line if row.p_value_reason is None else f"{line} No p-value: {row.p_value_reason}."


def _table(comparison: Comparison) -> Table:
    """Return the table without the columns whose value is unknown in every row."""
    units = {
        f"T({name})": time_unit(side.train_clock)
        for name, side in (("A", comparison.a), ("B", comparison.b))
    }
    columns = {
        f"{heading}{units.get(heading, '')}": [write(row) for row in comparison.rows]
        for heading, write in _COLUMNS
    }
    known = {heading: cells for heading, cells in columns.items() if set(cells) != {UNKNOWN}}
    title = Text(comparison_title(comparison))
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in known:
        is_text = heading == "verdict"
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in zip(*known.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


_COLUMNS: tuple[tuple[str, Callable[[ComparedRow], str]], ...] = (
    ("N", lambda row: format_count(row.nodes)),
    ("T(A)", lambda row: format_seconds(row.a_seconds)),
    ("T(B)", lambda row: format_seconds(row.b_seconds)),
    ("T(B)/T(A)", _ratio_cell),
    ("p", lambda row: format_value(row.p_value, 2)),
    ("cost B/A", lambda row: format_ratio(row.cost_ratio)),
    ("verdict", lambda row: row.verdict),
)
