"""The process of the tests' Prefect server: that of a command, changed for many clients at once.

    python tests/processes/quiet_prefect.py PORT

It has no background worker, which asks an empty queue for tasks 30 times a second. The worker's
tasks mark work queues and deployments as ready and delete the logs of deleted runs.

Every transaction takes SQLite's write lock when it begins. Prefect's own read first, and SQLite
rejects their writes if anyone else has written since. The server then returns 503, and the client
retries six times, 2 to 32 s apart. With five workers on one server, a quarter of the requests that
create a flow run failed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from prefect import settings

from nodesweep.cli import ephemeral_prefect


@asynccontextmanager
async def _no_worker(*_: object, **__: object) -> AsyncIterator[None]:
    yield


def _change_server() -> None:
    from prefect.server.api import server
    from prefect.server.database import dependencies
    from prefect.server.database.configurations import AioSqliteConfiguration

    class Locking(AioSqliteConfiguration):
        def begin_transaction(
            self, session: Any, with_for_update: bool = True
        ) -> AbstractAsyncContextManager[Any]:
            return super().begin_transaction(session, with_for_update=True)

    server.background_worker = _no_worker
    url = settings.PREFECT_API_DATABASE_CONNECTION_URL.value()
    assert url is not None
    dependencies.set_database_config(Locking(connection_url=url))


if __name__ == "__main__":
    gc.disable()  # imports create no garbage; serve() sets its own threshold
    _change_server()
    gc.enable()
    ephemeral_prefect.serve(int(sys.argv[1]))
