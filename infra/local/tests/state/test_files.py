"""Atomic writes: the content and permissions of a file, and the remains of an interrupted write."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

import pytest

from sagemaker_emulator.state import files
from sagemaker_emulator.state.files import RecordStore, write_atomically
from sagemaker_emulator.state.unsaved import NotSaved


@pytest.mark.parametrize("content", ["ü\n", "ü\n".encode(), io.BytesIO("ü\n".encode())])
def test_text_bytes_and_streams(tmp_path: Path, content: object) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, content)  # type: ignore[arg-type]
    assert path.read_text() == "ü\n"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize(("arguments", "mode"), [((), 0o600), ((0o644,), 0o644)])
def test_mode_is_as_asked_whatever_the_umask(
    tmp_path: Path, arguments: tuple[int, ...], mode: int
) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "file", "", *arguments)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "file").symlink_to("target")
    write_atomically(tmp_path / "file", "ours", 0o644)
    assert ((tmp_path / "target").read_text(), (tmp_path / "file").read_text()) == (
        "theirs",
        "ours",
    )


def test_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("gone")

    write_atomically(tmp_path / "file", "old")
    with pytest.raises(OSError, match="gone"):
        write_atomically(tmp_path / "file", Broken())
    assert (os.listdir(tmp_path), (tmp_path / "file").read_text()) == (["file"], "old")


def test_record_that_could_not_be_written_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = RecordStore(tmp_path / "jobs")
    monkeypatch.setattr(files, "write_json", full)
    store.try_to_save("r", "first", record={"change": 1})
    with pytest.raises(NotSaved):
        store.save("r", "second", record={"change": 1})
    store.try_to_save("r", "gone", record={"change": 1})
    store.try_to_save("r", "first", record={"change": 2})
    store.remove("r", "gone")
    store.save_rest()
    assert list(store.load_all(dict)) == []
    monkeypatch.undo()
    store.save_rest()
    assert list(store.load_all(dict)) == [{"change": 2}, {"change": 1}]
    (tmp_path / "jobs" / "r" / "first.json").unlink()
    store.save_rest()
    assert list(store.load_all(dict)) == [{"change": 1}], "what is written is not written again"


def test_record_that_can_not_be_read_is_said_and_left(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    bad = {"a": b"", "b": b"[]", "c": b'{"other": 1}', "d": bytes(range(256)), "e": b'{"n": 1'}
    bad["f"] = b'{"n": []}'
    for name, content in bad.items():
        (tmp_path / f"{name}.json").write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "good.json").write_text('{"n": 7}')
    for _ in range(2):
        assert list(store.load_all(lambda record: record["n"] or [][0])) == [7]
    said = store.ledger.damaged()
    assert [line.partition(" is damaged (")[0] for line in said] == [
        str(tmp_path / f"{name}.json") for name in [*bad, "folder"]
    ]
    assert len(said) and all("left out" in line for line in said)
    assert all((tmp_path / f"{name}.json").read_bytes() == bad[name] for name in bad)


def test_file_and_its_folders_are_on_disk_on_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is synced before the name, and so are the names of new folders."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def note_replace(source: str, target: Path) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", note_fsync)
    monkeypatch.setattr(files.os, "replace", note_replace)
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, b"1")
    temporary = done.pop(2)
    assert Path(temporary).parent == path.parent
    assert done == [str(tmp_path), str(tmp_path / "a"), "replace", str(path.parent)]
    done.clear()
    files.remove(path)
    files.remove(path)
    assert done == [str(path.parent)]
    write_atomically(path, b"1", is_durable=False)
    assert done == [str(path.parent), "replace"]
