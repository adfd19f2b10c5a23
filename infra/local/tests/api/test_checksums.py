"""A body that does not match its checksum is refused, and no part of it is stored."""

from __future__ import annotations

import base64
import hashlib
import http.client
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client, serve_platform
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.api.checksums import (
    ALGORITHMS,
    check_signed_hash,
    checksum,
    sign_chunks_as,
)
from sagemaker_emulator.api.protocol import ApiError

BODY = b"some bytes"
GOOD = {
    "SHA512": hashlib.sha512(BODY).digest(),
    "SHA256": hashlib.sha256(BODY).digest(),
    "SHA1": hashlib.sha1(BODY).digest(),
    "MD5": hashlib.md5(BODY).digest(),
    "CRC32": zlib.crc32(BODY).to_bytes(4, "big"),
    "CRC32C": bytes.fromhex("f6cd5543"),
    "CRC64NVME": bytes.fromhex("ef5ce0d0746ff4ee"),
}
SAID = {name: base64.b64encode(digest).decode() for name, digest in GOOD.items()}
MANY = "Expecting a single x-amz-checksum- header"


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
    served.s3.put_object(Bucket="checked", Key="nothing", Body=b"")


def test_crcs_are_those_of_the_catalogue() -> None:
    """Check values of CRC-32/ISCSI and CRC-64/NVME in the catalogue of parametrised CRCs."""
    digits = b"123456789"
    assert ALGORITHMS["CRC32C"](digits).hex() == "e3069283"
    assert ALGORITHMS["CRC64NVME"](digits).hex() == "ae8b14860a799888"


@pytest.mark.parametrize("said", ["AAAA", "no base64", ""])
@pytest.mark.parametrize("name", ["CRC32C", "SHA256"])
def test_what_is_no_checksum_is_refused(served: SimpleNamespace, name: str, said: str) -> None:
    with pytest.raises(ClientError, match=r"\(InvalidRequest\).*Value for x-amz-checksum-"):
        served.s3.put_object(
            Bucket="checked",
            Key="k",
            Body=BODY,
            ChecksumAlgorithm=name,
            **{f"Checksum{name}": said},
        )


def test_signed_hash_of_the_body_is_compared(served: SimpleNamespace) -> None:
    """Some clients send only this hash and no other checksum."""
    code, answer = put(served, "signed", BODY, hashlib.sha256(b"other").hexdigest())
    assert (code, "<Code>XAmzContentSHA256Mismatch</Code>" in answer) == (400, True)
    assert put(served, "signed", BODY, hashlib.sha256(BODY).hexdigest())[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_MD5": base64.b64encode(hashlib.md5(BODY).digest()).decode()},
        {"X_Amz_Checksum_SHA256": SAID["SHA256"]},
    ],
)
def test_another_checksum_stands_for_no_signed_hash(
    served: SimpleNamespace, headers: dict[str, str]
) -> None:
    """An attacker who replaces the body can add a checksum of the new body."""
    code, answer = put(served, "both", BODY, hashlib.sha256(b"other").hexdigest(), **headers)
    assert (code, "<Code>XAmzContentSHA256Mismatch</Code>" in answer) == (400, True)
    assert "Contents" not in served.s3.list_objects_v2(Bucket="checked", Prefix="both")


def test_hash_of_any_calls_body_is_compared(served: SimpleNamespace) -> None:
    """A recorded call that deletes one object must not be usable to delete another."""
    served.s3.put_object(Bucket="checked", Key="not-to-go", Body=BODY)

    def exchange(request: Any, **_: Any) -> None:
        request.body = request.body.replace(b"to-go", b"not-to-go")
        request.headers["Content-Length"] = str(len(request.body))

    s3 = client(served.endpoint, "s3")
    s3.meta.events.register("before-send.s3.DeleteObjects", exchange)
    with pytest.raises(ClientError, match="XAmzContentSHA256Mismatch"):
        s3.delete_objects(Bucket="checked", Delete={"Objects": [{"Key": "to-go"}]})
    served.s3.head_object(Bucket="checked", Key="not-to-go")


def test_a_body_that_was_taken_away_is_missed(served: SimpleNamespace) -> None:
    code, answer = put(served, "empty", b"", hashlib.sha256(BODY).hexdigest())
    assert (code, "<Code>XAmzContentSHA256Mismatch</Code>" in answer) == (400, True)


