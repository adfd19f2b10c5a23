from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight import identity
from nodesweep.launch.sagemaker.preflight.identity import (
    Need,
    judge_key,
    judge_simulation,
    judge_trust,
    needs_of,
)
from nodesweep.scaling.rules.rule import Files, Requirements
from tests.nodesweep.launch.sagemaker.preflight.questions import ROLE, asking, clients, question
from tests.plain import plain

Configs = Callable[..., BenchmarkConfig]
ask_trust = asking("the role")
ask_permissions = asking("the role's permissions", *identity.KEYS)
NEED = Need(("s3:GetObject",), "arn:aws:s3:::b/p/x", "b")


def role(principal: Any, action: Any = "sts:AssumeRole", effect: str = "Allow") -> dict[str, Any]:
    statement = {"Effect": effect, "Principal": principal, "Action": action}
    return {"Arn": ROLE, "AssumeRolePolicyDocument": {"Statement": [statement]}}


def result(decision: str, action: str = "s3:GetObject", **details: Any) -> dict[str, Any]:
    return {"EvalActionName": action, "EvalDecision": decision, **details}


@pytest.mark.parametrize(
    "principal",
    [
        {"Service": "sagemaker.amazonaws.com"},
        {"Service": ["ec2.amazonaws.com", "sagemaker.amazonaws.com"]},
    ],
)
def test_role_that_trusts_sagemaker_passes(principal: dict[str, Any]) -> None:
    assert judge_trust(ROLE, role(principal)).problems == ()
    one = role(principal)
    one["AssumeRolePolicyDocument"]["Statement"] = one["AssumeRolePolicyDocument"]["Statement"][0]
    assert judge_trust(ROLE, one).problems == ()


@pytest.mark.parametrize(
    "action",
    ["STS:assumerole", "sts:Assume*", "sts:AssumeRol?", "sts:*", "*", ["sts:TagSession", "*Role"]],
)
def test_actions_ignore_case_and_may_have_wildcards(action: str | list[str]) -> None:
    service = {"Service": "sagemaker.amazonaws.com"}
    assert judge_trust(ROLE, role(service, action)).problems == ()


@pytest.mark.parametrize(("other", "problems"), [("sts:TagSession", 0), ("sts:Assume*", 1)])
def test_not_action_allows_all_other_actions(other: str, problems: int) -> None:
    found = role({"Service": "sagemaker.amazonaws.com"})
    [statement] = found["AssumeRolePolicyDocument"]["Statement"]
    statement["NotAction"] = other
    del statement["Action"]
    assert len(judge_trust(ROLE, found).problems) == problems


