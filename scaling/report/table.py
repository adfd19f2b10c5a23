"""A table as rows of text, ready to print: what a column, a cell and a title are. tables.py makes
the report's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
    """A value; `note` stands smaller below it, `href` is where it links to,
    `hover` shows under the mouse on a page.
    """

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

    def cell_of(self, row: Row) -> Cell:
        """The row's cell, also where `cell` gives no more than its text."""
        cell = self.cell(row)
        return cell if isinstance(cell, Cell) else Cell(cell)


@dataclass(frozen=True)
class TableRow:
    """`is_bad`: has no result. `anchor` is its id on a page."""

    cells: tuple[Cell, ...]
    is_bad: bool = False
    anchor: str | None = None


@dataclass(frozen=True)
class Group(Generic[Row]):
    """Rows under one heading, which may be empty; `anchor` is its id on a page."""

    rows: Sequence[Row]
    heading: str = ""
    note: str = ""
    anchor: str | None = None


@dataclass(frozen=True)
class TextTable:
    """`title` names the kind of platform; `caption` says what all rows share."""

    title: str
    caption: str
    columns: tuple[Column[Any], ...]
    groups: tuple[Group[TableRow], ...]

    @property
    def rows(self) -> list[TableRow]:
        return [row for group in self.groups for row in group.rows]


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
    kept = [
        column
        for column in columns
        if not column.optional
        or any(column.cell_of(row).text != UNKNOWN for group in groups for row in group.rows)
    ]
    made = tuple(
        Group(
            [
                TableRow(tuple(column.cell_of(row) for column in kept), is_bad(row), anchor(row))
                for row in group.rows
            ],
            group.heading,
            group.note,
            group.anchor,
        )
        for group in groups
    )
    return TextTable(title, caption, tuple(kept), made)


def thinned(items: Sequence[Row], most: int) -> list[Row]:
    """At most that many of the items, evenly spaced; the first and the last always."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]
