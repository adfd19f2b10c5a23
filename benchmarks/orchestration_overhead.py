"""Measure orchestration overhead: the wall time of `nodesweep run` beyond the time of its jobs.

    .venv/bin/python -m benchmarks.orchestration_overhead [--runs 3] [--stretch 1]
        [--output FILE.json]

A run is a sweep of 4 x 3 jobs (1, 2, 4 and 8 nodes, 3 repeats, one at a time) on the simulated
engine at real speed, through a proxy that counts calls. A sweep of one job runs first, as on a new
machine: it creates Prefect's database, uploads the dataset and builds the image. Each measured run
is a separate process with a temporary Prefect server.

- critical path: the sum over jobs of (LastModifiedTime - CreationTime) from DescribeTrainingJob,
  which is the minimum wall time of a sweep with one job at a time.
- wall time: from start to end of the process.
- overhead: the wall time minus the critical path, split into five parts. The overhead hardly
  depends on the duration of the jobs, which --stretch multiplies; the result therefore also gives
  the critical path above which the overhead is less than 5%.

    start-up      process, imports and Prefect's server, until the first call to the platform
    preparation   preflight, dataset and image, until the first job is created
    poll lag      from each job's end until the sweep has noticed it and fetches the job's output
    between jobs  from the fetch of a job's output until the next job is created
    report        from the fetch of the last job's output until the process has ended

The cost of a Prefect task run per job (tasks/sweeps/job_runs.py) is less than the variation between
runs. On 2026-11-28, next to other work, three runs with task runs alternated with three of the
version before them; the overhead was 28 to 33 s with and without task runs (mean 30.4 s both,
critical path 174 s). Poll lag and the time between jobs, which task runs could lengthen, were
14.6 s (12.3 to 17.3) with and 12.7 s (11.3 to 13.4) without them, a difference of 1.1% of the
critical path.

Exit code 1 if the median overhead is above 5% of the critical path and above 10 s.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.chaos.plan import UNDISTURBED
from benchmarks.chaos.proxy import Call, Proxy
from benchmarks.chaos.world import (
    REPOSITORY,
    Platform,
    served_platform,
    write_benchmark,
    write_config,
)
from nodesweep.scaling.names import pretty_json

SHARE_LIMIT, SECONDS_LIMIT = 0.05, 10.0
NODE_COUNTS, REPEATS = (1, 2, 4, 8), 3
POLL_SECONDS = 0.5  # as in configs/local.yaml, whose jobs take equally long
_MODEL: Mapping[str, float] = {
    "t_compute_seconds": 20.0,
    "startup_seconds": 2.0,
    "download_seconds": 1.0,
    "setup_seconds": 1.0,
    "upload_seconds": 1.0,
    "gradient_bytes": 0.0,
    "latency_seconds": 0.0,
    "noise_sigma": 0.0,
}
"""Jobs of 25, 15, 10 and 8 s, 174 s with repeats; on AWS, a job trains only after minutes."""
_RUN_SECONDS = 3600.0
_OUTPUT = "GET output"
"""Label of the call that fetches a job's output, the first call after the job's end is noticed."""


@dataclass(frozen=True)
class Parts:
    """Seconds of a run outside its jobs; see the module's docstring."""

    start_up: float
    preparation: float
    poll_lag: float
    between_jobs: float
    report: float

    @property
    def sum(self) -> float:
        """Total of the five parts, the overhead, in seconds."""
        return self.start_up + self.preparation + self.poll_lag + self.between_jobs + self.report


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    options = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="nodesweep-overhead-") as folder:
        model = {
            **_MODEL,
            **{
                name: _MODEL[name] * options.stretch for name in _MODEL if name.endswith("_seconds")
            },
        }
        first, runs = measure(Path(folder), options.runs, NODE_COUNTS, REPEATS, model)
    result = summarise(first, runs, model)
    print(table(result))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    return 0 if result["overhead"]["within_target"] else 1


