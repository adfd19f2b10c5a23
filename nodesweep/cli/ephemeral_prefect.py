"""The process of a command's temporary Prefect server.

    python nodesweep/cli/ephemeral_prefect.py PORT

It is the server that Prefect starts if no API is configured, but is launched before the command has
imported Prefect. It therefore checks whether it is needed, and exits silently if an API is
configured, a Prefect setting is invalid, or Prefect's home is not writable; the command finds and
reports the same problems.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def home_problem(settings: Any) -> OSError | None:
    """Return the error if Prefect's home cannot hold the server's database; None if it can."""
    if "connection_url" in settings.server.database.model_fields_set:
        return None
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.home) as file:
            file.write(b"a byte")
    except OSError as error:
        return error
    return None


def serve(port: int) -> None:
    """Serve the API on loopback until SIGTERM."""
    # imported modules hold no garbage, and searching them takes a third of the start-up time
    gc.set_threshold(50_000)
    with _silent():
        try:
            from prefect.settings import get_current_settings

            settings = get_current_settings()
        except Exception:  # Prefect's import may raise anything for an invalid setting
            return
        if settings.api.url or home_problem(settings):
            return
    from prefect.server.api.server import create_app

    application = create_app(ephemeral=True)
    gc.freeze()
    run(application, port)


def run(application: Any, port: int) -> None:
    """Run an ASGI application on loopback until SIGTERM, after which it prints nothing.

    Prefect's server prints a traceback if it is stopped before all its services have started.

    Raises:
        SystemExit: The application did not start.
    """
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            super().handle_exit(sig, frame)

    server = Server(
        uvicorn.Config(application, host="127.0.0.1", port=port, log_level="error", lifespan="on")
    )
    server.run()
    if not server.started:
        sys.exit(3)  # as uvicorn.run does


@contextmanager
def _silent() -> Iterator[None]:
    """Discard standard error, which is shared with the command."""
    own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
