"""Whole sweeps through outages of a fault plan, on the simulated engine: what the platform lists in the end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from configs.models import BenchmarkConfig
from flows.cli import main
from flows.scaling_benchmark import scaling_benchmark
from scaling import names
from tests.infra.local.platform_client import job_request, resources, serve_simulated

pytestmark = pytest.mark.usefixtures("prefect", "quiet")
Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
FOREIGN_NODES = 3
FOREIGN = job_request(
    "foreign",
    AlgorithmSpecification={"TrainingImage": DLC, "TrainingInputMode": "File"},
    ResourceConfig=resources(FOREIGN_NODES),
    Environment={"NODESWEEP_SIM_SETUP_SECONDS": "86000"},
    StoppingCondition={"MaxRuntimeInSeconds": 86_400},
)
SMALL = {
    "instance_type": "ml.local.small",
    "hyperparameters": {"batch-size": "{per_replica_batch_size}", "lr": "{learning_rate}"},
}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's handler on a terminal that ends with the test is taken away with it."""
    root = logging.getLogger("nodesweep")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)


@pytest.fixture
def simulated(tmp_path: Path) -> Platform:
    """simulated(fault, …, model={…}, time_scale=…, **quotas) serves a platform while it is entered."""
    state = tmp_path / "state"
    state.mkdir()

    @contextmanager
    def serve(*faults: dict[str, Any], **options: Any) -> Iterator[SimpleNamespace]:
        yield from serve_simulated(state, faults, **options)

    return serve


@pytest.fixture
def sweep_config(
    tmp_path: Path, make_config: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., BenchmarkConfig]:
    """sweep_config(platform, training={…}, sweep={…}): 1, 2 and 4 nodes, ascending, with an image that is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pd.DataFrame({"label": [0, 1, 2]}).to_parquet(tmp_path / "data" / "a.parquet")

    def make(served: SimpleNamespace, **sections: Any) -> BenchmarkConfig:
        sweep = {"node_counts": [1, 2, 4], "repeats": 1, "order": "ascending", "poll_interval_seconds": 0.2}
        platform = {
            "endpoint_url": served.endpoint,
            "credentials": "placeholder",
            "create_missing": True,
            "role_arn": "arn:aws:iam::000000000001:role/training",
        }
        config = make_config(
            image={"uri": DLC},
            platform=platform,
            training={**SMALL, **sections.get("training", {})},
            sweep={**sweep, **sections.get("sweep", {})},
        )
        return config.with_absolute_paths(tmp_path)

    return make


def ledger(served: SimpleNamespace) -> list[tuple[int, int, str]]:
    """(nodes, attempt, status) of every job of a sweep that the platform knows, sorted."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate()
    jobs = [job for page in pages for job in page["TrainingJobSummaries"]]
    places = [(names.parse_job_name(job["TrainingJobName"]), job["TrainingJobStatus"]) for job in jobs]
    return sorted((place[0], place[2], status) for place, status in places if place is not None)


COMPLETED = [(1, 1, "Completed"), (2, 1, "Completed"), (4, 1, "Completed")]


def test_throttled_sweep_runs_one_job_per_point(simulated: Platform, sweep_config: Configs) -> None:
    """A throttled call is repeated, and no job is there twice for it; nor for one that was made and not described."""
    throttled = [
        {"fault": "throttle", "operation": "CreateTrainingJob", "calls": [2, 2]},
        {"fault": "throttle", "operation": "DescribeTrainingJob", "calls": [2, 2]},
        {"fault": "throttle", "operation": "ListTrainingJobs", "calls": [1, 1]},
        {"fault": "error", "operation": "ListTags", "calls": [1, 1], "code": "InternalFailure", "http_status": 500},
    ]
    with simulated(*throttled) as served:
        result = scaling_benchmark(sweep_config(served, sweep={"node_counts": [1, 2]}))
        assert result.missing_points == 0
        assert ledger(served) == [(1, 1, "Completed"), (2, 1, "Completed")]


