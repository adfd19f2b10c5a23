"""The stack of infra/aws, deployed into a served local platform."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.infra.local.platform_client import client

TEMPLATE = Path(__file__).resolve().parents[3] / "infra" / "aws" / "nodesweep.yaml"
NO_VALUE = {"Ref": "AWS::NoValue"}
NOT_IN_MOTO = frozenset(
    {"AWS::Budgets::Budget", "AWS::CodeBuild::Project", "AWS::EC2::SecurityGroupEgress",
     "AWS::FSx::DataRepositoryAssociation", "AWS::FSx::FileSystem", "AWS::S3::BucketPolicy",
     "AWS::SQS::QueuePolicy"}
)  # fmt: skip
"""Types that moto's CloudFormation passes over; what depends on them is checked on the template
only.
"""


@cache
def template() -> dict[str, Any]:
    """The template as data, intrinsic functions in their long form."""
    import cfnlint.decode  # takes seconds

    decoded, problems = cfnlint.decode.decode(str(TEMPLATE))
    assert not problems
    return dict(decoded)


def taken(value: Any, branch: int) -> Any:
    """The value with every Fn::If replaced: by its first branch (1: all conditions on), or its
    second (2: off).
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
    """A stack by its outputs and the physical ids of what was made, by logical id."""

    outputs: Mapping[str, str]
    resources: Mapping[str, str]
    types: frozenset[str]


def deploy(endpoint: str, name: str, **parameters: str) -> DeployedStack:
    """Create the stack as `aws cloudformation deploy` does, with these parameters and else the
    defaults.
    """
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
    # moto lists an empty row for what its conditions, or its lack of the type, left out.
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
    """The stack's CodeBuild project, which moto's CloudFormation passes over: its name, type and
    buildspec.
    """
    source = template()["Resources"]["BuildProject"]["Properties"]["Source"]
    client(endpoint, "codebuild").create_project(
        name=stack.outputs["CodeBuildProjectName"],
        # moto wants a location with every type; a build brings its own.
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
    """A role's inline policies, as they were deployed: every reference resolved."""
    iam = client(endpoint, "iam")
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    documents = [
        iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names
    ]
    return [_cleaned(_read(document)) for document in documents]


def _read(document: Any) -> Any:
    """moto keeps a policy of a stack as Python's text of it."""
    return ast.literal_eval(document) if isinstance(document, str) else document


def _cleaned(value: Any) -> Any:
    """Without the nulls that moto leaves where AWS::NoValue removes an item."""
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items() if item is not None}
    return (
        [_cleaned(item) for item in value if item is not None] if isinstance(value, list) else value
    )
