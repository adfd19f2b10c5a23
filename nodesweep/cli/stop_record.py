"""Record a stop in Prefect as a completed run of the flow `stop-sweep`.

    python -m nodesweep.cli.stop_record SWEEP_ID    # job names on standard input

This is a separate process, because Prefect can hang in its import, a setting or a retry, and a stop
must not hang with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from nodesweep.cli.guard import explain

RECORD_SECONDS = 30.0
"""Limit for Prefect's import, which takes 10 s on a busy machine, and two API calls."""


def record_stop(
    sweep: str, job_names: Sequence[str], seconds: float = RECORD_SECONDS
) -> str | None:
    """Record the stop at the configured Prefect server, if any.

    Returns:
        The reason why the stop could not be recorded; None on success.
    """
    command = [sys.executable, "-P", "-m", "nodesweep.cli.stop_record", sweep]
    try:
        done = subprocess.run(
            command,
            input="\n".join(job_names),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no response within {seconds:g} s"
    except OSError as error:
        return f"the recording process did not start: {error.strerror or error}"
    if done.returncode == 0:
        return None
    return done.stdout.strip() or f"the recording process ended with exit code {done.returncode}"


def write_record(sweep: str, job_names: Sequence[str]) -> None:
    """Write the record if a server is configured; Prefect's errors propagate."""
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        return
    from prefect.client.orchestration import get_client
    from prefect.states import Completed

    from nodesweep.flows.stop import stop_sweep

    message = f"stopped jobs: {', '.join(job_names) or 'none'}"
    with get_client(sync_client=True) as client:
        client.create_flow_run(
            stop_sweep,
            name=f"stop-{sweep}",
            parameters={"sweep_id": sweep},
            state=Completed(message=message),
        )


def _main() -> int:
    try:
        write_record(sys.argv[1], sys.stdin.read().split())
    except Exception as error:
        try:
            print(explain(error)[0])
        except Exception:  # Prefect can raise anything
            print(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
