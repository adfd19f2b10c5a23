"""Errors about missing fields of a config say what to write."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.load import ConfigError, parse_config


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("platform", "region"),
        ("training", "max_runtime_seconds"),
        ("sweep", "node_counts"),
        ("dataset", "format"),
        ("training", "distribution"),
    ],
)
def test_what_is_missing_is_named_with_what_to_write(
    raw_config: dict[str, Any], section: str, field: str, snapshot: SnapshotAssertion
) -> None:
    del raw_config[section][field]
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="bench.yaml")
    assert str(refused.value) == snapshot


def test_a_missing_section_is_named_with_its_fields(
    raw_config: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    del raw_config["platform"], raw_config["dataset"]
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="bench.yaml")
    said = str(refused.value)
    assert said == snapshot
