"""All clients of a process read their models by one reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import botocore.session
import pytest

import nodesweep.aws.api_models
from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig


def test_a_model_is_read_once_for_all_clients_of_a_process(
    aws: Callable[[str], Any], platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients are for two regions; with a session for each, the model would be read twice."""
    reader, read = botocore.session.Session().get_component("data_loader"), list[str]()
    monkeypatch.setattr(nodesweep.aws.api_models, "_reader", lambda: reader)
    load = reader.load_data_with_path

    def counted(name: str) -> Any:
        read.append(name)
        return load(name)

    monkeypatch.setattr(reader, "load_data_with_path", counted)
    aws_client.cache_clear()
    for region in ("us-east-1", "eu-west-1"):
        client = aws_client("sagemaker", platform.model_copy(update={"region": region}))
        assert client.meta.region_name == region
    aws_client.cache_clear()
    assert sum(name.startswith("sagemaker/") and name.endswith("service-2") for name in read) == 1
