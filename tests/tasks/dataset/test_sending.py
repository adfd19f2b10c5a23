"""The size of the parts of a large file is the same for sending and for checking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3transfer.utils import ChunksizeAdjuster

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import DatasetRefused
from nodesweep.tasks.dataset import files, sending
from nodesweep.tasks.dataset.files import scan_directory, upload
from nodesweep.tasks.dataset.sending import MAX_PART_BYTES, MAX_PARTS, PART_BYTES, part_bytes
from tests.tasks.dataset.test_files import dataset_at

GIB = 1024**3


@pytest.mark.parametrize(
    ("size_bytes", "mebibytes"),
    [
        (1, 16),
        (MAX_PARTS * PART_BYTES, 16),  # 156.25 GiB
        (MAX_PARTS * PART_BYTES + 1, 32),
        (400 * GIB, 64),
        (5 * 1024 * GIB, 1024),
        (MAX_PARTS * 4 * GIB + 1, 5 * 1024),
        (MAX_PARTS * MAX_PART_BYTES, 5 * 1024),
    ],
)
def test_a_part_is_of_a_size_that_s3transfer_leaves_as_it_is(
    size_bytes: int, mebibytes: int
) -> None:
    assert part_bytes(size_bytes) == mebibytes * 1024**2
    assert ChunksizeAdjuster().adjust_chunksize(part_bytes(size_bytes), size_bytes) == part_bytes(
        size_bytes
    )
    assert -(-size_bytes // part_bytes(size_bytes)) <= MAX_PARTS


def test_a_file_of_more_parts_than_s3_takes_is_sent_in_larger_ones_and_checked_by_them(
    aws: Callable[[str], Any],
    tmp_path: Path,
    benchmark_config: BenchmarkConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least = 5 * 1024 * 1024  # of a part that another one follows, at S3
    monkeypatch.setattr(sending, "SINGLE_PUT_BYTES", least)
    monkeypatch.setattr(sending, "PART_BYTES", least)
    monkeypatch.setattr(sending, "MAX_PARTS", 1)
    s3, config, platform = aws("s3"), benchmark_config.dataset, benchmark_config.platform
    s3.create_bucket(Bucket=platform.bucket)
    with (tmp_path / "big.parquet").open("wb") as stream:
        stream.write(b"begin")
        stream.seek(3 * least)  # sparse
        stream.write(b"end")
    big = scan_directory(dataset_at(tmp_path))
    part_numbers: list[int] = []

    def count(params: dict[str, Any], **_: Any) -> None:
        part_numbers.append(params["PartNumber"])

    s3.meta.events.register("before-parameter-build.s3.UploadPart", count)
    assert upload(s3, big, config.name, platform.bucket, platform.prefix).sent_files == 1
    assert part_numbers == [1]  # 20 MiB: of 5 MiB there would be four
    assert (
        upload(s3, big, config.name, platform.bucket, platform.prefix).sent_files == 0
    )  # what is there is taken for the file


def test_a_file_larger_than_an_object_may_be_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "hash_files", lambda *_: pytest.fail("was read"))
    monkeypatch.setattr(files, "MAX_OBJECT_BYTES", 9)
    (tmp_path / "a.parquet").write_bytes(b"A" * 10)
    with pytest.raises(DatasetRefused, match=r"a\.parquet .*10 bytes.* 9"):
        scan_directory(dataset_at(tmp_path))
