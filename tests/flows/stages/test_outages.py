"""Whole sweeps during outages of a fault plan, on the simulated engine: the platform's jobs at the
end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import job_request, resources
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from tests.flows.simulated_sweep import (
    COMPLETED,
    DLC,
    held_jobs,
    ledger,
    measure,
    nodesweep_run,
)

pytestmark = pytest.mark.usefixtures("prefect", "quiet")
Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
FOREIGN_NODES = 3
FOREIGN = job_request(
    "foreign",
    AlgorithmSpecification={"TrainingImage": DLC, "TrainingInputMode": "File"},
    ResourceConfig=resources(FOREIGN_NODES),
    Environment={"NODESWEEP_SIM_SETUP_SECONDS": "86000"},
    StoppingCondition={"MaxRuntimeInSeconds": 86_400},
)


def test_throttled_sweep_runs_one_job_per_point(simulated: Platform, sweep_config: Configs) -> None:
    """A throttled call is repeated, and no job is there twice for it; nor for one that was made
    and not described."""
    throttled = [
        {"fault": "throttle", "operation": "CreateTrainingJob", "calls": [2, 2]},
        {"fault": "throttle", "operation": "DescribeTrainingJob", "calls": [2, 2]},
        {"fault": "throttle", "operation": "ListTrainingJobs", "calls": [1, 1]},
        {
            "fault": "error",
            "operation": "ListTags",
            "calls": [1, 1],
            "code": "InternalFailure",
            "http_status": 500,
        },
    ]
    with simulated(*throttled) as served:
        result = scaling_benchmark(sweep_config(served, sweep={"node_counts": [1, 2]}))
        assert result.missing_points == 0
        assert ledger(served) == [(1, 1, "Completed"), (2, 1, "Completed")]


def test_starved_and_failed_jobs_get_another_attempt_as_often_as_allowed(
    simulated: Platform, sweep_config: Configs
) -> None:
    """1 node is long Pending, 2 nodes fail once and 4 nodes always, 8 nodes lack capacity once."""
    internal = {"fault": "internal_error", "after_seconds": 60}
    faults = (
        {"fault": "pending", "jobs": "*-n1-*", "seconds": 600},
        {**internal, "jobs": "*-n2-*", "max_jobs": 1},
        {**internal, "jobs": "*-n4-*"},
        {"fault": "capacity_error", "jobs": "*-n8-*", "seconds": 60, "max_jobs": 1},
    )
    with simulated(*faults) as served:
        sweep = {"node_counts": [1, 2, 4, 8], "max_attempts": 2}
        result = measure(sweep_config(served, sweep=sweep))
        assert result.missing_points == 1
        assert ledger(served) == [
            (1, 1, "Completed"), (2, 1, "Failed"), (2, 2, "Completed"), (4, 1, "Failed"),
            (4, 2, "Failed"), (8, 1, "Failed"), (8, 2, "Completed"),
        ]  # fmt: skip
        points = {(point.nodes, point.attempt): point for point in result.report.points}
        assert points[1, 1].phases["Pending"] == pytest.approx(600, abs=1)
        assert str(points[8, 1].reason).startswith("CapacityError: ")


def test_quota_limited_sweep_never_runs_above_it(
    simulated: Platform, sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    """3 jobs of up to 4 nodes at once under a quota of 4, of which somebody else's job has 3
    until one is refused."""
    quick = {
        "t_compute_seconds": 30,
        "startup_seconds": 5,
        "download_seconds": 5,
        "setup_seconds": 0,
    }

    def refusals() -> list[str]:
        return [
            text
            for record in caplog.records
            if (text := record.getMessage()).startswith("quota reached")
        ]

    with (
        simulated(model=quick, time_scale=0.01, **{"ml.local.small": 4}) as served,
        held_jobs() as let_go,
    ):
        served.sagemaker.create_training_job(**FOREIGN)
        with watched(served, refusals, let_go) as seen:
            sweep = {"max_parallel_jobs": 3, "order": "descending"}
            limit = {"queue_deadline_seconds": int(HANG_SECONDS)}
            config = sweep_config(served, sweep={**sweep, **limit})
            assert scaling_benchmark(config).missing_points == 0
        assert ledger(served) == COMPLETED
    assert max(seen) <= 4
    assert "current utilization of 3 Instances and a request delta of 4" in refusals()[0]
    assert "current utilization of 4 Instances and a request delta of 2" in refusals()[-1]


@contextmanager
def watched(
    served: SimpleNamespace, refusals: Callable[[], list[str]], let_go: threading.Event
) -> Iterator[list[int]]:
    """Yield the number of instances in use, each from one response of ListTrainingJobs.

    FOREIGN is stopped at the platform's first refusal or, which is a failure, once a job of the
    sweep waits behind it. The sweep's first job ends only once the second one was refused or, which
    is a failure, accepted.
    """
    seen, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            jobs = served.sagemaker.list_training_jobs(StatusEquals="InProgress")[
                "TrainingJobSummaries"
            ]
            places = [names.parse_job_name(job["TrainingJobName"]) for job in jobs]
            seen.append(sum(place.nodes if place else FOREIGN_NODES for place in places))
            if None in places and (refusals() or len(places) > 1):
                served.sagemaker.stop_training_job(TrainingJobName="foreign")
            is_second_accepted = any(place is not None and place.nodes < 4 for place in places)
            if is_second_accepted or "request delta of 2" in "".join(refusals()):
                let_go.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(HANG_SECONDS)
    assert not thread.is_alive()


def test_algorithm_error_is_not_tried_again(
    simulated: Platform, sweep_config: Configs, tmp_path: Path
) -> None:
    """One job of that point, all jobs of the others, exit code 1, and the reason in the report.

    Its second description, the first one after its start, is late: it has failed by then.
    """
    broken = {"fault": "algorithm_error", "jobs": "*-n2-*", "after_seconds": 60, "node": "algo-2"}
    late = {
        "fault": "throttle",
        "operation": "DescribeTrainingJob",
        "jobs": "*-n2-*",
        "calls": [2, 2],
    }
    with simulated(broken, late) as served:
        done = nodesweep_run(sweep_config(served, sweep={"max_attempts": 3}), tmp_path)
        assert ledger(served) == [COMPLETED[0], (2, 1, "Failed"), COMPLETED[2]]
    assert done.exit_code == 1
    report = json.loads((tmp_path / "reports" / "latest" / "report.json").read_text())
    [failed] = [point for point in report["points"] if point["nodes"] == 2]
    assert failed["reason"].startswith("AlgorithmError: algo-2 ")


def test_expired_credentials_leave_jobs_that_new_ones_find(
    simulated: Platform, sweep_config: Configs, tmp_path: Path
) -> None:
    """The fourth look is refused: no further try, exit code 1, a word on what to do; the job
    goes on, and is adopted."""
    code = {
        "code": "ExpiredTokenException",
        "message": "The security token included in the request is expired",
    }
    expired = {
        "fault": "error",
        "operation": "DescribeTrainingJob",
        "calls": [4, 4],
        "http_status": 400,
        **code,
    }
    with simulated(expired) as served, held_jobs() as let_go:
        config = sweep_config(served, sweep={"node_counts": [1, 2], "max_attempts": 3})
        lost = nodesweep_run(config, tmp_path)
        assert ledger(served) == [(1, 1, "InProgress")], "it goes on"
        let_go.set()
        resumed = nodesweep_run(config, tmp_path, "--resume")
        assert ledger(served) == COMPLETED[:2]
    assert lost.exit_code == 1
    assert "ExpiredTokenException" in lost.output
    assert "--resume" in lost.output
    assert f"`nodesweep run {tmp_path}/config.yaml --resume " in lost.output
    assert resumed.exit_code == 0, resumed.output


def test_a_job_that_the_platform_denies_is_not_said_to_run(
    simulated: Platform, sweep_config: Configs, tmp_path: Path
) -> None:
    """The second CreateTrainingJob is denied while the first job runs."""
    denied = {
        "fault": "error",
        "operation": "CreateTrainingJob",
        "calls": [2, 2],
        "http_status": 400,
        "code": "AccessDeniedException",
        "message": "not authorized to perform: sagemaker:CreateTrainingJob",
    }
    with simulated(denied) as served, held_jobs():
        config = sweep_config(
            served, sweep={"node_counts": [1, 2], "max_parallel_jobs": 2, "smoke": "never"}
        )
        ended = nodesweep_run(config, tmp_path)
        assert ledger(served) == [(1, 1, "InProgress")], "it goes on"
    assert ended.exit_code == 1 and "AccessDeniedException" in ended.output
    assert "1 job" in ended.output
