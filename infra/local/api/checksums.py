"""Compares what a PutObject or UploadPart says of its body with the body, as S3 does and moto does
not: what was damaged on its way must not be kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from infra.local.api.protocol import ApiError

_ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "SHA256": lambda body: hashlib.sha256(body).digest(),
    "SHA1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "CRC32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
}
"""Of CRC32C and CRC64NVME Python has none."""
_MD5_BYTES = 16


def check_body(environ: Mapping[str, Any], body: bytes) -> None:
    """Raises BadDigest where a checksum in the request's headers is another than the body's, and
    InvalidDigest for a Content-MD5 that is none. In a trailer it is a part of the body's encoding,
    and not looked at.
    """
    if environ.get("HTTP_X_AMZ_CONTENT_SHA256", "").startswith("STREAMING-"):
        return
    for name, digest in _ALGORITHMS.items():
        said = environ.get(f"HTTP_X_AMZ_CHECKSUM_{name}")
        if said is not None and said != base64.b64encode(digest(body)).decode():
            raise ApiError(
                "BadDigest", f"The {name} you specified did not match the calculated checksum."
            )
    if (said := environ.get("HTTP_CONTENT_MD5")) is not None:
        _check_md5(said, body)


def _check_md5(said: str, body: bytes) -> None:
    try:
        digest = base64.b64decode(said, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != _MD5_BYTES:
        raise ApiError("InvalidDigest", "The Content-MD5 you specified was invalid.")
    if digest != hashlib.md5(body, usedforsecurity=False).digest():
        raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")
