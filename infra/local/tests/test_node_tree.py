"""Files that a node leaves and the host reads: links, pipes, cycles, and a folder that becomes a
link."""

from __future__ import annotations

import os
import stat
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from sagemaker_emulator.engine.run.node_files import failure_text
from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.artifacts import upload_model, upload_output
from sagemaker_emulator.jobs.folder_sync import FolderSync, SyncedFolder
from sagemaker_emulator.node_tree import file_names, open_file
from sagemaker_emulator.s3_objects import S3Location

SECRET = "root:s3cr3t"


class RecordingS3:
    def __init__(self) -> None:
        self.uploads: dict[str, bytes] = {}

    def upload_fileobj(self, file: Any, bucket: str, key: str, Config: Any) -> None:
        self.uploads[key] = file.read()


@pytest.fixture
def host_file(tmp_path: Path) -> Path:
    """A file of the host that nodes must not get, like /etc/shadow."""
    (tmp_path / "host").mkdir()
    file = tmp_path / "host" / "shadow"
    file.write_text(SECRET)
    return file


@pytest.fixture
def node(tmp_path: Path) -> Node:
    opt_ml = tmp_path / "algo-1" / "ml"
    for name in ("model", "output/data", "checkpoints"):
        (opt_ml / name).mkdir(parents=True)
    return Node("algo-1", "127.0.0.1", opt_ml)


@pytest.fixture
def traps(node: Node, host_file: Path) -> list[Path]:
    """Create in each folder that the platform reads: links that lead out of it, a pipe, a cycle and
    a socket."""
    folders = [node.opt_ml / name for name in ("model", "output/data", "checkpoints")]
    for folder in folders:
        (folder / "absolute").symlink_to(host_file)
        (folder / "relative").symlink_to(os.path.relpath(host_file, folder))
        (folder / "folder").symlink_to(host_file.parent)
        (folder / "up").symlink_to("../../../../../../../../../../../../etc/passwd")
        (folder / "proc").symlink_to("/proc/self/environ")
        (folder / "circle").symlink_to("circle")
        (folder / "longer").symlink_to("longer2")
        (folder / "longer2").symlink_to("longer")
        (folder / "same-folder").symlink_to(".")
        os.mkfifo(folder / "pipe")
        with suppress(PermissionError):  # needs CAP_MKNOD
            os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (folder / "honest").write_text("trained")
    return folders


def test_artifacts_have_the_nodes_own_files_alone(
    node: Node, traps: list[Path], tmp_path: Path
) -> None:
    s3 = RecordingS3()
    upload_model(s3, [node], "s3://b/model.tar.gz", tmp_path)
    upload_model(s3, [node], "s3://b/model/", tmp_path)
    upload_output(s3, [node], "s3://b/out", tmp_path)
    assert set(s3.uploads) == {"model.tar.gz", "model/honest", "out/output.tar.gz"}
    for key in ("model.tar.gz", "out/output.tar.gz"):
        archive = tmp_path / "found.tar.gz"
        archive.write_bytes(s3.uploads[key])
        with tarfile.open(archive) as opened:
            assert opened.getnames() == ["honest"]
            assert opened.extractfile("honest").read() == b"trained"


def test_a_folder_that_is_a_link_is_empty(node: Node, host_file: Path, tmp_path: Path) -> None:
    (node.opt_ml / "output" / "data").rmdir()
    (node.opt_ml / "output" / "data").symlink_to(host_file.parent)
    s3 = RecordingS3()
    upload_output(s3, [node], "s3://b/out", tmp_path)
    assert s3.uploads == {}


def test_checkpoints_have_the_nodes_own_files_alone(node: Node, traps: list[Path]) -> None:
    s3 = RecordingS3()
    FolderSync(
        s3, [SyncedFolder("checkpoints", S3Location("b", "cp/"), restored=False)], [node]
    )._upload_changes()
    assert s3.uploads == {"cp/honest": b"trained"}


@pytest.mark.parametrize("place", ["failure", "output"])
def test_the_failure_is_not_anothers_file(node: Node, host_file: Path, place: str) -> None:
    (host_file.parent / "failure").write_text(SECRET)
    if place == "failure":
        (node.opt_ml / "output" / "failure").symlink_to(host_file)
    else:
        (node.opt_ml / "output" / "data").rmdir()
        (node.opt_ml / "output").rmdir()
        (node.opt_ml / "output").symlink_to(host_file.parent)
    assert failure_text(node) is None


def test_a_pipe_in_place_of_the_failure_does_not_hold_the_platform_up(node: Node) -> None:
    os.mkfifo(node.opt_ml / "output" / "failure")
    found: list[str | None] = ["not read"]
    reader = threading.Thread(target=lambda: found.append(failure_text(node)), daemon=True)
    reader.start()
    reader.join(HANG_SECONDS)
    assert found == ["not read", None]


def test_links_within_the_tree_are_followed_as_the_node_saw_them(node: Node) -> None:
    """A "last" checkpoint is often a link, and in a container, the tree is /opt/ml."""
    folder = node.opt_ml / "checkpoints"
    (folder / "epoch-2").mkdir()
    (folder / "epoch-2" / "state").write_text("2")
    (folder / "last").symlink_to("epoch-2/state")
    (folder / "by-container").symlink_to("/opt/ml/checkpoints/epoch-2/state")
    (folder / "by-process").symlink_to(folder / "epoch-2" / "state")
    (folder / "epoch-2" / "back").symlink_to("../last")
    names = ["by-container", "by-process", "epoch-2/back", "epoch-2/state", "last"]
    assert file_names(node.opt_ml, "checkpoints") == names
    for name in names:
        with open_file(node.opt_ml, f"checkpoints/{name}") as file:
            assert file.read() == b"2"


def test_a_folder_that_turns_into_a_link_between_two_looks_gives_nothing(
    node: Node, host_file: Path
) -> None:
    """The swap races with reads for a while. The other file must never be read."""
    folder, away = node.opt_ml / "checkpoints" / "d", node.opt_ml / "checkpoints" / "away"
    folder.mkdir()
    (folder / host_file.name).write_text("mine")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            folder.rename(away)
            folder.symlink_to(host_file.parent)
            folder.unlink()
            away.rename(folder)
            time.sleep(0.0005)

    swapper = threading.Thread(target=swap)
    swapper.start()
    read, tries = set(), 0
    try:
        while not read or tries < 2000:
            tries += 1
            try:
                with open_file(node.opt_ml, f"checkpoints/d/{host_file.name}") as file:
                    read.add(file.read())
            except OSError:
                continue
    finally:
        over.set()
        swapper.join()
    assert read == {b"mine"}
