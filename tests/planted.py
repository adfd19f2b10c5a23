"""Secrets planted in the inputs of a run, and a search for them in its outputs."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from urllib.parse import quote

import pyarrow.parquet as pq

INPUTS = ("hyperparameter", "environment", "variable", "build argument", "url", "file")
PLANTED = {place: "Pl4nted" + hashlib.sha256(place.encode()).hexdigest()[:20] for place in INPUTS}
"""A value for each input, of no known shape."""
PASSWORD = "Tr0ub4dor & 3/über"
"""Its characters differ between encodings."""
SECRETS = PLANTED | {"password": PASSWORD}


def unpacked(name: str, body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of a file and, recursively, of everything packed in it."""
    yield name, body
    with suppress(*_NO_ARCHIVE):
        yield from _members(name, body)


_NO_ARCHIVE = (
    OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile, tarfile.TarError,
)  # fmt: skip
"""Errors for a file that begins like an archive and is none."""


def _members(name: str, body: bytes) -> Iterator[tuple[str, bytes]]:
    if body[:2] == b"\x1f\x8b":
        yield from unpacked(f"{name}!", gzip.decompress(body))
    elif body[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            for inner in archive.namelist():
                yield from unpacked(f"{name}!{inner}", archive.read(inner))
    elif body[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            for member in tar:
                if member.isfile():
                    stream = tar.extractfile(member)
                    assert stream is not None
                    yield from unpacked(f"{name}!{member.name}", stream.read())
    elif body[:4] == b"PAR1":
        rows = pq.read_table(io.BytesIO(body)).to_pylist()
        yield f"{name}!rows", json.dumps(rows, default=str, ensure_ascii=False).encode()


def spellings(secret: str) -> set[bytes]:
    """Return the secret in every encoding an output may use."""
    escaped = json.dumps(secret)[1:-1]
    spelled = {secret, escaped, json.dumps(escaped)[1:-1], quote(secret), quote(secret, safe="")}
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    spelled |= {encoded, repr(secret.encode())[2:-1], quote(secret, safe="").replace("%20", "+")}
    return {each.encode() for each in spelled}


def found_in(outputs: Iterable[tuple[str, bytes]]) -> dict[str, set[str]]:
    """Return, per input, the outputs that show the secret planted there."""
    marks = {place: spellings(secret) for place, secret in SECRETS.items()}
    found: dict[str, set[str]] = {}
    for name, body in outputs:
        for place, spelled in marks.items():
            if any(mark in body for mark in spelled):
                found.setdefault(place, set()).add(name)
    return found
