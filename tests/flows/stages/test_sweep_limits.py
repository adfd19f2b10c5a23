"""sweep.budget_usd and sweep.max_retries over a sweep and its resumes, on the simulated engine with
a price."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from syrupy.assertion import SnapshotAssertion

import nodesweep.configs.models
import nodesweep.flows.scaling_benchmark
import nodesweep.flows.stages.sweep
from infra.local.tests.platform_client import serve_simulated
from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PointsMissing, PreflightRefused
from nodesweep.flows.scaling_benchmark import SweepResult, check_points, scaling_benchmark
from nodesweep.launch.sagemaker.status import read_training_job
from nodesweep.scaling import names
from nodesweep.scaling.report import ScalingReport
from nodesweep.tasks.report.pricing import with_price
from nodesweep.tasks.sweeps.claims import claim_job
from tests.flows.simulated_sweep import begin_as, measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
USD_PER_NODE_SECOND = 0.001
# USD of an attempt that runs for its whole 3480 s and 120 s to stop.
BOUND = {1: 3.6, 2: 7.2, 4: 14.4}
ALL_BOUNDS = 25.2
EACH_NEARLY_AN_HOUR = {"t_compute_seconds": 3300, "serial_share": 1, "noise_sigma": 0}
NO_CAPACITY = {"fault": "capacity_error", "jobs": "*"}


@pytest.fixture(autouse=True)
def price(monkeypatch: pytest.MonkeyPatch) -> None:
    """A price for emulated nodes, which have none."""
    catalogue = load_catalogue()

    def get(instance_type: str) -> InstanceType:
        return with_price(
            catalogue.get(instance_type),
            "us-east-1",
            USD_PER_NODE_SECOND * 3600,
            date(2026, 11, 20),
        )

    monkeypatch.setattr(
        nodesweep.configs.models, "load_catalogue", lambda: SimpleNamespace(get=get)
    )


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events that were sent."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "nodesweep.tasks.report.publish.emit_event",
        lambda event, **members: sent.append({"event": event, **members}),
    )
    return sent


@pytest.fixture
def simulated(tmp_path: Path) -> Platform:
    """Return simulated(fault, …, model={…}), a context manager that serves a platform."""
    state = tmp_path / "state"
    state.mkdir()

    @contextmanager
    def serve(*faults: dict[str, Any], **options: Any) -> Iterator[SimpleNamespace]:
        yield from serve_simulated(state, faults, **options)

    return serve


@pytest.fixture
def sweep_config(tmp_path: Path, make_config: Configs, monkeypatch: pytest.MonkeyPatch) -> Configs:
    """Return sweep_config(platform, budget_usd=…), a factory of configs.

    Their sweeps have 1, 2 and 4 nodes, ascending, one attempt each, and no image to build.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pd.DataFrame({"label": [0, 1, 2]}).to_parquet(tmp_path / "data" / "a.parquet")
    training = {
        "instance_type": "ml.local.small",
        "max_runtime_seconds": 3480,
        "hyperparameters": {"batch-size": "{per_replica_batch_size}", "lr": "{learning_rate}"},
    }
    limits = {
        "node_counts": [1, 2, 4],
        "order": "ascending",
        "poll_interval_seconds": 0.2,
        "max_attempts": 1,
    }

    def make(served: SimpleNamespace, **sweep: Any) -> BenchmarkConfig:
        platform = {
            "endpoint_url": served.endpoint,
            "credentials": "platform",
            "state_directory": str(served.state_dir),
            "create_missing": True,
            "calls_per_second": None,
            "role_arn": "arn:aws:iam::000000000001:role/training",
        }
        sections = {"image": {"uri": DLC}, "training": training, "platform": platform}
        return make_config(sweep={**limits, **sweep}, **sections).with_absolute_paths(tmp_path)

    return make


def jobs_of(served: SimpleNamespace) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the description of every job on the platform, by (nodes, attempt)."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate()
    listed = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    places = {name: names.parse_job_name(name) for name in listed}
    return {
        (place.nodes, place.attempt): served.sagemaker.describe_training_job(TrainingJobName=name)
        for name, place in places.items()
        if place is not None
    }


def spent_usd(served: SimpleNamespace) -> float:
    return sum(
        (read_training_job(job).billed_node_seconds or 0) * USD_PER_NODE_SECOND
        for job in jobs_of(served).values()
    )


def rows(result: SweepResult) -> dict[tuple[int, int], tuple[str, str]]:
    """Return (status, reason) of the report's points, by (nodes, attempt)."""
    return {
        (point.nodes, point.attempt): (point.status, str(point.reason))
        for point in result.report.points
    }


