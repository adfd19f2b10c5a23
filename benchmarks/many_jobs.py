"""Measure wall time, memory, calls and database growth of `nodesweep run` with many jobs.

    .venv/bin/python -m benchmarks.many_jobs [--jobs 50 200 1000] [--output FILE.json]

Each sweep is a separate process with a temporary Prefect server. Jobs of the simulated engine end
as soon as they begin, so that the remaining cost is nodesweep's own work and the platform's
responses. A sweep of N jobs has up to 20 node counts, N / 20 repeats of each, and 20 jobs in
flight. A sweep of one job, which is not measured, runs first: it creates Prefect's database,
uploads the dataset and builds the image.

- wall time: from start to end of the process, including Prefect's server and the report.
- peak RSS: of the process that runs the sweep, without Prefect's server (VmHWM of
  /proc/PID/status).
- database: growth of prefect.db after the server has ended and the write-ahead log is merged.
- calls: number of calls that reached the platform, by service and operation.

Exit code 1 if the largest sweep takes more than 3 minutes, 600 MB, or 0.03 MB of database per job.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.chaos.plan import UNDISTURBED
from benchmarks.chaos.proxy import label_of, service_of
from benchmarks.chaos.world import (
    REPOSITORY,
    Platform,
    served_platform,
    write_benchmark,
    write_config,
)
from nodesweep.scaling.names import pretty_json
from sagemaker_emulator.api.moto_backend import QuietRequestHandler

JOBS = (50, 200, 1000)
WALL_SECONDS_LIMIT, RSS_MB_LIMIT, DATABASE_MB_LIMIT = 180.0, 600.0, 0.03
"""Limits for the largest sweep: wall time, peak memory, and database growth per job."""
GLOBAL_BATCH_SIZE = 55_440
NODE_COUNTS = [count for count in range(1, 25) if GLOBAL_BATCH_SIZE % count == 0]
"""Twenty node counts that divide the batch."""
PARALLEL_JOBS = 20
_RUN_SECONDS = 3600.0
_SAMPLE_SECONDS = 0.1
_MODEL = {"t_compute_seconds": 600.0, "noise_sigma": 0.02}


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    options = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="nodesweep-many-") as folder:
        result = summarise(measure(Path(folder), options.jobs))
    print(table(result))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    return 0 if result["within_target"] else 1


def measure(folder: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Run one sweep of each size, after an unmeasured sweep of one job."""
    write_benchmark(folder)
    quota = NODE_COUNTS[-1] * PARALLEL_JOBS
    with served_platform(folder / "platform", UNDISTURBED, quota, _MODEL, 0.0) as served:
        run_sweep(folder, served, 1)
        return [run_sweep(folder, served, jobs) for jobs in sizes]


def shape(jobs: int) -> tuple[list[int], int]:
    """Return (node counts, repeats) of a sweep with this many jobs.

    Raises:
        ValueError: No sweep within the limits has this many jobs.
    """
    for counts in range(min(jobs, len(NODE_COUNTS)), 0, -1):
        if jobs % counts == 0 and jobs // counts <= 50:  # the maximum of sweep.repeats
            return NODE_COUNTS[:counts], jobs // counts
    raise ValueError(
        f"{jobs} jobs don't factor into at most {len(NODE_COUNTS)} node counts and at most 50"
        " repeats"
    )


