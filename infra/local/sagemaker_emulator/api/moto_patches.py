"""Lists all changes to moto, and all private names of moto that the platform relies on.

No other module changes moto. The lists were last reviewed for MOTO_VERSION. With any other version,
a test fails until they have been reviewed again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moto import backends
from moto.core.utils import camelcase_to_underscores
from moto.iam.responses import IamResponse
from moto.logs.responses import LogsResponse
from moto.s3 import models
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response
from moto.sagemaker.responses import SageMakerResponse

from sagemaker_emulator.api import moto_additions as additions
from sagemaker_emulator.api import moto_listing as listing

MOTO_VERSION = "5.2.5"
PRIVATE_NAMES = {
    "_get_param": "returns a parameter of a request; all response classes of moto use it",
    "_get_resource_from_arn": "finds a SageMaker resource; moto's tag actions fail without it",
    "_pagination_tokens": "continuation tokens of moto's listings",
    "_truncate_result": "ends a page of ListObjectsV2 and creates its token",
    "_VersionedKeyStore": "the objects in a bucket; SortedKeyStore keeps their keys sorted",
}
"""Descriptions of the private names in moto that are used."""


@dataclass(frozen=True)
class Patch:
    """The replacement of an attribute of a class or module of moto."""

    owner: Any
    name: str
    replacement: Any
    reason: str
    """The behavior of moto that differs from AWS or is too slow."""
    operation: tuple[str, str] | None = None
    """botocore's name of the service, and the operation; None if this is not an operation."""


def _operation(
    service: str, operation: str, owner: Any, make: Callable[[Any], Any], reason: str
) -> Patch:
    """Return the patch of an operation, made from moto's method (None if moto lacks it)."""
    name = camelcase_to_underscores(operation)
    return Patch(
        owner, name, make(getattr(owner, name, None)), reason, operation=(service, operation)
    )


def _logs(operation: str, make: Callable[[Any], Any], reason: str) -> Patch:
    """Return the patch of a CloudWatch Logs operation on a log group."""

    def made(theirs: Any) -> Any:
        return additions.of_a_named_group(operation, make(theirs))

    return _operation("logs", operation, LogsResponse, made, reason)


PATCHES = (
    Patch(
        backends,
        "list_of_moto_modules",
        functools.cache(lambda theirs=backends.list_of_moto_modules: frozenset(theirs())),
        "scans moto's 180 folders for every request, an eighth of a sweep's time",
    ),
    Patch(
        models,
        "_VersionedKeyStore",
        listing.SortedKeyStore,
        "does not keep the keys of a bucket sorted, so a page of a listing sorts them all",
    ),
    Patch(
        S3Backend,
        "list_objects_v2",
        listing.listing_by_page(S3Backend.list_objects_v2),
        "sorts the whole bucket for each page",
    ),
    Patch(
        S3Backend,
        "list_object_versions",
        listing.versions_by_page(S3Backend.list_object_versions),
        "copies the whole bucket for each page, which includes the key of KeyMarker",
    ),
    _operation(
        "iam",
        "SimulatePrincipalPolicy",
        IamResponse,
        lambda theirs: additions.simulate_principal_policy,
        "not implemented; the SageMaker SDK checks a role with it",
    ),
    _logs(
        "FilterLogEvents",
        additions.filtering_by_prefix,
        "ignores logStreamNamePrefix, logGroupIdentifier and streams that do not exist",
    ),
    _logs("GetLogEvents", additions.of_a_known_stream, "has no error for a missing stream"),
    _operation(
        "logs",
        "GetQueryResults",
        LogsResponse,
        additions.of_a_known_query,
        "fails with an internal error for a missing query",
    ),
    *(
        _operation(
            "s3", name, S3Backend, additions.of_a_known_upload, "does not raise NoSuchUpload"
        )
        for name in ("UploadPart", "UploadPartCopy")
    ),
    _operation(
        "s3",
        "CompleteMultipartUpload",
        S3Backend,
        lambda theirs: additions.of_a_known_upload(additions.with_checksum_and_acl(theirs)),
        "does not raise NoSuchUpload, computes CRC32 for CRC32C and CRC64NVME, sets no ACL, and"
        " counts parts that the request leaves out",
    ),
    _operation(
        "s3",
        "PutObjectTagging",
        S3Response,
        additions.with_no_tags,
        "fails with an internal error for an empty TagSet",
    ),
    _operation(
        "s3",
        "HeadObject",
        S3Response,
        additions.of_the_null_version,
        'does not find version "null" in an unversioned bucket',
    ),
    *(
        _operation(
            "sagemaker",
            name,
            SageMakerResponse,
            additions.of_a_known_resource,
            "fails with an internal error for a resource that does not exist",
        )
        for name in ("AddTags", "DeleteTags", "ListTags")
    ),
)


def apply_patches() -> None:
    """Patch moto. Call this before the first bucket is created; it is idempotent."""
    for patch in PATCHES:
        setattr(patch.owner, patch.name, patch.replacement)


def patched_operations(service: str) -> set[str]:
    """Return the operations of a service (botocore's name) that the patches add or change."""
    return {
        patch.operation[1]
        for patch in PATCHES
        if patch.operation is not None and patch.operation[0] == service
    }
