"""The stack of infra/aws, deployed into a served local platform."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from infra.local.tests.platform_client import client

TEMPLATE = Path(__file__).resolve().parents[3] / "infra" / "aws" / "nodesweep.yaml"
NO_VALUE = {"Ref": "AWS::NoValue"}
NOT_IN_MOTO = frozenset(
    {"AWS::Budgets::Budget", "AWS::CodeBuild::Project", "AWS::EC2::SecurityGroupEgress",
     "AWS::FSx::DataRepositoryAssociation", "AWS::FSx::FileSystem", "AWS::S3::BucketPolicy",
     "AWS::SQS::QueuePolicy"}
)  # fmt: skip
"""Types that moto's CloudFormation ignores; their dependents are tested on the template only."""


@cache
def template() -> dict[str, Any]:
    """Return the template as data, with intrinsic functions in their long form."""
    import cfnlint.decode  # takes seconds

    decoded, problems = cfnlint.decode.decode(str(TEMPLATE))
    assert not problems
    return dict(decoded)


def taken(value: Any, branch: int) -> Any:
    """Return the value with every Fn::If replaced by one of its branches.

    Args:
        value: Part of the template.
        branch: 1 for all conditions true, 2 for all false.
    """
    if isinstance(value, dict):
        if "Fn::If" in value:
            return taken(value["Fn::If"][branch], branch)
        found = {key: taken(item, branch) for key, item in value.items()}
        return {key: item for key, item in found.items() if item != NO_VALUE}
    if isinstance(value, list):
        return [item for item in (taken(one, branch) for one in value) if item != NO_VALUE]
    return value


@dataclass(frozen=True)
class DeployedStack:
    """A stack's outputs, and physical IDs and types of its resources, by logical ID."""

    outputs: Mapping[str, str]
    resources: Mapping[str, str]
    types: frozenset[str]


def deploy(endpoint: str, name: str, **parameters: str) -> DeployedStack:
    """Create the stack as `aws cloudformation deploy` does, with defaults for other parameters."""
    cloudformation = client(endpoint, "cloudformation")
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=TEMPLATE.read_text(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[
            {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
        ],
    )
    stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    # moto lists an empty row for resources that a condition excludes or whose type it lacks.
    rows = [
        row
        for row in cloudformation.describe_stack_resources(StackName=name)["StackResources"]
        if "LogicalResourceId" in row
    ]
    return DeployedStack(
        {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]},
        {row["LogicalResourceId"]: row.get("PhysicalResourceId", "") for row in rows},
        frozenset(row["ResourceType"] for row in rows),
    )


def make_project(endpoint: str, stack: DeployedStack) -> None:
    """Create the stack's CodeBuild project, which moto's CloudFormation ignores."""
    source = template()["Resources"]["BuildProject"]["Properties"]["Source"]
    client(endpoint, "codebuild").create_project(
        name=stack.outputs["CodeBuildProjectName"],
        # moto requires a location for every type; a build overrides it.
        source={"type": source["Type"], "buildspec": source["BuildSpec"], "location": "none/none"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={
            "type": "LINUX_CONTAINER",
            "image": "i",
            "computeType": "BUILD_GENERAL1_MEDIUM",
        },
        serviceRole=f"arn:aws:iam::000000000001:role/{stack.resources['BuildRole']}",
    )


def policies_of(endpoint: str, role: str) -> list[dict[str, Any]]:
    """Return a role's inline policies as deployed, with every reference resolved."""
    iam = client(endpoint, "iam")
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    documents = [
        iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names
    ]
    return [_cleaned(_read(document)) for document in documents]


def _read(document: Any) -> Any:
    """Return a policy document as data; moto keeps a stack's as Python source."""
    return ast.literal_eval(document) if isinstance(document, str) else document


def _cleaned(value: Any) -> Any:
    """Drop the nulls that moto leaves where AWS::NoValue removes an item."""
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items() if item is not None}
    return (
        [_cleaned(item) for item in value if item is not None] if isinstance(value, list) else value
    )