def failing_once(nodes: int, after_seconds: float) -> dict[str, Any]:
    return {
        "fault": "algorithm_error",
        "jobs": f"*-n{nodes}-*",
        "after_seconds": after_seconds,
        "max_jobs": 1,
    }


def test_budget_holds_all_attempts_of_all_runs(
    simulated: Platform, sweep_config: Configs, events: list[dict[str, Any]]
) -> None:
    """The first run loses all three points, 4 nodes after nearly an hour. A budget for 1 and 2
    nodes more is left.

    All may run at once, and 2 nodes fit only once 1 node has cost less than it could.
    """
    faults = (failing_once(1, 400), failing_once(2, 400), failing_once(4, 3280))
    with simulated(*faults, model=EACH_NEARLY_AN_HOUR) as served:
        first = measure(sweep_config(served, budget_usd=ALL_BOUNDS))
        assert (first.missing_points, events) == (3, [])
        spent = spent_usd(served)
        budget = spent + BOUND[1] + BOUND[2] - 0.02
        assert budget > ALL_BOUNDS, "else preflight refuses it"

        resumed = measure(
            sweep_config(served, budget_usd=budget, max_parallel_jobs=3), sweep_id=first.sweep_id
        )
        assert {
            place
            for place, job in jobs_of(served).items()
            if job["TrainingJobStatus"] == "Completed"
        } == {
            (1, 2),
            (2, 2),
        }
        assert (4, 2) not in jobs_of(served)
        assert spent_usd(served) <= budget
        assert resumed.missing_points == 1
        status, reason = rows(resumed)[4, 2]
        assert status == "Failed"
        assert reason.startswith(f"sweep.budget_usd: {budget:.2f} USD; ")
        assert f"cost up to {spent_usd(served):.2f}, " in reason
        assert "14.40 more" in reason
        assert [(event["event"], event["payload"]) for event in events] == [
            ("nodesweep.budget", {"sweep": first.sweep_id, "message": reason})
        ]

        richer = scaling_benchmark(sweep_config(served, budget_usd=60.0), sweep_id=first.sweep_id)
        assert richer.missing_points == 0
        assert len(jobs_of(served)) == 6


