"""Render a Table as HTML with pandas' Styler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nodesweep.scaling.report.table import TEXT_HEADINGS, Table, with_note

Links = Mapping[str, Sequence[str | None]]
FIRST_COLUMNS = 4
"""Number of columns that a split table shows in addition to its keys."""
_TEMPLATES = Path(__file__).parents[1] / "templates"
# The number of numeric columns that fit on a page; a text column is as wide as four of them.
_WIDTH = 8
_TEXT_WIDTH = 4


def page_table(table: Table, links: Links | None = None, bad: Collection[int] = ()) -> Markup:
    """Return a table as HTML, in a region that scrolls.

    Args:
        table: The table; text labels of its rows become their ids.
        links: Link of the cell in each row, by heading.
        bad: Positions of rows without a result.
    """
    from pandas import DataFrame

    columns = {}
    for heading in table.cells:
        urls = (links or {}).get(heading) or [None] * len(table.cells)
        columns[heading] = [
            _cell(cell, url, heading) for cell, url in zip(table.cells[heading], urls, strict=True)
        ]
    keys = next(iter(columns.values()))
    for position in bad:
        keys[position] = Markup('<span class="bad">{}</span>').format(keys[position])
    cells = DataFrame(columns, index=table.cells.index, dtype=object)
    caption = Markup("<span><b>{}</b>{}</span>").format(
        table.title, f" {table.caption}" if table.caption else ""
    )
    styler = _styler()(cells).hide(axis="index").set_caption(caption)
    styler.format_index(lambda heading: _heading(heading, table.meanings), axis="columns")
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}">\n{}</div>'
    ).format(table.title, Markup(styler.to_html()))


def split_table(
    table: Table,
    keys: Sequence[str],
    first: Sequence[str],
    links: Links | None = None,
    bad: Collection[int] = (),
    status: str | None = None,
) -> Markup:
    """Return a table in parts that fit on a page, with all but the main columns collapsed.

    Args:
        table: The table.
        keys: Headings that each part begins with.
        first: Headings by importance; the first FIRST_COLUMNS of them that the table has are shown.
        links: As in page_table().
        bad: As in page_table().
        status: Heading of the status column; any status but "ok" becomes a note below the first
            key.
    """
    cells = table.cells
    weighty = [heading for heading in first if heading in cells][:FIRST_COLUMNS]
    shown = [heading for heading in cells if heading in weighty]
    front = cells[[*keys, *shown]].copy()
    if status is not None:
        front[keys[0]] = [
            key if text == "ok" else with_note(key, text.removeprefix("ok, "))
            for key, text in zip(front[keys[0]], cells[status], strict=True)
        ]
    rest = [heading for heading in cells if heading not in front]
    html = page_table(table._replace(cells=front), links, bad)
    others = [
        page_table(
            Table(
                f"{' to '.join(dict.fromkeys((part[0], part[-1])))}: {table.title}",
                # only the first part's rows have ids
                cells[[*keys, *part]].reset_index(drop=True),
                table.meanings,
            ),
            links,
            bad,
        )
        for part in _in_widths(rest)
    ]
    return Markup(
        '{}\n<details class="columns">\n<summary>{} more: {}</summary>\n{}\n</details>'
    ).format(html, len(rest), ", ".join(rest), Markup("\n").join(others))


def _cell(cell: str, url: str | None, heading: str) -> Markup:
    text, _, note = cell.partition("\n")
    content = Markup.escape(text)
    if url is not None:
        leaves = Markup("") if url.startswith("#") else Markup(' rel="noreferrer"')
        content = Markup('<a href="{}"{}>{}</a>').format(url, leaves, content)
    if note:
        content += Markup("<small>{}</small>").format(note)
    if heading in TEXT_HEADINGS:
        content = Markup('<div class="text">{}</div>').format(content)
    return content


def _heading(heading: str, meanings: Mapping[str, str]) -> Markup:
    kind = Markup(' class="text"') if heading in TEXT_HEADINGS else ""
    return Markup('<span{} title="{}">{}</span>').format(kind, meanings[heading], heading)


@lru_cache(maxsize=1)
def _styler() -> Any:
    from pandas.io.formats.style import Styler

    # the template of pandas has neither header scopes nor row ids
    return Styler.from_custom_template(str(_TEMPLATES), html_table="table.html.j2")


def _in_widths(headings: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = []
    left = 0
    for heading in headings:
        width = _TEXT_WIDTH if heading in TEXT_HEADINGS else 1
        if width > left:
            parts.append([])
            left = _WIDTH
        parts[-1].append(heading)
        left -= width
    return parts
