"""CPU quota of this process, from its control group (cgroup v1 or v2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cpu_quota_cores(process_root: Path = Path("/proc/self")) -> float | None:
    """Return the lowest quota of the enclosing groups, in cores; None without a quota."""
    quotas = [quota for group in _groups(process_root) if (quota := _read_quota(group)) is not None]
    return min(quotas, default=None)


def _groups(process_root: Path) -> Iterator[Path]:
    """Yield the folders of the process's group and its parents, for each CPU hierarchy."""
    try:
        memberships = (process_root / "cgroup").read_text().splitlines()
        mounts = (process_root / "mountinfo").read_text().splitlines()
    except OSError:
        return  # not Linux, or /proc is hidden: the quota is unknown
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for line in mounts:
            mounted = _cpu_mount(line, version_1=bool(controllers))
            if mounted is None:
                continue
            root, mount_point = mounted
            relative = PurePosixPath(path)
            relative = (
                relative.relative_to(root) if relative.is_relative_to(root) else PurePosixPath()
            )
            folder = mount_point / relative
            yield from (
                folder,
                *(parent for parent in folder.parents if parent.is_relative_to(mount_point)),
            )


def _cpu_mount(line: str, *, version_1: bool) -> tuple[PurePosixPath, Path] | None:
    """Return (root in the hierarchy, mount point) of a CPU hierarchy's mountinfo line, or None."""
    left, _, right = line.partition(" - ")
    file_system, _, super_options = right.split(" ", 2)
    wanted = (
        file_system == "cgroup" and "cpu" in super_options.split(",")
        if version_1
        else file_system == "cgroup2"
    )
    if not wanted:
        return None
    columns = left.split(" ")
    return PurePosixPath(columns[3]), Path(columns[4])


def _read_quota(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None  # the root group has no such file
    return None if quota in ("max", "-1") else int(quota) / int(period)
