"""Read the outputs of a deployed CloudFormation stack, without importing Prefect."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from nodesweep.aws.local_keys import local_session
from nodesweep.aws.responses import client_of
from nodesweep.configs.load import ConfigError
from nodesweep.configs.presets import PRESETS_DIRECTORY
from nodesweep.configs.written.from_stack import LocalEndpoint
from nodesweep.errors import error_code

STACK_TEMPLATE = PRESETS_DIRECTORY.parent / "infra" / "aws" / "nodesweep.yaml"
"""CloudFormation template of the resources that an account needs."""
_CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=20
)
_DEPLOYED = frozenset(
    {"CREATE_COMPLETE", "IMPORT_COMPLETE", "IMPORT_ROLLBACK_COMPLETE", "UPDATE_COMPLETE",
     "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE"}
)  # fmt: skip


def stack_client(region: str | None, local: LocalEndpoint | None) -> Any:
    """Return a CloudFormation client, for AWS or for a local platform.

    Args:
        region: Region of the stack; None for the default of the AWS configuration.
        local: The local platform that holds the stack; None for AWS.

    Raises:
        ConfigError: No region is configured. For a local platform, local_session() can raise other
            errors.
    """
    session = boto3.Session(region_name=region)
    if session.region_name is None:
        raise ConfigError(
            "no region is configured; give the region of the stack, e.g. --region us-east-1"
        )
    if local is None:
        return client_of(session, "cloudformation", config=_CONFIG)
    own = local_session(local.url, session.region_name, local.state_directory)
    config = _CONFIG.merge(Config(proxies={}))
    return client_of(own, "cloudformation", endpoint_url=local.url, config=config)


def read_outputs(cloudformation: Any, name: str) -> dict[str, str]:
    """Return a stack's outputs by their keys.

    Raises:
        ConfigError: The stack does not exist or is not deployed.
    """
    region = cloudformation.meta.region_name
    try:
        stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    except ClientError as error:
        if error_code(error) == "ValidationError" and "does not exist" in str(error):
            raise ConfigError(
                f"no CloudFormation stack {name!r} in {region}; deploy infra/aws/nodesweep.yaml"
                " first (docs/aws.md), or give its region with --region"
            ) from None
        raise
    status = stack["StackStatus"]
    if status not in _DEPLOYED:
        raise ConfigError(
            f"the stack {name} in {region} is {status};"
            " check its events, and try again once it is deployed"
        )
    return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", ())}
