"""The empty database of a new Prefect home, ready-made:

    .venv/bin/python -m cli.prefect_database      # makes cli/prefect-VERSION.sql anew

In a new home Prefect's server takes about a hundred migrations to make its tables, some 3 s of two
cores. What they end with is the same each time, so it is kept as SQL beside this file, under the
name of the one version of Prefect that made it. Another version finds no such file and migrates as
ever. The server still asks for its newest migration at each start, and finds that it has it.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
# SQLite would take the leftover log of a database that was deleted for the new one's own.
_LEFTOVERS = ("", "-wal", "-shm", "-journal")
_MIGRATION_SECONDS = 120.0


def place_database(settings: Any) -> bool:
    """Put the ready-made database where these settings of Prefect's have theirs; returns whether it
    did.

    It does so only where the database is the file in Prefect's home, and no such file is there. A
    file that appears meanwhile is kept. Whatever goes wrong here is left to Prefect's migrations.
    """
    import prefect

    database_file = settings.home / "prefect.db"
    url = settings.server.database.connection_url.get_secret_value()
    if (
        url != f"sqlite+aiosqlite:///{database_file}"
        or not settings.server.database.migrate_on_start
    ):
        return False
    if any(database_file.with_name(database_file.name + end).exists() for end in _LEFTOVERS):
        return False
    try:
        schema = schema_file(prefect.__version__).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix=".new-database-", dir=settings.home) as folder:
            made = Path(folder) / database_file.name
            with closing(sqlite3.connect(made)) as database:
                database.executescript(schema)
            os.link(made, database_file)  # unlike a rename, never in place of a file that is there
    except (OSError, sqlite3.Error):
        return False
    return True


def schema_file(version: str) -> Path:
    """Where the tables of that version of Prefect are kept."""
    return _FOLDER / f"prefect-{version}.sql"


def migrated_schema() -> str:
    """The SQL of the database that Prefect's own migrations make in a new home."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"]
    with tempfile.TemporaryDirectory(prefix="nodesweep-prefect-") as home:
        subprocess.run(
            command,
            env={**own, "PREFECT_HOME": home, "DO_NOT_TRACK": "1"},
            stdout=subprocess.DEVNULL,
            timeout=_MIGRATION_SECONDS,
            check=True,
        )
        with closing(sqlite3.connect(Path(home) / "prefect.db")) as database:
            return "\n".join(database.iterdump()) + "\n"


def main() -> None:
    """Write the file of the Prefect that is installed, and delete those of others."""
    import prefect

    written = schema_file(prefect.__version__)
    written.write_text(migrated_schema(), encoding="utf-8")
    for other in _FOLDER.glob("prefect-*.sql"):
        if other != written:
            other.unlink()
    print(written)


if __name__ == "__main__":
    main()
