from __future__ import annotations

from pathlib import Path

import pytest
from training.cpu_quota import cpu_quota_cores


class FakeProc:
    """The /proc/self of a process, and the tree of control groups from which it is mounted."""

    def __init__(self, root: Path) -> None:
        self.path, self.tree = root / "self", root / "sys"
        self.path.mkdir()
        self.tree.mkdir()

    def version_2(self, membership: str, mount_root: str = "/") -> None:
        (self.path / "cgroup").write_text(f"0::{membership}\n")
        (self.path / "mountinfo").write_text(
            f"30 24 0:26 {mount_root} {self.tree} rw - cgroup2 cgroup2 rw\n"
        )

    def version_1(self, membership: str, mount_root: str = "/") -> None:
        (self.path / "cgroup").write_text(f"4:memory:/x\n2:cpuacct,cpu:{membership}\n0::/\n")
        other = "24 1 0:20 / / rw - ext4 /dev/vda rw"
        cpu = f"32 31 0:29 {mount_root} {self.tree} rw - cgroup cgroup rw,cpu,cpuacct"
        (self.path / "mountinfo").write_text(f"{other}\n{cpu}\n")

    def group(self, path: str, **files: str) -> None:
        folder = self.tree / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_version_2_quota(proc: FakeProc) -> None:
    proc.version_2("/job/node")
    proc.group("job/node", cpu__max="20000 100000")
    assert cpu_quota_cores(proc.path) == 0.2


def test_the_tightest_enclosing_group_counts(proc: FakeProc) -> None:
    proc.version_2("/job/node")
    proc.group("job/node", cpu__max="max 100000")
    proc.group("job", cpu__max="50000 100000")
    assert cpu_quota_cores(proc.path) == 0.5


def test_version_1_quota(proc: FakeProc) -> None:
    proc.version_1("/node")
    proc.group("node", cpu__cfs_quota_us="2000", cpu__cfs_period_us="10000")
    assert cpu_quota_cores(proc.path) == 0.2


def test_a_container_sees_its_own_group_as_the_root_of_the_mount(proc: FakeProc) -> None:
    proc.version_1("/docker/abc", mount_root="/docker/abc")
    proc.group(".", cpu__cfs_quota_us="150000", cpu__cfs_period_us="100000")
    assert cpu_quota_cores(proc.path) == 1.5


def test_no_quota_is_none(proc: FakeProc) -> None:
    proc.version_1("/node")
    proc.group("node", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert cpu_quota_cores(proc.path) is None
    assert cpu_quota_cores(proc.path / "absent") is None
