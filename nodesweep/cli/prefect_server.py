"""The Prefect API of a command: the configured one, or a server that lives as long as the command.

Prefect can start the same server itself, but only after importing all of Prefect, and then waits
for it. Here, the server starts while this process imports Prefect.
"""

from __future__ import annotations

import atexit
import gc
import http.client
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from nodesweep.cli import ephemeral_prefect
from nodesweep.cli.ephemeral_prefect import home_problem
from nodesweep.cli.processes import LONGEST_SECONDS, Progress, cpu_ticks
from nodesweep.errors import RunFailed
from nodesweep.imports import import_modules

logger = logging.getLogger("nodesweep.session")
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05
_STOP_SECONDS = 5.0
_TRIES = 3  # another process may take the port after it was chosen
_PROGRAM = Path(ephemeral_prefect.__file__)

# Terminates the server if this process ends without running exit handlers.
_TIED_PROGRAM = """
import os, sys
sys.stdin.read()
pid = int(sys.argv[1])
try:
    if b"prefect" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(pid, 15)
except OSError:
    pass
"""


def connect_prefect(modules: Sequence[str] = ()) -> None:
    """Provide a Prefect API, importing `modules` while a server starts.

    Raises:
        RunFailed: The server does not start, or Prefect's home is not writable.
    """
    password = f"nodesweep:{secrets.token_urlsafe(32)}"
    port = _free_port()
    server = None
    if "prefect" not in sys.modules and not os.environ.get("PREFECT_API_URL"):
        # Importing Prefect takes 2 s, and only then is it certain that a server is needed.
        server = _start(port, password)
        import_modules("prefect.settings", *modules)
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        logger.info("Prefect at %s", PREFECT_API_URL.value())
        return
    _check_home()
    logger.info("starting Prefect (ephemeral server)")
    for is_last in [False] * (_TRIES - 1) + [True]:
        if server is None:
            server = _start(port, password)
            import_modules(*modules)
        gc.freeze()  # imported modules stay; exclude them from later collections
        if _wait_until_ready(server, port):
            break
        if is_last:
            code = server.poll()
            why = "no response in time" if code is None else f"exit code {code}"
            raise RunFailed(
                f"Prefect's server did not start ({why}; see its output above);"
                " set PREFECT_API_URL to a running server, or give it more time with "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
            )
        server, port = None, _free_port()
    _use(f"http://{_HOST}:{port}/api", password)


def _check_home() -> None:
    """Check that Prefect's home can hold the server's database.

    Raises:
        RunFailed: The home is not writable.
    """
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    if error := home_problem(settings):
        raise RunFailed(
            f"Prefect keeps its record of runs in {settings.home}, which can't be written"
            f" ({error.strerror or error}); set PREFECT_HOME to a writable folder, or"
            " PREFECT_API_URL to a running server"
        ) from error


def _start(port: int, password: str) -> subprocess.Popen[bytes]:
    """Start a server that ends with this process, even on kill -9, but ignores Ctrl-C.

    It requires the password, because any user of this machine and any page in a browser here can
    reach its port.
    """
    environment = {
        **os.environ,
        "PREFECT_UI_ENABLED": "0",
        "PREFECT_SERVER_API_AUTH_STRING": password,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "null",
        # Saves half a second in a new home: no flow here uses the block catalogue. Without the
        # second setting, Prefect would memoize it as done and the user's server would skip it.
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
        "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    }
    server = subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM), str(port)],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Registered before Prefect's exit handlers, so that it runs after them: they send the last
    # log lines.
    atexit.register(_stop, server)
    tether = [sys.executable, "-I", "-S", "-c", _TIED_PROGRAM, str(server.pid)]
    subprocess.Popen(tether, stdin=subprocess.PIPE, start_new_session=True)
    return server


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server responds; return False if it ended or made no progress.

    Progress is measured in CPU time, because a busy machine takes several times as long as an idle
    one. The limit is Prefect's own.
    """
    from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    limit = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    progress = Progress(
        server.pid,
        still_seconds=limit,
        longest_seconds=max(limit, LONGEST_SECONDS),
        clock=time.monotonic,
        cpu=cpu_ticks,
    )
    while server.poll() is None and progress.problem() is None:
        try:
            with opener.open(f"http://{_HOST}:{port}/api/health", timeout=2):
                return True
        except (OSError, http.client.HTTPException):  # URLError is a subclass of OSError
            time.sleep(_POLL_SECONDS)
    return False


def _use(url: str, password: str) -> None:
    """Point every Prefect client in this process, in any thread, at this API."""
    from prefect.context import refresh_global_settings_context

    os.environ["PREFECT_API_URL"] = url
    os.environ["PREFECT_API_AUTH_STRING"] = password
    refresh_global_settings_context()


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_HOST, 0))
        return int(found.getsockname()[1])
