"""Reading an object from moto's memory returns the same response as GetObject."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID

from sagemaker_emulator.api.moto_objects import part_sizes_bytes, stored_object

TOLD = (
    "ETag", "LastModified", "ContentType", "ContentEncoding", "ContentDisposition",
    "ContentLanguage", "CacheControl", "Metadata", "StorageClass", "TagCount", "ChecksumCRC32",
    "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256",
)  # fmt: skip


@functools.cache
def session() -> boto3.Session:
    """Return the session of all tests; a new one reads botocore's models again."""
    return boto3.Session("testing", "testing")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = session().client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="kept")
        yield client


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"Body": b""},
        {"ContentType": "text/csv; charset=utf-8", "CacheControl": "no-store"},
        {"ContentEncoding": "gzip", "ContentDisposition": 'attachment; filename="a b"'},
        {"ContentLanguage": "de"},
        {"Metadata": {"sha256": "abc", "with_underscore": "1", "Capital": "X", "space": "a b"}},
        {"Tagging": "team=a&purpose=b"},
        {"StorageClass": "STANDARD_IA"},
        {"ServerSideEncryption": "AES256"},
        {"ChecksumAlgorithm": "SHA256"},
        {"ChecksumAlgorithm": "CRC32"},
        {"ChecksumAlgorithm": "SHA1", "Key": "odd/ü name+%2F_x"},
    ],
)
@pytest.mark.parametrize("is_versioned", [False, True])
def test_answers_are_those_of_a_call(s3: Any, request_: dict[str, Any], is_versioned: bool) -> None:
    if is_versioned:
        s3.put_bucket_versioning(Bucket="kept", VersioningConfiguration={"Status": "Enabled"})
    sent = {"Bucket": "kept", "Key": "a", "Body": b"some bytes", **request_}
    s3.put_object(**sent)
    called = s3.get_object(Bucket="kept", Key=sent["Key"], ChecksumMode="ENABLED")
    short = stored_object(DEFAULT_ACCOUNT_ID, "kept", sent["Key"])
    assert short is not None
    assert {name: short.get(name) for name in TOLD} == {name: called.get(name) for name in TOLD}
    assert short["Body"] == called["Body"].read() == sent["Body"]


@pytest.mark.parametrize("number", [1, 3])
def test_part_sizes(s3: Any, number: int) -> None:
    upload = {"Bucket": "kept", "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    etag = s3.upload_part(**upload, PartNumber=number, Body=b"1")["ETag"]
    parts = [{"PartNumber": number, "ETag": etag}]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    s3.put_object(Bucket="kept", Key="whole", Body=b"1")
    assert part_sizes_bytes(DEFAULT_ACCOUNT_ID, "kept", "parts") == [1]
    for key in ("whole", "nothing"):
        assert part_sizes_bytes(DEFAULT_ACCOUNT_ID, "kept", key) == []


def test_what_only_a_call_tells_is_left_to_it(s3: Any) -> None:
    def told(key: str, bucket: str = "kept") -> Any:
        return stored_object(DEFAULT_ACCOUNT_ID, bucket, key)

    assert told("nothing") is None and told("a", "no-such-bucket") is None
    s3.put_object(Bucket="kept", Key="archived", Body=b"1", StorageClass="GLACIER")
    assert told("archived") is None
    upload = {"Bucket": "kept", "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    part = s3.upload_part(**upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(**upload, MultipartUpload=parts)
    assert told("parts") is None
    s3.put_object(Bucket="kept", Key="gone", Body=b"1")
    s3.delete_object(Bucket="kept", Key="gone")
    assert told("gone") is None
