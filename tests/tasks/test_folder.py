"""The walk of a folder that is sent: the links that it follows, and the names that it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.tasks import folder
from nodesweep.tasks.folder import Entry, WalkResult, holds_secret, shown_names, walk
from tests.plain import plain


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def nothing(_: Entry) -> bool:
    return False


def names_in(root: Path, walked: WalkResult) -> list[str]:
    return [path.relative_to(root).as_posix() for path in walked.files]


def test_links_inside_the_folder_are_followed_to_files_and_folders(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "v2/a", "b")
    (root / "latest").symlink_to("v2")
    (root / "again").symlink_to(root / "latest" / "a")
    walked = walk(root, nothing)
    assert names_in(root, walked) == ["again", "b", "latest/a", "v2/a"]
    assert walked.refused == ()


@pytest.mark.parametrize("target", [".", "..", "../..", "../../deep/link"])
def test_a_link_to_a_folder_around_it_ends(tmp_path: Path, target: str) -> None:
    root = make(tmp_path / "root", "deep/er/a")
    (root / "deep" / "er" / "link").symlink_to(target)
    if target == "../../deep/link":  # two that lead to each other
        (root / "deep" / "link").symlink_to("er")
    walked = walk(root, nothing)
    assert "deep/er/a" in names_in(root, walked)
    assert len(walked.files) <= 3 and walked.refused == ()


def test_links_that_multiply_the_paths_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(folder, "MAX_LINKED_FOLDERS", 50)
    root = tmp_path / "root"
    for number in range(8):
        make(root, f"{number}/a")
        for other in range(8):
            (root / str(number) / f"to{other}").symlink_to(f"../{other}")
    [refused] = walk(root, nothing).refused
    assert refused.why == snapshot


def test_links_outside_are_refused_with_their_targets(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    make(tmp_path, "secret/credentials", "root/a", "rooted/b")
    root = tmp_path / "root"
    (root / "weights.txt").symlink_to(tmp_path / "secret" / "credentials")
    (root / "more").symlink_to("../secret")
    (root / "by").symlink_to("more")
    (root / "prefix").symlink_to("../rooted")  # begins as the root does
    walked = walk(root, nothing)
    assert names_in(root, walked) == ["a"]
    refused = {it.name: it for it in walked.refused}
    assert set(refused) == {"by", "more", "prefix", "weights.txt"}
    assert plain(refused["weights.txt"].why, folder=tmp_path) == snapshot
    assert [name for name, it in refused.items() if not it.is_folder] == ["weights.txt"]
    followed = walk(root, nothing, follow_outside=True)
    assert "weights.txt" in names_in(root, followed) and followed.refused == ()


def test_a_link_outside_that_leads_back_ends(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a")
    (root / "up").symlink_to("..")
    walked = walk(root, nothing, follow_outside=True)
    assert names_in(root, walked) == ["a"]


@pytest.mark.parametrize("target", ["nowhere", "link", "../root/nowhere"])
def test_broken_links_are_refused(tmp_path: Path, target: str, snapshot: SnapshotAssertion) -> None:
    root = make(tmp_path / "root", "a")
    (root / "link").symlink_to(target)
    walked = walk(root, nothing)
    assert names_in(root, walked) == ["a"]
    [refused] = walked.refused
    assert refused.name == "link"
    assert refused.why == snapshot
    assert walk(root, lambda entry: entry.name == "link").refused == ()


def test_a_folder_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    root, scandir = make(tmp_path / "root", "a", "locked/b"), os.scandir

    def refuse(path: Path) -> object:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(folder.os, "scandir", refuse)
    [refused] = walk(root, nothing).refused
    assert refused.name == "locked"
    assert refused.why == snapshot


def test_order_is_that_of_paths_and_a_folder_is_left_out_once(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a/z", "a-b/c", "a.b", "out/x/1", "out/2")
    walked = walk(root, lambda entry: entry.own_name == "out")
    assert walked.files == tuple(sorted(walked.files))
    assert names_in(root, walked) == ["a/z", "a-b/c", "a.b"]
    assert walked.left_out == ("out",)


def test_what_is_no_file_is_not_sent(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a")
    os.mkfifo(root / "pipe")
    assert names_in(root, walk(root, nothing)) == ["a"]


@pytest.mark.parametrize(
    ("name", "body", "is_secret"),
    [
        ("id_rsa", "", True),
        ("keys/id_ed25519", "", True),
        ("id_rsa.pub", "", False),
        (".env", "", True),
        *((name, "", True) for name in (".netrc", ".pgpass", ".aws", ".ssh", ".gnupg")),
        (".git", "gitdir: ../x", True),
        ("Service-Account-prod.json", "", True),
        ("service_account.json", "", True),
        ("service.json", "", False),
        ("ca.pem", "-----BEGIN CERTIFICATE-----", False),
        ("server.pem", "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----", True),
        ("answers.key", "42", False),
        ("tls.key", "-----BEGIN PRIVATE KEY-----", True),
        ("environment.env.py", "", False),
    ],
)
def test_secrets_are_known_by_name_and_keys_by_what_they_hold(
    tmp_path: Path, name: str, body: str, is_secret: bool
) -> None:
    make(tmp_path, name)
    (tmp_path / name).write_text(body)
    assert holds_secret(Entry(name, False, tmp_path / name)) is is_secret


def test_names_are_shown_without_what_a_terminal_would_obey(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    root = make(tmp_path / "root", "a")
    (root / os.fsdecode(b"caf\xe9\x1b]52;c")).symlink_to("no\x07where")
    [refused] = walk(root, nothing).refused
    assert refused.name == r"caf\udce9\x1b]52;c"
    assert refused.why == snapshot
    assert shown_names([os.fsdecode(b"\xe9"), "b", "c", "d", "e", "f"]) == snapshot
