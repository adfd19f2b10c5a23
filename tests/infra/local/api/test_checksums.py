"""A body that is not what its checksum says is refused, and nothing is kept of it."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.infra.local.platform_client import serve_platform

BODY = b"some bytes"
GOOD = {
    "SHA256": hashlib.sha256(BODY).digest(),
    "SHA1": hashlib.sha1(BODY).digest(),
    "CRC32": zlib.crc32(BODY).to_bytes(4, "big"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        platform.s3.create_bucket(Bucket="checked")
        yield platform


@pytest.mark.parametrize("name", sorted(GOOD))
def test_checksum_in_the_headers_is_compared(served: SimpleNamespace, name: str) -> None:
    sent: dict[str, Any] = {
        "Bucket": "checked",
        "Key": name,
        "ChecksumAlgorithm": name,
        f"Checksum{name}": base64.b64encode(GOOD[name]).decode(),
    }
    with pytest.raises(ClientError, match=rf"\(BadDigest\).*The {name} you specified"):
        served.s3.put_object(**sent, Body=BODY[:-1])
    assert "Contents" not in served.s3.list_objects_v2(Bucket="checked", Prefix=name)
    served.s3.put_object(**sent, Body=BODY)
    assert served.s3.get_object(Bucket="checked", Key=name)["Body"].read() == BODY


def test_checksum_of_a_part_is_compared(served: SimpleNamespace) -> None:
    place = {"Bucket": "checked", "Key": "parts"}
    upload = served.s3.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")["UploadId"]
    said = base64.b64encode(GOOD["SHA256"]).decode()
    part = {**place, "UploadId": upload, "PartNumber": 1, "ChecksumSHA256": said}
    with pytest.raises(ClientError, match="BadDigest"):
        served.s3.upload_part(**part, Body=b"other")
    served.s3.upload_part(**part, Body=BODY)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (base64.b64encode(hashlib.md5(b"other").digest()).decode(), "BadDigest"),
        (base64.b64encode(b"short").decode(), "InvalidDigest"),
        ("no base64", "InvalidDigest"),
    ],
)
def test_content_md5_is_compared(served: SimpleNamespace, said: str, code: str) -> None:
    with pytest.raises(ClientError, match=rf"\({code}\).*The Content-MD5 you specified"):
        served.s3.put_object(Bucket="checked", Key="md5", Body=BODY, ContentMD5=said)
    assert "Contents" not in served.s3.list_objects_v2(Bucket="checked", Prefix="md5")
    right = base64.b64encode(hashlib.md5(BODY).digest()).decode()
    served.s3.put_object(Bucket="checked", Key="right-md5", Body=BODY, ContentMD5=right)


def test_what_says_nothing_is_taken(served: SimpleNamespace) -> None:
    for algorithm in ("CRC32C", "CRC64NVME"):
        said = {f"Checksum{algorithm}": "AAAAAA=="}
        served.s3.put_object(Bucket="checked", Key=algorithm, Body=BODY, **said)
    served.s3.put_object(Bucket="checked", Key="nothing", Body=b"")
