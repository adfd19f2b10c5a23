"""Homes of Prefect's servers whose database has its tables, which take 3 s of CPU time to create.

The first shared server of a checkout creates them; `make run` and the installed package do so, too.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import prefect

_DATABASE = "prefect.db"
_KEPT = Path(__file__).resolve().parents[2] / ".nodesweep" / "tests"


def _tables() -> Path:
    return _KEPT / f"prefect-{prefect.__version__}.db"


def with_tables(home: Path) -> Path:
    """Return this new home, with the tables if a server has created them."""
    home.mkdir(parents=True, exist_ok=True)
    if _tables().exists():
        shutil.copyfile(_tables(), home / _DATABASE)
    return home


def keep_tables(home: Path) -> None:
    """Keep the tables of a server that has just started, unless they are kept already."""
    if _tables().exists():
        return
    _KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_KEPT) as folder:
        copy = Path(folder) / _DATABASE
        with (
            closing(sqlite3.connect(home / _DATABASE)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        os.replace(copy, _tables())
