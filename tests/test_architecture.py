"""The floors of the house, held by reading every import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
# A file may import from its own floor and from those listed; infra/ is reached through URLs and process calls alone.
ALLOWED = {
    "flows": {"flows", "tasks", "scaling", "configs"},
    "tasks": {"tasks", "scaling", "configs"},
    "scaling": {"scaling", "configs"},
    "configs": {"configs"},
    "infra/local": {"infra"},
    "infra/image": set(),
    "examples": set(),
    "benchmarks": {"benchmarks", "flows", "tasks", "scaling", "configs", "infra"},
}
FLOORS = {"flows", "tasks", "scaling", "configs", "infra", "benchmarks"}
PURE = {"scaling", "configs"}
IMPURE_PACKAGES = {"prefect", "boto3", "botocore"}
MAX_LINES = 500
FILES = sorted(
    path
    for floor in (*ALLOWED, "tests")
    for path in (REPOSITORY / floor).rglob("*.py")
    if not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)
)


def imported_packages(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            packages.add(node.module.split(".")[0])
    return packages


def floor_of(path: Path) -> str | None:
    relative = path.relative_to(REPOSITORY).as_posix()
    return next((floor for floor in ALLOWED if relative.startswith(floor + "/")), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_file_keeps_to_its_floor(path: Path) -> None:
    floor = floor_of(path)
    imported = imported_packages(path)
    if floor is not None:
        upwards = (imported & FLOORS) - ALLOWED[floor]
        assert not upwards, f"{floor} may not import {sorted(upwards)}"
    if floor in PURE:
        assert not imported & IMPURE_PACKAGES
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{lines} lines; split it by concern"