@pytest.mark.parametrize(
    "distrusting",
    [
        role({"Service": "ec2.amazonaws.com"}),
        role({"AWS": "arn:aws:iam::123456789012:root"}),
        role("*"),
        role({"Service": "sagemaker.amazonaws.com"}, effect="Deny"),
        role({"Service": "sagemaker.amazonaws.com"}, action=["sts:TagSession", "sts:AssumeRole?"]),
    ],
)
def test_role_that_does_not_trust_sagemaker_is_a_problem(
    distrusting: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert judge_trust(ROLE, distrusting).problems == snapshot


def test_role_of_another_path_is_another_role(snapshot: SnapshotAssertion) -> None:
    found = {
        **role({"Service": "sagemaker.amazonaws.com"}),
        "Arn": "arn:aws:iam::123456789012:role/ml/training",
    }
    assert judge_trust(ROLE, found).problems[0] == snapshot


def test_role_is_asked_for(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    iam = aws("iam")
    asked = question(make_config(), clients(iam=iam))
    assert ask_trust(asked).problems == snapshot
    trust = role({"Service": "sagemaker.amazonaws.com"})["AssumeRolePolicyDocument"]
    iam.create_role(RoleName="training", AssumeRolePolicyDocument=json.dumps(trust))
    assert ask_trust(asked).problems == ()


def test_needs_name_the_places_a_job_uses(make_config: Configs) -> None:
    config = make_config(
        dataset={"source": "s3://corpus/digits/"},
        training={
            "extra_channels": {"more": {"type": "S3", "uri": "s3://other/x/"}},
            "vpc": {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
        },
    )
    needs = needs_of(config)
    assert [(need.actions[0], need.resource) for need in needs] == [
        ("s3:GetObject", "arn:aws:s3:::bench-bucket/nodesweep/sweeps/x/jobs/x"),
        ("s3:ListBucket", "arn:aws:s3:::bench-bucket"),
        (
            "logs:CreateLogGroup",
            "arn:aws:logs:us-east-1:123456789012:log-group:/aws/sagemaker/TrainingJobs:log-stream:x",
        ),
        ("cloudwatch:PutMetricData", "*"),
        ("ecr:GetAuthorizationToken", "*"),
        ("s3:GetObject", "arn:aws:s3:::corpus/digits/x"),
        ("s3:GetObject", "arn:aws:s3:::other/x/x"),
        ("ecr:BatchGetImage", "arn:aws:ecr:us-east-1:123456789012:repository/nodesweep"),
        ("ec2:CreateNetworkInterface", "*"),
    ]
    assert needs[0].actions == ("s3:GetObject", "s3:PutObject")
    assert [need.context for need in needs if need.context] == [
        (("s3:prefix", "nodesweep/sweeps/x/jobs/x"),),
        (("cloudwatch:namespace", "/aws/sagemaker/TrainingJobs"),),
    ]


def test_a_validation_on_spark_writes_its_own_log(make_config: Configs) -> None:
    config = make_config(dataset={"source": "s3://corpus/digits/", "validation": {}})
    logs = [need.resource for need in needs_of(config) if need.actions[0].startswith("logs:")]
    assert [one.split(":")[6] for one in logs] == [
        "/aws/sagemaker/TrainingJobs",
        "/aws/sagemaker/ProcessingJobs",
    ]


def test_needs_of_an_uploaded_dataset_and_of_own_code(make_config: Configs) -> None:
    resources = [need.resource for need in needs_of(make_config(training={"source_dir": "code"}))]
    assert "arn:aws:s3:::bench-bucket/nodesweep/datasets/digits/x/data/x" in resources
    assert "arn:aws:s3:::bench-bucket/nodesweep/code/x/x" in resources


def test_allowed_actions_pass() -> None:
    found = judge_simulation(ROLE, NEED, [result("allowed")], owner_may_allow=False)
    assert (found.problems, found.notices) == ((), ())


@pytest.mark.parametrize(
    ("answer", "owner_may_allow"),
    [
        (result("implicitDeny"), False),
        (result("explicitDeny"), True),
        (
            result("implicitDeny", OrganizationsDecisionDetail={"AllowedByOrganizations": False}),
            True,
        ),
    ],
)
def test_denied_action_is_a_problem(
    answer: dict[str, Any], owner_may_allow: bool, snapshot: SnapshotAssertion
) -> None:
    assert judge_simulation(ROLE, NEED, [answer], owner_may_allow).problems == snapshot


@pytest.mark.parametrize(
    ("answer", "owner_may_allow"),
    [
        (result("implicitDeny"), True),
        (result("implicitDeny", MissingContextValues=["aws:SourceVpc"]), False),
    ],
)
def test_denial_that_may_be_none_is_a_notice(
    answer: dict[str, Any], owner_may_allow: bool, snapshot: SnapshotAssertion
) -> None:
    found = judge_simulation(ROLE, NEED, [answer], owner_may_allow)
    assert found.problems == ()
    assert found.notices[0] == snapshot


def simulated(decisions: dict[str, str]) -> Any:
    """Return an IAM client whose simulation has these decisions by action, and "allowed" for other
    actions."""

    class Iam:
        def simulate_principal_policy(self, **query: Any) -> dict[str, Any]:
            assert query["PolicySourceArn"] == ROLE and len(query["ResourceArns"]) == 1
            answers = [
                result(decisions.get(action, "allowed"), action) for action in query["ActionNames"]
            ]
            return {"EvaluationResults": answers}

    return Iam()


def test_bucket_with_a_policy_of_its_own_may_allow(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    s3, ecr = aws("s3"), aws("ecr")
    s3.create_bucket(Bucket="bench-bucket")
    iam = simulated({"s3:PutObject": "implicitDeny"})
    asked = question(make_config(), clients(iam=iam, s3=s3, ecr=ecr))
    assert ask_permissions(asked).problems[0] == snapshot
    s3.put_bucket_policy(Bucket="bench-bucket", Policy='{"Version": "2012-10-17", "Statement": []}')
    found = ask_permissions(asked)
    assert found.problems == () and "s3:PutObject" in found.notices[0]


def test_repository_with_a_policy_of_its_own_may_allow(
    aws: Callable[[str], Any], make_config: Configs
) -> None:
    ecr, iam = aws("ecr"), simulated({"ecr:BatchGetImage": "implicitDeny"})
    asked = question(make_config(), clients(iam=iam, ecr=ecr))
    assert "ecr:BatchGetImage" in ask_permissions(asked).problems[0]  # no repository yet
    ecr.create_repository(repositoryName="nodesweep")
    assert "ecr:BatchGetImage" in ask_permissions(asked).problems[0]
    statement = {"Effect": "Allow", "Principal": {"AWS": ROLE}, "Action": "ecr:BatchGetImage"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    ecr.set_repository_policy(repositoryName="nodesweep", policyText=policy)
    assert ask_permissions(asked).problems == ()


def test_repository_of_another_account_cannot_allow_alone(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = make_config(
        image={"uri": "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.3"}
    )
    asked = question(config, clients(iam=simulated({"ecr:BatchGetImage": "implicitDeny"})))
    assert ask_permissions(asked).problems[0] == snapshot


def test_the_repository_that_the_layer_goes_to_is_asked_about(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    """Jobs then pull from it, whatever the image below lies in."""
    ecr, iam = aws("ecr"), simulated({"ecr:BatchGetImage": "explicitDeny"})
    layer = Files(
        requirements=Requirements(Path("requirements.txt"), {"requirements.txt": b"timm"}, None)
    )
    config = make_config(
        image={"uri": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.3"}
    )
    asked = question(config, clients(iam=iam, ecr=ecr), files=layer)
    assert ask_permissions(asked).problems[0] == snapshot
    refused = boto3.client("ecr", "us-east-1")
    with Stubber(refused) as stub:
        stub.add_client_error("describe_repositories", "AccessDeniedException")
        unsure = question(config, clients(iam=iam, ecr=refused), files=layer)
        assert ask_permissions(unsure).problems[0] == snapshot
    ecr.create_repository(repositoryName="nodesweep")
    [problem] = ask_permissions(asked).problems
    assert problem == snapshot


def test_image_outside_ecr_needs_no_permission_there(make_config: Configs) -> None:
    needs = needs_of(make_config(image={"uri": "docker.io/x:1"}))
    assert not any(action == "ecr:BatchGetImage" for need in needs for action in need.actions)


def test_bucket_policy_that_may_not_be_read_may_allow(make_config: Configs) -> None:
    s3 = boto3.client("s3", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    with Stubber(s3) as stub:
        stub.add_client_error("get_bucket_policy", "AccessDenied")
        found = ask_permissions(
            question(
                make_config(), clients(iam=simulated({"s3:ListBucket": "implicitDeny"}), s3=s3)
            )
        )
    assert found.problems == () and len(found.notices) == 1


def test_logs_have_no_owner_that_could_allow(make_config: Configs) -> None:
    asked = question(make_config(), clients(iam=simulated({"logs:PutLogEvents": "implicitDeny"})))
    assert "logs:PutLogEvents" in ask_permissions(asked).problems[0]


def test_permissions_of_a_missing_role_are_the_other_rules_problem(make_config: Configs) -> None:
    iam = boto3.client("iam", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    with Stubber(iam) as stub:
        stub.add_client_error("simulate_principal_policy", "NoSuchEntity")
        assert ask_permissions(question(make_config(), clients(iam=iam))).problems == ()


def test_bucket_policy_that_does_not_answer_is_no_verdict(make_config: Configs) -> None:
    s3 = boto3.client("s3", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    asked = question(
        make_config(), clients(iam=simulated({"s3:ListBucket": "implicitDeny"}), s3=s3)
    )
    with Stubber(s3) as stub, pytest.raises(ClientError, match="SlowDown"):
        stub.add_client_error("get_bucket_policy", "SlowDown")
        identity.simulate_permissions(asked)


KEY = {"output_kms_key_id": "alias/results"}


def kms_with(aws: Callable[[str], Any], **key: Any) -> tuple[Any, str]:
    """Return (KMS client, ARN) of a key with the alias alias/results."""
    kms = aws("kms")
    made = kms.create_key(**key)["KeyMetadata"]
    kms.create_alias(AliasName="alias/results", TargetKeyId=made["KeyId"])
    return kms, made["Arn"]


@pytest.mark.parametrize(
    ("decision", "counts"),
    [("allowed", (0, 0)), ("explicitDeny", (1, 0)), ("implicitDeny", (0, 1))],
)
def test_key_of_the_output_is_asked_for(
    aws: Callable[[str], Any],
    make_config: Configs,
    decision: str,
    counts: tuple[int, int],
    snapshot: SnapshotAssertion,
) -> None:
    """The key's own policy, which every key has, may allow what the role's don't."""
    kms, arn = kms_with(aws)
    iam = simulated({"kms:GenerateDataKey": decision})
    found = ask_permissions(question(make_config(training=KEY), clients(iam=iam, kms=kms)))
    assert (len(found.problems), len(found.notices)) == counts
    assert [plain(text, key=arn) for text in (*found.problems, *found.notices)] == snapshot


def test_key_of_the_volumes_needs_a_grant(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    kms, arn = kms_with(aws)
    iam = simulated({"kms:CreateGrant": "explicitDeny"})
    config = make_config(training={"volume_kms_key_id": arn})
    [problem] = ask_permissions(question(config, clients(iam=iam, kms=kms))).problems
    assert plain(problem, key=arn) == snapshot


def test_key_that_can_not_be_used_is_a_problem(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    asked = question(make_config(training=KEY), clients(iam=simulated({}), kms=aws("kms")))
    [problem] = ask_permissions(asked).problems
    assert problem.startswith("training.output_kms_key_id: ")
    assert problem == snapshot
    kms, arn = kms_with(aws)
    assert ask_permissions(asked).problems == ()
    kms.disable_key(KeyId=arn.rpartition("/")[2])
    assert ask_permissions(asked).problems == snapshot
    spec = {"KeyState": "Enabled", "KeySpec": "RSA_2048"}
    assert judge_key("training.output_kms_key_id", "k", spec).problems == snapshot


def test_key_that_may_not_be_described_is_a_notice(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    kms = boto3.client("kms", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    with Stubber(kms) as stub:
        stub.add_client_error("describe_key", "AccessDeniedException")
        found = ask_permissions(
            question(make_config(training=KEY), clients(iam=simulated({}), kms=kms))
        )
    assert found.problems == ()
    assert found.notices == snapshot
    with Stubber(kms) as stub:
        stub.add_client_error("describe_key", "ThrottlingException")
        asked = question(make_config(training=KEY), clients(iam=simulated({}), kms=kms))
        with pytest.raises(ClientError, match="Throttling"):
            identity.query_key(asked, "training.output_kms_key_id")
