"""Count the calls with which a sweep watches its jobs, and measure its delay in noticing ends.

    .venv/bin/python benchmarks/watch_calls.py [--seed 1] [--output FILE.json]

Each case runs a sweep's jobs on a simulated platform and clock as flows/stages/sweep.py does: up to
`parallel` jobs simultaneously, and a new watch after each end. Only the calls of the watch are
counted, each of which takes 0.1 s. Exit code 1 if a case makes more calls in any 60 s than the
burst plus the calls that the default of platform.calls_per_second allows.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.follow import LogFollower
from nodesweep.launch.sagemaker.cloudwatch import CloudWatchLog
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.watch import BURST_CALLS, JobLimits, watch
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling import names
from nodesweep.scaling.names import pretty_json

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SWEEP = "watched-20261120120000-0123abcd"
_LIMITS = JobLimits(queue_seconds=7200.0, run_seconds=86_400.0)
_WINDOW_SECONDS = 60.0
CALLS_PER_SECOND: float = PlatformConfig.model_fields["calls_per_second"].default


class SimulatedTime:
    """A clock advanced only by calls and sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = Clock(monotonic=lambda: self.seconds, wait=self._wait, now=self.now)

    def now(self) -> datetime:
        """Return the simulated time as a date."""
        return START + timedelta(seconds=self.seconds)

    def _wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return False


_STATUSES = ("Completed", "Failed", "Stopped", "Stopping")


@dataclass
class SimulatedJob:
    """A job; `steps` are (seconds since the simulation began, secondary status)."""

    name: str
    steps: list[tuple[float, str]]

    def step_at(self, seconds: float) -> tuple[float, str]:
        """Return the status at a time, as (seconds when it began, secondary status)."""
        return self.steps[bisect_right(self.steps, seconds, key=lambda step: step[0]) - 1]

    def describe(self, seconds: float) -> dict[str, Any]:
        """Return the response of DescribeTrainingJob at a time."""
        changed_at, state = self.step_at(seconds)
        steps = [(at, state) for at, state in self.steps if at <= seconds]
        transitions = [
            {
                "Status": state,
                "StartTime": START + timedelta(seconds=at),
                "StatusMessage": f"it is {state}",
            }
            for at, state in steps
        ]
        return {
            "TrainingJobName": self.name,
            "TrainingJobStatus": state if state in _STATUSES else "InProgress",
            "SecondaryStatus": state,
            "CreationTime": START + timedelta(seconds=self.steps[0][0]),
            "LastModifiedTime": START + timedelta(seconds=changed_at),
            "SecondaryStatusTransitions": transitions,
        }


class SimulatedPlatform:
    """A client with the operations of a watch; `calls` records (seconds, operation)."""

    class exceptions:
        """Exceptions of a boto3 client."""

        ClientError = ClientError

    def __init__(
        self, time: SimulatedTime, call_seconds: float = 0.1, stop_seconds: float = 30.0
    ) -> None:
        self.time, self._call_seconds, self._stop_seconds = time, call_seconds, stop_seconds
        self.jobs: dict[str, SimulatedJob] = {}
        self.calls: list[tuple[float, str]] = []
        self.described: list[str] = []
        self.stopped: list[str] = []

    def add(self, name: str, *steps: tuple[float, str]) -> None:
        """Create a job whose steps are in seconds from now."""
        now = self.time.seconds
        self.jobs[name] = SimulatedJob(name, [(now + at, state) for at, state in steps])

    def _count(self, operation: str) -> float:
        self.calls.append((self.time.seconds, operation))
        self.time.seconds += self._call_seconds
        return self.time.seconds

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        """Return a job's description, or raise ValidationException if the job does not exist."""
        now = self._count("DescribeTrainingJob")
        self.described.append(TrainingJobName)
        if TrainingJobName not in self.jobs:
            missing: Any = {
                "Error": {"Code": "ValidationException", "Message": "Requested resource not found."}
            }
            raise ClientError(missing, "DescribeTrainingJob")
        return self.jobs[TrainingJobName].describe(now)

    def stop_training_job(self, TrainingJobName: str) -> None:
        """Stop a job, which takes `stop_seconds`."""
        now = self._count("StopTrainingJob")
        self.stopped.append(TrainingJobName)
        job = self.jobs[TrainingJobName]
        job.steps = [step for step in job.steps if step[0] <= now]
        job.steps += [(now, "Stopping"), (now + self._stop_seconds, "Stopped")]

    def filter_log_events(self, **query: Any) -> dict[str, Any]:
        """Return an empty log."""
        self._count("FilterLogEvents")
        return {"events": []}


