"""S3 URIs in requests, and names that no bucket can have, such as placeholders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from sagemaker_emulator.builds.source import SourceError, fetch_source
from sagemaker_emulator.jobs.downloads import (
    DataDownloadError,
    Download,
    FolderObject,
    _place,
    check_sources,
)
from sagemaker_emulator.jobs.folder_sync import FolderSync, RestoreError, SyncedFolder
from sagemaker_emulator.s3_objects import S3Location


@pytest.mark.parametrize(
    ("uri", "bucket", "key"),
    [
        ("s3://b/k/l", "b", "k/l"),
        ("s3://b/k//l?x#y %41", "b", "k//l?x#y %41"),
        ("s3://b/", "b", ""),
        ("s3://b", "b", ""),
        ("s3://[your-bucket]/k", "[your-bucket]", "k"),
        ("https://s3.us-east-1.amazonaws.com/b/k/%41?versionId=1", "b", "k/A"),
        ("https://x", "", ""),
        ("none", "", ""),
    ],
)
def test_location_of_a_uri(uri: str, bucket: str, key: str) -> None:
    assert S3Location.parse(uri) == S3Location(bucket, key)


PLACEHOLDER = S3Location("<bucket>", "data/")
SOURCE = {"S3Uri": str(PLACEHOLDER), "S3DataType": "S3Prefix"}


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda s3, path: fetch_source(s3, PLACEHOLDER, path), SourceError),
        (lambda s3, path: check_sources(s3, [Download(SOURCE, "train")]), DataDownloadError),
        (
            lambda s3, path: _place(s3, FolderObject(PLACEHOLDER, "x"), [path]),
            DataDownloadError,
        ),
        *(
            (
                lambda s3, path, restored=restored: FolderSync(
                    s3, [SyncedFolder("checkpoints", PLACEHOLDER, restored)], []
                ).restore(),
                RestoreError,
            )
            for restored in (True, False)
        ),
    ],
)
def test_name_that_no_bucket_can_have_is_the_users_error(
    use: Callable[[Any, Path], None], error: type[Exception], tmp_path: Path
) -> None:
    """boto3 refuses the name itself, so S3 does not return an error."""
    key = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    s3 = boto3.client("s3", "us-east-1", endpoint_url="http://127.0.0.1:9", **key)
    with pytest.raises(error) as raised:
        use(s3, tmp_path)
    assert '"<bucket>"' in str(raised.value) and "\n" not in str(raised.value)
