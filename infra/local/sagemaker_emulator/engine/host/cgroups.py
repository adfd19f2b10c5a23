"""CPU quotas for nodes through cgroup v1 or v2, if this process may write cgroups.

`CpuQuotas.find` tries a quota on a real process, since folders that look writable often refuse
(read-only mounts in containers, undelegated controllers, no permission to move a process). The
period is 20 ms instead of the kernel's 100 ms because a node uses its whole quota at the start of a
period and then stalls. With 8 nodes of 0.2 vCPU on 2 cores and steps of 10 ms CPU time (50 ms wall
time at best), the 5th to 95th percentiles of a step were 10 to 95 ms with periods of 100 ms, 39 to
62 ms with 20 ms, 47 to 55 ms with 10 ms, and 49 to 54 ms with 5 ms. Shorter periods are steadier
but waste quota: a step of 77 ms CPU time on one pinned node with 0.2 vCPU took 400 ms with periods
of 20 and 100 ms (0.19 vCPU) but 560 ms with 10 ms (0.14 vCPU), since a 2 ms quota is less than the
kernel's tick (4 ms) and slice (5 ms).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PERIOD_MICROSECONDS = 20_000
WEIGHT_FILES = {1: "cpu.shares", 2: "cpu.weight"}
USUAL_WEIGHTS = {1: 1024, 2: 100}
FIRST = 64
"""Weight of the nodes during measurements, as a multiple of the default.

