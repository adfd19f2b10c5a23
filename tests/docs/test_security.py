"""docs/security.md: each section names the tests that show it, and they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
OF_TESTS = PAGE[PAGE.index("## Tests of all this") :]
NAMED = sorted(set(re.findall(r"`(tests/[\w/.:-]+)`", PAGE)))


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_is_named_is_there(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((REPOSITORY / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name in functions if name else any(each.startswith("test_") for each in functions)


def test_every_section_names_its_tests() -> None:
    sections = re.findall(r"^##+ (.+)$", PAGE, re.MULTILINE)
    with_parts_alone = {"What is refused", "Tests of all this"}
    rows = [row.split("|") for row in OF_TESTS.splitlines() if row.startswith("| [")]
    named = {row[1].strip()[1:].partition("]")[0]: row[2] for row in rows}
    assert set(named) == set(sections) - with_parts_alone
    assert all("`tests/" in tests for tests in named.values())
