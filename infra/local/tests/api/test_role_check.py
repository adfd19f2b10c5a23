"""The check of a job's role by SageMaker's SDK: the role exists, trusts SageMaker, and has the
permissions that jobs need."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client
from sagemaker_emulator.api.policies import decision

ROLE = "arn:aws:iam::000000000000:role/nodesweep-training"


@pytest.fixture
def iam(platform: SimpleNamespace) -> Any:
    return client(platform.endpoint, "iam")


def decisions(iam: Any, arn: str, actions: list[str], **more: Any) -> dict[str, str]:
    answer = iam.simulate_principal_policy(PolicySourceArn=arn, ActionNames=actions, **more)
    assert answer["IsTruncated"] is False
    return {
        result["EvalActionName"]: result["EvalDecision"] for result in answer["EvaluationResults"]
    }


def test_role_is_there_from_the_start_and_trusts_sagemaker(iam: Any) -> None:
    role = iam.get_role(RoleName="nodesweep-training")["Role"]
    assert role["Arn"] == ROLE
    [statement] = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert decisions(iam, ROLE, ["s3:GetObject", "ecr:BatchGetImage"]) == {
        "s3:GetObject": "allowed",
        "ecr:BatchGetImage": "allowed",
    }


def test_role_of_a_stack_by_the_policies_of_its_template(
    platform: SimpleNamespace, iam: Any
) -> None:
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    properties = {
        "RoleName": "of-a-stack",
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []},
        "Policies": [{"PolicyName": "in", "PolicyDocument": {"Statement": [statement]}}],
    }
    role = {"Type": "AWS::IAM::Role", "Properties": properties}
    client(platform.endpoint, "cloudformation").create_stack(
        StackName="roles", TemplateBody=json.dumps({"Resources": {"Role": role}})
    )
    arn = iam.get_role(RoleName="of-a-stack")["Role"]["Arn"]
    assert decisions(iam, arn, ["s3:GetObject", "s3:PutObject"]) == {
        "s3:GetObject": "allowed",
        "s3:PutObject": "implicitDeny",
    }


def test_own_role_by_its_policies(iam: Any) -> None:
    iam.create_role(RoleName="narrow", AssumeRolePolicyDocument="{}")
    inline = [{"Effect": "Allow", "Action": ["s3:Get*"], "Resource": "arn:aws:s3:::data/*"}]
    iam.put_role_policy(RoleName="narrow", PolicyName="in", PolicyDocument=document(inline))
    denied = [{"Effect": "Deny", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::data/secret"}]
    managed = iam.create_policy(PolicyName="no-secret", PolicyDocument=document(denied))["Policy"][
        "Arn"
    ]
    iam.attach_role_policy(RoleName="narrow", PolicyArn=managed)
    arn = iam.get_role(RoleName="narrow")["Role"]["Arn"]
    open_object, secret = ["arn:aws:s3:::data/open"], ["arn:aws:s3:::data/secret"]
    asked = ["s3:GetObject", "s3:PutObject"]
    assert decisions(iam, arn, asked, ResourceArns=open_object) == {
        "s3:GetObject": "allowed",
        "s3:PutObject": "implicitDeny",
    }
    assert decisions(iam, arn, asked[:1], ResourceArns=secret) == {"s3:GetObject": "explicitDeny"}


def test_principal_that_is_not_there(iam: Any) -> None:
    with pytest.raises(ClientError, match=r"\(NoSuchEntity\).*role/nobody cannot be found"):
        decisions(iam, "arn:aws:iam::000000000000:role/nobody", ["s3:GetObject"])


def document(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ({"Action": "S3:getobject", "Resource": "*"}, "allowed"),
        ({"Action": "s3:GetObject?", "Resource": "*"}, "implicitDeny"),
        ({"Action": "s3:Get[O]bject", "Resource": "*"}, "implicitDeny"),
        ({"NotAction": "iam:*", "Resource": "*"}, "allowed"),
        ({"NotAction": "s3:*", "Resource": "*"}, "implicitDeny"),
        ({"Action": "*", "Resource": "arn:aws:s3:::b/?"}, "allowed"),
        ({"Action": "*", "Resource": "arn:aws:s3:::B/k"}, "implicitDeny"),
        ({"Action": "*", "NotResource": "arn:aws:s3:::b/*"}, "implicitDeny"),
        (
            {
                "Action": "*",
                "Resource": "*",
                "Condition": {"Bool": {"aws:SecureTransport": "true"}},
            },
            "implicitDeny",
        ),
    ],
)
def test_statement(statement: dict[str, Any], expected: str) -> None:
    policy = {"Statement": {"Effect": "Allow", **statement}}
    assert decision([policy], "s3:GetObject", "arn:aws:s3:::b/k") == expected
