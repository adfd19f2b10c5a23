"""Checks the S3 location of a job's output."""

from __future__ import annotations

import re
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.s3_objects import S3_ERRORS, S3Location

_S3_URI = re.compile(r"s3://[^/]+.*|https://s3[.-][^/]*amazonaws\.com/[^/]+.*", re.DOTALL)
"""s3://bucket/prefix or the equivalent HTTPS URL, which SageMaker also accepts."""


def refuse_missing_bucket(s3: Any, uri: str, member: str, role_arn: str, region: str) -> None:
    """Check that the bucket for a job's output exists, since the output would be lost otherwise.

    Raises:
        ValidationException: If the bucket does not exist, or if the URI is invalid.
    """
    if not _S3_URI.fullmatch(uri):
        raise validation_error(
            f'The {member} "{uri}" is not an S3 URI; expected s3://bucket/prefix'
        )
    bucket = S3Location.parse(uri).bucket
    try:
        s3.head_bucket(Bucket=bucket)
    except S3_ERRORS as error:
        raise validation_error(
            f'The S3 bucket "{bucket}" given in {member} "{uri}" does not exist or can not be'
            f' accessed with the role "{role_arn}" in region {region}.'
        ) from error
