from __future__ import annotations

from pathlib import Path

import pytest

from nodesweep.launch.slurm import logs
from nodesweep.launch.slurm.logs import NodeLogs


def texts(log: NodeLogs) -> list[str]:
    return [text for _, text in log.new_lines()]


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    log = NodeLogs(tmp_path)
    assert texts(log) == []
    (tmp_path / "node-0.log").write_bytes(b"one\ntw")
    (tmp_path / "node-1.log").write_bytes(b"caf\xe9\n")
    assert texts(log) == ["node-0: one", "node-1: caf\ufffd"]
    with (tmp_path / "node-0.log").open("ab") as stream:
        stream.write(b"o\n")
    assert texts(log) == ["node-0: two"]
    assert texts(log) == [] and not log.has_more
    assert str(tmp_path) in log.location


def test_a_long_log_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PIECE_BYTES", 1 << 12)
    line = b"x" * 99 + b"\n"
    number = 3 * logs._PIECE_BYTES // 100
    (tmp_path / "node-0.log").write_bytes(line * number)
    log, found, calls = NodeLogs(tmp_path), 0, 0
    while not calls or log.has_more:
        found, calls = found + len(texts(log)), calls + 1
    assert found == number and calls >= 3


def test_a_line_longer_than_a_piece_does_not_stop_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PIECE_BYTES", 1 << 16)
    (tmp_path / "node-0.log").write_bytes(b"x" * (logs._PIECE_BYTES + 5) + b"\nlast\n")
    log = NodeLogs(tmp_path)
    assert len(texts(log)) == 1 and log.has_more
    assert texts(log) == ["node-0: xxxxx", "node-0: last"]


def test_secrets_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").write_text("password=hunter22secret\n")
    assert "hunter22secret" not in texts(NodeLogs(tmp_path))[0]
