"""Lists every change to moto, and every private name of moto that the platform relies on.

No other module changes moto. The lists were last compared with MOTO_VERSION; with any other version
a test fails until they have been compared again.
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
    "_get_param": "returns a request's parameter; all of moto's response classes use it",
    "_get_resource_from_arn": "finds SageMaker's resource; moto's tag actions fail without one",
    "_pagination_tokens": "continuation tokens of moto's own listings",
    "_truncate_result": "ends a page of ListObjectsV2 and creates its token",
    "_VersionedKeyStore": "a bucket's objects; SortedKeyStore keeps their keys sorted",
}
"""Private name in moto -> its meaning."""


@dataclass(frozen=True)
class Patch:
    """One attribute of a class or module of moto, and what replaces it."""

    owner: Any
    name: str
    replacement: Any
    reason: str
    """moto's behavior that differs from AWS's, or is too slow."""
    operation: tuple[str, str] | None = None
    """(botocore's name of the service, operation); None if the attribute is no AWS operation."""


def _operation(
    service: str, operation: str, owner: Any, make: Callable[[Any], Any], reason: str
) -> Patch:
    """Return the patch of an operation; `make` gets moto's method, or None if moto lacks it."""
    name = camelcase_to_underscores(operation)
    return Patch(
        owner, name, make(getattr(owner, name, None)), reason, operation=(service, operation)
    )


def _logs(operation: str, make: Callable[[Any], Any], reason: str) -> Patch:
    """Return the patch of a CloudWatch Logs operation whose request names a log group."""

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
        "does not raise NoSuchUpload, computes CRC32 for CRC32C and CRC64NVME, and sets no ACL",
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
    """Patch moto; call this before the first bucket is created. Further calls change nothing."""
    for patch in PATCHES:
        setattr(patch.owner, patch.name, patch.replacement)


def patched_operations(service: str) -> set[str]:
    """Return the operations of a service (botocore's name) that the patches add or change."""
    return {
        patch.operation[1]
        for patch in PATCHES
        if patch.operation is not None and patch.operation[0] == service
    }
