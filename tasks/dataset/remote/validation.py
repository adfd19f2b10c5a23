"""Validate a dataset in S3 without copying it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.infra.image_spark.nodesweep_judge.layout import partitions_of
from nodesweep.tasks.dataset.judging.tables import TableFile
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, RemoteSource
from nodesweep.tasks.dataset.remote.reading import opener
from nodesweep.tasks.dataset.validation import validate_tables
from nodesweep.tasks.dataset.validation_report import ValidationReport


def remote_tables(s3: Any, dataset: RemoteDataset, config: DatasetConfig) -> list[TableFile]:
    """Return the objects as table files, with their names and modification times."""
    names = [dataset.name_of(item) for item in dataset.objects]
    return [
        TableFile(
            name,
            item.modified.timestamp(),
            opener(s3, dataset.bucket, item, in_order=config.format == "csv"),
            item.size_bytes,
            is_remote=True,
            partition=partition,
        )
        for item, name, partition in zip(dataset.objects, names, partitions_of(names), strict=True)
    ]


def validate_remote(source: RemoteSource, dataset: RemoteDataset) -> ValidationReport:
    """Validate the dataset's objects, read in place in S3, against its expectations."""
    tables = remote_tables(source.s3, dataset, source.section)
    return validate_tables(tables, source.section, now=datetime.now(UTC))
