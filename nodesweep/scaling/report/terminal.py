"""Render a report for a terminal: table, speedup bars, headline, caveats and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table as ConsoleTable
from rich.text import Text

from nodesweep.scaling.analysis.hour_value import hour_value_text
from nodesweep.scaling.formats import format_speedup
from nodesweep.scaling.report.failures import failure_lines
from nodesweep.scaling.report.guidance import find_guidance, out_of_memory_line
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.predictions.render import prediction_table
from nodesweep.scaling.report.table import TEXT_HEADINGS, Table, evenly_spaced, titled
from nodesweep.scaling.report.tables.budget import loss_lines
from nodesweep.scaling.report.tables.fits import extrapolation_text
from nodesweep.scaling.report.tables.instances import (
    brief_arms_table,
    predicted_spans,
    predicted_table,
)
from nodesweep.scaling.report.tables.predicted import confirmed_lines
from nodesweep.scaling.report.tables.remedies import remedy_lines
from nodesweep.scaling.report.tables.summary import brief_table

MAX_BARS = 16
_WIDEST_BAR = 60
_NARROWEST_BAR = 8


@dataclass(frozen=True)
class Bar:
    """The speedup at a node count, and the ideal speedup N/N0."""

    nodes: int
    speedup: float
    ideal: float


@dataclass(frozen=True)
class SpeedupBars:
    """Bars for the node counts: solid up to the measured speedup, shaded up to the ideal one."""

    title: str
    bars: Sequence[Bar]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        labels = [f"{bar.nodes:,}" for bar in self.bars]
        values = [
            f"{format_speedup(bar.speedup)} of {format_speedup(bar.ideal)}" for bar in self.bars
        ]
        label_width, value_width = max(map(len, labels)), max(map(len, values))
        room = options.max_width - label_width - value_width - 4
        width = max(_NARROWEST_BAR, min(_WIDEST_BAR, room))
        full, light = ("#", ".") if options.ascii_only else ("█", "░")
        longest = max(max(bar.speedup, bar.ideal) for bar in self.bars)
        yield Text(self.title, style="bold")
        for bar, label, value in zip(self.bars, labels, values, strict=True):
            done = max(1, round(width * bar.speedup / longest))
            ideal = max(1, round(width * bar.ideal / longest))
            drawn = full * done + light * max(0, ideal - done)
            yield Text(
                f" {label:>{label_width}} {drawn:<{width}} {value}", no_wrap=True, overflow="crop"
            )


def render_terminal(report: ScalingReport, typed: Callable[[str], str] = str) -> Group:
    """Return the report for rich's Console.print.

    Args:
        report: The report.
        typed: Function that rewrites the commands in a text for the user's shell.
    """
    summary = brief_table(report)
    parts: list[RenderableType] = []
    if report.instances is not None:
        table = brief_arms_table(report, report.instances)
        tables = filter(None, (table, predicted_table(report, report.instances)))
        for each in tables:
            parts += [console_table(each, title_style="bold", padding=(0, 1, 0, 0)), Text("")]
        if spans := predicted_spans(report.instances):
            parts += [Text(spans, style="dim"), Text("")]
    parts += [
        console_table(summary, title_style="bold", padding=(0, 1, 0, 0)),
        Text(summary.caption, style="dim"),
        Text(""),
    ]
    bars = _bars(report)
    if len(bars) > 1:
        parts += [SpeedupBars(titled("Speedup, compared with the ideal", report), bars), Text("")]
    if report.prediction is not None and report.prediction.counts:
        parts += [prediction_table(report.prediction)]
    parts.append(Text(typed(report.headline), style="bold"))
    guidance = find_guidance(report) if report.remedies is None else ()
    notes = [
        *confirmed_lines(report),
        *loss_lines(report),
        *remedy_lines(report),
        *report.caveats,
        *(f"{advice.text} ({advice.source})." for advice in guidance),
    ]
    if line := out_of_memory_line(report):
        notes.append(line)
    values = hour_value_text(report.hour_values)
    if values is not None and report.instances is None:
        notes.append(f"Value of time: {values}.")
    if report.costs.goodput is not None:
        notes.append(f"Goodput: {report.costs.goodput.text}.")
    if report.fits.extrapolation.supported.value:
        notes.append(extrapolation_text(report))
    parts += [Text(f"- {note}", style="dim") for note in notes]
    if failed := failure_lines(report):
        parts += [Text(""), Text("Runs that did not complete", style="bold")]
        parts += [Text(typed(line)) for line in failed]
    return Group(*parts)


def console_table(table: Table, **style: Any) -> ConsoleTable:
    """Return a table for rich's Console.print.

    Args:
        table: The table.
        style: Further options of rich's Table.
    """
    drawn = ConsoleTable(
        title=Text(table.title), box=box.SIMPLE_HEAD, title_justify="left", **style
    )
    for heading in table.cells:
        is_text = heading in TEXT_HEADINGS
        drawn.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in table.cells.itertuples(index=False):
        drawn.add_row(*(Text(cell.replace("\n", " ")) for cell in row))
    return drawn


def _bars(report: ScalingReport) -> list[Bar]:
    baseline = report.baseline
    if baseline is None:
        return []
    return evenly_spaced(
        [
            Bar(row.nodes, row.train.speedup, row.nodes / baseline.nodes)
            for row in report.summary
            if row.train.speedup is not None
        ],
        MAX_BARS,
    )
