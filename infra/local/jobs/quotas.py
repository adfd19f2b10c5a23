"""How many instances jobs in progress may have at once."""

from __future__ import annotations

from collections.abc import Mapping

from nodesweep.infra.local.api.protocol import ApiError


def check_quota(quotas: Mapping[str, int], name: str, in_use: int, asked: int) -> None:
    """Raise ResourceLimitExceeded in AWS's words; what has no configured quota has none.

    A quota given by instance type alone is the one for (on-demand) training job usage.
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
