"""Share one instance quota among several sweeps with a Prefect global concurrency limit.

Each node takes a slot. Slots are leases of 300 s that Prefect's client renews, so the slots of a
killed run expire (docs/ending.md). SageMaker's own quota is the last safeguard. Create the limit
with `prefect gcl create NAME --limit INSTANCES`.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from httpx import HTTPStatusError
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from nodesweep.errors import PreflightRefused, QuotaReached

logger = logging.getLogger("nodesweep.quota")
_LOCKED = 423


class NodeSlots:
    """The slots held by the running jobs of one sweep; without a limit, no slots are taken."""

    def __init__(self, limit: str | None) -> None:
        self._limit = limit
        self._held: dict[str, ExitStack] = {}

    def take(self, job_name: str, nodes: int) -> None:
        """Take one slot per node, and hold the slots until release().

        Raises:
            QuotaReached: not enough slots are free.
        """
        if self._limit is None or job_name in self._held:
            return
        stack = ExitStack()
        try:
            stack.enter_context(
                concurrency(
                    self._limit,
                    occupy=nodes,
                    # A single request, since slots could be granted after a wait was abandoned.
                    max_retries=0,
                    strict=True,
                    # A lost lease must not stop the running jobs.
                    raise_on_lease_renewal_failure=False,
                )
            )
        except ConcurrencySlotAcquisitionError as error:
            locked = (
                isinstance(error.__cause__, HTTPStatusError)
                and error.__cause__.response.status_code == _LOCKED
            )
            why = "are not free" if locked else f"could not be acquired: {error.__cause__ or error}"
            raise QuotaReached(
                f"{job_name}: {nodes} slots of the global concurrency limit {self._limit} {why}"
            ) from error
        self._held[job_name] = stack

    def release(self, job_name: str) -> None:
        """Release the job's slots; do nothing if it holds none.

        If the server does not respond, the lease expires.
        """
        stack = self._held.pop(job_name, None)
        if stack is not None:
            try:
                stack.close()
            # Whatever Prefect's client raises, the job has ended and the lease will expire.
            except Exception as error:
                logger.warning(
                    "the slots of %s can't be released, and stay taken until their lease expires:"
                    " %s",
                    job_name,
                    error,
                )

    def release_all(self) -> None:
        """Release the slots of every job."""
        for job_name in list(self._held):
            self.release(job_name)


def check_limit(limit: str | None, nodes: int) -> None:
    """Verify that the limit exists, is active and has enough slots for the largest job.

    Raises:
        PreflightRefused: the limit is missing, inactive or too small.
    """
    if limit is None:
        return
    field = "sweep.concurrency_limit"
    try:
        with get_client(sync_client=True) as client:
            found = client.read_global_concurrency_limit_by_name(limit)
    except ObjectNotFound:
        raise PreflightRefused(
            f"{field}: Prefect has no global concurrency limit {limit!r}; create it with "
            f"`prefect gcl create {limit} --limit INSTANCES`, or leave the field out"
        ) from None
    if found.limit < nodes:
        raise PreflightRefused(
            f"{field}: {limit} has {found.limit} slots, but the largest job needs {nodes}; raise"
            " it, or measure fewer nodes"
        )
    if not found.active:
        raise PreflightRefused(f"{field}: {limit} is inactive, so it limits nothing; activate it")
