"""A sweep's jobs and stop mark as stored objects; a job's object is written before it is sent.

A backend's job list may be only eventually consistent, but a store is strongly consistent, so
every reader finds all jobs that the backend may have accepted from any run. Of two runs that claim
at the same time, at least one sees the other's claim; the same holds for a claim and a stop mark.
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
    """The store's state right after a job was claimed.

    `jobs` are that job and, if requested, other runs' jobs; `stop_mark` is the last stop's.
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

    If there are no other runs, the listing has one entry, however many claims this run has.
    """
    found = store.folders(names.claims_prefix(store.prefix, sweep))
    claims = (read_claims(store, sweep, other) for other in found if other != claimant)
    return frozenset[str]().union(*claims)


def read_validation_claims(store: Store, sweep: str) -> list[str]:
    """Return every job that any run may have sent to validate the sweep's dataset.

    A run writes such a job's request to the store before it sends the job.
    """
    rests = store.folders(names.validation_claims_prefix(store.prefix, sweep))
    claimed = (names.validation_job_prefix(sweep) + rest for rest in rests)
    return sorted(job for job in claimed if names.sweep_of_validation_job(job) == sweep)


def withdraw_claim(store: Store, sweep: str, job_name: str, claimant: str) -> None:
    """Delete the claim of a job that was not sent, or was refused.

    Best effort: a stale claim only costs a query of that job's status.
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
    """Mark the sweep as stopped, so that no run of it submits further jobs.

    The text of each mark is unique.
    """
    body = names.pretty_json({"sweep_id": sweep, "mark": uuid4().hex})
    store.put(names.stop_marker_key(store.prefix, sweep), body)


def read_stop_mark(store: Store, sweep: str) -> str | None:
    """Return the text of the sweep's last stop mark; None if the sweep was never stopped.

    Marks are never deleted. A run that continues a stopped sweep ignores the one it found when it
    began; so a stop during its start still holds, and so does the stop of every other run.
    """
    mark = store.get(names.stop_marker_key(store.prefix, sweep))
    return None if mark is None else mark.decode(errors="replace")


@patient
def is_sweep_stopped(store: Store, sweep: str, earlier_mark: str | None = None) -> bool:
    """Return True if the sweep has been stopped since `earlier_mark`."""
    return read_stop_mark(store, sweep) not in (None, earlier_mark)
