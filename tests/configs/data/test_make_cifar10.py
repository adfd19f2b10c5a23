"""The CIFAR-10 archive becomes the ResNet-18 example's dataset, and a wrong one is refused."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.data import make_cifar10
from nodesweep.configs.data.make_cifar10 import SHARDS, BadArchive, read_archive, tables_of
from nodesweep.configs.load import load_config
from nodesweep.tasks.dataset.validation import validate_dataset
from tests.configs.data.cifar10_archive import BATCHES, small_batches, write_archive

EXAMPLE = (
    Path(__file__).resolve().parents[3] / "configs" / "examples" / "resnet18_cifar10_g4dn_spot.yaml"
)
RECORD = bytes(3073)


def make(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodesweep.configs.data.make_cifar10", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=EXAMPLE.parents[2]
    )


def refusal(path: Path) -> str:
    with pytest.raises(BadArchive) as caught:
        read_archive(path)
    return str(caught.value)


def test_the_published_form_becomes_files_of_equal_length(tmp_path: Path) -> None:
    records, members = small_batches(rows=16)
    made = make(write_archive(tmp_path / "cifar.tar.gz", members), tmp_path / "out")
    assert (made.returncode, made.stderr) == (0, "")
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in paths] == [f"part-{shard}.parquet" for shard in range(SHARDS)]
    assert made.stdout.splitlines() == [f"{path}  {path.stat().st_size} bytes" for path in paths]
    tables = [pq.read_table(path) for path in paths]
    assert {table.num_rows for table in tables} == {10}
    assert [str(kind) for kind in tables[0].schema.types] == ["fixed_size_binary[3072]", "uint8"]
    rows = [row for table in tables for row in table.to_pylist()]
    assert b"".join(row["pixels"] for row in rows) == records[:, 1:].tobytes()
    assert [row["label"] for row in rows] == records[:, 0].tolist()


def test_what_is_made_is_what_the_example_expects(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    paths = make_cifar10.write_shards(tmp_path, tables_of(small_batches(rows=16)[0]))
    dataset = load_config(EXAMPLE).dataset.model_copy(update={"min_rows": 80})
    report = validate_dataset(paths, dataset, now=datetime.now(UTC))
    assert report.problems == () and report.rows == 80
    repeated = dataset.model_copy(update={"unique_columns": ("pixels",)})
    assert validate_dataset(paths, repeated, now=datetime.now(UTC)).problems == ()
    [twice] = validate_dataset([*paths, *paths[:1]], repeated, now=datetime.now(UTC)).problems
    assert twice.message == snapshot
    assert len(twice.message) < 1000


@pytest.mark.parametrize(
    "batch", [b"", RECORD[:-1], b"\x0a" + RECORD[1:]], ids=["empty", "cut", "label"]
)
def test_a_batch_that_is_none_is_named(
    tmp_path: Path, batch: bytes, snapshot: SnapshotAssertion
) -> None:
    members = {name: RECORD for name in BATCHES} | {BATCHES[2]: batch}
    message = refusal(write_archive(tmp_path / "a.tar.gz", members))
    assert message.startswith(BATCHES[2])
    assert message == snapshot


@pytest.mark.parametrize(
    ("folder", "members"),
    [
        ("cifar-10-batches-py", {"data_batch_1": b"", "batches.meta": b""}),
        ("cifar-10-batches-bin", {name: RECORD for name in BATCHES if "4" not in name}),
    ],
)
def test_another_archive_is_named(
    tmp_path: Path, folder: str, members: dict[str, bytes], snapshot: SnapshotAssertion
) -> None:
    assert refusal(write_archive(tmp_path / "a.tar.gz", members, folder)) == snapshot


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    whole = write_archive(tmp_path / "whole.tar.gz", small_batches(rows=2)[1]).read_bytes()
    damaged = tmp_path / "damaged.tar.gz"
    for place in range(20, len(whole) - 8, len(whole) // 23):
        damaged.write_bytes(whole[:place])
        assert "download" in refusal(damaged), place
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert "download" in refusal(damaged), place


def test_a_batch_of_any_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_cifar10, "MAX_BATCH_BYTES", 1 << 20)
    huge = write_archive(tmp_path / "a.tar.gz", {BATCHES[0]: bytes(2 << 20)})
    assert refusal(huge).startswith(f"lacks {BATCHES[0]}")


def test_links_and_paths_that_lead_out_leave_no_file(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo(BATCHES[0])
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        outside = tarfile.TarInfo(f"../../{BATCHES[1]}")
        outside.size = 3
        archive.addfile(outside, io.BytesIO(b"abc"))
    assert refusal(tmp_path / "a.tar.gz").startswith(f"lacks {BATCHES[0]}, {BATCHES[2]}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_the_command_ends_in_one_line_and_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said_of(archive: Path, output: Path) -> str:
        monkeypatch.setattr("sys.argv", ["make_cifar10", str(archive), str(output)])
        with pytest.raises(SystemExit) as end:
            make_cifar10.main()
        assert end.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    tar = tmp_path / "plain.tar"
    tar.write_bytes(gzip.decompress(write_archive(tmp_path / "a.tar.gz", {}).read_bytes()))
    for archive, says in (
        (tmp_path / "none.tar.gz", "none.tar.gz: No such file or directory"),
        (tmp_path, "Is a directory"),
        (tar, "is not a valid .tar.gz"),
    ):
        assert says in said_of(archive, tmp_path / "out")
    images = write_archive(tmp_path / "good.tar.gz", small_batches(rows=2)[1])
    assert f"{tar} is a file" in said_of(images, tar)
