from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused
from nodesweep.launch.store import FolderStore
from nodesweep.scaling import names
from nodesweep.tasks.jobs import source
from nodesweep.tasks.jobs.source import (
    LocalCode,
    changed_files,
    is_code_proven,
    mark_code_proven,
    pack,
    upload_source,
)
from tests.plain import plain


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "pkg" / "__pycache__").mkdir(parents=True)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "pkg" / "model.py").write_text("x = 1\n")
    (tmp_path / "pkg" / "__pycache__" / "model.pyc").write_bytes(b"0")
    (tmp_path / ".env").write_text("SECRET=1\n")
    return tmp_path


def test_pack_leaves_out_caches_and_hidden_files(code: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack(code, "train.py"))) as tar:
        members = tar.getnames()
    assert members == ["pkg/model.py", "train.py"]


def test_pack_gives_the_same_bytes_each_time(code: Path) -> None:
    first = pack(code, "train.py")
    (code / "train.py").touch()
    assert pack(code, "train.py") == first


def test_changed_files_are_found_in_the_archive_that_was_sent(
    code: Path, make_config: Callable[..., BenchmarkConfig], tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / ".store")
    backend: Any = SimpleNamespace(
        platform=SimpleNamespace(prefix=store.prefix),
        store=store,
        code_uri=lambda key: f"s3://bucket/{key}",
        send_code=lambda key, body: store.put(key, body) and f"s3://bucket/{key}",
    )
    local = LocalCode.of(make_config(training={"source_dir": str(code)}))
    sent = upload_source(backend, local, True)
    assert changed_files(backend, local, sent, True) == []
    (code / "train.py").chmod(0o755)
    (code / "new.py").touch()
    (code / "pkg" / "model.py").unlink()
    changed = ["new.py", "pkg/model.py", "train.py"]
    assert changed_files(backend, local, sent, True) == changed
    assert changed_files(backend, local, "/shared/code/0123-4567", True) == []
    store.put(sent.removeprefix("s3://bucket/"), b"damaged")
    assert changed_files(backend, local, sent, True) == []


