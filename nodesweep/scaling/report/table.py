"""A table as rows of text, ready to print: what a column, a cell and a title are. tables.py makes
the report's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from nodesweep.scaling.formats import UNKNOWN
from nodesweep.scaling.report.model import PlatformFacts, ScalingReport

Row = TypeVar("Row")
FIRST_COLUMNS = 4
"""How many columns beside its keys a split table shows without a click."""
_WIDTH = 8
"""How many columns of numbers a page is wide enough for, and how many of them one of text takes."""
_TEXT_WIDTH = 4
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


@dataclass(frozen=True)
class SplitTable:
    """One table in parts that fit a page's width: `front` is what matters first, `others` have the
    columns that are named in `more`.
    """

    front: TextTable
    others: tuple[TextTable, ...]
    more: tuple[str, ...]


def kind_label(platform: PlatformFacts, train_clock: str | None = None) -> str:
    """What every title says of the platform: "emulated nodes, ml.local.small"; "T projected" where
    the train clock is that.
    """
    parts = (_KIND_LABELS[platform.kind], platform.instance_type)
    projected = "; T projected" if train_clock == "projected" else ""
    return ", ".join(part for part in parts if part) + projected


def titled(what: str, report: ScalingReport) -> str:
    return f"{what} ({kind_label(report.platform, report.train_clock)})"


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


def split_table(
    table: TextTable,
    keys: Sequence[str],
    first: Sequence[str],
    status: str | None = None,
) -> SplitTable:
    """The table in parts.

    `keys` are the headings that every one of the tables begins with. Of `first`, headings in order
    of weight, the first FIRST_COLUMNS that the table has are kept. What the column `status` says
    beside "ok" stands as a note below the first key, since that column is not on view.
    Anchors are those of the first table alone.
    """
    indexes = {column.heading: index for index, column in enumerate(table.columns)}
    key_indexes = [indexes[heading] for heading in keys]
    chosen = sorted([indexes[heading] for heading in first if heading in indexes][:FIRST_COLUMNS])
    rest = [index for index in indexes.values() if index not in (*key_indexes, *chosen)]

    def noted(row: TableRow) -> TableRow:
        if status is None or row.cells[indexes[status]].text == "ok":
            return row
        note = row.cells[indexes[status]].text.removeprefix("ok, ")
        key = replace(row.cells[key_indexes[0]], note=note)
        cells = [key if index == key_indexes[0] else cell for index, cell in enumerate(row.cells)]
        return replace(row, cells=tuple(cells))

    front = _with_columns(_each_row(table, noted), [*key_indexes, *chosen])
    bare = _each_row(table, lambda row: replace(row, anchor=None))
    groups = tuple(replace(group, anchor=None) for group in bare.groups)
    bare = replace(bare, caption="", groups=groups)
    others = []
    for part in _in_widths(table.columns, rest):
        ends = dict.fromkeys(table.columns[index].heading for index in (part[0], part[-1]))
        title = f"{' to '.join(ends)}: {table.title}"
        others.append(replace(_with_columns(bare, [*key_indexes, *part]), title=title))
    return SplitTable(front, tuple(others), tuple(table.columns[index].heading for index in rest))


def _with_columns(table: TextTable, indexes: Sequence[int]) -> TextTable:
    def cut(row: TableRow) -> TableRow:
        return replace(row, cells=tuple(row.cells[index] for index in indexes))

    return replace(_each_row(table, cut), columns=tuple(table.columns[index] for index in indexes))


def _each_row(table: TextTable, change: Callable[[TableRow], TableRow]) -> TextTable:
    groups = (replace(group, rows=[change(row) for row in group.rows]) for group in table.groups)
    return replace(table, groups=tuple(groups))


def _in_widths(columns: Sequence[Column[Any]], indexes: Sequence[int]) -> list[list[int]]:
    """The indexes in parts that a page is wide enough for, each with one column at least."""
    parts: list[list[int]] = []
    left = 0
    for index in indexes:
        width = _TEXT_WIDTH if columns[index].is_text else 1
        if width > left:
            parts.append([])
            left = _WIDTH
        parts[-1].append(index)
        left -= width
    return parts


def thinned(items: Sequence[Row], most: int) -> list[Row]:
    """At most that many of the items, evenly spaced; the first and the last always."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]