def run_sweep(folder: Path, served: Platform, jobs: int) -> dict[str, Any]:
    """Run one sweep as a command and return its measurements."""
    node_counts, repeats = shape(jobs)
    changes = {
        "training.batch.size": GLOBAL_BATCH_SIZE,
        "sweep.node_counts": node_counts,
        "sweep.repeats": repeats,
        "sweep.max_parallel_jobs": PARALLEL_JOBS,
        "platform.calls_per_second": "null",
    }
    settings = [
        argument for name, value in changes.items() for argument in ("--set", f"{name}={value}")
    ]
    config = write_config(folder, served.endpoint)
    before_mb, known = database_mb(folder / "prefect"), len(served.jobs())
    with counted_calls() as calls, (folder / f"run-{jobs}.log").open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "nodesweep", "run", str(config), *settings],
            cwd=folder,
            env=_environment(folder),
            stdout=log,
            stderr=log,
        )
        peak_mb = _watch(process)
        wall_seconds = time.monotonic() - began
    if process.returncode != 0:
        words = (folder / f"run-{jobs}.log").read_text()[-5000:]
        raise RuntimeError(
            f"the sweep of {jobs} jobs ended with exit code {process.returncode}:\n{words}"
        )
    completed = [job for job in served.jobs() if job["TrainingJobStatus"] == "Completed"]
    if len(completed) != known + jobs:
        raise RuntimeError(f"{len(completed) - known} of {jobs} jobs completed")
    grown_mb = database_mb(folder / "prefect") - before_mb
    return {
        "jobs": jobs,
        "wall_seconds": round(wall_seconds, 1),
        "peak_rss_mb": round(peak_mb),
        "database_mb": round(grown_mb, 2),
        "database_mb_per_job": round(grown_mb / jobs, 4),
        "calls": dict(sorted(calls.items())),
        "calls_per_job": round(calls.total() / jobs, 1),
        "load_average_1_minute": os.getloadavg()[0],
    }


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the calls to the platform that this process serves, by service and operation."""
    calls: Counter[str] = Counter()
    before = QuietRequestHandler.log_request

    def count(handler: Any, code: int | str = "-", size: int | str = "-") -> None:
        label = label_of(
            handler.command, handler.path, handler.headers.get("X-Amz-Target", ""), b""
        )
        calls[f"{service_of(handler.headers.get('Authorization', ''))}:{label}"] += 1

    QuietRequestHandler.log_request = count  # type: ignore[method-assign,assignment]
    try:
        yield calls
    finally:
        QuietRequestHandler.log_request = before  # type: ignore[method-assign]


def _watch(process: subprocess.Popen[bytes]) -> float:
    """Wait for the process's end and return its peak resident memory in MB."""
    peak_kb, over = 0, threading.Timer(_RUN_SECONDS, process.kill)
    over.start()
    try:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                peak_kb = int(found[1])
            time.sleep(_SAMPLE_SECONDS)
    finally:
        over.cancel()
    return peak_kb * 1024 / 1e6


def database_mb(prefect_home: Path) -> float:
    """Return the size of the used pages of Prefect's SQLite database in MB; 0 before it exists."""
    path = prefect_home / "prefect.db"
    if not path.exists():
        return 0.0
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, unused, page_bytes = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return float((pages - unused) * page_bytes / 1e6)


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without the user's Prefect and AWS configuration.

    All sweeps share its Prefect home.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "AWS_"))
    }
    return {**inherited, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(REPOSITORY)}


def summarise(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result; `within_target` is True if the largest sweep is within the limits."""
    largest = max(sweeps, key=lambda sweep: sweep["jobs"])
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "within_target": (
            largest["wall_seconds"] <= WALL_SECONDS_LIMIT
            and largest["peak_rss_mb"] <= RSS_MB_LIMIT
            and largest["database_mb_per_job"] <= DATABASE_MB_LIMIT
        ),
        "limits": {
            "wall_seconds": WALL_SECONDS_LIMIT,
            "peak_rss_mb": RSS_MB_LIMIT,
            "database_mb_per_job": DATABASE_MB_LIMIT,
        },
        "settings": {"parallel_jobs": PARALLEL_JOBS, "model": _MODEL},
        "sweeps": list(sweeps),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("boto3", "prefect", "moto")},
        },
    }


def table(result: Mapping[str, Any]) -> str:
    """Format the result as a table for a terminal."""
    head = (
        f"{'jobs':>5} {'wall':>9} {'RSS':>8} {'database':>10} {'per job':>11}"
        f" {'calls per job':>14} {'load':>5}"
    )
    lines = [
        f"{sweep['jobs']:5d} {sweep['wall_seconds']:7.1f} s {sweep['peak_rss_mb']:5d} MB"
        f" {sweep['database_mb']:7.2f} MB {sweep['database_mb_per_job']:8.4f} MB"
        f" {sweep['calls_per_job']:14.1f} {sweep['load_average_1_minute']:5.1f}"
        for sweep in result["sweeps"]
    ]
    return "\n".join(
        [head, *lines, "within the limits" if result["within_target"] else "ABOVE a limit"]
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_jobs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--jobs", type=int, nargs="+", default=list(JOBS), help="numbers of jobs, one sweep each"
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
