"""Registers the work pool and the deployments of prefect.yaml at a Prefect server.

`make up` and compose.yaml use it; it waits for the server of PREFECT_API_URL:

    python -m nodesweep.infra.worker deploy
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from nodesweep.cli.processes import Progress
from nodesweep.infra.worker.schedules import ScheduleError, kept_enabled

REPOSITORY = Path(__file__).resolve().parents[2]
POOL = "nodesweep"
POOL_TEMPLATE = Path(__file__).with_name("process-base-job-template.json")
"""Replaces Prefect's default, which lets a run choose its command and its whole environment."""
SERVER_START_SECONDS = 600.0
"""Deadline in seconds for a server in another container or on another host."""
_POLL_SECONDS = 0.5


class DeployError(Exception):
    """The server did not respond or refused a command; the message gives command and output."""


def deploy(
    environment: Mapping[str, str],
    server_pid: int | None = None,
    schedules_file: Path | None = None,
) -> None:
    """Create the work pool and register every deployment, replacing those of an earlier call.

    Enabled schedules stay enabled.

    Args:
        environment: Environment of the Prefect commands.
        server_pid: The server's process if it is on this machine. A command that waits for the
            server gets more time as long as the server makes progress.
        schedules_file: Holds the enabled schedules for the next call, in case this one fails.

    Raises:
        DeployError: A command failed or made no progress.
    """
    pids = () if server_pid is None else (server_pid,)
    pool = ("work-pool", "create", POOL, "--type", "process", "--overwrite")
    template = ("--base-job-template", str(POOL_TEMPLATE))
    _python(environment, ("prefect", "--no-prompt", *pool, *template), pids)
    try:
        with kept_enabled(environment, schedules_file):
            _python(environment, ("prefect", "--no-prompt", "deploy", "--all"), pids)
    except (httpx.HTTPError, ScheduleError) as error:
        raise DeployError(f"the schedules could not be kept enabled: {error}") from None
    _python(environment, ("nodesweep.infra.worker", "forms"), pids)


def wait_for_server(
    api_url: str,
    runs: Callable[[], bool] = lambda: True,
    problem: Callable[[], str | None] | None = None,
) -> None:
    """Return once the server responds.

    Args:
        api_url: URL of the server's API, ending in /api.
        runs: Callable that returns False once the server's process has ended.
        problem: Callable that returns the reason to stop waiting, or None. Without this callable,
            waiting ends after SERVER_START_SECONDS.

    Raises:
        DeployError: The server has ended, or did not respond in time.
    """
    deadline = time.monotonic() + SERVER_START_SECONDS

    def overdue() -> str | None:
        is_over = time.monotonic() >= deadline
        return f"within {SERVER_START_SECONDS:.0f} s; repeat the command" if is_over else None

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while (why := (problem or overdue)()) is None and runs():
        try:
            with opener.open(f"{api_url}/health", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(_POLL_SECONDS)
    raise DeployError(f"the Prefect server did not come up at {api_url} {why or 'and has ended'}")


def _python(
    environment: Mapping[str, str], arguments: Sequence[str], server_pids: Sequence[int]
) -> None:
    command = f"`{' '.join(word for word in arguments if word != '--no-prompt')}`"
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        progress = Progress(process.pid, *server_pids)
        while True:
            try:
                printed, errors = process.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if (why := progress.problem()) is not None:
                    process.kill()
                    raise DeployError(f"{command} was stopped {why}") from None
            except BaseException:
                process.kill()
                raise
    if process.returncode != 0:
        raise DeployError(f"{command} failed:\n{(errors or printed).strip()}")
