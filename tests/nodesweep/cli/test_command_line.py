"""Commands that nodesweep recommends begin as nodesweep was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.command_line import COMMANDS, as_typed, command_words
from nodesweep.cli.inputs import command_of_run
from nodesweep.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An environment's nodesweep, as pip writes it."""
    script = tmp_path / "venv" / "bin" / "nodesweep"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom nodesweep.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return script


def test_every_command_is_known() -> None:
    assert set(COMMANDS) == set(main.commands)


def started(monkeypatch: pytest.MonkeyPatch, argument: str, path: str = "/nowhere") -> list[str]:
    monkeypatch.setattr("sys.argv", [argument, "run"])
    monkeypatch.setenv("PATH", path)
    return command_words()


def test_the_name_alone_where_a_shell_finds_it(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert started(monkeypatch, str(installed), str(installed.parent)) == ["nodesweep"]
    linked = tmp_path / "bin" / "nodesweep"  # as `uv tool install` does
    linked.parent.mkdir()
    linked.symlink_to(installed)
    assert started(monkeypatch, str(linked), str(linked.parent)) == ["nodesweep"]
    another = tmp_path / "other" / "nodesweep"
    another.parent.mkdir()
    another.write_text("")
    another.chmod(0o755)
    assert started(monkeypatch, str(installed), str(another.parent)) == [str(installed)]


def test_its_path_where_none_finds_it(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    assert started(monkeypatch, ".venv/bin/nodesweep") == [".venv/bin/nodesweep"]
    go_on = command_of_run(Path("my.yaml"), (), None)
    assert go_on == ".venv/bin/nodesweep run my.yaml"
    told = f"`nodesweep stop X`, or {go_on}; see nodesweep-stack.yaml, nodesweep is at work"
    assert as_typed(told) == told.replace("`nodesweep", "`.venv/bin/nodesweep")
    told = "go on with `nodesweep run CONFIG --resume x`; its log: nodesweep logs x"
    assert as_typed(told, go_on) == snapshot


def test_the_command_to_run_again_has_no_secret() -> None:
    overrides = ("training.environment={A: s3cr3t}", "training.hyperparameters.api_key=s3cr3t",
                 "sweep.repeats=3")  # fmt: skip
    command = command_of_run(Path("my.yaml"), overrides, None)
    assert "s3cr3t" not in command and "training.environment=(hidden)" in command
    assert "api_key=(hidden)" in command and "--set sweep.repeats=3" in command


def test_a_module_is_started_by_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    module = str(REPOSITORY / "nodesweep" / "__main__.py")
    assert started(monkeypatch, module) == [sys.executable, "-m", "nodesweep"]
    assert started(monkeypatch, "/usr/bin/pytest") == ["nodesweep"], "a flow in a worker"


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("run", "absent.yaml"),
        ("report", "latest"),
    ],
)
def test_what_is_told_can_be_typed(
    installed: Path, arguments: tuple[str, ...], snapshot: SnapshotAssertion
) -> None:
    done = subprocess.run(
        [os.path.join(".", "bin", "nodesweep"), *arguments],
        cwd=installed.parents[1],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout + done.stderr == snapshot


def test_a_command_is_respelled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, str(REPOSITORY / "nodesweep" / "__main__.py"))
    once = as_typed("resume with: nodesweep run CONFIG --resume x")
    assert once == f"resume with: {sys.executable} -m nodesweep run CONFIG --resume x"
    assert as_typed(once) == once
