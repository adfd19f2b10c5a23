from __future__ import annotations

import gzip
import io
import json
import logging
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

import nodesweep.launch.sagemaker.results
from nodesweep.launch.sagemaker.results import read_metrics


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket="bucket")
    return client


@pytest.mark.parametrize("name", ["metrics.json", "data/metrics.json"])
def test_metrics_are_found_at_any_depth(s3: Any, name: str) -> None:
    s3.put_object(
        Bucket="bucket",
        Key="k",
        Body=archive({name: json.dumps({"train_seconds": 3.5}).encode(), "x": b""}),
    )
    assert read_metrics(s3, "bucket", "k") == {"train_seconds": 3.5}


@pytest.mark.parametrize(
    "body", [None, b"no tar", archive({"other.json": b"{}"}), archive({"metrics.json": b"{"})]
)
def test_without_readable_metrics_there_are_none(s3: Any, body: bytes | None) -> None:
    if body is not None:
        s3.put_object(Bucket="bucket", Key="k", Body=body)
    assert read_metrics(s3, "bucket", "k") is None


def test_metrics_that_are_no_mapping_are_none(s3: Any) -> None:
    s3.put_object(Bucket="bucket", Key="k", Body=archive({"metrics.json": b"[1]"}))
    assert read_metrics(s3, "bucket", "k") is None


_CHUNK_BYTES = 1024 * 1024


class Stream(io.RawIOBase):
    """An S3 object that is generated while it is read: a tar of a large file of zeros, then
    metrics.json."""

    class exceptions:
        ClientError = ClientError

    def __init__(self, size_bytes: int) -> None:
        large = tarfile.TarInfo("model.bin")
        large.size = size_bytes
        self._parts: list[Any] = [
            large.tobuf(),
            size_bytes,
            uncompressed({"data/metrics.json": b'{"train_seconds": 3.5}'}),
        ]
        self._gzip = zlib.compressobj(1, wbits=31)
        self._ready = b""
        self.reads = 0

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        return {"Body": self}

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.reads += 1
        size = len(buffer)
        while len(self._ready) < size and self._parts:
            part = self._parts.pop(0)
            if isinstance(part, int):
                if part > _CHUNK_BYTES:
                    self._parts.insert(0, part - _CHUNK_BYTES)
                part = bytes(min(part, _CHUNK_BYTES))
            self._ready += self._gzip.compress(part)
            if not self._parts:
                self._ready += self._gzip.flush()
        given, self._ready = self._ready[:size], self._ready[size:]
        buffer[: len(given)] = given
        return len(given)


def uncompressed(files: dict[str, bytes]) -> bytes:
    return gzip.decompress(archive(files))


def test_archive_is_read_as_a_stream_whatever_its_size() -> None:
    tracemalloc.start()
    try:
        metrics = read_metrics(Stream(100 * 1024 * 1024), "bucket", "k")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert metrics == {"train_seconds": 3.5}
    assert peak_bytes < 5 * 1024 * 1024


def test_small_archive_is_read_at_once() -> None:
    """Each read of an object's body starts a thread, and gzip reads its header byte by byte."""
    stream = Stream(0)
    assert read_metrics(stream, "bucket", "k") == {"train_seconds": 3.5}
    assert stream.reads <= 3


