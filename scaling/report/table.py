"""A table as rows of text, ready to print: what a column, a cell and a title are. tables.py makes the report's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scaling.formats import UNKNOWN
from scaling.report.model import PlatformFacts, ScalingReport

Row = TypeVar("Row")
_KIND_LABELS = {
    "aws": "AWS",
    "emulated": "emulated nodes",
    "simulated": "simulated nodes",
    "measured": "times as given",
}


@dataclass(frozen=True)
class Cell:
    """A value; `note` stands smaller below it, `href` is where it links to, `hover` shows under the mouse on a page."""

    text: str
    note: str = ""
    href: str | None = None
    hover: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.note}" if self.note else self.text


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column. One that is `optional` disappears where no row knows it."""

    heading: str
    meaning: str
    cell: Callable[[Row], Cell | str]
    optional: bool = False
    is_text: bool = False


@dataclass(frozen=True)
class TableRow:
    """`is_bad`: has no result. `anchor` is its id on a page."""

    cells: tuple[Cell, ...]
    is_bad: bool = False
    anchor: str | None = None


@dataclass(frozen=True)
class RowGroup:
    """Rows under one heading, which may be empty; `anchor` is its id on a page."""

    rows: tuple[TableRow, ...]
    heading: str = ""
    note: str = ""
    anchor: str | None = None


@dataclass(frozen=True)
class Heading:
    """A column's heading, what it means, and whether the column holds text."""

    text: str
    meaning: str
    is_text: bool


@dataclass(frozen=True)
class TextTable:
    """`title` names the kind of platform; `caption` says what all rows share."""

    title: str
    caption: str
    headings: tuple[Heading, ...]
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> list[TableRow]:
        return [row for group in self.groups for row in group.rows]


@dataclass(frozen=True)
class Group(Generic[Row]):
    """Rows that are to stand under one heading."""

    items: Sequence[Row]
    heading: str = ""
    note: str = ""
    anchor: str | None = None


def kind_label(platform: PlatformFacts) -> str:
    """What every title says of the platform: "emulated nodes, ml.local.small"."""
    return ", ".join(part for part in (_KIND_LABELS[platform.kind], platform.instance_type) if part)


def titled(what: str, report: ScalingReport) -> str:
    return f"{what} ({kind_label(report.platform)})"


def make_table(
    title: str,
    columns: Sequence[Column[Row]],
    groups: Sequence[Group[Row]],
    caption: str = "",
    is_bad: Callable[[Row], bool] = lambda row: False,
    anchor: Callable[[Row], str | None] = lambda row: None,
) -> TextTable:
    """The table without its optional columns that no row knows."""
    items = [item for group in groups for item in group.items]
    cells = [[_cell(column.cell(item)) for item in items] for column in columns]
    kept = [
        place
        for place, column in enumerate(columns)
        if not column.optional or any(cell.text != UNKNOWN for cell in cells[place])
    ]
    rows = [
        TableRow(tuple(cells[place][index] for place in kept), is_bad(item), anchor(item))
        for index, item in enumerate(items)
    ]
    made, start = [], 0
    for group in groups:
        end = start + len(group.items)
        made.append(RowGroup(tuple(rows[start:end]), group.heading, group.note, group.anchor))
        start = end
    headings = tuple(Heading(columns[i].heading, columns[i].meaning, columns[i].is_text) for i in kept)
    return TextTable(title, caption, headings, tuple(made))


def thinned(items: Sequence[Row], most: int) -> list[Row]:
    """At most that many of the items, evenly spaced; the first and the last always."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(place * step)] for place in range(most)]


def _cell(value: Cell | str) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)
