"""Tables of formatted text, as data frames with one column per heading.

Text after the line break in a cell is its note, which a page shows in small print below the value.
The index of a frame contains the ids of the rows on a page, or numbers if they have no ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.formats import UNKNOWN, format_interval
from nodesweep.scaling.report.model import PlatformFacts, ScalingReport

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Item = TypeVar("Item")
Format = Callable[[Any], str]
TEXT_HEADINGS = frozenset(
    {
        *("status", "limits", "verdict", "T from", "job", "instance type", "variant", "sweep"),
        *("law", "parameter", "95% interval", "meaning", "clock", "change"),
        *("part", "source"),
        "inside the interval?",
    }
)
"""Headings of text columns; all other columns contain numbers."""
_KIND_LABELS = {
    "aws": "AWS",
    "emulated": "emulated nodes",
    "simulated": "simulated nodes",
    "measured": "times as given",
    "slurm": "Slurm cluster",
}


class Table(NamedTuple):
    """Formatted cells with a title and the meaning of each heading."""

    title: str
    cells: DataFrame
    meanings: Mapping[str, str]
    caption: str = ""


def kind_label(platform: PlatformFacts, train_clock: str | None = None) -> str:
    """Return the platform as it appears in titles, such as "emulated nodes, ml.local.small"."""
    kind = " ".join(filter(None, (_KIND_LABELS[platform.kind], platform.cluster)))
    parts = (kind, platform.instance_type)
    projected = "; T projected" if train_clock == "projected" else ""
    return ", ".join(part for part in parts if part) + projected


def titled(title: str, report: ScalingReport) -> str:
    """Return the title followed by the platform in parentheses."""
    return f"{title} ({kind_label(report.platform, report.train_clock)})"


def format_columns(frame: DataFrame, columns: Mapping[str, tuple[str, Format]]) -> DataFrame:
    """Return columns of a frame as formatted text.

    Args:
        frame: A frame such as those from frames.py: unknown values are missing, and the interval of
            a column NAME is in NAME_low, NAME_high and NAME_level.
        columns: (column, format of a value) by heading.
    """
    from pandas import DataFrame

    texts = {heading: _format(frame, *column) for heading, column in columns.items()}
    return DataFrame(texts, index=frame.index, columns=list(columns), dtype=object)


def _format(frame: DataFrame, name: str, write: Format) -> list[str]:
    values = [write(value) for value in known(frame[name])]
    if f"{name}_level" not in frame:
        return values
    bounds = zip(*(known(frame[f"{name}_{end}"]) for end in ("low", "high", "level")), strict=True)
    intervals = [
        None if low is None else Interval(low=low, high=high, level=level)
        for low, high, level in bounds
    ]
    return [
        with_note(value, format_interval(interval, write))
        for value, interval in zip(values, intervals, strict=True)
    ]


def known(column: Series) -> list[Any]:
    """Return the values of a column, with None for missing ones."""
    # several times faster than a conversion to objects, which a report would need 200 times
    values = zip(column.tolist(), column.notna().tolist(), strict=True)
    return [value if is_there else None for value, is_there in values]


def with_note(text: str, note: str | None) -> str:
    """Return a cell with a note below its text."""
    return f"{text}\n{note}" if note else text


def value_of(cell: str) -> str:
    """Return a cell without its note."""
    return cell.partition("\n")[0]


def without_unknown(cells: DataFrame, always: Collection[str] = ()) -> DataFrame:
    """Return the cells without columns that are unknown in every row, except those in `always`."""
    return cells[
        [
            heading
            for heading in cells
            if heading in always or any(value_of(cell) != UNKNOWN for cell in cells[heading])
        ]
    ]


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]
