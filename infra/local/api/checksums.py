"""Compares what a PutObject or UploadPart says of its body with the body, as S3 does and moto does
not: what was damaged on its way must not be kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import anycrc

from infra.local.api.protocol import ApiError

_CRC32C, _CRC64NVME = anycrc.Model("CRC32C"), anycrc.Model("CRC64-NVME")
ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "SHA512": lambda body: hashlib.sha512(body).digest(),
    "SHA256": lambda body: hashlib.sha256(body).digest(),
    "SHA1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "MD5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    "CRC32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "CRC32C": lambda body: _CRC32C.calc(body).to_bytes(4, "big"),
    "CRC64NVME": lambda body: _CRC64NVME.calc(body).to_bytes(8, "big"),
}
"""Of S3's further ones, XXHASH…, nothing is compared."""
_MD5_BYTES = 16
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRAILING = "x-amz-checksum-"


def checksum(name: str, body: bytes) -> str:
    """As S3's headers give it; raises KeyError for an algorithm that is not known."""
    return base64.b64encode(ALGORITHMS[name](body)).decode()


def checksum_of_parts(name: str, parts: Sequence[bytes], is_composite: bool) -> str:
    """Of a multipart object: of its parts' checksums, or of the whole."""
    if is_composite:
        parts = [ALGORITHMS[name](part) for part in parts]
    return checksum(name, b"".join(parts))


def check_body(environ: dict[str, Any], body: bytes) -> None:
    """Compare the checksum in the headers or the trailer with the body, and leave a trailer's in
    the headers, where moto looks for it.

    Raises BadDigest where it is another than the body's, InvalidRequest and InvalidDigest for one
    that is none, IncompleteBody and MalformedTrailerError for a body that is not encoded as S3
    wants it.
    """
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    said = {
        name: str(environ[header])
        for name in ALGORITHMS
        if (header := f"HTTP_X_AMZ_CHECKSUM_{name}") in environ
    }
    if signed.startswith("STREAMING-"):
        body, trailer = _decode_chunks(body)
        _check_length(environ, body)
        said |= _checksums_in(environ, trailer)
    if len(said) > 1:
        raise ApiError(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    for name, value in said.items():
        computed = checksum(name, body)
        if not _is_of_its_length(value, computed):
            header = f"x-amz-checksum-{name.lower()}"
            raise ApiError("InvalidRequest", f"Value for {header} header is invalid.")
        if value != computed:
            raise ApiError(
                "BadDigest", f"The {name} you specified did not match the calculated checksum."
            )
        environ[f"HTTP_X_AMZ_CHECKSUM_{name}"] = value
        environ["HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM"] = name
    if (md5 := environ.get("HTTP_CONTENT_MD5")) is not None:
        _check_md5(md5, body)
    elif not said and _SHA256.fullmatch(signed) and hashlib.sha256(body).hexdigest() != signed:
        raise ApiError(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )


def _decode_chunks(encoded: bytes) -> tuple[bytes, dict[str, str]]:
    """The content and the trailer of a body in the encoding aws-chunked.
    Raises IncompleteBody for any other.
    """
    file, content = io.BytesIO(encoded), bytearray()
    try:
        while size := int(file.readline().partition(b";")[0].strip(), 16):
            chunk = file.read(size)
            if size < 0 or len(chunk) != size or file.read(2) != b"\r\n":
                raise ValueError
            content += chunk
    except ValueError:
        raise ApiError("IncompleteBody", "The request body terminated unexpectedly") from None
    lines = (line.decode(errors="replace").partition(":") for line in file)
    return bytes(content), {name.strip().lower(): value.strip() for name, _, value in lines}


def _check_length(environ: dict[str, Any], body: bytes) -> None:
    said = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH")
    if said is not None and said != str(len(body)):
        raise ApiError(
            "IncompleteBody",
            "You did not provide the number of bytes specified by the Content-Length HTTP header",
        )


def _checksums_in(environ: dict[str, Any], trailer: dict[str, str]) -> dict[str, str]:
    """Raises MalformedTrailerError where one that is announced is not there."""
    announced = environ.get("HTTP_X_AMZ_TRAILER", "").lower().replace(" ", "").split(",")
    if any(name not in trailer for name in announced if name.startswith(_TRAILING)):
        raise ApiError(
            "MalformedTrailerError",
            "The request contained trailing data that was not well-formed or did not conform to our"
            " published schema.",
        )
    return {
        name: trailer[header]
        for name in ALGORITHMS
        if (header := f"{_TRAILING}{name.lower()}") in trailer
    }


def _is_of_its_length(value: str, computed: str) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == len(base64.b64decode(computed))
    except binascii.Error:
        return False


def _check_md5(said: str, body: bytes) -> None:
    try:
        digest = base64.b64decode(said, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != _MD5_BYTES:
        raise ApiError("InvalidDigest", "The Content-MD5 you specified was invalid.")
    if digest != hashlib.md5(body, usedforsecurity=False).digest():
        raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")
