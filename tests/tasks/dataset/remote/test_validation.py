"""A dataset in S3 is judged like the same files on this machine, without a copy."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from botocore.exceptions import ClientError, ResponseStreamingError

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetRefused
from nodesweep.infra.image_spark.nodesweep_judge import range_file
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, describe_remote
from nodesweep.tasks.dataset.remote.reading import RemoteFile
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.dataset.validation import validate_dataset, validate_tables
from nodesweep.tasks.dataset.validation_report import ValidationReport
from tests.tasks.dataset.test_files import dataset_at

BUCKET = "bench-bucket"
NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
BETWEEN = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "a", "min_value": 0, "max_value": 9},
}
UNIQUE = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "a"}}


@pytest.fixture
def s3(aws: Callable[[str], Any]) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket=BUCKET)
    return client


class Counting:
    """An S3 client that records the requested bytes and keys."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: list[tuple[str, int]] = []

    def get_object(self, **request: Any) -> Any:
        answer = self._client.get_object(**request)
        self.calls.append((request["Key"], answer["ContentLength"]))
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def remote(kind: str = "parquet") -> DatasetConfig:
    return dataset_at("s3://bench-bucket/raw", kind, expectations=[BETWEEN, UNIQUE])


def check(s3: Any, config: DatasetConfig, found: RemoteDataset | None = None) -> ValidationReport:
    found = found or describe_remote(s3, config)
    return validate_tables(remote_tables(s3, found, config), config, now=NOW)


def send(s3: Any, folder: Path) -> None:
    for path in folder.rglob("*.*"):
        s3.upload_file(str(path), BUCKET, f"raw/{path.relative_to(folder).as_posix()}")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_the_verdict_is_that_of_local_files(s3: Any, tmp_path: Path, kind: str) -> None:
    write = {"parquet": pd.DataFrame.to_parquet, "csv": pd.DataFrame.to_csv}[kind]
    (tmp_path / "sub").mkdir()
    for name, values in {"good": [1, 2], "sub/bad": [1, 1, 11]}.items():
        write(pd.DataFrame({"a": values}), tmp_path / f"{name}.{kind}")
    (tmp_path / f"truncated.{kind}").write_bytes(b"PAR1" if kind == "parquet" else b"")
    send(s3, tmp_path)
    config = remote(kind)
    local = validate_dataset(
        sorted(tmp_path.rglob(f"*.{kind}")), config.model_copy(update={"source": "x"}), now=NOW
    )
    assert check(s3, config) == local
    assert not local.success and len(local.problems) >= 3
    assert any(f"truncated.{kind} " in it.message for it in local.problems)


def test_only_the_columns_that_are_asked_for_are_fetched(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_file, "WHOLE_BYTES", 0)
    noise = np.random.default_rng(0).random(200_000)
    pd.DataFrame({"a": np.arange(200_000) % 7, "wide": noise}).to_parquet(tmp_path / "x.parquet")
    send(s3, tmp_path)
    counting = Counting(s3)
    config = dataset_at("s3://bench-bucket/raw", expectations=[BETWEEN])
    assert check(counting, config).success
    size = (tmp_path / "x.parquet").stat().st_size
    assert 0 < sum(count for _, count in counting.calls) < size / 4


def test_a_small_object_is_one_call_and_nothing_is_written(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    for number in range(3):
        pd.DataFrame({"a": [number]}).to_parquet(tmp_path / f"{number}.parquet")
    send(s3, tmp_path)
    counting = Counting(s3)
    config = dataset_at("s3://bench-bucket/raw", expectations=[BETWEEN])
    assert check(counting, config).success
    assert sorted(key for key, _ in counting.calls) == [f"raw/{n}.parquet" for n in range(3)]
    assert os.listdir(scratch) == []


class Forbidding:
    """An S3 client that may not read one key."""

    def __init__(self, client: Any, key: str) -> None:
        self._client, self._key = client, key

    def get_object(self, **request: Any) -> Any:
        if request["Key"] == self._key:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetObject")
        return self._client.get_object(**request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def spoiled(s3: Any, key: str, how: str) -> Any:
    """Return a client for which this has happened to the object."""
    if how == "deleted":
        s3.delete_object(Bucket=BUCKET, Key=key)
    elif how == "replaced":
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"other")
    return Forbidding(s3, key) if how == "forbidden" else s3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("deleted", "was deleted"),
        ("replaced", "was replaced"),
        ("forbidden", ".*AccessDenied.* s3:GetObject"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_object_that_can_no_longer_be_read_ends_the_validation_with_its_key(
    s3: Any, how: str, message: str, kind: str
) -> None:
    for name in "abc":
        s3.put_object(Bucket=BUCKET, Key=f"raw/{name}.{kind}", Body=as_bytes(kind))
    config = remote(kind)
    found = describe_remote(s3, config)
    s3 = spoiled(s3, f"raw/b.{kind}", how)
    with pytest.raises(DatasetRefused, match=rf"s3://bench-bucket/raw/b\.{kind} {message}"):
        check(s3, config, found)


def as_bytes(kind: str) -> bytes:
    frame, out = pd.DataFrame({"a": [1, 2, 3]}), io.BytesIO()
    frame.to_parquet(out) if kind == "parquet" else frame.to_csv(out)
    return out.getvalue()


@pytest.mark.parametrize("whole_bytes", [0, 100])
def test_a_remote_file_reads_and_seeks_as_a_file_does(
    s3: Any, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(range_file, "WHOLE_BYTES", whole_bytes)
    body = bytes(range(100))
    s3.put_object(Bucket=BUCKET, Key="raw/x", Body=body)
    [item] = describe_remote(s3, dataset_at("s3://bench-bucket/raw", "files")).objects
    ours, theirs = RemoteFile(s3, BUCKET, item), io.BytesIO(body)
    assert ours.readable() and ours.seekable()
    for file in (ours, theirs):
        file.seek(-10, io.SEEK_END)
    for ask in (4, 0, 99, 1, -1):
        assert ours.read(ask) == theirs.read(ask)
        assert ours.tell() == theirs.tell()
    assert ours.seek(5) == 5 and ours.seek(3, io.SEEK_CUR) == 8
    assert ours.read() == body[8:]
    ours.seek(0)
    assert io.BufferedReader(ours, 16).read(40) == body[:40]
    ours.seek(200)
    assert ours.read(1) == b""


def test_a_body_that_breaks_off_is_asked_for_again(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket=BUCKET, Key="raw/x", Body=b"all of it")
    [item] = describe_remote(s3, dataset_at("s3://bench-bucket/raw", "files")).objects
    monkeypatch.setattr("nodesweep.aws.platform.Clock.sleep", lambda *_: None)
    get_object, asked = s3.get_object, []

    class Broken:
        def read(self) -> bytes:
            raise ResponseStreamingError(error="reset")

    def first_broken(**request: Any) -> Any:
        asked.append(request["Range"])
        return {"Body": Broken()} if len(asked) == 1 else get_object(**request)

    monkeypatch.setattr(s3, "get_object", first_broken)
    assert RemoteFile(s3, BUCKET, item).read() == b"all of it"
    assert asked == ["bytes=0-8"] * 2


def test_a_key_with_a_line_break_is_read(s3: Any) -> None:
    """The local platform accepts no such key, because moto's server does not route it."""
    s3.put_object(Bucket=BUCKET, Key="raw/new\nline.csv", Body=as_bytes("csv"))
    config = dataset_at("s3://bench-bucket/raw", "csv", expectations=[BETWEEN])
    report = check(s3, config)
    assert report.success and [file.file for file in report.files] == ["new\nline.csv"]
