from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.tasks.errors import RecordDamaged
from nodesweep.tasks.sweeps.folder import (
    SHARED,
    folder_problem,
    load_sweep_record,
    save_sweep_record,
    write_atomic,
    write_files,
)
from tests.plain import plain


def test_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    write_atomic(path, b"old")

    def full(source: str, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("nodesweep.tasks.sweeps.folder.os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


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


@pytest.mark.parametrize(
    ("place", "fact"),
    [
        ("link", "gone"),
        ("link/below", "gone"),
        ("file", "/file "),
        ("file/below", "/file "),
        ("x" * 300, os.strerror(errno.ENAMETOOLONG)),
        ("loop", "/loop"),
    ],
)
def test_folder_that_cannot_be_written_is_named_with_a_remedy(
    tmp_path: Path, place: str, fact: str
) -> None:
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    problem = folder_problem(tmp_path / place) or ""
    assert fact in problem and "--output" in problem
    with pytest.raises(OSError) as raised:
        write_atomic(tmp_path / place / "report.html", b"")
    assert raised.value.strerror == problem
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "loop"]


def test_folder_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    assert str(tmp_path) in (folder_problem(tmp_path / "a" / "b") or "")


def test_folder_that_is_to_be_made_is_no_problem_and_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for place in ("real", "new/reports", "link", "link/reports"):
        assert folder_problem(tmp_path / place) is None
    assert not (tmp_path / "new").exists() and not (tmp_path / "real" / "reports").exists()


def test_what_a_sweep_leaves_opens_to_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the umask; a folder that was there stays as its owner made it."""
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
