"""Service Quotas of the emulated instance types: how many nodes of a job fit this machine.

Jobs that do not fit at the same time wait for each other, so the values limit single jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sagemaker_emulator.api.protocol import ApiError, JsonService
from sagemaker_emulator.api.validation import RequestValidator
from sagemaker_emulator.processing import limits as processing_limits
from sagemaker_emulator.training.limits import LOCAL_INSTANCE_TYPES, usage_quota, warm_pool_quota

_MOST_NODES = 1000


def most_nodes(capacity_problem: Callable[[str, int], str | None]) -> dict[str, int]:
    """Return the largest number of nodes of each instance type that a job can have.

    Args:
        capacity_problem: Returns why this number of nodes of a type does not fit, or None.
    """
    found = {}
    for name in LOCAL_INSTANCE_TYPES:
        too_many = (count for count in range(1, _MOST_NODES + 1) if capacity_problem(name, count))
        found[name] = next(too_many, _MOST_NODES + 1) - 1
    return found


def quota_service(most: Mapping[str, int]) -> JsonService:
    """Return Service Quotas with ListServiceQuotas for SageMaker, in a single page."""
    quotas = [
        {"ServiceCode": "sagemaker", "QuotaName": name, "Value": float(count), "Unit": "None"}
        for kind, count in most.items()
        for name in (
            usage_quota(kind, is_spot=False),
            usage_quota(kind, is_spot=True),
            warm_pool_quota(kind),
            processing_limits.usage_quota(kind),
        )
    ]

    def list_quotas(region: str, request: dict[str, Any]) -> dict[str, Any]:
        if request["ServiceCode"] != "sagemaker":
            raise ApiError("NoSuchResourceException", "This platform has quotas of sagemaker only.")
        return {"Quotas": quotas}

    return JsonService(
        target_prefix="ServiceQuotasV20190624",
        signing_name="servicequotas",
        actions={"ListServiceQuotas": list_quotas},
        refused=frozenset(),
        check=RequestValidator("service-quotas").check,
    )
