"""The work pool and the deployments of prefect.yaml at a Prefect server:
for `make up` and for compose.yaml.

python -m infra.worker deploy     # at the server of PREFECT_API_URL, for which it waits
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
POOL = "nodesweep"
SERVER_START_SECONDS = (
    120.0  # 14-20 s on two quiet cores the first time, several times that on busy ones
)
_COMMAND_SECONDS = 120.0
_DEPLOY_SECONDS = 180.0


class DeployError(Exception):
    """The server did not answer, or refused; the message says which command and what it said."""


def deploy(environment: Mapping[str, str]) -> None:
    """Make the work pool and register every deployment, in place of what an earlier call made.
    Raises DeployError.
    """
    _prefect(
        environment,
        "work-pool",
        "create",
        POOL,
        "--type",
        "process",
        "--overwrite",
        seconds=_COMMAND_SECONDS,
    )
    _prefect(environment, "deploy", "--all", seconds=_DEPLOY_SECONDS)
    _python(environment, "infra.worker", "forms", seconds=_COMMAND_SECONDS)


def wait_for_server(api_url: str, runs: Callable[[], bool] = lambda: True) -> None:
    """Return once the server answers. Raises DeployError after 120 s, or as soon as `runs` says
    that it has ended.
    """
    deadline = time.monotonic() + SERVER_START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and runs():
        try:
            with opener.open(f"{api_url}/health", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise DeployError(f"the Prefect server did not come up at {api_url}")


def _prefect(environment: Mapping[str, str], *arguments: str, seconds: float) -> None:
    _python(environment, "prefect", "--no-prompt", *arguments, seconds=seconds)


def _python(environment: Mapping[str, str], module: str, *arguments: str, seconds: float) -> None:
    command = [sys.executable, "-m", module, *arguments]
    shown = " ".join(word for word in (module, *arguments) if word != "--no-prompt")
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeployError(f"`{shown}` gave no answer within {seconds:.0f} s") from None
    if done.returncode != 0:
        raise DeployError(f"`{shown}` failed:\n{(done.stderr or done.stdout).strip()}")
