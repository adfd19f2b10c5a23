from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.atomic import SHARED, write_atomic
from nodesweep.errors import RecordDamaged
from nodesweep.tasks.sweeps.folder import load_sweep_record, save_sweep_record, write_files
from tests.plain import plain


def test_latest_points_to_the_last_sweep(tmp_path: Path) -> None:
    write_files(tmp_path, "first", {"report.md": b"1"})
    folder = write_files(tmp_path, "second", {"report.md": b"2"})
    assert folder == tmp_path / "second"
    assert (tmp_path / "latest" / "report.md").read_bytes() == b"2"
    assert (tmp_path / "latest").readlink() == Path("second")


def test_sweep_is_remembered_by_its_id(tmp_path: Path) -> None:
    record = {"config": {"name": "x"}, "inputs": {}, "provenance": {}}
    save_sweep_record(tmp_path, "sweep", record)
    assert load_sweep_record(tmp_path, "sweep") == record
    assert load_sweep_record(tmp_path, "other") is None


def test_a_folder_named_latest_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "latest").mkdir()
    folder = write_files(tmp_path, "first", {"report.md": b"1"})
    assert (folder / "report.md").read_bytes() == b"1"
    assert (tmp_path / "latest").is_dir() and not (tmp_path / "latest").is_symlink()
    assert [plain(each, folder=tmp_path) for each in caplog.messages] == snapshot


@pytest.mark.parametrize("body", ["", "[1]", '{"config": {}}', "[" * 100_000])
def test_damaged_record_is_said_to_be_one(
    body: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text(body)
    with pytest.raises(RecordDamaged) as refused:
        load_sweep_record(tmp_path, "sweep")
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_what_a_sweep_leaves_opens_to_its_owner_alone(tmp_path: Path) -> None:
    """This holds for any umask; an existing folder keeps its owner's permissions."""
    tmp_path.chmod(0o755)
    old = os.umask(0)
    try:
        folder = write_files(tmp_path / "reports", "sweep", {"report.html": b"1"})
        write_atomic(tmp_path / "passed-on.html", b"1", SHARED)
    finally:
        os.umask(old)

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert [mode(one) for one in (tmp_path, tmp_path / "reports", folder)] == [0o755, 0o700, 0o700]
    assert mode(folder / "report.html") == 0o600 and mode(tmp_path / "passed-on.html") == 0o644
    assert (tmp_path / "reports" / "latest" / "report.html").read_bytes() == b"1"