@pytest.mark.parametrize("signed", ["", "no hash", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"])
def test_what_is_no_hash_of_a_body_is_refused(served: SimpleNamespace, signed: str) -> None:
    code, answer = put(served, "none", BODY, signed)
    assert 400 <= code < 500 and "<Code>" in answer
    assert "Contents" not in served.s3.list_objects_v2(Bucket="checked", Prefix="none")


def test_chunks_are_signed_as_in_awss_example() -> None:
    """The example is from "Transferring a payload in multiple chunks" in the Amazon S3 API
    reference.
    """
    environ: dict[str, Any] = {"HTTP_X_AMZ_CONTENT_SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}
    parts = [
        (b"a" * 65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
        (b"a" * 1_024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
        (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ]
    body = b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (len(part), said.encode(), part)
        for part, said in parts
    )

    def check(sent: bytes) -> None:
        sign_chunks_as(
            environ,
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "20130524T000000Z",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            region="us-east-1",
            service="s3",
        )
        check_signed_hash(environ, sent)

    check(body)
    for altered in (
        body.replace(b"aaa\r\n400", b"aab\r\n400"),
        body.replace(parts[1][1].encode(), parts[0][1].encode()),
        body[: body.index(b"400;")] + body[body.index(b"0;chunk-signature=b6c6") :],
    ):
        assert altered != body
        with pytest.raises(ApiError, match="SignatureDoesNotMatch"):
            check(altered)


@pytest.mark.parametrize("name", ["CRC32", "SHA256"])
def test_signed_chunks_and_their_trailer_are_compared(served: SimpleNamespace, name: str) -> None:
    keys, trailer = access_keys(served.state_dir).user, f"x-amz-checksum-{name.lower()}"

    def send(key: str, body: bytes, said: str, kept: bytes | None = None) -> tuple[int, str]:
        form = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
        headers = {
            "Content-Encoding": "aws-chunked",
            "X-Amz-Decoded-Content-Length": str(len(body)),
            "X-Amz-Trailer": trailer,
        }

        class Signer(S3SigV4Auth):
            def payload(self, request: Any) -> str:
                return form

        url = f"{served.endpoint}/checked/{key}"
        request = AWSRequest("PUT", url, headers, b"")
        Signer(Credentials(keys.id, keys.secret), "s3", "us-east-1").add_auth(request)
        sent = dict(request.headers)
        environ: dict[str, Any] = {}
        seed = sent["Authorization"].rpartition("Signature=")[2]
        date = sent["X-Amz-Date"]
        sign_chunks_as(environ, keys.secret, date, seed, region="us-east-1", service="s3")
        [signer] = environ.values()
        content = b""
        for part in (body, b""):
            signature = signer.sign("PAYLOAD", b"", part).encode()
            shown = kept if kept is not None and part else part
            content += b"%x;chunk-signature=%s\r\n%s" % (len(part), signature, shown)
            content += b"\r\n" if part else b""
        content += f"{trailer}:{said}\r\n".encode()
        signature = signer.sign("TRAILER", f"{trailer}:{said}\n".encode())
        content += f"x-amz-trailer-signature:{signature}\r\n\r\n".encode()
        connection = http.client.HTTPConnection(urlsplit(served.endpoint).netloc, timeout=300)
        connection.request("PUT", f"/checked/{key}", content, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    assert send(f"chunks-{name}", BODY, SAID[name]) == (200, "")
    stored = served.s3.get_object(Bucket="checked", Key=f"chunks-{name}")
    assert stored["Body"].read() == BODY
    exchanged = BODY[:-1] + b"S"
    said = checksum(name, exchanged)
    code, answer = send(f"exchanged-{name}", BODY, said, kept=exchanged)
    assert code == 403 and "SignatureDoesNotMatch" in answer
    assert "Contents" not in served.s3.list_objects_v2(Bucket="checked", Prefix="exchanged")


def put(
    served: SimpleNamespace, key: str, body: bytes, signed: str, **headers: str
) -> tuple[int, str]:
    """Return the status and the response of a PutObject with this x-amz-content-sha256."""

    class Signer(S3SigV4Auth):
        def payload(self, request: Any) -> str:
            return signed

    keys = access_keys(served.state_dir).user
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = AWSRequest("PUT", f"{served.endpoint}/checked/{key}", sent, body)
    Signer(Credentials(keys.id, keys.secret), "s3", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(urlsplit(served.endpoint).netloc, timeout=300)
    try:
        is_chunked = "Transfer-Encoding" in sent
        content: Any = iter([body]) if is_chunked else body
        path = f"/checked/{key}"
        connection.request("PUT", path, content, dict(request.headers), encode_chunked=is_chunked)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def encoded(trailer: str, end: bytes = b"\r\n") -> bytes:
    """Return the body in two chunks, followed by the trailer."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:4], BODY[4:]))
    return chunks + b"0\r\n" + trailer.encode() + end


@pytest.mark.parametrize("sending", [{}, {"Transfer_Encoding": "chunked"}])
@pytest.mark.parametrize("name", sorted(GOOD))
def test_checksum_in_the_trailer_is_compared(
    served: SimpleNamespace, name: str, sending: dict[str, str]
) -> None:
    header, key = f"x-amz-checksum-{name.lower()}", f"trailing-{name}-{len(sending)}"
    streaming = {
        "Content_Encoding": "aws-chunked",
        "X_Amz_Decoded_Content_Length": str(len(BODY)),
        "X_Amz_Trailer": header,
        **sending,
    }
    signed = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    wrong = base64.b64encode(bytes(len(GOOD[name]))).decode()
    code, answer = put(served, key, encoded(f"{header}:{wrong}\r\n"), signed, **streaming)
    assert (code, "<Code>BadDigest</Code>" in answer) == (400, True)
    code, answer = put(served, key, encoded(""), signed, **streaming)
    assert (code, "<Code>MalformedTrailerError</Code>" in answer) == (400, True)
    assert "Contents" not in served.s3.list_objects_v2(Bucket="checked", Prefix=key)
    sound = encoded(f"{header}:{SAID[name]}\r\n")
    assert put(served, key, sound, signed, **streaming) == (200, "")
    stored = served.s3.get_object(Bucket="checked", Key=key, ChecksumMode="ENABLED")
    assert (stored["Body"].read(), stored[f"Checksum{name}"]) == (BODY, SAID[name])


@pytest.mark.parametrize("cut", [1, 5, 12, 20])
def test_cut_body_is_refused(served: SimpleNamespace, cut: int) -> None:
    streaming = {"X_Amz_Decoded_Content_Length": str(len(BODY))}
    code, answer = put(
        served, "cut", encoded("")[:cut], "STREAMING-UNSIGNED-PAYLOAD-TRAILER", **streaming
    )
    assert (code, "<Code>IncompleteBody</Code>" in answer) == (400, True)


def test_two_checksums_are_refused(served: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match=MANY):
        served.s3.put_object(
            Bucket="checked", Key="two", Body=BODY,
            ChecksumSHA1=SAID["SHA1"], ChecksumSHA256=SAID["SHA256"],
        )  # fmt: skip


@pytest.mark.parametrize("name", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksum_of_an_object_of_parts(served: SimpleNamespace, name: str) -> None:
    place = {"Bucket": "checked", "Key": f"parts-{name}"}
    upload = {
        **place,
        "UploadId": served.s3.create_multipart_upload(**place, ChecksumAlgorithm=name)["UploadId"],
    }
    checksum = {f"Checksum{name}": SAID[name]}
    part = served.s3.upload_part(**upload, PartNumber=1, Body=BODY, **checksum)
    parts = [{"PartNumber": 1, "ETag": part["ETag"], **checksum}]
    served.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    stored = served.s3.get_object(**place, ChecksumMode="ENABLED")
    of_parts = f"{base64.b64encode(ALGORITHMS[name](GOOD[name])).decode()}-1"
    wanted = SAID[name] if name == "CRC64NVME" else of_parts
    assert stored[f"Checksum{name}"] == wanted
    assert served.s3.get_object_acl(**place)["Grants"][0]["Permission"] == "FULL_CONTROL"


def test_checksums_survive_a_restart(tmp_path: Path) -> None:
    """This includes checksums that botocore can only compute with an additional package."""
    with contextmanager(serve_platform)(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="checked")
        for name, said in SAID.items():
            checksum = {"ChecksumAlgorithm": name, f"Checksum{name}": said}
            platform.s3.put_object(Bucket="checked", Key=name, Body=BODY, **checksum)
    with contextmanager(serve_platform)(tmp_path) as platform:
        for name, said in SAID.items():
            head = platform.s3.head_object(Bucket="checked", Key=name, ChecksumMode="ENABLED")
            assert head[f"Checksum{name}"] == said


@pytest.mark.parametrize("is_versioned", [False, True])
def test_null_version_of_an_object(served: SimpleNamespace, is_versioned: bool) -> None:
    """rclone requests this version after a multipart upload."""
    place = {"Bucket": f"null-{is_versioned}".lower(), "Key": "k"}
    served.s3.create_bucket(Bucket=place["Bucket"])
    served.s3.put_object(**place, Body=BODY)
    if is_versioned:
        enabled = {"Status": "Enabled"}
        served.s3.put_bucket_versioning(Bucket=place["Bucket"], VersioningConfiguration=enabled)
        served.s3.put_object(**place, Body=b"newer")
    assert served.s3.head_object(**place, VersionId="null")["ContentLength"] == len(BODY)
    assert served.s3.get_object(**place, VersionId="null")["Body"].read() == BODY
    with pytest.raises(ClientError, match=r"\(40[04]\)"):
        served.s3.head_object(**place, VersionId="other")
    with pytest.raises(ClientError, match=r"\(404\)"):
        served.s3.head_object(Bucket=place["Bucket"], Key="none", VersionId="null")


def test_old_names_of_regions(served: SimpleNamespace) -> None:
    """s3cmd signs requests for the region US."""
    for region, bucket in (("US", "of-us"), ("us-east-1", "of-us-east-1")):
        s3 = client(served.endpoint, "s3", region)
        s3.meta.events.register("before-sign.s3", signs_for(region))
        s3.create_bucket(Bucket=bucket)
        assert bucket in [found["Name"] for found in s3.list_buckets()["Buckets"]]
        assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None


def signs_for(region: str) -> Any:
    def sign(request: Any, **_: Any) -> None:
        request.context["signing"] = {**request.context.get("signing", {}), "region": region}

    return sign
