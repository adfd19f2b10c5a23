"""Whose a sweep id is: an object in the bucket that the first run to ask for the id writes,
and no other one can.

An id is made of the config and of a second. Runs that begin in the same second are told apart by
taking the seconds one by one: each writes its own name where nothing is yet (S3's If-None-Match),
and goes on to the next second where another run was first. A run that is tried again meets its own
name on the same way, and has its id again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.scaling import names
from nodesweep.tasks.errors import RunFailed, error_code
from nodesweep.tasks.platform import aws_client, patient
from nodesweep.tasks.polling import Clock, intervals
from nodesweep.tasks.storage import get_bytes, put_bytes

_MOST_SECONDS = 1000
"""Runs of one config that may begin in one second."""
_TRIES = 10
_TAKEN_CODES = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
"""The latter where two wrote at once: then neither may have been kept."""


def claimed_sweep_id(s3: Any, config: BenchmarkConfig, started: datetime, run: str) -> str | None:
    """The id that this run has claimed, None where it has none."""
    for sweep in _candidates(config, started):
        claimant = _claimant(s3, config.platform, sweep)
        if claimant is None or claimant == run:
            return None if claimant is None else sweep
    return None


def take_sweep_id(
    s3: Any, config: BenchmarkConfig, started: datetime, run: str, clock: Clock | None = None
) -> str:
    """The id of this run's sweep, which no other run has or gets.
    Raises RunFailed where there is none left.
    """
    for sweep in _candidates(config, started):
        if _take(s3, config.platform, sweep, run, clock or Clock()):
            return sweep
    raise RunFailed(
        f"{_MOST_SECONDS} runs of this config have begun since {started}; begin again later"
    )


@patient
def claim_sweep_id(config: BenchmarkConfig, started: datetime, run: str) -> str:
    """S3: the id of a new sweep, or that of an earlier try of this run."""
    return take_sweep_id(aws_client("s3", config.platform), config, started, run)


def _candidates(config: BenchmarkConfig, started: datetime) -> Iterator[str]:
    for seconds in range(_MOST_SECONDS):
        yield names.sweep_id(config, started + timedelta(seconds=seconds))


def _take(s3: Any, platform: PlatformConfig, sweep: str, run: str, clock: Clock) -> bool:
    """Whether the id is this run's, from now on or from an earlier try. Raises the last refusal
    that told nothing.
    """
    key = names.run_claim_key(platform.prefix, sweep)
    body = names.pretty_json({"sweep_id": sweep, "run": run})
    pauses = intervals(0.2, 2.0)
    for is_last in [False] * (_TRIES - 1) + [True]:
        try:
            put_bytes(s3, platform.bucket, key, body, only_if_absent=True)
            return True
        except s3.exceptions.ClientError as error:
            if error_code(error) not in _TAKEN_CODES:
                raise
            claimant = _claimant(s3, platform, sweep)
            if claimant is not None:
                return claimant == run
            if is_last:
                raise
        clock.sleep(next(pauses))
    return False


def _claimant(s3: Any, platform: PlatformConfig, sweep: str) -> str | None:
    """The run that has claimed the id; of a claim that can't be read, a run of no name."""
    body = get_bytes(s3, platform.bucket, names.run_claim_key(platform.prefix, sweep))
    if body is None:
        return None
    try:
        return str(json.loads(body)["run"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
