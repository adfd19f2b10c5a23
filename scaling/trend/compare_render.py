"""Comparison -> the terminal's table and Markdown for an artifact or a pull request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaling.analysis.parity import FinalMetric
from scaling.formats import (
    UNKNOWN,
    escape_markdown,
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
from scaling.report.table import kind_label
from scaling.trend.compare import ComparedRow, Comparison

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class _Column:
    """`brief`: stands on a terminal of 80 characters too."""

    heading: str
    cell: Callable[[ComparedRow], str]
    brief: bool = False


def render_comparison_terminal(comparison: Comparison) -> Group:
    """For rich's Console.print."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(comparison_title(comparison)), box=box.SIMPLE_HEAD, title_justify="left")
    columns = [column for column in _known_columns(comparison) if column.brief]
    for column in columns:
        is_verdict = column.heading == "verdict"
        table.add_column(column.heading, justify="left" if is_verdict else "right", no_wrap=not is_verdict)
    for row in comparison.rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    label = [Text(comparison.label, style="bold red")] if comparison.label else []
    details = [Text(f"- {line}", style="dim") for line in _details(comparison)]
    return Group(*label, table, Text(comparison_headline(comparison), style="bold"), *details)


def render_comparison_markdown(comparison: Comparison) -> str:
    """For a Prefect artifact or a pull request."""
    columns = _known_columns(comparison)
    lines = [f"# {escape_markdown(comparison_title(comparison))}", ""]
    if comparison.label:
        lines += [f"**{escape_markdown(comparison.label)}**", ""]
    lines += [
        f"**{comparison_headline(comparison)}**",
        "",
        "| " + " | ".join(column.heading for column in columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(escape_markdown(column.cell(row)) for column in columns) + " |" for row in comparison.rows),
        "",
        *(f"- {escape_markdown(line)}" for line in _details(comparison)),
    ]
    return "\n".join(lines) + "\n"


def comparison_title(comparison: Comparison) -> str:
    """Names both sweeps and, in every rendering, the kind of platform they ran on."""
    kinds = dict.fromkeys(kind_label(side.platform) for side in (comparison.a, comparison.b))
    title = f"B {comparison.b.sweep_id} against A {comparison.a.sweep_id} ({' against '.join(reversed(kinds))})"
    return f"{title}, {comparison.label}" if comparison.label else title


def comparison_headline(comparison: Comparison) -> str:
    """The verdict in one sentence."""
    tolerance = format_percent(comparison.tolerance)
    lost = f"No run of B completed at {join_words(map(nodes_text, comparison.lost))}" if comparison.lost else None
    if comparison.regressions:
        at = join_words(map(nodes_text, comparison.regressions))
        found = f"Regression established at {at}: B takes over {tolerance} longer than A."
        return f"{lost}. {found}" if lost else found
    return f"{lost}." if lost else f"No regression established (tolerance {tolerance})."


def _known_columns(comparison: Comparison) -> list[_Column]:
    """Those that are known in some row."""
    return [column for column in _columns() if any(column.cell(row) != UNKNOWN for row in comparison.rows)]


def _columns() -> list[_Column]:
    return [
        _Column("N", lambda row: format_count(row.nodes), brief=True),
        _Column("n(A), n(B)", lambda row: f"{row.n_a}, {row.n_b}"),
        _Column("T(A)", lambda row: format_seconds(row.a_seconds), brief=True),
        _Column("T(B)", lambda row: format_seconds(row.b_seconds), brief=True),
        _Column("T(B)/T(A)", _ratio_cell, brief=True),
        _Column("p", lambda row: format_value(row.p_value, 2), brief=True),
        _Column("S(A)", lambda row: format_speedup(row.a_speedup)),
        _Column("S(B)", lambda row: format_speedup(row.b_speedup)),
        _Column("cost(A)", lambda row: format_usd(row.a_total_usd)),
        _Column("cost(B)", lambda row: format_usd(row.b_total_usd)),
        _Column("cost B/A", lambda row: format_ratio(row.cost_ratio), brief=True),
        _Column("metric(A)", lambda row: _metric_cell(row.a_final_metric)),
        _Column("metric(B)", lambda row: _metric_cell(row.b_final_metric)),
        _Column("verdict", lambda row: row.verdict, brief=True),
    ]


def _ratio_cell(row: ComparedRow) -> str:
    interval = row.ratio_interval
    if interval is None:
        return format_ratio(row.ratio)
    return f"{format_ratio(row.ratio)} [{format_ratio(interval.low)}, {format_ratio(interval.high)}]"


def _metric_cell(metric: FinalMetric | None) -> str:
    if metric is None:
        return UNKNOWN
    return " ".join(part for part in (metric.name, format_value(metric.value)) if part)


def _details(comparison: Comparison) -> list[str]:
    """What each verdict rests on, then what was accepted, is missing or limits the comparison."""
    lines = [_row_line(row) for row in comparison.rows]
    lines += [f"{difference.accepted}: {difference.text}" for difference in comparison.differences]
    if comparison.unknown_conditions:
        lines.append(f"Not known on both sides: {join_words(comparison.unknown_conditions)}.")
    for name, counts in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if counts:
            lines.append(f"Only in {name}, not compared: {join_words(map(nodes_text, counts))}.")
    return [*lines, *comparison.notes]


def _row_line(row: ComparedRow) -> str:
    beside = [f"n = {row.n_a} and {row.n_b}"]
    for what, in_a, in_b in (
        ("S", format_speedup(row.a_speedup), format_speedup(row.b_speedup)),
        ("cost", format_usd(row.a_total_usd), format_usd(row.b_total_usd)),
        ("metric", _metric_cell(row.a_final_metric), _metric_cell(row.b_final_metric)),
    ):
        if (in_a, in_b) != (UNKNOWN, UNKNOWN):
            beside.append(f"{what} {in_a} in A, {in_b} in B")
    line = f"{nodes_text(row.nodes)}: {row.verdict}, {row.reason} ({'; '.join(beside)})."
    return line if row.p_value_reason is None else f"{line} No p-value: {row.p_value_reason}."