def measure(
    folder: Path, runs: int, node_counts: Sequence[int], repeats: int, model: Mapping[str, float]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a first sweep of one job, as on a new machine, then the measured runs; return both."""
    write_benchmark(folder)
    with served_platform(folder / "platform", UNDISTURBED, max(node_counts), model, 1.0) as served:
        first = run_sweep(folder, served, [1], 1)
        return first, [run_sweep(folder, served, node_counts, repeats) for _ in range(runs)]


def run_sweep(
    folder: Path, served: Platform, node_counts: Sequence[int], repeats: int
) -> dict[str, Any]:
    """Run one sweep as a command; return its overhead by part, and its calls."""
    known = {job["TrainingJobName"] for job in served.jobs()}
    changes = {
        "sweep.node_counts": list(node_counts),
        "sweep.repeats": repeats,
        "sweep.max_parallel_jobs": 1,
        "sweep.poll_interval_seconds": POLL_SECONDS,
    }
    with Proxy(
        served.endpoint, UNDISTURBED.call_fault, state_directory=served.state_directory
    ) as proxy:
        config = write_config(folder, proxy.endpoint)
        settings = [
            argument for name, value in changes.items() for argument in ("--set", f"{name}={value}")
        ]
        command = [sys.executable, "-m", "nodesweep", "run", str(config), *settings]
        began_at = time.time()
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(folder),
            capture_output=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        ended_at = time.time()
        calls = sorted(proxy.calls, key=lambda call: call.began_at)
    if done.returncode != 0:
        raise RuntimeError(
            f"the sweep ended with exit code {done.returncode}:\n{done.stderr.decode()}"
        )
    names = [job["TrainingJobName"] for job in served.jobs() if job["TrainingJobName"] not in known]
    jobs = sorted((_times(served.describe(name)) for name in names), key=lambda job: job[0])
    if len(jobs) != len(node_counts) * repeats:
        raise RuntimeError(
            f"the sweep of {len(node_counts)} x {repeats} points created {len(jobs)} jobs"
        )
    critical_seconds = sum(end - start for start, end in jobs)
    return {
        "wall_seconds": ended_at - began_at,
        "critical_path_seconds": critical_seconds,
        "overhead_seconds": ended_at - began_at - critical_seconds,
        "parts": asdict(split(began_at, ended_at, jobs, calls)),
        "calls": count_calls(jobs, calls),
        "load_average_1_minute": os.getloadavg()[0],
    }


def split(
    began_at: float, ended_at: float, jobs: Sequence[tuple[float, float]], calls: Sequence[Call]
) -> Parts:
    """Split the time outside jobs into its parts.

    Args:
        began_at: Start of the process; all times are Unix seconds.
        ended_at: End of the process.
        jobs: (created, ended) of consecutive jobs.
        calls: Calls in the order of their start.
    """
    first_call_at = calls[0].began_at
    known_at = [_first_after(end, calls) for _, end in jobs]
    starts = [start for start, _ in jobs]
    return Parts(
        start_up=first_call_at - began_at,
        preparation=starts[0] - first_call_at,
        poll_lag=sum(known - end for known, (_, end) in zip(known_at, jobs, strict=True)),
        between_jobs=sum(start - known for start, known in zip(starts[1:], known_at, strict=False)),
        report=ended_at - known_at[-1],
    )


def _first_after(end: float, calls: Sequence[Call]) -> float:
    return next(call.began_at for call in calls if call.label == _OUTPUT and call.began_at >= end)


def count_calls(jobs: Sequence[tuple[float, float]], calls: Sequence[Call]) -> dict[str, Any]:
    """Count calls by service and operation, over the whole run and per job.

    Calls from the creation of the first job to the fetch of the last job's output are per job.
    """
    known_at = _first_after(jobs[-1][1], calls)
    while_jobs = [call for call in calls if jobs[0][0] <= call.began_at <= known_at]
    whole, per_job = (
        Counter(f"{call.service}:{call.label}" for call in some) for some in (calls, while_jobs)
    )
    return {
        "run": dict(sorted(whole.items())),
        "per_job": {name: round(count / len(jobs), 2) for name, count in sorted(per_job.items())},
        "sum": len(calls),
        "sum_per_job": round(len(while_jobs) / len(jobs), 1),
    }


def _times(description: Mapping[str, Any]) -> tuple[float, float]:
    """Return (created, ended) in Unix seconds; raise if the job did not complete."""
    if description["TrainingJobStatus"] != "Completed":
        raise RuntimeError(
            f"{description['TrainingJobName']} is {description['TrainingJobStatus']}"
        )
    return description["CreationTime"].timestamp(), description["LastModifiedTime"].timestamp()


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without the user's Prefect and AWS configuration.

    All runs share its Prefect home.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "AWS_"))
    }
    return {**inherited, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(REPOSITORY)}


def summarise(
    first: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], model: Mapping[str, float] = _MODEL
) -> dict[str, Any]:
    """Return the medians over the runs, the limits, and every run."""
    overhead = median(run["overhead_seconds"] for run in runs)
    critical = median(run["critical_path_seconds"] for run in runs)
    limit = max(SHARE_LIMIT * critical, SECONDS_LIMIT)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "overhead": {
            "critical_path_seconds": critical,
            "wall_seconds": median(run["wall_seconds"] for run in runs),
            "overhead_seconds": overhead,
            "share": overhead / critical,
            "limit_seconds": limit,
            "within_target": overhead <= limit,
            "below_share_from_seconds": overhead / SHARE_LIMIT,
            "parts_seconds": {
                part: median(run["parts"][part] for run in runs) for part in runs[0]["parts"]
            },
        },
        "calls": runs[-1]["calls"],
        "settings": {
            "node_counts": NODE_COUNTS,
            "repeats": REPEATS,
            "poll_seconds": POLL_SECONDS,
            "model": dict(model),
        },
        "first_sweep": first,
        "runs": list(runs),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("boto3", "prefect", "moto")},
        },
    }


def table(result: Mapping[str, Any]) -> str:
    """Format the result as a table for a terminal."""
    overhead, calls = result["overhead"], result["calls"]
    lines = [
        f"critical path {overhead['critical_path_seconds']:7.1f} s",
        f"wall time     {overhead['wall_seconds']:7.1f} s",
        (
            f"overhead      {overhead['overhead_seconds']:7.1f} s   {overhead['share']:.1%}, limit"
            f" {overhead['limit_seconds']:.1f} s:"
            f" {'met' if overhead['within_target'] else 'MISSED'}"
        ),
        (
            f"below {SHARE_LIMIT:.0%} for critical paths above"
            f" {overhead['below_share_from_seconds']:.0f} s"
        ),
        *(f"  {part:<12}{seconds:7.1f} s" for part, seconds in overhead["parts_seconds"].items()),
        f"\n{'calls':<40} {'run':>6} {'per job':>8}",
        *(
            f"  {name:<38} {count:6d} {calls['per_job'].get(name, 0):8.2f}"
            for name, count in calls["run"].items()
        ),
        f"  {'all':<38} {calls['sum']:6d} {calls['sum_per_job']:8.2f}",
    ]
    return "\n".join(lines)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orchestration_overhead",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="number of measured sweeps, about three minutes each"
    )
    parser.add_argument(
        "--stretch", type=float, default=1.0, help="factor for the duration of every phase of a job"
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
