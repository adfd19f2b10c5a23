from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nodesweep.configs.atomic import folder_problem, write_atomic


def test_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    write_atomic(path, b"old")

    def full(source: str, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


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
    assert fact in problem
    assert "with --output" in (folder_problem(tmp_path / place, "--output") or "")
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
