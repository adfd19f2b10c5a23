"""Ownership of a sweep ID: an object in the bucket that only the first run to request it can write.

An ID is derived from the config and a second. Concurrent runs try successive seconds with S3's
If-None-Match; a retried run finds its own claim on the way, and gets the same ID again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from nodesweep.aws.platform import aws_client, patient
from nodesweep.aws.storage import get_bytes, put_bytes
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.errors import RunFailed, error_code
from nodesweep.polling import Clock, intervals
from nodesweep.scaling import names

_MOST_SECONDS = 1000
"""Maximum number of runs of one config that may start in the same second."""
_TRIES = 10
_TAKEN_CODES = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
"""Codes of a refused write.

After the last two, which S3 returns for concurrent writes, possibly neither write was stored.
"""


def claimed_sweep_id(s3: Any, config: BenchmarkConfig, started: datetime, run: str) -> str | None:
    """Return the ID that this run has claimed; None if it has none."""
    for sweep in _candidates(config, started):
        claimant = _claimant(s3, config.platform, sweep)
        if claimant is None or claimant == run:
            return None if claimant is None else sweep
    return None


def claim_new_sweep_id(
    s3: Any, config: BenchmarkConfig, started: datetime, run: str, clock: Clock | None = None
) -> str:
    """Claim an ID for this run's sweep that no other run has or can get.

    Raises:
        RunFailed: no ID is left.
    """
    for sweep in _candidates(config, started):
        if _try_claim(s3, config.platform, sweep, run, clock or Clock()):
            return sweep
    raise RunFailed(
        f"{_MOST_SECONDS} runs of this config have started since {started}; try again later"
    )


@patient
def claim_sweep_id(config: BenchmarkConfig, started: datetime, run: str) -> str:
    """Claim the ID of a new sweep in S3, or return that of an earlier try of this run."""
    return claim_new_sweep_id(aws_client("s3", config.platform), config, started, run)


def _candidates(config: BenchmarkConfig, started: datetime) -> Iterator[str]:
    for seconds in range(_MOST_SECONDS):
        yield names.sweep_id(config, started + timedelta(seconds=seconds))


def _try_claim(s3: Any, platform: PlatformConfig, sweep: str, run: str, clock: Clock) -> bool:
    """Claim the ID unless it is taken; return True if it is this run's, maybe from an earlier try.

    Raises the last conflict if the object never appears.
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
    """Return the run that has claimed the ID, "" if its claim is unreadable; None if it is free."""
    body = get_bytes(s3, platform.bucket, names.run_claim_key(platform.prefix, sweep))
    if body is None:
        return None
    try:
        return str(json.loads(body)["run"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
