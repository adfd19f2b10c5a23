"""Keeps enabled schedules enabled while `prefect deploy` replaces the deployments.

prefect.yaml declares every schedule with `active: false`, so that none runs before someone enables
it; a deploy resets each schedule to its declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from nodesweep.infra.worker.server import CLIENT_AUTH

_TIMEOUT_SECONDS = 90.0
"""Exceeds the 60 s that Prefect's server waits for a lock of its SQLite database."""


@contextmanager
def kept_enabled(environment: Mapping[str, str]) -> Iterator[None]:
    """Enable the schedules at PREFECT_API_URL again that were enabled before the block.

    Raises:
        httpx.HTTPError: The server did not respond, or refused a request.
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
        enabled = _enabled(server)
        try:
            yield
        finally:
            for schedule in enabled:
                answer = server.patch(schedule, json={"active": True})
                if answer.status_code != httpx.codes.NOT_FOUND:  # no longer declared
                    answer.raise_for_status()


def _enabled(server: httpx.Client) -> list[str]:
    """Return the paths of the enabled schedules of every deployment tagged `nodesweep`."""
    tagged = {"deployments": {"tags": {"all_": ["nodesweep"]}}}
    found = server.post("/deployments/filter", json=tagged).raise_for_status().json()
    return [
        f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
        for deployment in found
        for schedule in deployment["schedules"]
        if schedule["active"]
    ]