def test_running_job_of_a_crashed_run_is_adopted_where_no_money_is_left(
    simulated: Platform,
    sweep_config: Configs,
    events: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The running job comes first, whatever the order, and counts in full until it has ended."""

    def crash(*_: Any) -> None:
        raise RuntimeError("lost")

    with simulated(model=EACH_NEARLY_AN_HOUR) as served, pytest.MonkeyPatch.context() as patch:
        config = sweep_config(served, budget_usd=ALL_BOUNDS, order="descending", smoke="never")
        sweep = "bench-20261120000000-" + names.config_digest(config)[:8]
        patch.setattr("nodesweep.flows.stages.sweep.watch_training_jobs", crash)
        with pytest.raises(RuntimeError, match="lost"):
            begin_as(config, sweep)
        assert set(jobs_of(served)) == {(4, 1)}
        patch.undo()
        monkeypatch.setattr(
            "nodesweep.scaling.planning.queue.Allowance.budget_problem",
            lambda *_: "sweep.budget_usd: none is left",
        )
        resumed = measure(config, sweep_id=sweep)
    assert {place: status for place, (status, _) in rows(resumed).items()} == {
        (1, 1): "Failed",
        (2, 1): "Failed",
        (4, 1): "Completed",
    }
    assert len(events) == 1, "one, however many points are left out"


def test_retries_are_counted_over_resumes(simulated: Platform, sweep_config: Configs) -> None:
    with simulated(NO_CAPACITY) as served:
        config = sweep_config(served, node_counts=[1, 2], max_attempts=3, max_retries=1)
        first = measure(config)
        made = {(1, 1), (1, 2), (2, 1)}
        assert set(jobs_of(served)) == made
        reason = "sweep.max_retries: 1 for the whole sweep, 1 already made"
        for place in ((1, 3), (2, 2)):
            assert rows(first)[place][0] == "Failed" and rows(first)[place][1].startswith(reason)
        again = measure(config, sweep_id=first.sweep_id)
        assert set(jobs_of(served)) == made
        assert rows(again) == rows(first)
        measure(
            sweep_config(served, node_counts=[1, 2], max_attempts=1, max_retries=2),
            sweep_id=first.sweep_id,
        )
        assert len(jobs_of(served)) == 4


@pytest.mark.parametrize(
    ("min_points", "missing", "enough"),
    [(None, 0, True), (None, 1, False), (2, 1, True), (2, 2, False)],
)
def test_min_points_decides_whether_a_run_with_gaps_is_done(
    min_points: int | None, missing: int, enough: bool, make_config: Configs
) -> None:
    config = make_config(sweep={"min_points": min_points})
    result = SweepResult(
        "bench-20261120000000-01234567",
        cast(ScalingReport, SimpleNamespace(points=(), other_points=())),
        Path(),
        3,
        missing,
    )
    if enough:
        check_points(config.sweep, result)
    else:
        with pytest.raises(PointsMissing, match=f"^{missing} of"):
            check_points(config.sweep, result)


@pytest.mark.parametrize("is_deployed", [False, True])
@pytest.mark.parametrize("reason", ["CapacityError: none", "AlgorithmError: IndexError"])
def test_a_fault_of_the_program_is_fixed_and_other_failures_are_retried(
    reason: str,
    is_deployed: bool,
    make_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr("nodesweep.flows.scaling_benchmark.has_deployment", lambda: is_deployed)
    point = SimpleNamespace(status="Failed", reason=reason)
    report: Any = SimpleNamespace(points=(point,), other_points=())
    result = SweepResult("bench-20261120000000-01234567", report, Path(), 1, 1)
    with pytest.raises(PointsMissing) as raised:
        check_points(make_config().sweep, result, is_report_shown=True)
    assert str(raised.value) == snapshot


def test_refused_budget_is_an_event(
    simulated: Platform, sweep_config: Configs, events: list[dict[str, Any]]
) -> None:
    with simulated() as served:
        config = sweep_config(served, budget_usd=25.1)
        with pytest.raises(PreflightRefused, match=r"sweep.budget_usd: 25.1 .* 25.20 USD"):
            scaling_benchmark(config)
        assert jobs_of(served) == {}
    [event] = events
    assert event["event"] == "nodesweep.budget"
    assert event["resource"]["prefect.resource.id"] == "nodesweep.benchmark.bench"
    assert event["payload"]["sweep"] is None and "25.20 USD" in event["payload"]["message"]


def test_other_refusals_are_no_budget_event(
    simulated: Platform, sweep_config: Configs, events: list[dict[str, Any]]
) -> None:
    with simulated() as served, pytest.raises(PreflightRefused, match="divisible by 3"):
        scaling_benchmark(sweep_config(served, node_counts=[3], budget_usd=1000.0))
    assert events == []


def test_two_runs_of_one_sweep_are_one_budget(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run claims an attempt of four nodes (0.67 USD at most) once this one has begun
    (0.17); two are 0.33."""
    config = pipeline_config(
        "scaling",
        name="shared",
        training={"max_runtime_seconds": 480},
        sweep={
            "node_counts": [1, 2],
            "order": "ascending",
            "budget_usd": 0.95,
            "max_parallel_jobs": 2,
        },
    )
    plan_of = nodesweep.flows.scaling_benchmark.preflight
    sweep = f"shared-20261120000001-{names.config_digest(config)[:8]}"

    def at_a_price(config: BenchmarkConfig, is_resume: bool) -> Any:
        unbounded = config.model_copy(
            update={"sweep": config.sweep.model_copy(update={"budget_usd": None})}
        )
        return replace(plan_of(unbounded, is_resume), usd_per_hour=1.0)

    monkeypatch.setattr(nodesweep.flows.scaling_benchmark, "preflight", at_a_price)
    submit = nodesweep.flows.stages.sweep.submit_training_job

    def beside_another_run(backend: Any, spec: Any) -> Any:
        accepted = submit(backend, spec)
        claim_job(backend.store, sweep, names.job_name(sweep, 4, 1, 2, "abcd"), "another")
        return accepted

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "submit_training_job", beside_another_run)
    report = begin_as(config, sweep).report.model_dump(mode="json")
    assert [(point["nodes"], point["status"]) for point in report["points"]] == [
        (1, "Completed"),
        (2, "Failed"),
    ]
    assert "sweep.budget_usd: 0.95 USD" in report["points"][1]["reason"]
    claims = served.s3.list_objects_v2(
        Bucket=config.platform.bucket, Prefix=names.claims_prefix(config.platform.prefix, sweep)
    )
    claimed = {
        names.parse_job_name(names.job_of_claim(entry["Key"])) for entry in claims["Contents"]
    }
    assert claimed == {("", 1, 1, 1), ("", 4, 1, 2)}, "what was refused is claimed no longer"
