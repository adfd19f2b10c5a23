"""Find nodesweep's jobs that run without an owner."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from nodesweep.errors import best_effort
from nodesweep.launch.protocol import HeldJob, Launcher
from nodesweep.launch.registry import Backend
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.claims import read_claims, read_validation_claims
from nodesweep.tasks.sweeps.owner import Heartbeat, read_heartbeat
from nodesweep.tasks.sweeps.records import has_record

logger = logging.getLogger("nodesweep.reaper")


def orphans(launcher: Launcher, store: Store, grace_seconds: float) -> list[str]:
    """Return the jobs that run or hold nodes although their sweep in this store has no owner.

    The oldest job comes first. An owner is gone if its last heartbeat is older than the grace
    period by the platform's clock. If a sweep has no heartbeat, the age of its youngest job counts
    instead. Sweeps left running on purpose are spared while any of their jobs runs.
    """
    found: list[str] = []
    for sweep, jobs in _by_sweep(launcher, names.sweep_of_job).items():
        with best_effort(
            f"could not check whether {sweep} is still running; its jobs are left alone for now"
        ):
            if not has_record(store, sweep):
                logger.info(
                    "%s has no record in %s, so it belongs to another platform; left alone",
                    sweep, store.uri("").rstrip("/"),
                )  # fmt: skip
                continue
            heartbeat = read_heartbeat(store, sweep)
            is_left = heartbeat is not None and heartbeat.left_running
            if is_left and any(job.is_running for job in jobs):
                continue
            if _silent_seconds(heartbeat, jobs) > grace_seconds:
                found += _jobs_of_sweep(store, sweep, jobs)
    return found


def validation_orphans(launcher: Launcher, store: Store, grace_seconds: float) -> list[str]:
    """Return this store's validation jobs whose owner's heartbeat is older than the grace period.

    The oldest job comes first. The sweeps have no record yet, but a request in the store shows to
    which sweep a job belongs, so its tag may be missing.
    """
    found: list[str] = []
    for sweep, jobs in _by_sweep(launcher, names.sweep_of_validation_job).items():
        with best_effort(
            f"could not check whether {sweep} is still running; its validation is left alone"
        ):
            claimed = read_validation_claims(store, sweep)
            mine = [job for job in jobs if job.name in claimed]
            if mine and _silent_seconds(read_heartbeat(store, sweep), mine) > grace_seconds:
                found += [job.name for job in mine if job.read_tag() in (sweep, None)]
    return found


def _by_sweep(
    launcher: Launcher, sweep_of: Callable[[str], str | None]
) -> Mapping[str, Collection[HeldJob]]:
    """Group the jobs that the backend lists by the sweep in their names, dropping duplicates."""
    found: dict[str, dict[str, HeldJob]] = defaultdict(dict)
    for job in launcher.held():
        if (sweep := sweep_of(job.name)) is not None:
            found[sweep][job.name] = job
    return {sweep: jobs.values() for sweep, jobs in found.items()}


def _silent_seconds(heartbeat: Heartbeat | None, jobs: Collection[HeldJob]) -> float:
    if heartbeat is None:
        return min(job.age_seconds for job in jobs)
    return heartbeat.age_seconds


def _jobs_of_sweep(store: Store, sweep: str, jobs: Collection[HeldJob]) -> list[str]:
    """Return the jobs that have the sweep's tag, or have no tag but a claim in the store."""
    tags = {job.name: job.read_tag() for job in jobs}
    claimed = read_claims(store, sweep) if None in tags.values() else frozenset[str]()
    return [name for name, tag in tags.items() if tag == sweep or (tag is None and name in claimed)]


def find_validation_orphans(backend: Backend, grace_seconds: float) -> list[str]:
    """Find validation jobs that have lost their owner.

    A failure is only logged, because the role may not be allowed to list Processing jobs.
    """
    found: list[str] = []
    with best_effort("can't look for orphaned Processing jobs"):
        found = validation_orphans(backend.validations(), backend.store, grace_seconds)
    return found


def find_orphans(backend: Backend, grace_seconds: float) -> list[str]:
    """Find training jobs that have lost their owner."""
    return orphans(backend.launcher(), backend.store, grace_seconds)
