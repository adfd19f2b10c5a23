"""The process of the tests' Prefect server: that of a command, without its background worker.

    python tests/processes/quiet_prefect.py PORT

The worker asks an empty queue for tasks 30 times a second, which takes 2% of a CPU. Its tasks mark
work queues and deployments as ready and delete the logs of deleted runs, which no test needs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nodesweep.cli import ephemeral_prefect


@asynccontextmanager
async def _no_worker(*_: object, **__: object) -> AsyncIterator[None]:
    yield


if __name__ == "__main__":
    gc.disable()  # imports create no garbage; serve() sets its own threshold
    from prefect.server.api import server

    server.background_worker = _no_worker
    gc.enable()
    ephemeral_prefect.serve(int(sys.argv[1]))
