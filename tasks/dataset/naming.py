"""Which files below a dataset's source are its data: the same rule for a folder and for a prefix,
and in the shipped program (infra/image/training/data/tables.py; a test compares both).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.tasks.errors import DatasetRefused
from nodesweep.tasks.folder import shown_names

_LIKE = {
    "parquet": (".parquet", ".pq", ".parq", ".parquet.gz", ".parquet.snappy", ".parquet.zst"),
    "csv": tuple(
        ".csv" + end for end in ("", ".gz", ".bz2", ".xz", ".zip", ".zst", ".lz4", ".bgz")
    ),
}
"""How names of tables of a format end, in any case; of these some are data."""
_NO_NEWS = re.compile(r"(.*/)?(README|LICEN[CS]E|NOTICE)[^/]*|.*\.md|.*/|.*_\$folder\$", re.DOTALL)
"""What nobody takes for data: texts about it, and the empty objects that the console and Hadoop
write for a folder.
"""


@dataclass(frozen=True)
class Names:
    """The names below a source, sorted out: `hidden` are left out, `others` are no tables of the
    format.
    """

    data: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def is_hidden(name: str) -> bool:
    """Return True where a part of the path begins with '.', or with '_' and has no '=': what
    pyarrow, pandas and Spark leave out (unfinished writes, markers). `_year=2026` is a partition.
    """
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in parts)


def is_data(config: DatasetConfig, name: str) -> bool:
    """Return True for a name that is the dataset's, hidden or not."""
    return not config.is_table or name.endswith(config.suffixes)


def sort_out(config: DatasetConfig, names: Iterable[str]) -> Names:
    """Sort out the names below a source; of format files all are data.

    Raises DatasetRefused for what looks like a table of the format and is neither validated nor
    read by the shipped program.
    """
    if not config.is_table:
        return Names(tuple(names))
    data, hidden, others = [], [], []
    for name in names:
        if is_hidden(name):
            hidden.append(name)
        elif is_data(config, name):
            data.append(name)
        elif not _NO_NEWS.fullmatch(name):
            others.append(name)
    if odd := [name for name in others if name.lower().endswith(_LIKE[config.format])]:
        raise DatasetRefused(
            f"dataset.source: {shown_names(odd)} under {config.source} would be neither validated"
            f" nor trained on: {config.format} files are {config.pattern}; rename, convert or move"
            " it"
        )
    return Names(tuple(data), tuple(hidden), tuple(others))


def notices_of(config: DatasetConfig, found: Names) -> list[str]:
    """Sentences that say what under the source is not trained on."""
    said = []
    where = f"under {config.source}"
    if found.hidden:
        said.append(
            f"dataset.source: left out {where}, since a part of the path starts with '_' or '.':"
            f" {len(found.hidden)} ({shown_names(found.hidden)})"
        )
    if found.others:
        reach = (
            "they are sent to every node with the rest" if config.is_remote else "they are not sent"
        )
        said.append(
            f"dataset.source: not validated {where}, since they don't match {config.pattern}:"
            f" {len(found.others)} ({shown_names(found.others)}); {reach}"
        )
    return said
