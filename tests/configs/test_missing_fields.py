"""What a config lacks is named with what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nodesweep.configs.load import ConfigError, parse_config


@pytest.mark.parametrize(
    ("section", "field", "message"),
    [
        (
            "platform",
            "region",
            "platform.region: Field required: a text. AWS region, e.g. us",
        ),
        (
            "training",
            "max_runtime_seconds",
            "training.max_runtime_seconds: Field required: a whole number. Stop a job after",
        ),
        ("sweep", "node_counts", "sweep.node_counts: Field required: a list. Node counts to"),
        (
            "dataset",
            "format",
            "dataset.format: Field required: one of parquet, csv, files. parquet or csv: tables",
        ),
        (
            "training",
            "distribution",
            "training.distribution: Field required: a section whose kind is one of none,",
        ),
    ],
)
def test_what_is_missing_is_named_with_what_to_write(
    raw_config: dict[str, Any], section: str, field: str, message: str
) -> None:
    del raw_config[section][field]
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config(raw_config, origin="bench.yaml")


def test_a_missing_section_is_named_with_its_fields(raw_config: dict[str, Any]) -> None:
    del raw_config["platform"], raw_config["dataset"]
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="bench.yaml")
    said = str(refused.value)
    assert "platform: Field required: a section with region, bucket, role_arn" in said
    assert "dataset: Field required: a section with name, source, format or null. The tr" in said