def test_archive_that_unpacks_to_more_than_the_limit_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(nodesweep.launch.sagemaker.results, "_MAX_UNPACKED_BYTES", 10_000_000)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    assert read_metrics(Stream(20_480_000), "bucket", "k") is None
    assert caplog.messages == snapshot


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"a": "' + b"x" * (8 * 1024 * 1024) + b'"}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_metrics_beyond_a_limit_are_refused_in_words(
    s3: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    s3.put_object(Bucket="bucket", Key="k", Body=archive({"metrics.json": body}))
    assert read_metrics(s3, "bucket", "k") is None
    assert caplog.messages == snapshot


def test_the_metrics_nearest_to_the_root_count(s3: Any) -> None:
    files = {
        "a/b/metrics.json": b'{"n": 3}',
        "a/metrics.json": b'{"n": 2}',
        "b/metrics.json": b'{"n": 4}',
    }
    s3.put_object(Bucket="bucket", Key="k", Body=archive(files))
    assert read_metrics(s3, "bucket", "k") == {"n": 2}


def test_a_larger_one_further_down_does_not_hide_the_one_at_the_root(s3: Any) -> None:
    files = {"checkpoints/metrics.json": b" " * (9 * 1024 * 1024), "metrics.json": b'{"n": 1}'}
    s3.put_object(Bucket="bucket", Key="k", Body=archive(files))
    assert read_metrics(s3, "bucket", "k") == {"n": 1}


BOMB_BYTES = 12 * 1024 * 1024


def header(kind: bytes, size_bytes: int, name: str = "model.bin") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size_bytes
    return info.tobuf(tarfile.GNU_FORMAT)


def sparse_chain() -> bytes:
    """Return a header of GNU's sparse format whose map continues in block after block."""
    first = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    first[482] = 1  # "is extended"
    first[148:156] = b"%06o\0 " % (256 + sum(first[:148]) + sum(first[156:]))
    block = (b"%011o\0" % 1) * 42
    return bytes(first) + (block.ljust(504, b"\0") + b"\1" + bytes(7)) * (BOMB_BYTES // 512)


def sparse_list() -> bytes:
    """Return a map of GNU's sparse format 1.0, at the place of the file's content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("model.bin")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        info.size = BOMB_BYTES
        tar.addfile(info, io.BytesIO((b"%d\n" % (BOMB_BYTES // 2)) + b"1\n" * (BOMB_BYTES // 2)))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "bomb",
    [
        lambda: header(tarfile.GNUTYPE_LONGNAME, BOMB_BYTES, "././@LongLink") + bytes(BOMB_BYTES),
        lambda: header(tarfile.GNUTYPE_LONGLINK, BOMB_BYTES, "././@LongLink") + bytes(BOMB_BYTES),
        lambda: header(tarfile.XHDTYPE, BOMB_BYTES) + bytes(BOMB_BYTES),
        lambda: header(tarfile.XGLTYPE, BOMB_BYTES) + bytes(BOMB_BYTES),
        sparse_chain,
        sparse_list,
    ],
    ids=["long name", "long link", "pax", "pax global", "sparse", "sparse 1.0"],
)
def test_headers_without_end_take_no_memory(
    bomb: Callable[[], bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    snapshot: SnapshotAssertion,
) -> None:
    """tarfile reads all headers of a member before it returns the member."""
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    stream = Stream(0)
    stream._ready, stream._parts = gzip.compress(bomb(), 1), []
    tracemalloc.start()
    try:
        assert read_metrics(stream, "bucket", "k") is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * 1024 * 1024
    assert caplog.messages == snapshot


def test_a_sparse_file_is_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    stream = Stream(0)
    stream._parts = [header(tarfile.GNUTYPE_SPARSE, 0), bytes(1024)]
    assert read_metrics(stream, "bucket", "k") is None
    assert caplog.messages == snapshot


def test_the_other_ranks_budgets_follow_that_of_rank_0(s3: Any) -> None:
    files = {
        "./nodesweep-budget-2.json": b'{"rank": 2}',
        "metrics.json": b'{"budget": [{"rank": 0}]}',
        "nodesweep-budget-1.json": b'{"rank": 1}',
        "nodesweep-budget-3.json": b"{",
        "nodesweep-budget-4.json": b"[" * 100 + b"]" * 100,
        "nodesweep-budget-5.json": b" " * 100_000,
        "elsewhere/nodesweep-budget-6.json": b'{"rank": 6}',
    }
    s3.put_object(Bucket="bucket", Key="k", Body=archive(files))
    metrics = read_metrics(s3, "bucket", "k")
    assert metrics is not None
    assert metrics["budget"] == [{"rank": 0}, {"rank": 2}, {"rank": 1}, None, None]


def test_budgets_without_one_of_rank_0_are_not_used(s3: Any) -> None:
    files = {"metrics.json": b"{}", "nodesweep-budget-1.json": b'{"rank": 1}'}
    s3.put_object(Bucket="bucket", Key="k", Body=archive(files))
    assert read_metrics(s3, "bucket", "k") == {}
