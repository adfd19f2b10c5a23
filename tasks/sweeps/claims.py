"""Record a sweep's jobs in the store before they are submitted, and mark stopped sweeps there.

A backend's job list can be eventually consistent, but the store is strongly consistent, so every
reader finds all jobs that the backend may have accepted from any run. If two runs claim a job at
the same time, at least one sees the other's claim. If a run claims a job while the sweep is being
stopped, either the run sees the stop mark or the stop sees the claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from nodesweep.aws.platform import patient, persistent
from nodesweep.errors import best_effort
from nodesweep.launch.store import Store
from nodesweep.scaling import names


@dataclass(frozen=True)
class Claim:
    """The state of the store right after a job was claimed.

    `jobs` are the claimed job and, if requested, the jobs of other runs. `stop_mark` is the latest
    stop mark.
    """

    jobs: frozenset[str]
    stop_mark: str | None


def read_claims(store: Store, sweep: str, claimant: str | None = None) -> frozenset[str]:
    """Return the jobs claimed for the sweep, by any run or by one claimant.

    Objects that do not name a job of the sweep are ignored.
    """
    listed = store.keys(names.claims_prefix(store.prefix, sweep, claimant))
    claimed = map(names.job_of_claim, listed)
    return frozenset(job for job in claimed if names.sweep_of_job(job) == sweep)


def _read_claims_of_others(store: Store, sweep: str, claimant: str) -> frozenset[str]:
    """Return the claims of the sweep's other runs.

    The listing has only one entry per run, however many claims a run has.
    """
    found = store.folders(names.claims_prefix(store.prefix, sweep))
    claims = (read_claims(store, sweep, other) for other in found if other != claimant)
    return frozenset[str]().union(*claims)


def read_validation_claims(store: Store, sweep: str) -> list[str]:
    """Return every job that any run may have submitted to validate the sweep's dataset.

    A run writes a job's request to the store before it submits the job.
    """
    rests = store.folders(names.validation_claims_prefix(store.prefix, sweep))
    claimed = (names.validation_job_prefix(sweep) + rest for rest in rests)
    return sorted(job for job in claimed if names.sweep_of_validation_job(job) == sweep)


def withdraw_claim(store: Store, sweep: str, job_name: str, claimant: str) -> None:
    """Delete the claim of a job that was refused or never submitted.

    A failure is only logged, because a stale claim merely costs a query of the job's status.
    """
    with best_effort(f"the claim of {job_name} can't be withdrawn"):
        store.delete(names.claim_key(store.prefix, sweep, job_name, claimant))


@patient
def claim_job(
    store: Store, sweep: str, job_name: str, claimant: str, with_others: bool = False
) -> Claim:
    """Record that this job is about to be submitted, then read what other runs have recorded."""
    body = names.pretty_json({"sweep_id": sweep, "job_name": job_name})
    store.put(names.claim_key(store.prefix, sweep, job_name, claimant), body)
    others = _read_claims_of_others(store, sweep, claimant) if with_others else frozenset[str]()
    return Claim(others | {job_name}, read_stop_mark(store, sweep))


@persistent
def mark_sweep_stopped(store: Store, sweep: str) -> None:
    """Mark the sweep as stopped, so that none of its runs submits further jobs.

    The text of each mark is unique.
    """
    body = names.pretty_json({"sweep_id": sweep, "mark": uuid4().hex})
    store.put(names.stop_marker_key(store.prefix, sweep), body)


def read_stop_mark(store: Store, sweep: str) -> str | None:
    """Return the text of the sweep's last stop mark, or None if the sweep was never stopped.

    Marks are never deleted. A run that resumes a stopped sweep ignores only the mark that it found
    when it began, so a stop during its start takes effect, as does the stop of any other run.
    """
    mark = store.get(names.stop_marker_key(store.prefix, sweep))
    return None if mark is None else mark.decode(errors="replace")


@patient
def is_sweep_stopped(store: Store, sweep: str, earlier_mark: str | None = None) -> bool:
    """Return True if the sweep has been stopped since `earlier_mark`."""
    return read_stop_mark(store, sweep) not in (None, earlier_mark)