The scheduler sees the nodes as one group, which by default weighs as much as one other process,
however many nodes it contains (`benchmarks/emulation.py --ways first plain` measures both weights
next to busy neighbors). The factor is below the kernel's maximum, so that nodes that fill the
machine leave 1/33 of each of two CPUs to the platform's server.
"""
_PROBE_TIMEOUT_SECONDS = 20.0
_REMOVE_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class CpuQuotas:
    """A folder in a cgroup tree in which the engine creates one group per node."""

    version: int  # 1 or 2
    folder: Path

    @classmethod
    def find(
        cls, name: str, candidates: Iterator[tuple[int, Path]] | None = None
    ) -> tuple[CpuQuotas | None, str]:
        """Return quotas that passed a test (None if none did) and a short description."""
        refusals: list[str] = []
        for version, parent in candidates if candidates is not None else _candidate_parents():
            quotas = cls(version, parent / name)
            try:
                quotas._try_out()
                return quotas, f"cgroup v{version} quota"
            except (OSError, subprocess.SubprocessError) as error:
                refusals.append(f"{parent}: {error}")
        return None, "cgroups not writable" if refusals else "no cgroup cpu controller"

    def create(self, name: str) -> Path:
        """Create a cgroup without a quota for a node, and return it."""
        self._make_folder()
        group = self.folder / name
        group.mkdir(exist_ok=True)
        return group

    def apply(self, group: Path, vcpus: float) -> None:
        """Apply the quota to all present and future processes in the group.

        While a quota is applied, the nodes have priority over everything else on this machine, so
        that each node can use its quota (docs/method.md, "Attainment").
        """
        quota = round(vcpus * PERIOD_MICROSECONDS)
        if self.version == 1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        self._set_weight(FIRST)

    def lift(self, group: Path) -> None:
        """Remove the group's quota and the nodes' priority."""
        if self.version == 1:
            (group / "cpu.cfs_quota_us").write_text("-1")
        else:
            (group / "cpu.max").write_text("max")
        self._set_weight(1)

    def groups(self) -> list[Path]:
        """Return the existing groups, including those that an earlier engine left behind."""
        return (
            sorted(path for path in self.folder.glob("*") if path.is_dir())
            if self.folder.is_dir()
            else []
        )

    def remove(self, group: Path) -> bool:
        """Remove a group whose processes have ended, and return False if that failed.

        The engine's folder is removed with the last group.
        """
        removed = remove_group(group)
        with contextlib.suppress(OSError):  # other groups remain
            self.folder.rmdir()
        return removed

    def _set_weight(self, times: int) -> None:
        """Set the joint weight of the nodes to a multiple of the default.

        If the kernel refuses, nodes next to busy processes have a lower attainment.
        """
        with contextlib.suppress(OSError):
            (self.folder / WEIGHT_FILES[self.version]).write_text(
                str(times * USUAL_WEIGHTS[self.version])
            )

    def _make_folder(self) -> None:
        self.folder.mkdir(exist_ok=True)
        if self.version == 2:
            _delegate_cpu(self.folder.parent)
            _delegate_cpu(self.folder)

    def _try_out(self) -> None:
        try:
            group = self.create("probe")
        except OSError:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            raise
        try:
            self.apply(group, 1.0)
            move_self = ["sh", "-c", 'echo $$ > "$1/cgroup.procs"', "sh", str(group)]
            subprocess.run(
                move_self, check=True, capture_output=True, timeout=_PROBE_TIMEOUT_SECONDS
            )
        finally:
            self.remove(group)


def look_for_quotas(
    candidates: Iterator[tuple[int, Path]] | None = None,
) -> tuple[bool, str]:
    """Return (True, location) if quotas look writable on this machine, else (False, reason).

    This only checks permissions, so the result is a guess. CpuQuotas.find applies a real quota.
    """
    parents = list(candidates if candidates is not None else _candidate_parents())
    for version, parent in parents:
        if os.access(parent, os.W_OK | os.X_OK):
            return True, f"cgroup v{version} at {parent}"
    return False, "cgroups not writable" if parents else "no cgroup cpu controller"


def v1_quotas_look_writable() -> bool:
    """Return True if cgroup v1 quotas look writable, so systemd is not needed."""
    return look_for_quotas(found for found in _candidate_parents() if found[0] == 1)[0]


def enclosing_groups() -> list[Path]:
    """Return the mounted cgroups of this process and their ancestors."""
    return list(
        dict.fromkeys(group for _, own in _candidate_parents() for group in (own, *own.parents))
    )


def cpu_limit(group: Path) -> float | None:
    """Return the number of CPUs that the group's quota allows; None if there is no quota."""
    v2 = _read_lines(group / "cpu.max")
    quota, period = (
        v2[0].split()
        if v2
        else (_first_line(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    )
    # "max" and -1: no quota
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def remove_group(group: Path) -> bool:
    """Remove a cgroup and return True once it is gone; return False after ten seconds.

    The kernel returns EBUSY for a moment after the last process has ended.
    """
    deadline = time.monotonic() + _REMOVE_TIMEOUT_SECONDS
    pause_seconds = 0.005
    while True:
        try:
            group.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, 0.1)


def _delegate_cpu(folder: Path) -> None:
    """Enable the cpu controller for the cgroup v2 children of `folder`.

    The kernel refuses if the cgroup contains processes.
    """
    control = folder / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        _step_down(folder)
        control.write_text("+cpu")


def _step_down(folder: Path) -> None:
    """Move this process into a child cgroup if it is alone in its cgroup, to allow delegation.

    That cgroup can be, for example, the scope in which the server runs (engine/host/scope.py).
    """
    available = _first_line(folder / "cgroup.controllers").split()
    if "cpu" in available and _read_lines(folder / "cgroup.procs") == [str(os.getpid())]:
        below = folder / "platform"
        below.mkdir(exist_ok=True)
        (below / "cgroup.procs").write_text(str(os.getpid()))


def groups_of(
    pid: int, controllers: Sequence[str] = ("cpu", "cpuacct")
) -> dict[str, tuple[int, Path]]:
    """Return the version and path of a process's mounted cgroups, by controller.

    A v2 cgroup serves all controllers.
    """
    paths = _groups(Path(f"/proc/{pid}/cgroup"))
    found: dict[str, tuple[int, Path]] = {}
    for version, mount_root, mount_point, carried in _mounts():
        for controller in controllers:
            path = paths.get(controller if version == 1 else "")
            if (
                controller not in found
                and path is not None
                and (version == 2 or controller in carried)
            ):
                group = mount_point / os.path.relpath(path, mount_root)
                if group.is_dir():
                    found[controller] = version, group
    return found


def _candidate_parents() -> Iterator[tuple[int, Path]]:
    """Yield the folders to try, first in v1, then in v2 from this process's group upwards.

    At most one of v1 and v2 has the cpu controller.
    """
    own = _own_groups()
    for version, mount_root, mount_point in _cpu_mounts():
        relative = own.get("cpu" if version == 1 else "", "/")
        # In a container, the mount shows only part of the tree, but the path of the process starts
        # at the root of the whole tree.
        inside = os.path.relpath(relative, mount_root) if relative.startswith(mount_root) else "."
        here = (mount_point / inside).resolve()
        if not here.is_dir():
            here = mount_point
        yield version, here
        if version == 2:
            yield from (
                (2, parent) for parent in here.parents if parent.is_relative_to(mount_point)
            )


def _own_groups() -> dict[str, str]:
    """Return the path of this process's cgroup by controller, with "" as the key for v2."""
    return _groups(Path("/proc/self/cgroup"))


def _groups(file: Path) -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in _read_lines(file):
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _cpu_mounts() -> Iterator[tuple[int, str, Path]]:
    """Yield the version, root and mount point of cgroup mounts that may have the cpu controller."""
    for version, mount_root, mount_point, carried in _mounts():
        if version == 2 or "cpu" in carried:
            yield version, mount_root, mount_point


def _mounts() -> list[tuple[int, str, Path, frozenset[str]]]:
    """Return the version, root, mount point and v1 controllers of all cgroup mounts, v1 first."""
    mounts = []
    for line in _read_lines(Path("/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        mount_root, mount_point = before.split()[3:5]
        kind, _source, options = after.split()[:3]
        if kind in ("cgroup", "cgroup2"):
            carried = frozenset(options.split(",")) if kind == "cgroup" else frozenset()
            mounts.append((1 if kind == "cgroup" else 2, mount_root, Path(mount_point), carried))
    return sorted(mounts, key=lambda mount: mount[0])


def _first_line(path: Path) -> str:
    return next(iter(_read_lines(path)), "")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def main() -> int:
    """Print whether quotas look writable, and return exit code 0 if they do, else 1."""
    found, reason = look_for_quotas()
    print(reason)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
