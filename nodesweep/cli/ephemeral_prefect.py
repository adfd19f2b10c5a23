"""The process of a command's own Prefect server: python nodesweep/cli/ephemeral_prefect.py PORT

It is the server that Prefect itself starts where no API is configured, begun before the command has
imported Prefect. So it looks itself whether it is wanted: it ends at once, without a word, where
the user has configured an API, where a setting of Prefect's is wrong, or where its home can't be
written. The command finds the same and says it.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def home_problem(settings: Any) -> OSError | None:
    """Why Prefect's home can't hold the server's database, None where it can or needn't."""
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
    # of what is imported nothing is garbage, and looking for it takes a third of the time
    gc.set_threshold(50_000)
    with _silent():
        try:
            from prefect.settings import get_current_settings

            settings = get_current_settings()
        except Exception:  # whatever Prefect's import makes of a wrong setting
            return
        if settings.api.url or home_problem(settings):
            return
    import uvicorn
    from prefect.server.api.server import create_app

    application = create_app(ephemeral=True)
    gc.freeze()
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="error", lifespan="on")


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing on standard error, which is the command's too."""
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
