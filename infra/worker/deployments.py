"""The work pool and the deployments of prefect.yaml at a Prefect server:
for `make up` and for compose.yaml.

python -m nodesweep.infra.worker deploy     # at the server of PREFECT_API_URL, for which it waits
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nodesweep.infra.local.progress import Progress

REPOSITORY = Path(__file__).resolve().parents[2]
POOL = "nodesweep"
POOL_TEMPLATE = Path(__file__).with_name("process-base-job-template.json")
"""Prefect's own would let a run name its command and its whole environment."""
SERVER_START_SECONDS = 600.0
"""Of a server whose process is not on this machine: nothing but the clock tells that it hangs."""
_POLL_SECONDS = 0.5


class DeployError(Exception):
    """The server did not answer, or refused; the message says which command and what it said."""


def deploy(environment: Mapping[str, str], server_pid: int | None = None) -> None:
    """Make the work pool and register every deployment, in place of what an earlier call made.
    Raises DeployError.

    `server_pid` is the server's process where it is on this machine: commands wait for its answers,
    so as long as it gets anywhere they are given time.
    """
    pids = () if server_pid is None else (server_pid,)
    pool = ("work-pool", "create", POOL, "--type", "process", "--overwrite")
    template = ("--base-job-template", str(POOL_TEMPLATE))
    _python(environment, ("prefect", "--no-prompt", *pool, *template), pids)
    _python(environment, ("prefect", "--no-prompt", "deploy", "--all"), pids)
    _python(environment, ("nodesweep.infra.worker", "forms"), pids)


def wait_for_server(
    api_url: str,
    runs: Callable[[], bool] = lambda: True,
    problem: Callable[[], str | None] | None = None,
) -> None:
    """Return once the server answers. Raises DeployError as soon as `runs` says that it has ended,
    or `problem` why to wait no longer; without that after 120 s.
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
    said = f"`{' '.join(word for word in arguments if word != '--no-prompt')}`"
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
                    raise DeployError(f"{said} did not respond {why}") from None
            except BaseException:
                process.kill()
                raise
    if process.returncode != 0:
        raise DeployError(f"{said} failed:\n{(errors or printed).strip()}")
