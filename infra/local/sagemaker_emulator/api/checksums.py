"""Verifies the checksums and hashes of S3 request bodies, which moto does not do.

A body that was corrupted or replaced in transit is therefore never stored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anycrc

from sagemaker_emulator.api.protocol import ApiError

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
"""S3's checksum algorithms. Algorithms that are missing here (XXHASH…) are not verified."""
_MD5_BYTES = 16
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRAILING = "x-amz-checksum-"
_UNSIGNED_FORMS = frozenset({"UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"})
_SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_SIGNED_FORMS = frozenset({_SIGNED_CHUNKS, f"{_SIGNED_CHUNKS}-TRAILER"})
_CHUNK_SIGNER = "nodesweep.chunk_signer"


@dataclass
class _ChunkSigner:
    """Signs the chunks of a body in order. Every signature includes the previous one."""

    key: bytes
    date: str
    scope: str
    last: str
    """Signature of the previous chunk, or of the headers before the first chunk."""

    def sign(self, kind: str, *content: bytes) -> str:
        hashes = [hashlib.sha256(one).hexdigest() for one in content]
        text = "\n".join((f"AWS4-HMAC-SHA256-{kind}", self.date, self.scope, self.last, *hashes))
        self.last = hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()
        return self.last


def sign_chunks_as(
    environ: dict[str, Any], secret: str, date: str, signature: str, *, region: str, service: str
) -> None:
    """Store the key and the seed signature for signed chunks in the request's `environ`."""
    scope, key = (date[:8], region, service, "aws4_request"), f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    environ[_CHUNK_SIGNER] = _ChunkSigner(key, date, "/".join(scope), signature)


def check_signed_hash(environ: dict[str, Any], body: bytes) -> None:
    """Verify a body against the x-amz-content-sha256 header, which the signature covers.

    Raises:
        InvalidArgument: If the header is neither a hash nor one of S3's keywords.
        XAmzContentSHA256Mismatch: If the hash differs.
        SignatureDoesNotMatch: If a chunk's signature differs.
        IncompleteBody: If a chunked body is not valid aws-chunked encoding.
    """
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if signed in _UNSIGNED_FORMS:
        return
    if signed in _SIGNED_FORMS:
        _check_chunks(environ, body, has_trailer=signed != _SIGNED_CHUNKS)
        return
    if not _SHA256.fullmatch(signed):
        raise ApiError(
            "InvalidArgument",
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER,"
            " STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a"
            " valid sha256 value.",
        )
    if hashlib.sha256(body).hexdigest() != signed:
        raise ApiError(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )


def _check_chunks(environ: dict[str, Any], body: bytes, has_trailer: bool) -> None:
    signer: _ChunkSigner | None = environ.get(_CHUNK_SIGNER)
    chunks, trailer = _chunks(body)
    is_right = signer is not None and all(
        _said(parameters) == signer.sign("PAYLOAD", b"", chunk) for parameters, chunk in chunks
    )
    if has_trailer and is_right and signer is not None:
        signature = trailer.pop("x-amz-trailer-signature", "")
        lines = "".join(f"{name}:{value}\n" for name, value in trailer.items())
        is_right = signature == signer.sign("TRAILER", lines.encode())
    if not is_right:
        raise ApiError(
            "SignatureDoesNotMatch",
            "The signature of a chunk of the body does not match the signature we calculated.",
            http_status=403,
        )


def _said(parameters: bytes) -> str:
    return parameters.partition(b"chunk-signature=")[2].strip().decode(errors="replace")


def checksum(name: str, body: bytes) -> str:
    """Return the checksum of a body in base64, as in S3 headers.

    Raises:
        KeyError: If the algorithm is unknown.
    """
    return base64.b64encode(ALGORITHMS[name](body)).decode()


def checksum_of_parts(name: str, parts: Sequence[bytes], is_composite: bool) -> str:
    """Return the checksum of a multipart object, or of its parts' checksums if composite."""
    if is_composite:
        parts = [ALGORITHMS[name](part) for part in parts]
    return checksum(name, b"".join(parts))


def check_body(environ: dict[str, Any], body: bytes) -> None:
    """Verify a body against the checksum in its headers or trailer.

    A checksum in the trailer is copied to the headers, where moto looks for it.

    Raises:
        BadDigest: If the checksum differs.
        InvalidRequest: If a checksum is malformed, or if there is more than one.
        InvalidDigest: If Content-MD5 is malformed.
        IncompleteBody: If the body is not valid aws-chunked encoding.
        MalformedTrailerError: If an announced trailer is missing.
    """
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    announced = {
        name: str(environ[header])
        for name in ALGORITHMS
        if (header := f"HTTP_X_AMZ_CHECKSUM_{name}") in environ
    }
    if signed.startswith("STREAMING-"):
        body, trailer = _decode_chunks(body)
        _check_length(environ, body)
        announced |= _checksums_in(environ, trailer)
    if len(announced) > 1:
        raise ApiError(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    for name, value in announced.items():
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


def _decode_chunks(encoded: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the content and the trailer of a body in aws-chunked encoding.

    Raises:
        IncompleteBody: If the encoding is invalid.
    """
    chunks, trailer = _chunks(encoded)
    return b"".join(chunk for _, chunk in chunks), trailer


def _chunks(encoded: bytes) -> tuple[list[tuple[bytes, bytes]], dict[str, str]]:
    """Return all chunks, including the empty last one, as (parameters, content), and the trailer.

    Raises:
        IncompleteBody: If the encoding is invalid.
    """
    file, chunks, size = io.BytesIO(encoded), list[tuple[bytes, bytes]](), -1
    try:
        while size != 0:
            head, _, parameters = file.readline().partition(b";")
            size = int(head.strip(), 16)
            chunk = file.read(size) if size > 0 else b""
            if size < 0 or len(chunk) != size or (size and file.read(2) != b"\r\n"):
                raise ValueError
            chunks.append((parameters, chunk))
    except ValueError:
        raise ApiError("IncompleteBody", "The request body terminated unexpectedly") from None
    lines = (line.decode(errors="replace").partition(":") for line in file)
    return chunks, {name.strip().lower(): value.strip() for name, _, value in lines if name.strip()}


def _check_length(environ: dict[str, Any], body: bytes) -> None:
    length = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH")
    if length is not None and length != str(len(body)):
        raise ApiError(
            "IncompleteBody",
            "You did not provide the number of bytes specified by the Content-Length HTTP header",
        )


def _checksums_in(environ: dict[str, Any], trailer: dict[str, str]) -> dict[str, str]:
    """Return the checksums in a trailer by algorithm.

    Raises:
        MalformedTrailerError: If an announced checksum is missing.
    """
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


def _check_md5(content_md5: str, body: bytes) -> None:
    try:
        digest = base64.b64decode(content_md5, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != _MD5_BYTES:
        raise ApiError("InvalidDigest", "The Content-MD5 you specified was invalid.")
    if digest != hashlib.md5(body, usedforsecurity=False).digest():
        raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")
