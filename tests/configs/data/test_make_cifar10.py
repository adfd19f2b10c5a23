"""The CIFAR-10 archive becomes the ResNet-18 example's dataset, and no file that somebody else made
is trusted.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.data import make_cifar10
from nodesweep.configs.data.make_cifar10 import SHARDS, BadArchive, read_archive, tables_of
from nodesweep.configs.load import load_config
from nodesweep.tasks.dataset.validation import validate_dataset
from tests.configs.data.cifar10_archive import BATCHES, python2_pickle, small_batches, write_archive

EXAMPLE = (
    Path(__file__).resolve().parents[3] / "configs" / "examples" / "resnet18_cifar10_g4dn_spot.yaml"
)
ONE = np.full((3, 3072), 7, np.uint8)


def make(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodesweep.configs.data.make_cifar10", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=EXAMPLE.parents[2]
    )


def refusal(path: Path) -> str:
    with pytest.raises(BadArchive) as caught:
        read_archive(path)
    return str(caught.value)


def with_batch(path: Path, batch: bytes) -> Path:
    """An archive whose third batch is this one."""
    members = {name: python2_pickle(ONE, [1, 2, 3]) for name in BATCHES}
    return write_archive(path, {**members, "data_batch_3": batch})


def test_the_published_form_becomes_files_of_equal_length(tmp_path: Path) -> None:
    images, labels, members = small_batches(rows=16)
    made = make(write_archive(tmp_path / "cifar.tar.gz", members), tmp_path / "out")
    assert (made.returncode, made.stderr) == (0, "")
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in paths] == [f"part-{shard}.parquet" for shard in range(SHARDS)]
    assert made.stdout.splitlines() == [f"{path}  {path.stat().st_size} bytes" for path in paths]
    tables = [pq.read_table(path) for path in paths]
    assert {table.num_rows for table in tables} == {10}
    assert [str(kind) for kind in tables[0].schema.types] == ["fixed_size_binary[3072]", "uint8"]
    assert (
        b"".join(row for table in tables for row in table["pixels"].to_pylist()) == images.tobytes()
    )
    assert [label for table in tables for label in table["label"].to_pylist()] == labels


def test_what_is_made_is_what_the_example_expects(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    images, labels, _ = small_batches(rows=16)
    paths = make_cifar10.write_shards(tmp_path, tables_of(images, np.array(labels, np.uint8)))
    dataset = load_config(EXAMPLE).dataset.model_copy(update={"min_rows": 80})
    report = validate_dataset(paths, dataset, now=datetime.now(UTC))
    assert report.problems == () and report.rows == 80
    repeated = dataset.model_copy(update={"unique_columns": ("pixels",)})
    assert validate_dataset(paths, repeated, now=datetime.now(UTC)).problems == ()
    [twice] = validate_dataset([*paths, *paths[:1]], repeated, now=datetime.now(UTC)).problems
    assert twice.message == snapshot
    assert len(twice.message) < 1000


def test_python_3_pickles_of_the_same_form_are_read(tmp_path: Path) -> None:
    members = {
        name: pickle.dumps({b"data": ONE, b"labels": [1, 2, 3]}, protocol=2) for name in BATCHES
    }
    images, labels = read_archive(write_archive(tmp_path / "a.tar.gz", members))
    assert (
        images.shape == (15, 3072)
        and set(images.ravel()) == {7}
        and labels.tolist() == [1, 2, 3] * 5
    )


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_with_code_runs_none_of_it(
    tmp_path: Path, protocol: int, snapshot: SnapshotAssertion
) -> None:
    trap = tmp_path / "ran"
    batch = pickle.dumps({b"data": Evil(trap), b"labels": [1]}, protocol)
    message = refusal(with_batch(tmp_path / "a.tar.gz", batch))
    assert message.startswith("data_batch_3 refers to ")
    assert message == snapshot
    assert not trap.exists()


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "os\nsystem",
        "numpy\nload",
        "numpy.core.multiarray\nscalar",
        "_codecs\ndecode",
    ],
)
def test_names_that_no_batch_needs_are_refused(tmp_path: Path, name: str) -> None:
    message = refusal(with_batch(tmp_path / "a.tar.gz", b"\x80\x02c" + name.encode() + b"\n."))
    assert f"refers to {name.replace(chr(10), '.')}" in message


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"nonsense",
        python2_pickle(ONE, [1, 2, 3])[:-100],
        b"\x80\x02cnumpy\nndarray\n}(U\x01aK\x01ub.",
        b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02]q\x00h\x00a.",
        pickle.dumps({b"fine_labels": [1]}, 2),
        pickle.dumps({b"data": [1], b"labels": [1]}, 2),
        pickle.dumps({b"data": np.array([1, "a"], object), b"labels": [1]}, 2),
        pickle.dumps({b"data": ONE.astype(np.float32), b"labels": [1]}, 2),
        pickle.dumps({b"data": np.asfortranarray(ONE), b"labels": [1]}, 2),
        pickle.dumps({b"data": ONE[:, :100], b"labels": [1, 2, 3]}, 2),
        python2_pickle(ONE[:0], []),
        python2_pickle(ONE, [1, 2]),
        python2_pickle(ONE, [1, 2, 10]),
        pickle.dumps({b"data": ONE, b"labels": ["1", "2", "3"]}, 2),
    ],
)
def test_a_batch_that_is_none_is_named(
    tmp_path: Path, batch: bytes, snapshot: SnapshotAssertion
) -> None:
    message = refusal(with_batch(tmp_path / "a.tar.gz", batch))
    # the error in parentheses is the interpreter's
    assert re.sub(r"can't be read \(.+\);", "can't be read (<error>);", message) == snapshot
    assert "data_batch_3" in message


@pytest.mark.parametrize(
    ("folder", "members"),
    [
        ("cifar-100-python", {"train": b"", "test": b"", "meta": b""}),
        ("cifar-10-batches-bin", {"data_batch_1.bin": b""}),
        ("cifar-10-batches-mat", {"data_batch_1.mat": b""}),
        ("photos", {"a.jpg": b""}),
        ("cifar-10-batches-py", {name: b"" for name in BATCHES if name != "data_batch_4"}),
        ("cifar-10-batches-py", {}),
    ],
)  # fmt: skip
def test_another_archive_is_named(
    tmp_path: Path, folder: str, members: dict[str, bytes], snapshot: SnapshotAssertion
) -> None:
    assert refusal(write_archive(tmp_path / "a.tar.gz", members, folder)) == snapshot


def test_a_truncated_archive_says_so_at_any_length(tmp_path: Path) -> None:
    whole = write_archive(tmp_path / "whole.tar.gz", small_batches(rows=2)[2]).read_bytes()
    for kept in range(0, len(whole) - 8, len(whole) // 23):
        cut = tmp_path / "cut.tar.gz"
        cut.write_bytes(whole[:kept])
        assert any(word in refusal(cut) for word in ("damaged", "gzip")), kept


def test_damage_inside_is_found(tmp_path: Path) -> None:
    whole = bytearray(
        write_archive(tmp_path / "whole.tar.gz", small_batches(rows=2)[2]).read_bytes()
    )
    for place in range(20, len(whole), len(whole) // 23):
        damaged = tmp_path / "damaged.tar.gz"
        damaged.write_bytes(
            bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        )
        assert "download" in refusal(damaged), place


def test_a_bomb_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """Neither a member, nor a header, nor what lies between them may be of any size."""
    monkeypatch.setattr(make_cifar10, "MAX_BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(make_cifar10, "MAX_ARCHIVE_BYTES", 4 << 20)
    zeros = bytes(2 << 20)
    assert refusal(write_archive(tmp_path / "a.tar.gz", {"data_batch_1": zeros})) == snapshot
    many = write_archive(tmp_path / "b.tar.gz", {"a": zeros, "b": zeros, "c": zeros})
    assert refusal(many) == snapshot
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("data_batch_1")
        info.pax_headers = {"comment": "x" * (8 << 20)}
        archive.addfile(info, io.BytesIO())
    assert refusal(tmp_path / "c.tar.gz") == snapshot


def test_links_and_paths_that_lead_out_leave_no_file(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        outside = tarfile.TarInfo("../../data_batch_2")
        outside.size = 3
        archive.addfile(outside, io.BytesIO(b"abc"))
    assert "lacks data_batch_1, data_batch_3" in refusal(tmp_path / "a.tar.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_the_command_ends_in_one_line_and_2(tmp_path: Path) -> None:
    tar = tmp_path / "plain.tar"
    tar.write_bytes(gzip.decompress(write_archive(tmp_path / "a.tar.gz", {}).read_bytes()))
    for archive, says in (
        (tmp_path / "none.tar.gz", "none.tar.gz: No such file or directory"),
        (tmp_path, "Is a directory"),
        (tar, "is not a gzip file; give cifar-10-python.tar.gz as it was downloaded"),
    ):
        made = make(archive, tmp_path / "out")
        assert made.returncode == 2 and says in made.stderr.splitlines()[-1], made.stderr
        assert "Traceback" not in made.stderr
    images = write_archive(tmp_path / "good.tar.gz", small_batches(rows=2)[2])
    made = make(images, tar)
    assert made.returncode == 2 and f"{tar} is a file" in made.stderr.splitlines()[-1]
