"""The quotas of the local instance types, with an unmodified boto3 client."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client, serve_platform
from sagemaker_emulator.training.service_quotas import most_nodes


def test_quotas_are_the_nodes_that_fit_the_machine(tmp_path: Path) -> None:
    with contextmanager(serve_platform)(tmp_path) as platform:
        quotas = client(platform.endpoint, "service-quotas")
        found = {
            row["QuotaName"]: row["Value"]
            for row in quotas.list_service_quotas(ServiceCode="sagemaker")["Quotas"]
        }
        with pytest.raises(ClientError, match="NoSuchResourceException"):
            quotas.list_service_quotas(ServiceCode="vpc")
    for use in ("training job", "spot training job", "training warm pool", "processing job"):
        assert found[f"ml.local.small for {use} usage"] == 8


def test_a_type_without_capacity_has_a_quota_of_zero_and_others_an_upper_bound() -> None:
    found = most_nodes(lambda name, count: "none" if name == "ml.local.large" else None)
    assert (found["ml.local.large"], found["ml.local.small"]) == (0, 1000)
