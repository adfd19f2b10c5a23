"""Quotas on the instances of jobs in progress."""

from __future__ import annotations

from collections.abc import Mapping

from sagemaker_emulator.api.protocol import ApiError


def check_quota(quotas: Mapping[str, int], name: str, in_use: int, asked: int) -> None:
    """Check that `asked` more instances stay within a quota, which is unlimited by default.

    A quota configured by instance type alone applies to (on-demand) training job usage.

    Raises:
        ResourceLimitExceeded: If the quota would be exceeded; the message is AWS's.
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
