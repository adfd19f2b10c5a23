"""The emulator without nodesweep: its wheel in a separate environment, and its imports."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from sagemaker_emulator.__main__ import _parser

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = PROJECT / "sagemaker_emulator"
LOCK = PROJECT.parents[1] / "requirements.lock"
README = (PROJECT / "README.md").read_text(encoding="utf-8")
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UV = Path(sys.executable).with_name("uv")
SHARED = {"hostile_server", "plain", "processes"}
"""Test helpers in the repository that do not depend on nodesweep."""


def imports_of(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, with the names after `from …
    import`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_it_imports_nothing_of_nodesweep() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    foreign = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in files
        for name in imports_of(path)
        if name.partition(".")[0] in {"nodesweep", "infra", "tests", "benchmarks"}
    }
    assert foreign == set()


def test_its_tests_import_nothing_of_nodesweep() -> None:
    """Tests of nodesweep together with the emulator are in tests/infra/local."""
    names = {name for path in (PROJECT / "tests").rglob("*.py") for name in imports_of(path)}
    names.discard("benchmarks.ports.free_port")  # does not depend on nodesweep either
    assert not {name for name in names if name.partition(".")[0] in {"nodesweep", "benchmarks"}}
    of_tests = {name.split(".")[1] for name in names if name.startswith("tests.")}
    assert of_tests <= SHARED


def test_readme_has_every_option_and_variable() -> None:
    [commands] = [each.choices for each in _parser()._actions if each.choices]
    options = {
        name
        for command in commands.values()
        for action in command._actions
        if action.help != "==SUPPRESS=="
        for name in action.option_strings
    }
    assert len(options) > 10
    assert sorted(name for name in options - {"-h", "--help"} if name not in README) == []
    assert SETTINGS["version"] == version("sagemaker-emulator")
    assert all(f"`{name}" in README for name in ("NODESWEEP_FAULTS", "NODESWEEP_SIM_"))


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return its output, or fail with the output if its exit code is not 0."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with only the emulator's wheel, built from a copy of its project."""
    place = tmp_path_factory.mktemp("distribution")
    shutil.copytree(
        PROJECT,
        place / "project",
        ignore=shutil.ignore_patterns("tests", "__pycache__", "*.egg-info", "build", ".*"),
    )
    call(UV, "build", "--quiet", "--wheel", "--out-dir", place, place / "project", cwd=place)
    [wheel] = place.glob("sagemaker_emulator-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    sources = {path.relative_to(PROJECT).as_posix() for path in PACKAGE.rglob("*.py")}
    assert held == sources
    venv = place / "venv"
    call(UV, "venv", "--quiet", "--python", sys.executable, venv, cwd=place)
    python = ["--python", venv / "bin" / "python", "--constraints", LOCK]
    call(UV, "pip", "install", "--quiet", *python, wheel, cwd=place, PYTHONPATH="")
    return venv


@pytest.mark.slow
def test_commands_of_the_readme_run_where_there_is_no_nodesweep(
    environment: Path, tmp_path: Path
) -> None:
    block = README.partition("## Install\n")[2].partition("\n## ")[0]
    [install, *lines] = re.findall(r"^ {4}(\S.*)$", block, re.MULTILINE)
    assert install.startswith("pip install ") and len(lines) >= 5
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    run = "\n".join(("set -euo pipefail", "unset ${!AWS_@}", *lines))
    said = call("bash", "-c", run, cwd=tmp_path, PATH=path, HOME=str(tmp_path), PYTHONPATH="")
    assert '"running": true' in said and "Completed" in said and said.endswith("stopped\n")
    look = "from importlib.util import find_spec; print(find_spec('nodesweep'))"
    assert call(environment / "bin" / "python", "-I", "-c", look, cwd=tmp_path) == "None\n"
