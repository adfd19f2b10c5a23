"""Run by the SageMaker Python SDK v3's core: the check that ModelTrainer makes of a role before it
sends a job.

The last line is what came of it, as JSON: of the role that is there from the start, of one that the
SDK makes, and of one that may do nothing.
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
