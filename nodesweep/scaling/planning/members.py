"""Members that requests for training and processing jobs have only if they are configured."""

from __future__ import annotations

from typing import Any

from nodesweep.configs.training import TrainingConfig


def given(**members: Any) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def network_members(training: TrainingConfig) -> dict[str, Any]:
    """Return the members for the VPC and inter-container encryption that are configured."""
    vpc = training.vpc and {
        "Subnets": list(training.vpc.subnets),
        "SecurityGroupIds": list(training.vpc.security_group_ids),
    }
    return given(
        VpcConfig=vpc,
        EnableInterContainerTrafficEncryption=training.encrypt_inter_container_traffic or None,
    )
