"""Quotas on folders that imitate a cgroup tree, so that both versions and every refusal are tested
on any machine."""

from __future__ import annotations

import os

import pytest

from sagemaker_emulator.engine.host import cgroups
from sagemaker_emulator.engine.host.cgroups import CpuQuotas


@pytest.fixture
def v2_parent(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_v1_quota(tmp_path):
    quotas = CpuQuotas(1, tmp_path / "nodes")
    group = quotas.create("job.algo-1")
    quotas.apply(group, 0.2)
    assert (group / "cpu.cfs_period_us").read_text() == "20000"
    assert (group / "cpu.cfs_quota_us").read_text() == "4000"
    quotas.lift(group)
    assert (group / "cpu.cfs_quota_us").read_text() == "-1"


def test_v2_quota_delegates_the_controller(v2_parent):
    quotas = CpuQuotas(2, v2_parent / "nodes")
    group = quotas.create("job.algo-1")
    assert (v2_parent / "nodes" / "cgroup.subtree_control").read_text() == "+cpu"
    quotas.apply(group, 0.5)
    assert (group / "cpu.max").read_text() == "10000 20000"
    quotas.lift(group)
    assert (group / "cpu.max").read_text() == "max"


@pytest.mark.parametrize(
    ("version", "file", "first", "usual"),
    [(1, "cpu.shares", "65536", "1024"), (2, "cpu.weight", "6400", "100")],
)
def test_nodes_come_before_other_work_while_their_quota_is_in_force(
    v2_parent, version, file, first, usual
):
    quotas = CpuQuotas(version, v2_parent / "nodes")
    group = quotas.create("job.algo-1")
    quotas.apply(group, 0.2)
    assert (v2_parent / "nodes" / file).read_text() == first
    quotas.lift(group)
    assert (v2_parent / "nodes" / file).read_text() == usual
    (v2_parent / "nodes" / file).unlink()
    (v2_parent / "nodes" / file).mkdir()  # refused, but the quota applies
    quotas.apply(group, 0.2)


def test_nothing_writable_is_said(tmp_path, snapshot):
    (tmp_path / "file").write_text("")
    for parents in ([(1, tmp_path / "file"), (2, tmp_path)], []):
        found, reason = CpuQuotas.find("n", iter(parents))
        assert found is None
        assert reason == snapshot


def test_own_group_inside_a_containers_part_of_the_tree(tmp_path, monkeypatch):
    """The mount shows /docker/abc as its root, but the path of this process starts at the root of
    the whole tree.
    """
    lines = {
        "/proc/self/cgroup": ["4:cpu,cpuacct:/docker/abc", "0::/docker/abc"],
        "/proc/self/mountinfo": [
            f"30 25 0:26 /docker/abc {tmp_path} rw - cgroup cgroup rw,cpu,cpuacct",
            "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        ],
    }
    monkeypatch.setattr(cgroups, "_read_lines", lambda path: lines[str(path)])
    assert list(cgroups._candidate_parents()) == [(1, tmp_path)]


def test_v2_tries_the_groups_above_too(tmp_path, monkeypatch):
    own = tmp_path / "user.slice" / "session.scope"
    own.mkdir(parents=True)
    lines = {
        "/proc/self/cgroup": ["0::/user.slice/session.scope"],
        "/proc/self/mountinfo": [f"30 25 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw"],
    }
    monkeypatch.setattr(cgroups, "_read_lines", lambda path: lines[str(path)])
    assert list(cgroups._candidate_parents()) == [(2, own), (2, own.parent), (2, tmp_path)]


def test_refused_delegation_leaves_no_folder(tmp_path):
    """With cgroup v2, the folder can be created, but the kernel refuses the cpu controller if the
    parent contains processes.
    """
    (tmp_path / "cgroup.subtree_control").mkdir()  # can be neither read nor written
    assert CpuQuotas.find("nodesweep-x", iter([(2, tmp_path)]))[0] is None
    assert not (tmp_path / "nodesweep-x").exists()


def test_own_groups_and_those_above_enclose_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cgroups, "_candidate_parents", lambda: iter([(2, tmp_path / "a"), (2, tmp_path)])
    )
    groups = cgroups.enclosing_groups()
    assert groups == [tmp_path / "a", tmp_path, *tmp_path.parents]


def test_a_look_for_quotas_changes_nothing(v2_parent, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    found = cgroups.look_for_quotas(iter([(1, tmp_path / "nowhere"), (2, v2_parent)]))
    assert found == (True, f"cgroup v2 at {v2_parent}")
    assert sorted(tmp_path.rglob("*")) == before
    assert cgroups.look_for_quotas(iter([(1, tmp_path / "nowhere")]))[0] is False
    assert cgroups.look_for_quotas(iter([]))[0] is False


@pytest.mark.parametrize(
    ("beside", "controllers", "moves"),
    [([], "cpu memory", True), ([1], "cpu memory", False), ([], "memory", False)],
)
def test_a_group_that_the_platform_has_to_itself_is_left_for_one_below(
    v2_parent, beside, controllers, moves
):
    """The kernel gives no controller to the children of a group that has processes."""
    (v2_parent / "cgroup.subtree_control").write_text("")
    (v2_parent / "cgroup.controllers").write_text(controllers)
    procs = "".join(f"{pid}\n" for pid in [os.getpid(), *beside])
    (v2_parent / "cgroup.procs").write_text(procs)
    (v2_parent / "platform").mkdir()
    CpuQuotas(2, v2_parent / "nodes").create("job.algo-1")
    moved = v2_parent / "platform" / "cgroup.procs"
    assert moved.exists() is moves
    assert not moves or moved.read_text() == str(os.getpid())
    assert (v2_parent / "cgroup.subtree_control").read_text() == "+cpu"