def busiest_window(
    calls: Sequence[tuple[float, str]], window_seconds: float = _WINDOW_SECONDS
) -> int:
    """Return the maximum number of calls that begin in any window of `window_seconds`."""
    times = [at for at, _ in calls]
    return max(
        (bisect_right(times, at + window_seconds) - place for place, at in enumerate(times)),
        default=0,
    )


@dataclass(frozen=True)
class Case:
    """A sweep to watch; its jobs take the node counts in `nodes` in turn."""

    title: str
    jobs: int
    parallel: int
    poll_seconds: float
    queue_seconds: tuple[float, float]
    train_seconds: tuple[float, float]
    nodes: tuple[int, ...] = (1, 2, 4, 8)


CASES = (
    Case("4 x 3, one at a time", 12, 1, 15.0, (120.0, 300.0), (600.0, 3600.0)),
    Case("4 x 3, four at a time", 12, 4, 15.0, (120.0, 300.0), (600.0, 3600.0)),
    Case("4 x 3, one at a time, small and local", 12, 1, 0.5, (1.0, 3.0), (5.0, 20.0)),
    Case("1,000 jobs, 20 at a time", 1000, 20, 15.0, (120.0, 300.0), (600.0, 3600.0)),
    Case("100 jobs, all at once", 100, 100, 15.0, (120.0, 300.0), (3600.0, 14_400.0)),
)


def run_case(case: Case, seed: int) -> dict[str, Any]:
    """Simulate a sweep; return its calls, its busiest minute, and its delays in noticing ends."""
    random.seed(seed)  # for the jitter of the pauses between polls
    draw, sweep_time = random.Random(seed), SimulatedTime()
    platform = SimulatedPlatform(sweep_time)
    budget = CallBudget(CALLS_PER_SECOND, BURST_CALLS, sweep_time.clock)
    follower = LogFollower(partial(CloudWatchLog, platform))
    waiting = [_job_name(case, place) for place in range(case.jobs)]
    active: list[str] = []
    delays: list[float] = []
    while waiting or active:
        while waiting and len(active) < case.parallel:
            queued, trained = draw.uniform(*case.queue_seconds), draw.uniform(*case.train_seconds)
            steps = ((0.0, "Starting"), (queued / 2, "Downloading"), (queued, "Training"))
            platform.add(
                waiting[0],
                *steps,
                (queued + trained, "Uploading"),
                (queued + trained + 5, "Completed"),
            )
            active.append(waiting.pop(0))
        follower.begin(active, sweep_time.now())
        ended = watch(
            SageMakerJobs(platform),
            active,
            case.poll_seconds,
            _LIMITS,
            sweep_time.clock,
            budget,
            follower.poll,
        )
        for job in ended:
            assert job.changed_at is not None
            active.remove(job.name)
            delays.append((sweep_time.now() - job.changed_at).total_seconds())
    counts = Counter(operation for _, operation in platform.calls)
    return {
        "case": case.title,
        "simulated_hours": round(sweep_time.seconds / 3600, 2),
        "calls": dict(sorted(counts.items())),
        "calls_per_job": round(len(platform.calls) / case.jobs, 1),
        "calls_per_second": round(len(platform.calls) / sweep_time.seconds, 3),
        "busiest_minute_calls": busiest_window(platform.calls),
        "end_known_after_seconds": {
            "median": round(sorted(delays)[len(delays) // 2], 1),
            "longest": round(max(delays), 1),
        },
    }


def _job_name(case: Case, place: int) -> str:
    nodes = case.nodes[place % len(case.nodes)]
    return names.job_name(SWEEP, nodes, place // len(case.nodes) + 1, 1, "0123")


def main(argv: Sequence[str]) -> int:
    """Simulate, then print and store the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    cases = [run_case(case, options.seed) for case in CASES]
    print(json.dumps(cases, indent=1))
    if options.output:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        bounds = {"calls_per_second": CALLS_PER_SECOND, "burst_calls": BURST_CALLS}
        options.output.write_bytes(
            pretty_json({"date": date, "seed": options.seed, "bounds": bounds, "cases": cases})
        )
    allowed = BURST_CALLS + CALLS_PER_SECOND * _WINDOW_SECONDS
    return 0 if all(case["busiest_minute_calls"] <= allowed for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
