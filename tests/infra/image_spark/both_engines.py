"""Judges datasets of judged_data.py with Spark and on this machine; verdicts must be equal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, describe_remote
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.dataset.validation import validate_tables
from tests.infra.image_spark.judged_data import BUCKET, CASES

NOW = datetime(2026, 11, 29, tzinfo=UTC)
_DELETED = "only-empty"


class Asked(NamedTuple):
    """A dataset as the flow knows it, and the flow's request."""

    config: DatasetConfig
    dataset: RemoteDataset
    request: str


def ask(s3: Any, names: Collection[str]) -> dict[str, Asked]:
    """Upload these datasets, each below its own prefix; return the requests by prefix.

    One object is deleted after it was listed.
    """
    s3.create_bucket(Bucket=BUCKET)
    asked = {}
    for name in names:
        case = CASES[name]
        prefix = name.replace(" ", "-")
        config = case.put(s3, prefix)
        dataset = describe_remote(s3, config)
        asked[prefix] = Asked(config, dataset, json.dumps(request_document(config, dataset)))
    s3.delete_object(Bucket=BUCKET, Key=f"{_DELETED}/e.parquet")
    return asked


def assert_one_verdict(s3: Any, asked: Mapping[str, Asked], verdicts: Mapping[str, str]) -> None:
    """Assert that these verdicts, JSON by prefix, give the reports of this machine."""
    found = {prefix: json.loads(text) for prefix, text in verdicts.items()}
    assert set(found) == set(asked)
    for prefix, (config, dataset, _) in asked.items():
        if prefix == _DELETED:
            error = found[prefix]["error"]
            assert (error["kind"], error["key"]) == ("deleted", f"{_DELETED}/e.parquet")
            continue
        theirs = validate_tables(remote_tables(s3, dataset, config), config, now=NOW)
        ours = report_of(found[prefix], config, dataset, NOW)
        assert ours.model_dump() == theirs.model_dump(), prefix
    # Over 2 files; without this, a Spark that proves nothing would pass too.
    assert found["types"]["spark"]["proven"] >= 30
