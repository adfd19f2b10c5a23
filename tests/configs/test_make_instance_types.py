"""The script that builds the table of instance types from installed packages."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs import make_instance_types
from nodesweep.configs.catalogue import INSTANCE_TYPES
from nodesweep.configs.make_instance_types import as_text, instance_types, main

COMMITTED = INSTANCE_TYPES.read_text(encoding="utf-8")


def test_the_table_is_what_the_installed_packages_say() -> None:
    date = datetime.date.fromisoformat(json.loads(COMMITTED)["sources"]["moto"]["date"])
    assert as_text(instance_types(date)) == COMMITTED, (
        "python -m nodesweep.configs.make_instance_types"
    )


def test_the_day_of_reading_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "instance_types.json"
    monkeypatch.setattr(make_instance_types, "INSTANCE_TYPES", table)
    monkeypatch.setattr("sys.argv", ["make_instance_types", "--date", "2031-02-03"])
    main()
    written = json.loads(table.read_text(encoding="utf-8"))
    assert {source["date"] for source in written["sources"].values()} == {"2031-02-03"}
    assert written["instances"] == json.loads(COMMITTED)["instances"]
    assert [path.name for path in tmp_path.iterdir()] == ["instance_types.json"]


def test_every_row_names_a_source_of_the_table() -> None:
    table = json.loads(COMMITTED)
    assert {row["specs_source"] for row in table["instances"]} <= set(table["sources"])
    only_named = [
        row["instance_type"] for row in table["instances"] if row["specs_source"] == "botocore"
    ]
    assert only_named == ["ml.p6e-gb200.36xlarge"], "known by name alone"


def test_a_file_that_was_moved_is_named(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(make_instance_types, "_RECORDED", "moto/gone.json")
    with pytest.raises(SystemExit) as refused:
        instance_types(datetime.date(2026, 1, 1))
    assert str(refused.value) == snapshot


def test_a_package_that_is_missing_is_named(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(SystemExit) as refused:
        make_instance_types._read_packaged_json("no-such-package", "x.json")
    assert str(refused.value) == snapshot
