from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from nodesweep.aws.platform import aws_client
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import DatasetRefused, UploadFailed
from nodesweep.scaling import names
from nodesweep.tasks.dataset import files as dataset
from nodesweep.tasks.dataset import hashing, sending
from nodesweep.tasks.dataset.files import (
    Dataset,
    UploadResult,
    channel_folders,
    check_keys,
    scan_directory,
    upload,
)
from nodesweep.tasks.dataset.sending import PART_BYTES, DataFile
from tests.plain import plain


class Counting:
    """An S3 client that counts the uploaded files, and can fail after some of them.

    `calls` are the operations on single objects.
    """

    def __init__(self, client: Any, fail_after: int | None = None) -> None:
        self._client, self._fail_after = client, fail_after
        self.sent: list[str] = []
        self.calls: list[str] = []
        self.streamed: list[bool] = []

    def put_object(self, **request: Any) -> Any:
        if not request["Key"].endswith("manifest.json"):
            if self._fail_after is not None and len(self.sent) >= self._fail_after:
                raise ConnectionError("cut off")
            self.calls.append("put_object")
            self.streamed.append(not isinstance(request["Body"], bytes))
            self.sent.append(request["Key"])
        return self._client.put_object(**request)

    def head_object(self, **request: Any) -> Any:
        self.calls.append("head_object")
        return self._client.head_object(**request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def dataset_at(source: Path | str, data_format: str = "parquet", **more: Any) -> DatasetConfig:
    expectations = [{"type": "expect_column_to_exist", "kwargs": {"column": "a"}}]
    checks = {} if data_format == "files" else {"expectations": expectations}
    return DatasetConfig.model_validate(
        {"name": "d", "source": str(source), "format": data_format, **checks, **more}
    )


def send(s3: Any, files: Dataset, config: BenchmarkConfig) -> UploadResult:
    """Upload a dataset for a benchmark."""
    platform = config.platform
    return upload(s3, files, config.dataset.name, platform.bucket, platform.prefix)


@pytest.fixture
def files(tmp_path: Path) -> Dataset:
    for name, body in {
        "a.parquet": b"A" * 10,
        "sub/b.parquet": b"B" * 20,
        "note.txt": b"not data",
    }.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return scan_directory(dataset_at(tmp_path / "data"))


@pytest.fixture
def s3(aws: Callable[[str], Any], benchmark_config: BenchmarkConfig) -> Any:
    client = aws("s3")
    client.create_bucket(Bucket=benchmark_config.platform.bucket)
    return client


def test_scan_takes_only_the_format_and_names_files_below_the_source(files: Dataset) -> None:
    assert [(file.name, file.size_bytes) for file in files.files] == [
        ("a.parquet", 10),
        ("sub/b.parquet", 20),
    ]


def test_digest_follows_content_and_names(files: Dataset, tmp_path: Path) -> None:
    (tmp_path / "data" / "a.parquet").write_bytes(b"C" * 10)
    assert scan_directory(dataset_at(tmp_path / "data")).digest != files.digest


@pytest.mark.parametrize("missing", ["nowhere", "."])
def test_scan_refuses_a_source_without_files(tmp_path: Path, missing: str) -> None:
    with pytest.raises(DatasetRefused, match=r"dataset\.source"):
        scan_directory(dataset_at(tmp_path / missing))


@pytest.mark.parametrize(("letter", "name_bytes"), [("x", 200), ("ä", 200)])
def test_a_key_that_s3_would_not_take_is_refused(
    tmp_path: Path,
    benchmark_config: BenchmarkConfig,
    letter: str,
    name_bytes: int,
) -> None:
    """1,024 bytes of UTF-8, the prefix included."""
    platform, section = benchmark_config.platform, dataset_at(tmp_path)
    prefix = len(names.dataset_data_prefix(platform.prefix, section.name, "0" * 64).encode())
    folders = (letter * (name_bytes // len(letter.encode())) + "/") * 4
    left = names_left = 1024 - prefix - len(folders.encode())
    for size, is_refused in ((left, False), (names_left + 1, True)):
        found = Dataset((DataFile(folders + "y" * size, 1, "", tmp_path, None),), "0" * 64)
        if is_refused:
            with pytest.raises(DatasetRefused) as refused:
                check_keys(found, section, platform.prefix)
            assert "1025 bytes" in str(refused.value) and "1024" in str(refused.value)
        else:
            check_keys(found, section, platform.prefix)


def test_second_upload_sends_nothing(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig
) -> None:
    first = send(s3, files, benchmark_config)
    second = send(s3, files, benchmark_config)
    assert (first.sent_files, first.sent_bytes) == (2, 30)
    assert (second.sent_files, second.sent_bytes) == (0, 0)
    assert first.uri == second.uri and files.digest[:16] in first.uri


def test_cut_off_upload_is_completed_not_trusted(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "SMALL_CONNECTIONS", 1)
    config, platform = benchmark_config.dataset, benchmark_config.platform
    with pytest.raises(ConnectionError):
        upload(Counting(s3, fail_after=1), files, config.name, platform.bucket, platform.prefix)
    with pytest.raises(ClientError):  # no manifest: nothing may take the prefix for complete
        s3.head_object(
            Bucket=platform.bucket,
            Key=names.dataset_manifest_key(platform.prefix, config.name, files.digest),
        )
    again = Counting(s3)
    result = upload(again, files, config.name, platform.bucket, platform.prefix)
    assert [key.rsplit("/", 1)[-1] for key in again.sent] == ["b.parquet"]
    assert result.sent_bytes == 20


def test_changed_object_is_sent_anew(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig
) -> None:
    config, platform = benchmark_config.dataset, benchmark_config.platform
    prefix = names.dataset_data_prefix(platform.prefix, config.name, files.digest)
    s3.put_object(Bucket=platform.bucket, Key=prefix + "a.parquet", Body=b"A" * 9)
    assert upload(s3, files, config.name, platform.bucket, platform.prefix).sent_bytes == 30


def test_same_size_with_other_bytes_is_not_trusted(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig
) -> None:
    config, platform = benchmark_config.dataset, benchmark_config.platform
    key = names.dataset_data_prefix(platform.prefix, config.name, files.digest) + "a.parquet"
    s3.put_object(
        Bucket=platform.bucket, Key=key, Body=b"X" * 10, Metadata={"sha256": files.files[0].sha256}
    )
    assert upload(s3, files, config.name, platform.bucket, platform.prefix).sent_files == 2
    assert s3.get_object(Bucket=platform.bucket, Key=key)["Body"].read() == b"A" * 10


def test_foreign_object_under_the_prefix_is_refused(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig, snapshot: SnapshotAssertion
) -> None:
    config, platform = benchmark_config.dataset, benchmark_config.platform
    key = names.dataset_data_prefix(platform.prefix, config.name, files.digest) + "stray.parquet"
    s3.put_object(Bucket=platform.bucket, Key=key, Body=b"?")
    with pytest.raises(UploadFailed) as refused:
        upload(s3, files, config.name, platform.bucket, platform.prefix)
    assert str(refused.value) == snapshot


def test_a_small_file_is_one_call_with_the_checksum_that_the_service_checks(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig
) -> None:
    config, platform = benchmark_config.dataset, benchmark_config.platform
    counting = Counting(s3)
    upload(counting, files, config.name, platform.bucket, platform.prefix)
    assert counting.calls == ["put_object", "put_object"]
    head = s3.head_object(Bucket=platform.bucket, Key=counting.sent[0], ChecksumMode="ENABLED")
    hashed = bytes.fromhex(head["Metadata"]["sha256"])
    assert head["ChecksumSHA256"] == base64.b64encode(hashed).decode()


def test_only_files_of_up_to_a_mebibyte_are_held_in_memory(
    s3: Any, tmp_path: Path, benchmark_config: BenchmarkConfig
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"A" * sending.IN_MEMORY_BYTES)
    (tmp_path / "b.parquet").write_bytes(b"B" * (sending.IN_MEMORY_BYTES + 1))
    counting = Counting(s3)
    config, platform = benchmark_config.dataset, benchmark_config.platform
    result = upload(
        counting,
        scan_directory(dataset_at(tmp_path)),
        config.name,
        platform.bucket,
        platform.prefix,
    )
    assert sorted(zip(counting.sent, counting.streamed, strict=True)) == [
        (names.dataset_data_prefix(platform.prefix, config.name, result.digest) + name, streamed)
        for name, streamed in [("a.parquet", False), ("b.parquet", True)]
    ]
    body = s3.get_object(Bucket=platform.bucket, Key=sorted(counting.sent)[1])["Body"].read()
    assert body == b"B" * (sending.IN_MEMORY_BYTES + 1)
    assert sending.SMALL_CONNECTIONS * sending.IN_MEMORY_BYTES <= 64 * 1024 * 1024


def test_small_files_wait_for_s3_side_by_side(
    s3: Any, tmp_path: Path, benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(sending.SMALL_CONNECTIONS):
        (tmp_path / f"{number}.parquet").write_bytes(b"small")
    put_object = s3.put_object
    all_are_sending = threading.Barrier(sending.SMALL_CONNECTIONS)

    def put(**request: Any) -> Any:
        if request["Key"].endswith(".parquet"):
            all_are_sending.wait(timeout=300)
        return put_object(**request)

    monkeypatch.setattr(s3, "put_object", put)
    config, platform = benchmark_config.dataset, benchmark_config.platform
    found = upload(
        s3, scan_directory(dataset_at(tmp_path)), config.name, platform.bucket, platform.prefix
    )
    assert found.sent_files == sending.SMALL_CONNECTIONS


def test_a_file_that_changed_after_it_was_hashed_is_refused_and_not_sent(
    tmp_path: Path,
    s3: Any,
    files: Dataset,
    benchmark_config: BenchmarkConfig,
    snapshot: SnapshotAssertion,
) -> None:
    files.files[0].path.write_bytes(b"X" * 10)
    counting = Counting(s3)
    with pytest.raises(UploadFailed) as refused:
        send(counting, files, benchmark_config)
    assert plain(refused.value, folder=tmp_path) == snapshot
    assert not [key for key in counting.sent if key.endswith("a.parquet")]


def test_a_file_that_is_as_it_was_hashed_is_not_hashed_again(
    s3: Any, files: Dataset, benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "SETTLED_SECONDS", -60.0)
    settled = scan_directory(dataset_at(files.files[0].path.parent))
    hashed: list[Any] = []
    monkeypatch.setattr(sending.hashlib, "file_digest", lambda *asked: hashed.append(asked))
    config, platform = benchmark_config.dataset, benchmark_config.platform
    assert upload(s3, settled, config.name, platform.bucket, platform.prefix).sent_files == 2
    assert hashed == []


def test_a_file_that_changes_while_it_is_sent_is_refused(
    tmp_path: Path,
    s3: Any,
    files: Dataset,
    benchmark_config: BenchmarkConfig,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    put_object = s3.put_object

    def change(**request: Any) -> Any:
        files.files[0].path.write_bytes(b"changed")
        return put_object(**request)

    monkeypatch.setattr(s3, "put_object", change)
    with pytest.raises(UploadFailed) as refused:
        send(s3, files, benchmark_config)
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_a_local_name_that_is_not_utf_8_is_refused_before_anything_is_hashed(
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.parquet")).write_bytes(b"1")
    with pytest.raises(DatasetRefused) as refused:
        scan_directory(dataset_at(tmp_path))
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_a_file_that_arrives_otherwise_is_refused(
    tmp_path: Path,
    s3: Any,
    files: Dataset,
    benchmark_config: BenchmarkConfig,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    def answer(**request: Any) -> None:
        raise ClientError({"Error": {"Code": "BadDigest"}}, "PutObject")

    monkeypatch.setattr(s3, "put_object", answer)
    with pytest.raises(UploadFailed) as refused:
        send(s3, files, benchmark_config)
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_no_more_calls_at_once_than_the_client_has_connections(
    benchmark_config: BenchmarkConfig,
) -> None:
    client = aws_client("s3", benchmark_config.platform)
    at_once = max(sending.SMALL_CONNECTIONS, sending.CONNECTIONS)
    assert at_once <= client.meta.config.max_pool_connections


def test_multipart_upload_is_verified(
    s3: Any, tmp_path: Path, benchmark_config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SINGLE_PUT_BYTES", PART_BYTES)
    (tmp_path / "big.parquet").write_bytes(bytes(range(256)) * (PART_BYTES // 256) + b"tail")
    big = scan_directory(dataset_at(tmp_path))
    config, platform = benchmark_config.dataset, benchmark_config.platform
    assert (
        upload(s3, big, config.name, platform.bucket, platform.prefix).sent_bytes == PART_BYTES + 4
    )
    assert upload(s3, big, config.name, platform.bucket, platform.prefix).sent_bytes == 0


def test_format_files_takes_whatever_lies_there(tmp_path: Path, files: Dataset) -> None:
    there = scan_directory(dataset_at(tmp_path / "data", "files"))
    assert [file.name for file in there.files] == ["a.parquet", "note.txt", "sub/b.parquet"]
    with pytest.raises(DatasetRefused, match=str(tmp_path / "empty")):
        scan_directory(dataset_at(mkdir(tmp_path / "empty"), "files"))


def mkdir(path: Path) -> Path:
    path.mkdir()
    return path


def test_folders_become_channels() -> None:
    config = dataset_at("data", "files", channel=None)
    assert channel_folders(config, ["val/1.jpg", "train/cat/1.jpg", "train/2.jpg"]) == (
        "train",
        "val",
    )
    assert channel_folders(dataset_at("data", "files"), ["train/1.jpg", "loose.txt"]) == ()


@pytest.mark.parametrize(
    "names_below",
    [
        ["train/1.jpg", "labels.json"],
        ["tr ain/1.jpg"],
        [f"f{number}/x" for number in range(21)],
    ],
)
def test_folders_that_cannot_be_channels_are_refused(
    names_below: list[str], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(DatasetRefused) as refused:
        channel_folders(dataset_at("data", "files", channel=None), names_below)
    assert str(refused.value) == snapshot
