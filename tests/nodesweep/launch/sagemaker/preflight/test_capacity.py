"""The ways to get a sweep's nodes, as `plan --online` reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import client, serve_platform
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.capacity import describe_capacity
from nodesweep.scaling.rules.rule import Facts
from nodesweep.tasks.preflight.facts import read_facts
from nodesweep.tasks.report.pricing import with_price

Configs = Callable[..., BenchmarkConfig]
START = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
QUOTAS = {
    "ml.p5.48xlarge for training job usage": 8.0,
    "ml.p5.48xlarge for spot training job usage": 0.0,
    "ml.g5.xlarge for training job usage": 1.0,
}


def facts_of(config: BenchmarkConfig, usd: float | None = 60.0) -> Facts:
    """Return the facts of a sweep, at the current price."""
    facts = read_facts(config)
    if usd is None:
        return facts
    region, day = config.platform.region, date(2026, 11, 27)
    priced = with_price(facts.instance, region, usd, day)
    arms = {
        name: replace(arm, instance=with_price(arm.instance, region, usd, day))
        for name, arm in facts.arms.items()
    }
    return replace(facts, instance=priced, arms=arms)


@pytest.fixture
def p5(make_config: Configs) -> BenchmarkConfig:
    """Return jobs on 1, 2 and 3 nodes of up to an hour, with as many retries after failures."""
    training = {"instance_type": "ml.p5.48xlarge", "max_runtime_seconds": 3480}
    return make_config(training=training, sweep={"node_counts": [1, 2, 3], "max_attempts": 2})


def block(count: int = 4, hours: int = 24, start: datetime = START) -> dict[str, Any]:
    return {
        "InstanceType": "ml.p5.48xlarge", "InstanceCount": count, "DurationHours": hours,
        "DurationMinutes": 0, "StartTime": start, "EndTime": start + timedelta(hours=hours),
        "AvailabilityZone": "us-east-1a",
    }  # fmt: skip


def offering(*blocks: dict[str, Any], **members: Any) -> dict[str, Any]:
    hours = sum(each["DurationHours"] for each in blocks)
    return {
        "TrainingPlanOfferingId": f"tpo-{hours}", "TargetResources": ["training-job"],
        "DurationHours": hours, "DurationMinutes": 0, "UpfrontFee": "4848.00",
        "CurrencyCode": "USD", "ReservedCapacityOfferings": list(blocks), **members,
    }  # fmt: skip


class Account:
    """Stubbed clients of one account; each service responds once, or with an error."""

    def __init__(self) -> None:
        self.stubs: dict[str, Stubber] = {}
        self.used: list[str] = []

    def answer(self, service: str, operation: str, answer: Any, asked: Any = None) -> None:
        if service not in self.stubs:
            made = boto3.client(
                service, "us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
            )
            self.stubs[service] = Stubber(made)
            self.stubs[service].activate()
        if isinstance(answer, str):
            self.stubs[service].add_client_error(operation, answer)
        else:
            self.stubs[service].add_response(operation, answer, asked)

    def answers(self, plans: Any = (), spot: Any = ("21.5", "19.25"), quotas: Any = QUOTAS) -> None:
        if not isinstance(plans, str):
            plans = {"TrainingPlanOfferings": list(plans)}
        if not isinstance(spot, str):
            rows = [{"SpotPrice": each, "Timestamp": datetime.now(UTC)} for each in spot]
            made_up = {"SpotPrice": "0.00001", "Timestamp": datetime(2006, 1, 1, tzinfo=UTC)}
            spot = {"SpotPriceHistory": [*rows, made_up]}
        if not isinstance(quotas, str):
            rows = [{"QuotaName": name, "Value": value} for name, value in quotas.items()]
            quotas = {"Quotas": rows}
        self.answer("sagemaker", "search_training_plan_offerings", plans)
        self.answer("ec2", "describe_spot_price_history", spot)
        self.answer("service-quotas", "list_service_quotas", quotas)

    def client(self, service: str, region: str = "us-east-1") -> Any:
        return self.stubs[service].client


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.mark.parametrize(
    "plans",
    [
        [offering(block())],
        [offering(block(hours=2), UpfrontFee="none")],
        [offering(block(3), block(4, start=START + timedelta(days=2)), CurrencyCode="EUR")],
        [offering(), offering(block(), UpfrontFee=None), offering(block()), offering(block())],
        [],
    ],
    ids=["whole", "short", "two blocks", "little known", "none"],
)
def test_each_way_has_its_quota_price_and_cost(
    p5: BenchmarkConfig, account: Account, plans: list[Any], snapshot: SnapshotAssertion
) -> None:
    for each in plans:
        if each["UpfrontFee"] is None:
            del each["UpfrontFee"]
    account.answers(plans)
    assert describe_capacity(facts_of(p5), account.client) == snapshot


@pytest.mark.parametrize(
    ("parallel", "counts", "repeats", "blocks", "is_enough"),
    [
        (1, [5], 4, [block(8, 8)], False),  # is taken back half an hour before its end
        (1, [5], 4, [block(8, 9)], True),
        (4, [5], 4, [block(8, 4)], False),  # has room for one job at a time
        (4, [5], 4, [block(8, 9)], True),
        (4, [4], 4, [block(8, 5)], True),  # two at a time
        (9, [1], 1, [block(1, 2)], False),
        (4, [5], 4, [block(4, 99)], False),  # has no room for any
        (1, [5], 4, [block(8, 4), block(8, 5)], False),
        (1, [5], 4, [block(8, 4), block(8, 6)], True),
    ],
)
def test_a_plan_is_long_enough_if_all_attempts_fit(
    make_config: Configs,
    account: Account,
    parallel: int,
    counts: list[int],
    repeats: int,
    blocks: list[dict[str, Any]],
    is_enough: bool,
) -> None:
    training = {
        "instance_type": "ml.p5.48xlarge",
        "max_runtime_seconds": 3480,
        "batch": {"policy": "fixed_per_replica", "size": 8},
    }
    sweep = {"node_counts": counts, "repeats": repeats, "max_parallel_jobs": parallel}
    account.answers([offering(*blocks)])
    config = make_config(training=training, sweep={**sweep, "max_attempts": 2})
    line = describe_capacity(facts_of(config), account.client)[-1]
    assert ("long enough" in line, "too short" in line) == (is_enough, not is_enough)


def test_what_is_asked(p5: BenchmarkConfig, account: Account) -> None:
    asked = {
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": 4,  # there are no plans of 3
        "StartTimeAfter": ANY,
        "DurationHours": 7,  # six attempts one by one, and the last half hour
        "TargetResources": ["training-job"],
    }
    account.answer("sagemaker", "search_training_plan_offerings",
                   {"TrainingPlanOfferings": []}, asked)  # fmt: skip
    asked = {
        "InstanceTypes": ["p5.48xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": ANY,
    }
    account.answer("ec2", "describe_spot_price_history", {"SpotPriceHistory": []}, asked)
    account.answer("service-quotas", "list_service_quotas", {"Quotas": []})
    lines = describe_capacity(facts_of(p5), account.client)
    assert "quota not listed" in lines[2] and "EC2" in lines[3] and "none" in lines[3]
    for stub in account.stubs.values():
        stub.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["AccessDeniedException", "UnauthorizedOperation", "Throttled"])
def test_what_may_not_be_asked_is_said_in_its_place(
    p5: BenchmarkConfig, account: Account, code: str, snapshot: SnapshotAssertion
) -> None:
    account.answers(code, code, code)
    assert describe_capacity(facts_of(p5, None), account.client)[1:] == snapshot


def test_expired_credentials_end_the_command(p5: BenchmarkConfig, account: Account) -> None:
    account.answers(quotas="ExpiredTokenException")
    with pytest.raises(ClientError, match="ExpiredToken"):
        describe_capacity(facts_of(p5), account.client)


def test_a_type_or_size_without_plans_is_not_asked_for(
    make_config: Configs, account: Account
) -> None:
    account.answers()
    g5 = make_config(training={"instance_type": "ml.g5.xlarge"})
    assert "not available" in describe_capacity(facts_of(g5), account.client)[-1]
    account.answers()
    training = {
        "instance_type": "ml.p5.48xlarge",
        "batch": {"policy": "fixed_per_replica", "size": 8},
    }
    large = make_config(training=training, sweep={"node_counts": [1, 65]})
    assert "not available" in describe_capacity(facts_of(large), account.client)[-1]


def test_each_type_has_its_lines_and_emulated_nodes_have_none(
    make_config: Configs, account: Account
) -> None:
    account.answers()
    account.answers()
    types = ["ml.m5.xlarge", "ml.g5.xlarge"]
    several = make_config(sweep={"instance_types": types})
    lines = describe_capacity(facts_of(several), account.client)
    assert [line.split()[0] for line in lines if line and line[0] != " "] == types
    emulated = make_config(training={"instance_type": "ml.local.small"})
    assert describe_capacity(read_facts(emulated), account.client) == []


def test_variants_of_one_type_are_one_purchase(make_config: Configs, account: Account) -> None:
    large = {"name": "large", "set": {"training.batch.size": 128}}
    hours = []
    for sweep in ({}, {"variants": [large]}):
        account.answers()
        lines = describe_capacity(facts_of(make_config(sweep=sweep)), account.client)
        [head] = [line for line in lines if "node-hours for the sweep" in line]
        hours.append(float(head.partition(" node-hours")[0].split()[-1]))
    assert hours[1] == pytest.approx(2 * hours[0], abs=0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


def test_plan_online_shows_the_platforms_offerings(
    served: SimpleNamespace, p5: BenchmarkConfig
) -> None:
    lines = describe_capacity(facts_of(p5), lambda service: client(served.endpoint, service))
    assert "quota not listed" in lines[2], "the platform lists its own types only"
    assert "none" in lines[3]
    assert "4 instances for 7 h" in lines[4] and "0.00 USD upfront" in lines[4]