def test_starved_sweep_finishes_with_another_attempt(simulated: Platform, sweep_config: Configs) -> None:
    """2 nodes are long Pending, 4 nodes fail for lack of capacity once."""
    starved = (
        {"fault": "pending", "jobs": "*-n2-*", "seconds": 600},
        {"fault": "capacity_error", "jobs": "*-n4-*", "seconds": 60, "max_jobs": 1},
    )
    with simulated(*starved) as served:
        result = scaling_benchmark(sweep_config(served, sweep={"max_attempts": 2}))
        assert result.missing_points == 0
        assert ledger(served) == [*COMPLETED[:2], (4, 1, "Failed"), (4, 2, "Completed")]
        points = {(point.nodes, point.attempt): point for point in result.report.points}
        assert points[2, 1].phases["Pending"] == pytest.approx(600, abs=1)
        assert str(points[4, 1].reason).startswith("CapacityError: ")


def test_quota_limited_sweep_never_runs_above_it(
    simulated: Platform, sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    """3 jobs of up to 4 nodes at once under a quota of 4, of which somebody else's job has 3 until one is refused."""
    quick = {"t_compute_seconds": 30, "startup_seconds": 5, "download_seconds": 5, "setup_seconds": 0}

    def refusals() -> list[str]:
        return [text for record in caplog.records if (text := record.getMessage()).startswith("quota reached")]

    with simulated(model=quick, time_scale=0.01, **{"ml.local.small": 4}) as served:
        served.sagemaker.create_training_job(**FOREIGN)
        with watched(served, refusals) as seen:
            config = sweep_config(served, sweep={"max_parallel_jobs": 3, "order": "descending"})
            assert scaling_benchmark(config).missing_points == 0
        assert ledger(served) == COMPLETED
    assert max(seen) == 4
    assert "current utilization of 3 Instances and a request delta of 4" in refusals()[0]
    assert "current utilization of 4 Instances and a request delta of 2" in refusals()[-1]


@contextmanager
def watched(served: SimpleNamespace, refusals: Callable[[], list[str]]) -> Iterator[list[int]]:
    """The instances in use, again and again, each from one answer of ListTrainingJobs; ends FOREIGN at a refusal."""
    seen, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            jobs = served.sagemaker.list_training_jobs(StatusEquals="InProgress")["TrainingJobSummaries"]
            places = [names.parse_job_name(job["TrainingJobName"]) for job in jobs]
            seen.append(sum(place[0] if place else FOREIGN_NODES for place in places))
            if None in places and refusals():
                served.sagemaker.stop_training_job(TrainingJobName="foreign")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_algorithm_error_is_not_tried_again(simulated: Platform, sweep_config: Configs, tmp_path: Path) -> None:
    """One job of that point, all jobs of the others, exit code 1, and the reason in the report.

    Its second description, the first one after its start, is late: it has failed by then.
    """
    broken = {"fault": "algorithm_error", "jobs": "*-n2-*", "after_seconds": 60, "node": "algo-2"}
    late = {"fault": "throttle", "operation": "DescribeTrainingJob", "jobs": "*-n2-*", "calls": [2, 2]}
    with simulated(broken, late) as served:
        done = nodesweep_run(sweep_config(served, sweep={"max_attempts": 3}), tmp_path)
        assert ledger(served) == [COMPLETED[0], (2, 1, "Failed"), COMPLETED[2]]
    assert done.exit_code == 1
    assert "planned points have no completed run" in done.output
    report = json.loads((tmp_path / "reports" / "latest" / "report.json").read_text())
    [failed] = [point for point in report["points"] if point["nodes"] == 2]
    assert failed["reason"].startswith("AlgorithmError: algo-2 ")


def test_internal_error_is_tried_again_as_often_as_allowed(simulated: Platform, sweep_config: Configs) -> None:
    """2 nodes fail once, 4 nodes always."""
    internal = {"fault": "internal_error", "after_seconds": 60}
    with simulated({**internal, "jobs": "*-n2-*", "max_jobs": 1}, {**internal, "jobs": "*-n4-*"}) as served:
        result = scaling_benchmark(sweep_config(served, sweep={"max_attempts": 2}))
        assert result.missing_points == 1
        assert ledger(served) == [
            (1, 1, "Completed"), (2, 1, "Failed"), (2, 2, "Completed"), (4, 1, "Failed"), (4, 2, "Failed"),
        ]  # fmt: skip


def nodesweep_run(config: BenchmarkConfig, folder: Path) -> Result:
    """`nodesweep run` of the config."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return CliRunner().invoke(main, ["run", str(path)])
