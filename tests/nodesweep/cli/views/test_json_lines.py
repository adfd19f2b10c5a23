"""`nodesweep run --log-format json` writes JSON only, even for the command's own messages on
stderr."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.scaling import names
from tests.plain import plain

LOCAL = str(Path(__file__).resolve().parents[4] / "configs" / "local.yaml")
JSON_FIELDS = {"time", "stage", "event", "level", "source", "job", "nodes", "text"}


def json_lines_of(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the lines of stderr of a run with --log-format json, each of which must be an
    object."""
    result = CliRunner().invoke(main, ("run", *arguments, "--log-format", "json"))
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert all(set(line) >= JSON_FIELDS for line in lines)
    return result.exit_code, lines


def test_json_lines_end_with_the_error_of_the_command(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    code, [last] = json_lines_of("absent.yaml")
    assert (code, last["event"], last["level"], last["exit_code"]) == (2, "failed", "error", 2)
    assert plain(last["text"], folder=tmp_path) == snapshot
    code, [last] = json_lines_of(LOCAL, "--resume", "nothing", "--output", str(tmp_path))
    assert (code, last["event"], last["exit_code"]) == (2, "failed", 2)
    assert plain(last["text"], folder=tmp_path) == snapshot


def test_json_lines_say_what_latest_is_and_that_the_run_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nodesweep.cli.session.flow_session", interrupt)
    benchmark = load_config(Path(LOCAL))
    sweep = names.sweep_id(benchmark, datetime(2026, 1, 6, tzinfo=UTC))
    (tmp_path / sweep).mkdir()
    (tmp_path / sweep / names.SWEEP_RECORD).write_text("{}")
    given = ("--resume", "latest", "--output", str(tmp_path))
    code, [meant, last] = json_lines_of(LOCAL, *given)
    assert meant["event"] == "sweep-meant"
    assert meant["text"] == snapshot
    assert (meant["typed"], meant["sweep"]) == ("latest", sweep)
    assert (code, last["event"], last["text"]) == (1, "failed", "interrupted")
