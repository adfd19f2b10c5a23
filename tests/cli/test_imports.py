"""What a command may not import: what it does without and would wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = {"prefect", "great_expectations", "sagemaker", "pandas", "pyarrow", "matplotlib", "httpx"}
HEAVY |= {"sqlalchemy", "fastapi", "moto", "pydantic_settings"}
LATER = {"pydantic", "yaml", "numpy", "scipy", "boto3", "botocore", "rich", "jinja2"}


def imported(*arguments: str) -> set[str]:
    """The top-level packages that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("list", "--help")])
def test_help_imports_nothing_that_takes_time(arguments: tuple[str, ...]) -> None:
    found = imported(*arguments)
    assert "click" in found
    assert found & (HEAVY | LATER) == set()


def test_plan_imports_no_prefect_and_nothing_of_the_stages_that_come_later() -> None:
    found = imported("plan", "local")
    assert {"botocore", "pydantic"} <= found
    assert found & HEAVY == set()


def test_session_starts_prefects_server_before_anything_heavy_is_imported() -> None:
    """What stands between a run's config and the start of platform and server."""
    program = "import json, sys, cli.session; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, timeout=60, check=True
    )
    found = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "tasks" in found
    assert found & (HEAVY | {"numpy", "scipy"}) == set()
