"""Run the role check of SageMaker Python SDK v3, which ModelTrainer makes before it sends a job.

The last line of output is the result as JSON: for the predefined role, for one that the SDK
creates, and for one without permissions.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import boto3
from sagemaker.core.helper.iam_role_resolver import IamRoleResolver, RoleValidationError

session = boto3.Session()
trust = {
    "Effect": "Allow",
    "Principal": {"Service": "sagemaker.amazonaws.com"},
    "Action": "sts:AssumeRole",
}
session.client("iam").create_role(
    RoleName="idle",
    AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
)
resolver = IamRoleResolver(SimpleNamespace(boto_session=session))
found = {
    "given": resolver.resolve_and_validate_role("nodesweep-training"),
    "made": resolver.resolve_and_validate_role(resolver.create_execution_role("training")),
}
try:
    found["idle"] = resolver.resolve_and_validate_role("idle")
except RoleValidationError as error:
    found["idle"] = f"refused: {error}"
print(json.dumps(found))
