"""Keeps enabled schedules enabled while `prefect deploy` replaces the deployments.

prefect.yaml declares every schedule with `active: false`, so that none runs before someone enables
it; a deploy resets each schedule to its declaration.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from nodesweep.configs.atomic import write_atomic
from nodesweep.infra.worker.server import CLIENT_AUTH
from nodesweep.polling import intervals

_TIMEOUT_SECONDS = 90.0
"""Exceeds the 60 s that Prefect's server waits for a lock of its SQLite database."""
_RETRY_SECONDS, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 30.0, 1.0, 8.0
"""Time after which no further round of tries begins, and the pauses between rounds."""


class ScheduleError(Exception):
    """Schedules that were enabled are off; the message names them."""


@contextmanager
def kept_enabled(environment: Mapping[str, str], file: Path | None = None) -> Iterator[None]:
    """Enable the schedules at PREFECT_API_URL again that were enabled before the block.

    Args:
        environment: Environment of the Prefect commands.
        file: Holds the schedules until they are enabled, so that a later call enables those that an
            interrupted or failed one left off.

    Raises:
        httpx.HTTPError: The server did not list the schedules.
        ScheduleError: The server did not enable some of them.
    """
    key, password = environment.get("PREFECT_API_KEY"), environment.get(CLIENT_AUTH, "")
    user, _, word = password.partition(":")
    with httpx.Client(
        base_url=environment["PREFECT_API_URL"],
        auth=(user, word) if password else None,
        headers={"Authorization": f"Bearer {key}"} if key and not password else None,
        timeout=_TIMEOUT_SECONDS,
        trust_env=False,  # as the wait for the server: without a proxy
    ) as server:
        enabled = _left_off(file) | _enabled(server)
        _note(file, enabled)
        try:
            yield
        finally:
            off, reason = _enable(server, enabled)
            _note(file, off)
            if off:
                remedy = (
                    "enable them in the UI" if file is None else "the next `make up` tries again"
                )
                raise ScheduleError(
                    f"the schedules of these deployments are off: {', '.join(off.values())}"
                    f" ({reason}); {remedy}"
                )


def _enabled(server: httpx.Client) -> dict[str, str]:
    """Map the path of each enabled schedule to the name of its deployment, tagged `nodesweep`."""
    tagged = {"deployments": {"tags": {"all_": ["nodesweep"]}}}
    found = server.post("/deployments/filter", json=tagged).raise_for_status().json()
    return {
        f"/deployments/{deployment['id']}/schedules/{schedule['id']}": deployment["name"]
        for deployment in found
        for schedule in deployment["schedules"]
        if schedule["active"]
    }


def _enable(server: httpx.Client, schedules: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Enable the schedules; return those that are still off, and the reason of one of them."""
    off, reason = dict(schedules), ""
    deadline = time.monotonic() + _RETRY_SECONDS
    for pause in intervals(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS):
        for path in tuple(off):
            try:
                answer = server.patch(path, json={"active": True})
                if answer.status_code != httpx.codes.NOT_FOUND:  # no longer declared
                    answer.raise_for_status()
                del off[path]
            except httpx.HTTPError as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
        if not off or time.monotonic() >= deadline:
            break
        time.sleep(pause)
    return off, reason


def _left_off(file: Path | None) -> dict[str, str]:
    """Return the schedules that an earlier call left off, by path; none if the file is damaged."""
    try:
        noted = {} if file is None else json.loads(file.read_bytes())
        return {str(path): str(name) for path, name in noted.items()}
    except (FileNotFoundError, ValueError, AttributeError):
        return {}


def _note(file: Path | None, schedules: Mapping[str, str]) -> None:
    if file is not None and schedules:
        write_atomic(file, json.dumps(schedules).encode())
    elif file is not None:
        file.unlink(missing_ok=True)
