"""The rules together: which rules make calls, and the effect of a call without a response."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from botocore.parsers import ResponseParserError
from syrupy.assertion import SnapshotAssertion

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import CallTimedOut, ForeignResponse
from nodesweep.launch.sagemaker.preflight.online import (
    ACCOUNT_RULES,
    check_online,
    clients_of,
    run_account_rules,
)
from nodesweep.launch.sagemaker.preflight.rule import AccountRule, RuleContext, evaluate
from nodesweep.scaling.rules.rule import Findings
from nodesweep.tasks.preflight.facts import read_facts
from tests.hostile_server import DRIPS, PAGE, Words, dripping_server, hostile_server
from tests.nodesweep.launch.sagemaker.preflight.questions import clients, question
from tests.plain import plain

Configs = Callable[..., BenchmarkConfig]
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p5-march"
IN_A_VPC = {
    "vpc": {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
    "extra_channels": {
        "lustre": {
            "type": "FSxLustre",
            "id": "fs-0123456789abcdef0",
            "directory_path": "/fsx/data",
        },
        "efs": {"type": "EFS", "id": "fs-0123456789abcdef1", "directory_path": "/data"},
    },
}


def refused(code: str, status: int = 400) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "no"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "Call")


def rule(
    answer: Findings | BaseException, needed: bool = True, name: str = "the moon"
) -> AccountRule[Findings]:
    def ask(asked: RuleContext) -> Findings:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    judges = (lambda asked: asked.response,)
    return AccountRule(
        name, judges, action="moon:Describe", queries="", query=ask, needed=lambda facts: needed
    )


@pytest.mark.parametrize(
    "error",
    [
        refused("AccessDeniedException"),
        refused("UnauthorizedOperation", 403),
        refused("403", 403),
        refused("UnknownOperationException"),
        ResponseParserError("<html>"),
        ForeignResponse(endpoint_url="http://x", operation="D", answer="a page", status=404),
        refused("500", 500),
        refused("NoSuchResourceException"),
        EndpointConnectionError(endpoint_url="http://x"),
    ],
)
def test_unanswered_rule_is_a_notice(
    benchmark_config: BenchmarkConfig, error: BaseException, snapshot: SnapshotAssertion
) -> None:
    found = run_account_rules(question(benchmark_config, clients()), [rule(error)])
    assert found == snapshot


HTML = {"Content-Type": "text/html"}


@pytest.fixture
def bucket_of(
    make_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Findings]]:
    """Return the findings of plan --online at an endpoint, with or without
    platform.endpoint_url."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")

    def ask(endpoint: str, is_named: bool = True) -> Findings:
        if not is_named:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        config = make_config(
            platform={"endpoint_url": endpoint if is_named else None, "credentials": "chain"},
            training={"instance_type": "ml.local.small" if is_named else "ml.m5.large"},
        )
        facts = read_facts(config)
        rules = [rule for rule in ACCOUNT_RULES if rule.name == "the bucket"]
        return run_account_rules(RuleContext(facts, clients_of(config.platform)), rules)

    aws_client.cache_clear()
    yield ask
    aws_client.cache_clear()


@pytest.mark.parametrize(
    "words",
    [
        Words(999, b"x"),
        Words(200, PAGE, HTML),
        Words(302, b"", {"Location": "/"}),
        Words(404, PAGE, HTML),
    ],
    ids=["999", "page", "loop", "404"],
)
def test_endpoint_that_is_no_platform_is_a_problem(
    bucket_of: Callable[[str], Findings],
    words: Words,
    snapshot: SnapshotAssertion,
) -> None:
    with hostile_server(lambda path: words) as endpoint:
        (problem,) = bucket_of(endpoint).problems
    assert plain(problem, endpoint=endpoint) == snapshot


@pytest.mark.parametrize(
    ("drip", "is_named", "where"),
    [
        *((drip, True, "platform.endpoint_url") for drip in DRIPS),
        ("body", False, "s3 in us-east-1"),
    ],
)
def test_answer_that_never_ends_is_a_problem_by_the_deadline(
    bucket_of: Callable[..., Findings],
    monkeypatch: pytest.MonkeyPatch,
    drip: str,
    is_named: bool,
    where: str,
) -> None:
    once = Config(retries={"mode": "standard", "total_max_attempts": 1}, read_timeout=0.2)
    monkeypatch.setattr("nodesweep.aws.clients._QUICK_CONFIG", once)
    with dripping_server(DRIPS[drip]) as endpoint:
        (problem,) = bucket_of(endpoint, is_named).problems
    assert problem.startswith(f"{where}: s3:GetBucketLocation: {endpoint} ")
    assert problem.endswith(f", and {where}")


def test_other_services_that_drip_are_notices(
    benchmark_config: BenchmarkConfig, snapshot: SnapshotAssertion
) -> None:
    late = CallTimedOut(endpoint_url="http://x", operation="Describe", seconds=60.0)
    found = run_account_rules(question(benchmark_config, clients()), [rule(late)])
    assert found == snapshot


