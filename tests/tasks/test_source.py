from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tasks import source
from tasks.errors import PreflightRefused
from tasks.source import pack


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


def test_missing_entry_point_is_refused(code: Path) -> None:
    with pytest.raises(PreflightRefused, match=r"training\.entry_point: main\.py is not a file"):
        pack(code, "main.py")


def test_data_in_the_source_is_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_SOURCE_BYTES", 10)
    with pytest.raises(PreflightRefused, match="data belongs in the dataset"):
        pack(code, "train.py")
