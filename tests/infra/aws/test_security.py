"""The template meets infra/aws/security.guard, and each rule refuses the change that it is meant to
prevent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import cfn_guard_rs
import pytest

from tests.infra.aws.deployed import TEMPLATE, taken, template

RULES = TEMPLATE.with_name("security.guard").read_text()


def variant(branch: int) -> dict[str, Any]:
    """Return the template as plain data under one choice of conditions; with conditions off, their
    resources are missing."""
    plain = json.loads(json.dumps(template(), default=str))
    found = taken(plain, branch)
    if branch == 2:
        found["Resources"] = {
            name: one for name, one in found["Resources"].items() if "Condition" not in one
        }
    return dict(found)


def broken_rules(found: dict[str, Any]) -> list[str]:
    report = cfn_guard_rs.run_checks(found, RULES)
    return [clause.Rule.name for clause in report.not_compliant]


@pytest.mark.parametrize("branch", [1, 2])
def test_template_keeps_every_rule(branch: int) -> None:
    assert broken_rules(variant(branch)) == []


def properties(found: dict[str, Any], resource: str) -> dict[str, Any]:
    return found["Resources"][resource]["Properties"]


def statements(found: dict[str, Any], role: str) -> list[dict[str, Any]]:
    return list(properties(found, role)["Policies"][0]["PolicyDocument"]["Statement"])


def open_public(found: dict[str, Any]) -> None:
    properties(found, "Bucket")["PublicAccessBlockConfiguration"]["BlockPublicPolicy"] = False


def suspend(found: dict[str, Any]) -> None:
    properties(found, "Bucket")["VersioningConfiguration"]["Status"] = "Suspended"


def drop_tls(found: dict[str, Any]) -> None:
    del found["Resources"]["BucketPolicy"]


def share_bucket(found: dict[str, Any]) -> None:
    properties(found, "BucketPolicy")["PolicyDocument"]["Statement"].append(
        {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "*"}
    )


def mutable(found: dict[str, Any]) -> None:
    properties(found, "Repository")["ImageTagMutability"] = "MUTABLE"


def build_secret(found: dict[str, Any]) -> None:
    properties(found, "BuildProject")["Environment"]["EnvironmentVariables"] = [
        {"Name": "TOKEN", "Value": "s3cr3t"}
    ]


def all_of_s3(found: dict[str, Any]) -> None:
    statements(found, "PipelineRole")[0]["Action"] = ["s3:ListBucket", "s3:*"]


def administrator(found: dict[str, Any]) -> None:
    properties(found, "BuildRole")["ManagedPolicyArns"] = [
        "arn:aws:iam::aws:policy/AdministratorAccess"
    ]


def trust_all(found: dict[str, Any]) -> None:
    properties(found, "PipelineRole")["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] = {
        "AWS": ["*"]
    }


def confused_deputy(found: dict[str, Any]) -> None:
    del properties(found, "ExecutionRole")["AssumeRolePolicyDocument"]["Statement"][0]["Condition"]


def pass_anywhere(found: dict[str, Any]) -> None:
    [statement] = [
        one for one in statements(found, "PipelineRole") if one["Action"] == "iam:PassRole"
    ]
    del statement["Condition"]


def stale_key(found: dict[str, Any]) -> None:
    properties(found, "Key")["EnableKeyRotation"] = False


def plain_queue(found: dict[str, Any]) -> None:
    properties(found, "EventQueue")["SqsManagedSseEnabled"] = False


def endless_log(found: dict[str, Any]) -> None:
    del properties(found, "BuildLogs")["RetentionInDays"]


def internet(found: dict[str, Any]) -> None:
    found["Resources"]["Gateway"] = {"Type": "AWS::EC2::InternetGateway"}


def ssh(found: dict[str, Any]) -> None:
    properties(found, "NodeGroup")["SecurityGroupIngress"] = [
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0"}
    ]


def open_endpoint(found: dict[str, Any]) -> None:
    del properties(found, "LogsEndpoint")["PolicyDocument"]


CHANGES = {
    open_public: "bucket_is_private",
    suspend: "bucket_is_versioned_and_encrypted",
    drop_tls: "bucket_takes_tls_only",
    share_bucket: "bucket_policy_allows_nobody",
    mutable: "images_are_immutable_and_scanned",
    build_secret: "builds_run_on_linux_and_log",
    all_of_s3: "roles_name_their_actions",
    administrator: "roles_name_their_actions",
    trust_all: "roles_are_not_assumed_by_anybody",
    confused_deputy: "roles_are_not_assumed_by_anybody",
    pass_anywhere: "roles_are_passed_to_sagemaker_only",
    stale_key: "keys_rotate",
    plain_queue: "queues_are_encrypted",
    endless_log: "logs_end_some_day",
    internet: "network_is_private",
    ssh: "nobody_reaches_the_nodes_from_outside",
    open_endpoint: "endpoints_take_this_accounts_keys_only",
}


@pytest.mark.parametrize(
    ("change", "rule"), CHANGES.items(), ids=[change.__name__ for change in CHANGES]
)
def test_rule_refuses(change: Callable[[dict[str, Any]], None], rule: str) -> None:
    found = variant(1)
    change(found)
    assert broken_rules(found) == [rule]


def test_every_rule_is_shown_to_refuse_something() -> None:
    assert set(re.findall(r"^rule (\w+)", RULES, re.MULTILINE)) == set(CHANGES.values())