@pytest.mark.parametrize(
    "error", [refused("ExpiredToken"), refused("InvalidClientTokenId"), NoCredentialsError()]
)
def test_missing_credentials_stop_the_preflight(
    benchmark_config: BenchmarkConfig, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        run_account_rules(question(benchmark_config, clients()), [rule(error)])


def test_every_problem_is_found_at_once(benchmark_config: BenchmarkConfig) -> None:
    rules = [rule(Findings(("a",), ("n",))), rule(refused("AccessDenied")), rule(Findings(("b",))),
             rule(Findings(("never",)), needed=False)]  # fmt: skip
    found = run_account_rules(question(benchmark_config, clients()), rules)
    assert found.problems == ("a", "b") and found.notices[0] == "n" and len(found.notices) == 2


def test_no_rule_needed_is_no_finding(benchmark_config: BenchmarkConfig) -> None:
    assert run_account_rules(question(benchmark_config, clients()), []) == Findings()


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        (
            {},
            {
                "service quotas",
                "the role",
                "the role's permissions",
                "the bucket",
                "the repository",
            },
        ),
        (
            {"training": {"instance_type": "ml.local.small"}},
            {"service quotas", "the bucket", "the repository"},
        ),
        (
            {
                "training": {
                    **IN_A_VPC,
                    **dict.fromkeys(("output_kms_key_id", "volume_kms_key_id"), "alias/x"),
                    "training_plan_arn": PLAN,
                },
                "platform": {"batch": {"queue": "training"}},
                "image": {"uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1"},
            },
            {rule.name for rule in ACCOUNT_RULES} - {"the repository"},
        ),
        (
            {"image": {"uri": "docker.io/x:1"}},
            {"service quotas", "the role", "the role's permissions", "the bucket"},
        ),
    ],
)
def test_rules_are_asked_where_the_sweep_needs_them(
    make_config: Configs, sections: dict[str, Any], names: set[str]
) -> None:
    asked = question(make_config(**sections), clients())
    assert {rule.name for rule in ACCOUNT_RULES if rule.needed(asked.facts)} == names


def test_emulated_nodes_say_what_was_not_asked(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    asked = question(make_config(training={"instance_type": "ml.local.small"}), clients())
    assert run_account_rules(asked, []).notices == snapshot


def test_platform_is_asked_through_clients_of_its_own(
    aws: Callable[[str], Any],
    make_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    config = make_config(sweep={"node_counts": [1, 2, 4], "max_parallel_jobs": 2})
    asked: list[RuleContext] = []
    monkeypatch.setattr(
        "nodesweep.launch.sagemaker.preflight.online.run_account_rules",
        lambda one, _: asked.append(one),
    )
    check_online(read_facts(config))
    assert asked[0].facts.peak_nodes == 6
    # what moto has
    modelled = [rule for rule in ACCOUNT_RULES if rule.name in ("the role", "the bucket")]
    assert [
        problem.partition(";")[0] for problem in run_account_rules(asked[0], modelled).problems
    ] == snapshot
    aws("s3").create_bucket(Bucket="bench-bucket")
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    aws("iam").create_role(
        RoleName="training", AssumeRolePolicyDocument=json.dumps({"Statement": [trust]})
    )
    assert run_account_rules(asked[0], modelled) == Findings()
    assert asked[0].client("ecr", "eu-west-1").meta.region_name == "eu-west-1"


@pytest.mark.parametrize("are_fallbacks", [False, True])
def test_types_of_a_sweep_are_asked_about_at_once(
    are_fallbacks: bool, make_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account that does not respond is awaited once, whatever the number of types."""
    types = ["ml.m5.large", "ml.m5.xlarge", "ml.m5.2xlarge"]
    together = threading.Barrier(len(types), timeout=300)

    def ask(asked: RuleContext) -> str:
        together.wait()  # raises where they are asked about one after the other
        return asked.config.training.instance_type

    per_type = AccountRule(
        "the moon",
        (lambda asked: Findings((asked.response,)),),
        action="moon:Describe", queries="", query=ask, needed=lambda facts: True, per_type=True,
    )  # fmt: skip
    monkeypatch.setattr("nodesweep.launch.sagemaker.preflight.online.ACCOUNT_RULES", (per_type,))
    first = {"instance_type": types[0]}
    config = make_config(training=first, sweep={"instance_types": types})
    if are_fallbacks:
        config = make_config(training={**first, "instance_fallbacks": types[1:]})
    assert check_online(read_facts(config)).problems == tuple(types)


class Refusing:
    """A client that may make no call."""

    def __getattr__(self, name: str) -> Any:
        if name == "get_paginator":
            return lambda operation: SimpleNamespace(paginate=self.refuse)
        return self.refuse

    def refuse(self, **query: Any) -> Any:
        raise refused("AccessDenied", 403)


@pytest.mark.parametrize("one", ACCOUNT_RULES, ids=lambda one: one.name)
def test_rule_without_permission_is_a_notice_that_names_the_action(
    make_config: Configs, one: AccountRule[Any]
) -> None:
    config = make_config(
        training={**IN_A_VPC, "training_plan_arn": PLAN},
        platform={"batch": {"queue": "training"}},
        image={"uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1"},
    )
    found = evaluate(one, question(config, lambda service, region="": Refusing()))
    notice = f"{one.name} could not be checked: these credentials may not call {one.action}"
    assert found == Findings(notices=(notice,))
