from __future__ import annotations

import gzip
import io
import json
import logging
import tarfile
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

import tasks.jobs.results
from tasks.jobs.results import read_metrics


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


class Stream:
    """An object of S3 that is made as it is read: a tar of one large file of zeros and then
    metrics.json.
    """

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

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        return {"Body": self}

    def read(self, size: int) -> bytes:
        while self._parts:
            part = self._parts[0]
            if isinstance(part, int):
                self._parts[0] = part - min(size, part)
                if part:
                    return bytes(min(size, part))
            elif part:
                self._parts[0] = part[size:]
                return bytes(part[:size])
            self._parts.pop(0)
        return b""


def uncompressed(files: dict[str, bytes]) -> bytes:
    return gzip.decompress(archive(files))


def test_archive_is_read_as_a_stream_whatever_its_size() -> None:
    tracemalloc.start()
    try:
        metrics = read_metrics(Stream(300 * 1024 * 1024), "bucket", "k")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert metrics == {"train_seconds": 3.5}
    assert peak_bytes < 5 * 1024 * 1024


def test_archive_that_unpacks_to_more_than_the_limit_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks.jobs.results, "_MAX_UNPACKED_BYTES", 10_000_000)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    assert read_metrics(Stream(20_480_000), "bucket", "k") is None
    assert (
        "s3://bucket/k: it unpacks to more than 10000000 bytes, and is read no further"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 200_000, "nested more than 32 deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested more than 32 deep"),
        (
            b'{"a": "' + b"x" * (8 * 1024 * 1024) + b'"}',
            "has 8388617 bytes, 8388608 are read at most",
        ),
        (b'{"a": ' + b"9" * 5000 + b"}", "holds no readable metrics.json"),
    ],
)
def test_metrics_beyond_a_limit_are_refused_in_words(
    s3: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
    words: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    s3.put_object(Bucket="bucket", Key="k", Body=archive({"metrics.json": body}))
    assert read_metrics(s3, "bucket", "k") is None
    assert words in caplog.text


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
