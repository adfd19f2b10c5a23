"""Claim a sweep ID by writing an object to the store, which only one run can do.

An ID is derived from the config and a time in whole seconds. Concurrent runs try successive
seconds. A retried run finds its own claim and gets the same ID again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

from nodesweep.aws.platform import patient
from nodesweep.errors import RunFailed
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.records import Sweeps

_MOST_SECONDS = 1000
"""Maximum number of runs of one config that can start in the same second."""


def claimed_sweep_id(sweeps: Sweeps, started: datetime, run: str) -> str | None:
    """Return the ID that this run has claimed, or None if it has claimed none."""
    for sweep in _candidates(sweeps, started):
        claimant = _claimant(sweeps.store, sweep)
        if claimant is None or claimant == run:
            return None if claimant is None else sweep
    return None


@patient
def claim_sweep_id(sweeps: Sweeps, started: datetime, run: str) -> str:
    """Claim a unique ID for a new sweep, or return the one claimed by an earlier try of this run.

    Raises:
        RunFailed: no ID is left.
    """
    for sweep in _candidates(sweeps, started):
        if _try_claim(sweeps.store, sweep, run):
            return sweep
    raise RunFailed(
        f"{_MOST_SECONDS} runs of this config have started since {started}; try again later"
    )


def _candidates(sweeps: Sweeps, started: datetime) -> Iterator[str]:
    config = sweeps.config
    for seconds in range(_MOST_SECONDS):
        yield names.sweep_id(config, started + timedelta(seconds=seconds))


def _try_claim(store: Store, sweep: str, run: str) -> bool:
    """Claim the ID; return True if this run has it, possibly from an earlier try."""
    body = names.pretty_json({"sweep_id": sweep, "run": run})
    is_new = store.put(names.run_claim_key(store.prefix, sweep), body, only_if_absent=True)
    return is_new or _claimant(store, sweep) == run


def _claimant(store: Store, sweep: str) -> str | None:
    """Return the run that claimed the ID, "" if its claim is unreadable, or None if unclaimed."""
    body = store.get(names.run_claim_key(store.prefix, sweep))
    if body is None:
        return None
    try:
        return str(json.loads(body)["run"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
