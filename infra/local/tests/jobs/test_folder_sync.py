"""Copies of the nodes' folders to S3: which files are uploaded when, and the effect of a failed
upload."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from botocore.exceptions import ClientError

from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs import folder_sync
from sagemaker_emulator.jobs.folder_sync import FolderSync, SyncedFolder
from sagemaker_emulator.s3_objects import S3Location

FOLDER = SyncedFolder("checkpoints", S3Location("bucket", "cp/"), restored=True)


class RecordingS3:
    """Accepts uploads, but refuses the configured keys."""

    def __init__(self, refused: str | None = None) -> None:
        self.refused = refused
        self.uploads: list[tuple[str, str]] = []

    def upload_fileobj(self, file: IO[bytes], bucket: str, key: str, Config: Any) -> None:
        key.encode()  # botocore also raises UnicodeEncodeError
        text = file.read().decode()
        if key == self.refused:
            raise ClientError(
                {"Error": {"Code": "SlowDown", "Message": "Reduce your request rate"}}, "PutObject"
            )
        self.uploads.append((key, text))


def nodes_with(folder: Path, **files: str) -> list[Node]:
    """Return two nodes with files written ten seconds ago; `algo1_name` is on the first node."""
    nodes = [Node(f"algo-{number}", "127.0.0.1", folder / f"algo-{number}") for number in (1, 2)]
    for node in nodes:
        (node.opt_ml / "checkpoints").mkdir(parents=True)
    for name, text in files.items():
        number, _, file_name = name.removeprefix("algo").partition("_")
        path = nodes[int(number) - 1].opt_ml / "checkpoints" / file_name
        path.write_text(text)
        os.utime(path, times=(time.time() - 10,) * 2)
    return nodes


def test_a_file_is_uploaded_once_and_again_when_it_changes(tmp_path: Path) -> None:
    s3, nodes = RecordingS3(), nodes_with(tmp_path, algo1_last="1", algo2_last="x", algo2_own="2")
    sync = FolderSync(s3, [FOLDER], nodes)
    sync._upload_changes()
    assert s3.uploads == [("cp/last", "1"), ("cp/own", "2")]
    sync._upload_changes()
    assert len(s3.uploads) == 2
    (nodes[0].opt_ml / "checkpoints" / "last").write_text("23")
    sync._upload_changes()
    assert s3.uploads[2:] == [("cp/last", "23")]


def test_a_second_change_within_the_resolution_of_timestamps_is_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3, nodes = RecordingS3(), nodes_with(tmp_path, algo1_last="1")
    last = nodes[0].opt_ml / "checkpoints" / "last"
    now = time.time()
    monkeypatch.setattr(folder_sync, "time", SimpleNamespace(time=lambda: now))
    with FolderSync(s3, [FOLDER], nodes, interval_seconds=3600) as sync:
        for text in ("2", "3"):
            last.write_text(text)
            os.utime(last, times=(now, now))
            sync._upload_changes()
    assert [text for _, text in s3.uploads] == ["2", "3", "3"]


def test_what_could_not_be_uploaded_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3, nodes = RecordingS3(refused="cp/a"), nodes_with(tmp_path, algo1_a="1", algo1_b="2")
    sync = FolderSync(s3, [FOLDER], nodes)
    sync._upload_changes()
    assert s3.uploads == [("cp/b", "2")]
    assert "s3://bucket/cp/" in caplog.text
    s3.refused = None
    sync._upload_changes()
    assert s3.uploads == [("cp/b", "2"), ("cp/a", "1")]


def test_file_name_that_is_not_utf_8_does_not_stop_the_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3, nodes = RecordingS3(), nodes_with(tmp_path, algo1_z="1")
    (nodes[0].opt_ml / "checkpoints" / os.fsdecode(b"mod\xe8le.pt")).write_text("2")
    with FolderSync(s3, [FOLDER], nodes, interval_seconds=3600):
        pass
    assert s3.uploads == [("cp/z", "1")]
    assert r"mod\xe8le.pt could not be copied" in caplog.text
    caplog.text.encode()  # as a log in UTF-8 does


def test_file_that_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3, nodes = RecordingS3(), nodes_with(tmp_path, algo1_kept="1")
    sync = FolderSync(s3, [FOLDER], nodes)
    monkeypatch.setattr(sync, "_files", lambda folder: {"gone": nodes[0], "kept": nodes[0]})
    sync._upload_changes()
    assert s3.uploads == [("cp/kept", "1")]


def test_leaving_uploads_what_is_left(tmp_path: Path) -> None:
    s3, nodes = RecordingS3(), nodes_with(tmp_path)
    with FolderSync(s3, [FOLDER], nodes, interval_seconds=3600):
        (nodes[1].opt_ml / "checkpoints" / "last").write_text("1")
    assert s3.uploads == [("cp/last", "1")]


def test_keys_that_are_no_file_names_are_left_in_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []

    def download(s3: Any, location: S3Location, target: Path) -> None:
        got.append(location.key)
        target.write_text("1")

    monkeypatch.setattr("sagemaker_emulator.jobs.folder_sync.download", download)
    monkeypatch.setattr(
        "sagemaker_emulator.jobs.folder_sync.list_keys",
        lambda s3, prefix: ["cp/", "cp/../out", "cp//abs", "cp/last"],
    )
    s3, nodes = RecordingS3(), nodes_with(tmp_path)
    sync = FolderSync(s3, [FOLDER], nodes)
    sync.restore()
    assert got == ["cp/last", "cp/last"]  # one for each node
    sync._upload_changes()
    assert s3.uploads == []  # a restored file is not uploaded again
