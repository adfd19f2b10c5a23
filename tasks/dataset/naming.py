"""Separate a dataset's data files from other files below its source.

The shipped program applies the same rules (infra/image/training/data/tables.py); a test compares
both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetRefused
from nodesweep.scaling.formats import pluralize
from nodesweep.tasks.folder import shown_names

_LIKE = {
    "parquet": (".parquet", ".pq", ".parq", ".parquet.gz", ".parquet.snappy", ".parquet.zst"),
    "csv": tuple(
        ".csv" + end for end in ("", ".gz", ".bz2", ".xz", ".zip", ".zst", ".lz4", ".bgz")
    ),
}
"""Suffixes, in any case, that suggest a table of the format; only some match the pattern."""
_NO_NEWS = re.compile(r"(.*/)?(README|LICEN[CS]E|NOTICE)[^/]*|.*\.md|.*/|.*_\$folder\$", re.DOTALL)
"""Names that are clearly not data, and are ignored without a notice.

These are documentation, and the empty objects that the S3 console and Hadoop create for folders.
"""


@dataclass(frozen=True)
class Names:
    """The names below a source: data, hidden paths to skip, and files that aren't in the format."""

    data: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def is_hidden(name: str) -> bool:
    """Return True if a part of the path begins with '.', or with '_' and contains no '='.

    pyarrow, pandas and Spark skip these (unfinished writes, markers). `_year=2026` is a partition.
    """
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in parts)


def classify_names(config: DatasetConfig, names: Iterable[str]) -> Names:
    """Classify the names below a source; if the format is `files`, all of them are data.

    Raises:
        DatasetRefused: a name looks like a table of the format, but would be neither validated nor
            read by the shipped program.
    """
    if not config.is_table:
        return Names(tuple(names))
    data, hidden, others = [], [], []
    for name in names:
        if is_hidden(name):
            hidden.append(name)
        elif config.is_data(name):
            data.append(name)
        elif not _NO_NEWS.fullmatch(name):
            others.append(name)
    if odd := [name for name in others if name.lower().endswith(_LIKE[config.format])]:
        raise DatasetRefused(
            f"dataset.source: {shown_names(odd)} under {config.source} would be neither validated"
            f" nor trained on, because {config.format} files must match {config.pattern}; rename,"
            " convert or move such files"
        )
    return Names(tuple(data), tuple(hidden), tuple(others))


def notices_of(config: DatasetConfig, found: Names) -> list[str]:
    """Return notices about files below the source that are left out or not validated."""
    notices = []
    where = f"under {config.source}"
    if found.hidden:
        notices.append(
            f"dataset.source: left out {pluralize(len(found.hidden), 'path')} {where} because a"
            f" part of the path starts with '_' or '.': {shown_names(found.hidden)}"
        )
    if found.others:
        reach = (
            "such files are sent to every node along with the data"
            if config.is_remote
            else "such files are not sent"
        )
        notices.append(
            f"dataset.source: not validated: {pluralize(len(found.others), 'file')} {where} whose"
            f" name doesn't match {config.pattern} ({shown_names(found.others)}); {reach}"
        )
    return notices
