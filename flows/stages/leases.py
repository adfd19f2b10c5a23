"""Warn about concurrency leases that a restart of Prefect's server would lose.

A run holds its place in its deployment's concurrency limit, and slots of `sweep.concurrency_limit`;
Prefect's client renews each 300 s lease every 225 s. A server that keeps leases in memory,
which is Prefect's default, loses them on a restart. The run then loses its place at the next
renewal (flows/stages/cancellable.py), and the slots are never released.
"""

from __future__ import annotations

import logging

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

logger = logging.getLogger("nodesweep.flow")
_IN_MEMORY = "prefect.server.concurrency.lease_storage.memory"


def warn_of_leases_in_memory(limit: str | None) -> None:
    """Warn if a restart of the server would end this run or leak its slots.

    Servers that do not report their lease storage, such as Prefect Cloud, cause no warning.
    """
    at_stake = [
        words
        for holds, words in (
            (
                _holds_place_of_deployment(),
                "costs this run its slot in the concurrency limit of its deployment",
            ),
            (limit is not None, f"leaves slots of the limit {limit} occupied forever"),
        )
        if holds
    ]
    if at_stake and _lease_storage() == _IN_MEMORY:
        logger.warning(
            "Prefect's server keeps concurrency-limit leases in memory, so restarting it %s; "
            "start the server with "
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE=prefect.server.concurrency.lease_storage.filesystem",
            " and ".join(at_stake),
        )


def _holds_place_of_deployment() -> bool:
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    if run is None or run.state is None:
        return False
    return run.state.state_details.deployment_concurrency_lease_id is not None


def _lease_storage() -> str | None:
    """Return the module of the server's lease storage, or None if it is not reported."""
    try:
        with get_client(sync_client=True) as client:
            found = client.request("GET", "/admin/settings").json()
        return str(found["server"]["concurrency"]["lease_storage"])
    # other servers may respond with anything, and the only loss is a warning
    except Exception as error:
        logger.debug("could not check how Prefect's server stores its leases: %s", error)
        return None