def test_missing_entry_point_is_refused(
    tmp_path: Path, code: Path, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(PreflightRefused) as refused:
        pack(code, "main.py")
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_data_in_the_source_is_refused(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(source, "MAX_SOURCE_BYTES", 10)
    with pytest.raises(PreflightRefused) as refused:
        pack(code, "train.py")
    assert plain(refused.value, folder=tmp_path) == snapshot


def test_code_is_the_same_whatever_the_tool_writes_beside_it(
    make_config: Callable[..., BenchmarkConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may be in the user's working folder, which also has the reports, the data and the
    config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data").mkdir()
    config = make_config(
        dataset={"source": str(tmp_path / "data")}, training={"source_dir": str(tmp_path)}
    )
    before = LocalCode.of(config).pack()
    for written in ("reports/a-sweep/report.json", "data/a.parquet", "nodesweep.yaml"):
        (tmp_path / written).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / written).write_text("x")
    assert LocalCode.of(config).pack() == before
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "nodesweep.yaml").write_text("the program's own")
    assert LocalCode.of(config).pack() != before


@pytest.mark.parametrize("data", [".", ".."])
def test_code_in_the_folder_of_the_data_is_packed(
    make_config: Callable[..., BenchmarkConfig], tmp_path: Path, data: str
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    config = make_config(
        dataset={"source": str(tmp_path / data)}, training={"source_dir": str(tmp_path)}
    )
    with tarfile.open(fileobj=io.BytesIO(LocalCode.of(config).pack())) as tar:
        assert tar.getnames() == ["train.py"]


def test_requirements_that_are_a_layer_of_the_image_are_not_sent(
    make_config: Callable[..., BenchmarkConfig], tmp_path: Path
) -> None:
    """The toolkit then installs none; only the requirements.txt at the top is meant."""
    (tmp_path / "deep").mkdir()
    for name in ("train.py", "requirements.txt", "deep/requirements.txt"):
        (tmp_path / name).write_text("")
    config = make_config(training={"source_dir": str(tmp_path)})
    for with_requirements, more in ((True, ["requirements.txt"]), (False, [])):
        packed = LocalCode.of(config).pack(with_requirements)
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            assert sorted(tar.getnames()) == ["deep/requirements.txt", *more, "train.py"]


def test_code_is_proven_once_by_the_first_sweep(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert not is_code_proven(store, "ab12")
    for sweep in ("first", "second"):
        mark_code_proven(store, "ab12", sweep)
    assert is_code_proven(store, "ab12")
    body = store.get(names.proven_code_key(store.prefix, "ab12"))
    assert body is not None and b"first" in body


@pytest.mark.parametrize(
    ("changes", "entry_point", "words"),
    [
        ({}, "train.py", None),
        ({}, "main.py", "main.py "),
        ({"report": "pkg"}, "pkg/model.py", "report.directory"),
        ({"source": "pkg"}, "pkg/model.py", "dataset.source"),
        ({"source": "."}, "pkg/model.py", None),
        ({}, "../train.py", None),
    ],
)
def test_an_entry_point_that_the_archive_would_lack_is_told_before(
    make_config: Callable[..., BenchmarkConfig],
    code: Path,
    changes: dict[str, str],
    entry_point: str,
    words: str | None,
) -> None:
    config = make_config(
        training={"source_dir": str(code), "entry_point": entry_point},
        report={"directory": str(code / changes.get("report", "reports"))},
        dataset={"source": str(code / changes.get("source", "data"))},
    )
    problem = LocalCode.of(config).entry_point_problem()
    assert problem is None if words is None else words in str(problem)
    if words is None and not entry_point.startswith(".."):
        with tarfile.open(fileobj=io.BytesIO(LocalCode.of(config).pack())) as tar:
            assert entry_point in tar.getnames()


def packed(source_dir: Path, *left_out: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(pack(source_dir, "train.py", left_out))) as tar:
        return tar.getnames()


def test_a_linked_package_inside_the_code_is_sent(code: Path) -> None:
    (code / "app").mkdir()
    (code / "app" / "shared").symlink_to("../pkg")
    (code / "app" / "up").symlink_to("..")  # what it leads to is there already
    assert packed(code) == ["app/shared/model.py", "pkg/model.py", "train.py"]


def test_links_out_of_the_code_and_broken_ones_are_refused_by_name(
    code: Path, tmp_path_factory: pytest.TempPathFactory, snapshot: SnapshotAssertion
) -> None:
    aws = tmp_path_factory.mktemp("home") / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text("aws_secret_access_key = x")
    (code / "weights.txt").symlink_to(aws / "credentials")
    (code / "pkg" / "common").symlink_to("../../common")
    (code / ".#train.py").symlink_to("user@host.123")  # an editor's lock; hidden files are not sent
    with pytest.raises(PreflightRefused) as refused:
        pack(code, "train.py")
    outside, broken = sorted(refused.value.problems, reverse=True)
    assert plain(outside, code=code, aws=aws) == snapshot
    assert plain(broken, code=code) == snapshot


def test_secrets_are_not_sent(code: Path) -> None:
    for name in ("id_rsa", "keys/service-account.json", "keys/tls.pem", "keys/ca.pem"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("-----BEGIN PRIVATE KEY-----" if "tls" in name else "{}")
    (code / "notes.txt").symlink_to("id_rsa")
    (code / ".git").mkdir()
    (code / ".git" / "config").write_text("")
    (code / "history").symlink_to(".git")
    (code / "settings").symlink_to(".git/config")
    assert packed(code) == ["keys/ca.pem", "pkg/model.py", "train.py"]


@pytest.mark.parametrize("source", ["data", "elsewhere"])
def test_a_dataset_that_the_code_links_to_is_no_code(
    make_config: Callable[..., BenchmarkConfig], tmp_path: Path, source: str
) -> None:
    code, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    for folder in (code, elsewhere):
        folder.mkdir()
    (code / "train.py").write_text("")
    (elsewhere / "a.parquet").write_text("")
    (code / "data").symlink_to(elsewhere)
    at = {"data": code / "data", "elsewhere": elsewhere}[source]
    config = make_config(dataset={"source": str(at)}, training={"source_dir": str(code)})
    with tarfile.open(fileobj=io.BytesIO(LocalCode.of(config).pack())) as tar:
        assert tar.getnames() == ["train.py"]
