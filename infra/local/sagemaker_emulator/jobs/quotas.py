"""Checks quotas on the instances of jobs in progress."""

from __future__ import annotations

from collections.abc import Mapping

from sagemaker_emulator.api.protocol import ApiError


def check_quota(quotas: Mapping[str, int], name: str, in_use: int, asked: int) -> None:
    """Check that `asked` more instances do not exceed a quota, which is unlimited by default.

    A quota whose name is only an instance type applies to on-demand training jobs.

    Raises:
        ResourceLimitExceeded: If the quota would be exceeded, worded as on AWS.
    """
    by_type = (
        quotas.get(name.partition(" ")[0]) if name.endswith(" for training job usage") else None
    )
    quota = quotas.get(name, by_type)
    if quota is not None and in_use + asked > quota:
        raise ApiError(
            "ResourceLimitExceeded",
            f"The account-level service limit '{name}' is {quota} Instances, with "
            f"current utilization of {in_use} Instances and a request delta of {asked} Instances. "
            "Please use AWS Service Quotas to request an increase for this quota.",
        )
