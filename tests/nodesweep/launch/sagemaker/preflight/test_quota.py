from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest
from botocore.stub import Stubber
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.quota import (
    MOST_PER_JOB,
    MOST_TOGETHER,
    judge_quotas,
    judge_validation_quota,
    quota_names,
    read_quotas,
)
from nodesweep.launch.sagemaker.preflight.rule import RuleContext
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.rules.rule import Facts, Findings
from tests.nodesweep.launch.sagemaker.preflight.questions import asking, clients, question

Configs = Callable[..., BenchmarkConfig]


def judge(config: BenchmarkConfig, quotas: dict[str, float], peak: int, most: int) -> Findings:
    return judge_quotas(config.training, quotas, config.sweep.max_parallel_jobs, peak, most)


ON_DEMAND = "ml.m5.xlarge for training job usage"


@pytest.mark.parametrize(
    "features",
    [
        {},
        {"spot": {"max_wait_seconds": 7200}},
        {"keep_alive_seconds": 600},
    ],
)
def test_quotas_follow_how_the_nodes_are_bought(
    make_config: Configs, features: dict[str, object], snapshot: SnapshotAssertion
) -> None:
    assert quota_names(make_config(training=features).training) == snapshot


@pytest.mark.parametrize(
    ("parallel", "peak", "kept"), [(1, 8, 14), (2, 16, 28), (3, 20, 28), (20, 28, 28)]
)
def test_peak_is_the_largest_jobs_beside_each_other_and_each_count_keeps_its_pools(
    make_config: Configs, parallel: int, peak: int, kept: int
) -> None:
    config = make_config(
        sweep={"node_counts": [2, 4, 8], "repeats": 2, "max_parallel_jobs": parallel}
    )
    instance = load_catalogue().get(config.training.instance_type)
    facts = Facts(config, instance, plan_sweep(config, instance))
    assert (facts.peak_nodes, facts.kept_nodes) == (peak, kept)


@pytest.mark.parametrize(("quota", "problems", "notices"), [(7, 1, 0), (8, 0, 1), (15, 0, 0)])
def test_pools_of_smaller_counts_may_make_a_larger_job_wait(
    make_config: Configs, quota: float, problems: int, notices: int, snapshot: SnapshotAssertion
) -> None:
    config = make_config(
        training={"keep_alive_seconds": 3600}, sweep={"node_counts": [1, 2, 4, 8], "repeats": 2}
    )
    rows = [
        {"QuotaName": ON_DEMAND, "Value": 8.0},
        {"QuotaName": "ml.m5.xlarge for training warm pool usage", "Value": quota},
    ]
    client = boto3.client(
        "service-quotas", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    instance = load_catalogue().get(config.training.instance_type)
    with Stubber(client) as stub:
        stub.add_response("list_service_quotas", {"Quotas": rows})
        found = asking("service quotas")(
            RuleContext(
                Facts(config, instance, plan_sweep(config, instance)),
                clients(**{"service-quotas": client}),
            )
        )
    assert (len(found.problems), len(found.notices)) == (problems, notices)
    assert found.notices == snapshot


def test_small_quota_is_a_problem_and_says_what_to_do(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = make_config(sweep={"node_counts": [1, 2], "max_parallel_jobs": 2})
    found = judge(config, {ON_DEMAND: 2.0}, peak=3, most=2)
    assert found.problems == snapshot
    none = judge(config, {ON_DEMAND: 1.0}, peak=3, most=2)
    assert none.problems[0] == snapshot


def test_small_quota_of_a_type_is_a_notice_under_a_training_plan(
    make_config: Configs,
) -> None:
    plan = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p5-march"
    found = judge(
        make_config(training={"training_plan_arn": plan}), {ON_DEMAND: 0.0}, peak=3, most=2
    )
    assert found.problems == () and ON_DEMAND in found.notices[0]


def test_quota_that_is_just_enough_passes(make_config: Configs) -> None:
    found = judge(
        make_config(), {ON_DEMAND: 3.0, MOST_PER_JOB: 2.0, MOST_TOGETHER: 3.0}, peak=3, most=2
    )
    assert (found.problems, found.notices) == ((), ())


def test_quotas_over_all_instance_types_count_too(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    found = judge(
        make_config(), {ON_DEMAND: 9.0, MOST_PER_JOB: 1.0, MOST_TOGETHER: 2.0}, peak=3, most=2
    )
    assert [problem.partition(";")[0] for problem in found.problems] == snapshot


def test_unlisted_quota_is_a_notice(make_config: Configs, snapshot: SnapshotAssertion) -> None:
    found = judge(make_config(), {}, peak=1, most=1)
    assert found.problems == ()
    assert found.notices[0] == snapshot


def test_the_processing_job_of_a_validation_has_a_quota_of_its_own(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = make_config(dataset={"source": "s3://raw/x", "validation": {"instance_count": 4}})
    name = "ml.m5.4xlarge for processing job usage"
    assert judge_validation_quota(config.dataset, {name: 4.0}) == Findings()
    assert judge_validation_quota(config.dataset, {name: 3.0}).problems == snapshot
    [notice] = judge_validation_quota(config.dataset, {}).notices
    assert repr(name) in notice
    assert judge_validation_quota(make_config().dataset, {}) == Findings()


def test_pages_are_read_as_far_as_needed() -> None:
    def pages() -> object:
        yield {"Quotas": [{"QuotaName": "a", "Value": 1.0}, {"QuotaName": "other", "Value": 5.0}]}
        yield {"Quotas": [{"QuotaName": "b", "Value": 2.0}]}
        raise AssertionError("a further page was read")

    assert read_quotas(pages(), {"a", "b"}) == {"a": 1.0, "b": 2.0}  # type: ignore[arg-type]


def test_quotas_are_found_by_name_on_a_later_page(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    client = boto3.client(
        "service-quotas", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    first = {"ServiceCode": "sagemaker", "MaxResults": 100}
    with Stubber(client) as stub:
        other = [{"QuotaName": "ml.m5.xlarge for endpoint usage", "Value": 0.0}]
        stub.add_response("list_service_quotas", {"Quotas": other, "NextToken": "2"}, first)
        mine = [
            {"QuotaName": ON_DEMAND, "Value": 1.0},
            {"QuotaName": "ml.m5.4xlarge for processing job usage", "Value": 0.0},
        ]
        stub.add_response("list_service_quotas", {"Quotas": mine}, {**first, "NextToken": "2"})
        found = asking("service quotas")(
            question(
                make_config(dataset={"source": "s3://raw/x", "validation": {}}),
                clients(**{"service-quotas": client}),
                peak_nodes=2,
            )
        )
    assert found.problems[0] == snapshot
    assert found.problems[1] == snapshot
