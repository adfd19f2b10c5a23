"""A training plan that no job could use is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import made_plan, serve_platform
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.training_plan import PlanResponse, judge_plan
from nodesweep.scaling.rules.rule import Findings
from tests.nodesweep.launch.sagemaker.preflight.questions import asking, clients, question

Configs = Callable[..., BenchmarkConfig]
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/march"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ask_plan = asking("the training plan")


@pytest.fixture
def judged(make_config: Configs) -> Callable[..., Findings]:
    """Return a function that judges a plan for jobs of 1 to 4 ml.p5.48xlarge of up to an hour."""
    config = make_config(
        training={"training_plan_arn": PLAN, "instance_type": "ml.p5.48xlarge"},
        sweep={"node_counts": [1, 4], "max_parallel_jobs": 2},
    )
    asked = question(config, clients(), peak_nodes=5)

    def judge(block: dict[str, Any] | None = None, **members: Any) -> Findings:
        period = {"StartTime": NOW - DAY, "EndTime": NOW + DAY}
        capacity = {
            "InstanceType": "ml.p5.48xlarge",
            "TotalInstanceCount": 8,
            **period,
            **(block or {}),
        }
        plan = {
            "TrainingPlanName": "march",
            "Status": "Active",
            "TotalInstanceCount": 8,
            "AvailableInstanceCount": 8,
            "TargetResources": ["training-job"],
            "ReservedCapacitySummaries": [capacity],
            **period,
            **members,
        }
        return judge_plan(asked.facts, PlanResponse(plan, NOW))

    return judge


def test_active_plan_between_its_blocks_is_refused(judged: Callable[..., Findings]) -> None:
    block = {"InstanceType": "ml.p5.48xlarge", "TotalInstanceCount": 8}
    blocks = [
        {**block, "StartTime": NOW - DAY, "EndTime": NOW - HOUR},
        {**block, "StartTime": NOW + 20 * HOUR, "EndTime": NOW + 2 * DAY},
    ]
    found = judged(ReservedCapacitySummaries=blocks, EndTime=NOW + 2 * DAY)
    assert found.notices == ()
    [problem] = found.problems
    assert "has no instances until 2026-03-03 08:00 UTC" in problem


def test_plan_with_all_that_the_sweep_needs_passes(judged: Callable[..., Findings]) -> None:
    assert judged() == Findings()


@pytest.mark.parametrize(
    "plan",
    [
        {"TargetResources": ["hyperpod-cluster"]},
        {"Status": "Expired", "EndTime": NOW - HOUR},
        {"EndTime": NOW},
        {"Status": "Pending"},
        {"Status": "Failed", "StatusMessage": "the card was declined"},
        {"Status": "Scheduled", "StartTime": NOW + HOUR, "block": {"StartTime": NOW + HOUR}},
        {"Status": "Scheduled", "block": {"StartTime": NOW + 2 * HOUR}},
        {"block": {"InstanceType": "ml.p4d.24xlarge"}},
        {"block": {"TotalInstanceCount": 3}},
        {"ReservedCapacitySummaries": [], "TotalInstanceCount": 1},
    ],
    ids=[
        "target", "expired", "ended", "pending", "failed", "later", "between blocks", "type",
        "fewer", "fewer of an unknown type",
    ],
)  # fmt: skip
def test_plan_that_no_job_could_use_is_refused(
    judged: Callable[..., Findings], plan: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    found = judged(**plan)
    assert found.notices == ()
    assert found.problems == snapshot


@pytest.mark.parametrize(
    "plan",
    [
        {"AvailableInstanceCount": 3},
        {"block": {"TotalInstanceCount": 4}, "AvailableInstanceCount": 4},
        {"block": {"EndTime": NOW + 1.4 * HOUR}},
    ],
    ids=["in use", "fewer than at once", "ends soon"],
)
def test_plan_that_may_delay_or_cut_jobs_is_a_notice(
    judged: Callable[..., Findings], plan: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    found = judged(**plan)
    assert found.problems == ()
    assert found.notices == snapshot


def test_plan_of_unknown_terms_passes(judged: Callable[..., Findings]) -> None:
    unknown = {"TargetResources": ["training-job"], "ReservedCapacitySummaries": []}
    members = dict.fromkeys(("TotalInstanceCount", "AvailableInstanceCount"))
    assert judged(**unknown, **members) == Findings()


@pytest.mark.parametrize("code", ["ResourceNotFound", "ValidationException"])
def test_unknown_plan_is_refused(
    make_config: Configs, code: str, snapshot: SnapshotAssertion
) -> None:
    client = boto3.client("sagemaker", region_name="us-east-1")
    config = make_config(training={"training_plan_arn": PLAN})
    with Stubber(client) as stub:
        expected = {"TrainingPlanName": "march"}
        stub.add_client_error("describe_training_plan", code, expected_params=expected)
        found = ask_plan(question(config, clients(sagemaker=client)))
    assert found.problems == snapshot


def test_failed_query_is_a_notice(make_config: Configs, snapshot: SnapshotAssertion) -> None:
    client = boto3.client("sagemaker", region_name="us-east-1")
    config = make_config(training={"training_plan_arn": PLAN})
    with Stubber(client) as stub:
        stub.add_client_error("describe_training_plan", "AccessDeniedException")
        found = ask_plan(question(config, clients(sagemaker=client)))
    assert found.problems == ()
    assert found.notices == snapshot


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(tmp_path_factory.mktemp("platform")) as served:
        yield served


@pytest.mark.parametrize(
    ("instance_type", "count", "terms", "problem"),
    [
        ("ml.local.small", 2, {}, ""),
        ("ml.local.small", 1, {}, "has 1 instance, but"),
        ("ml.p5.48xlarge", 2, {}, "reserves ml.p5.48xlarge"),
        ("ml.local.small", 2, {"StartTimeAfter": 0}, "expired"),
        (
            "ml.local.small",
            2,
            {"StartTimeAfter": datetime(2100, 1, 1, tzinfo=UTC), "DurationHours": 1},
            "has no instances until 2100-01-01 00:00 UTC",
        ),
    ],
    ids=["fits", "fewer", "type", "expired", "later"],
)
def test_plans_of_the_local_platform(
    platform: SimpleNamespace,
    make_config: Configs,
    instance_type: str,
    count: int,
    terms: dict[str, Any],
    problem: str,
    tmp_path: Path,
) -> None:
    arn = made_plan(platform, instance_type, count, **terms)
    config = make_config(training={"training_plan_arn": arn, "instance_type": "ml.local.small"})
    found = ask_plan(question(config, clients(sagemaker=platform.sagemaker)))
    assert found.notices == ()
    assert len(found.problems) == (1 if problem else 0)
    assert problem in "".join(found.problems)
