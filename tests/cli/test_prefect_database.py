"""The ready-made database of a new Prefect home: what Prefect's own migrations make, and never in
place of anything.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import prefect
import pytest
from alembic.script import ScriptDirectory
from prefect.server.database.alembic_commands import alembic_config
from prefect.settings import (
    PREFECT_HOME,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_DATABASE_MIGRATE_ON_START,
    get_current_settings,
    temporary_settings,
)

from cli import prefect_database
from cli.prefect_database import migrated_schema, place_database, schema_file

# The server up to the moment at which it would migrate.
SERVE = """
import uvicorn
uvicorn.run = lambda application, **place: print(place["host"])
from cli.ephemeral_prefect import serve
serve(0)
"""


def newest_migration() -> str | None:
    config = alembic_config()
    folder = "_migrations/versions/sqlite"
    config.set_main_option(
        "version_locations", str(Path(str(config.config_file_name)).parent / folder)
    )
    return ScriptDirectory.from_config(config).get_current_head()


def revision_of(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def definitions(schema: str) -> list[list[str]]:
    """The statements and, in each, the lines: Prefect's migrations give some in any order."""
    return sorted(
        sorted(line.strip().rstrip(",") for line in statement.splitlines())
        for statement in schema.split(";\n")
    )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A new Prefect home, whose settings are in force."""
    with temporary_settings(
        {PREFECT_HOME: tmp_path}, restore_defaults={PREFECT_SERVER_DATABASE_CONNECTION_URL}
    ):
        yield tmp_path


def test_new_home_gets_the_database_at_the_newest_migration(home: Path) -> None:
    assert place_database(get_current_settings())
    assert [path.name for path in home.iterdir()] == ["prefect.db"]
    assert revision_of(home / "prefect.db") == newest_migration()


@pytest.mark.slow
def test_it_is_what_prefects_own_migrations_make() -> None:
    kept = schema_file(prefect.__version__).read_text(encoding="utf-8")
    assert definitions(kept) == definitions(migrated_schema()), "see cli/prefect_database.py"


@pytest.mark.parametrize("name", ["prefect.db", "prefect.db-wal"])
def test_what_is_there_is_left_alone(home: Path, name: str) -> None:
    (home / name).write_bytes(b"the user's")
    assert not place_database(get_current_settings())
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {name: b"the user's"}


def test_database_that_appears_meanwhile_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(made: Path, place: Path) -> None:
        place.write_bytes(b"another server's")
        link(made, place)

    monkeypatch.setattr(prefect_database.os, "link", late)
    assert not place_database(get_current_settings())
    assert [path.read_bytes() for path in home.iterdir()] == [b"another server's"]


def test_other_version_of_prefect_migrates_by_itself(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect, "__version__", "3.8.9")
    assert not place_database(get_current_settings())
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("broken", ["CREATE TABLE flow (", "CREATE VIRTUAL TABLE a USING nothing;"])
def test_what_this_sqlite_refuses_is_left_to_prefect(
    home: Path,
    broken: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("schema")
    monkeypatch.setattr(prefect_database, "_FOLDER", folder)
    schema_file(prefect.__version__).write_text(broken)
    assert not place_database(get_current_settings())
    assert list(home.iterdir()) == []


def test_database_elsewhere_is_the_users_own(home: Path) -> None:
    elsewhere = "sqlite+aiosqlite:////nowhere/prefect.db"
    for settings in (
        {PREFECT_SERVER_DATABASE_CONNECTION_URL: elsewhere},
        {PREFECT_SERVER_DATABASE_MIGRATE_ON_START: False},
    ):
        with temporary_settings(settings):
            assert not place_database(get_current_settings())
    assert list(home.iterdir()) == []


def test_server_of_a_command_begins_with_it(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", SERVE],
        env={**own, "PREFECT_HOME": str(tmp_path / "new")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "127.0.0.1\n", "it was to serve"
    assert revision_of(tmp_path / "new" / "prefect.db") == newest_migration()
