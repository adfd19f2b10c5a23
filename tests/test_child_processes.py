"""Child processes import nodesweep's modules, whatever is in the folder where a command runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FLOORS = ("configs", "flows", "infra/local/sagemaker_emulator", "nodesweep", "tasks")
SAFE = {"-P", "-I"}  # neither puts the working directory on sys.path
FOREIGN = "raise SystemExit('imported from the working directory: ' + __file__)\n"


def commands(source: str) -> Iterator[list[str]]:
    """Return the words of each list or tuple that starts a Python with -m or -c.

    A literal first word is that of a message or of a Dockerfile.
    """
    if not re.search(r"""["']-[cm]["']""", source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple):
            words = [ast.unparse(word) for word in node.elts]
            is_python = re.match(r"sys\.executable|(?!').*python", words[0]) if words else None
            if is_python and {"'-m'", "'-c'"} & set(words):
                yield [word.strip("'") for word in words]


def test_commands_are_found_in_a_source() -> None:
    source = "run([sys.executable, '-m', 'x']); t = (python, '-P', '-c', '1'); z = ['python', '-m']"
    found = sorted(commands(source))
    assert found == [["python", "-P", "-c", "1"], ["sys.executable", "-m", "x"]]


def test_no_python_that_is_started_imports_from_the_working_directory() -> None:
    found = {
        (path.relative_to(REPOSITORY).as_posix(), *words)
        for floor in FLOORS
        for path in (REPOSITORY / floor).rglob("*.py")
        for words in commands(path.read_text(encoding="utf-8"))
    }
    assert len(found) >= 8
    assert sorted(command for command in found if not SAFE & set(command)) == []


@pytest.mark.slow
def test_packages_of_our_names_in_the_working_directory_are_left_alone(tmp_path: Path) -> None:
    """The local platform is started, called and ended from such a folder."""
    for name in ("cli", "configs", "flows", "infra", "scaling", "tasks", "moto", "uvicorn"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(FOREIGN)
    (tmp_path / "logging.py").write_text(FOREIGN)
    nodesweep = Path(sys.executable).with_name("nodesweep")
    place = ["--port", "0", "--state-dir", str(tmp_path / "state")]

    def local(verb: str, *options: str) -> str:
        done = subprocess.run(
            [nodesweep, "local", verb, *options],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert local("start", *place).startswith("http://127.0.0.1:")
    try:
        assert '"running": true' in local("status", *place[2:])
    finally:
        assert local("stop", *place[2:]) == "stopped\n"
