"""The messages that docs/troubleshooting.md explains are in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\*\*`(.+)`\*\*$", PAGE, re.MULTILINE)
LAYERS = ("configs", "flows", "infra", "nodesweep", "tasks")


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """Return every text of the code, with … for each inserted value, and the lines of
    prefect.yaml."""
    found = (REPOSITORY / "prefect.yaml").read_text().splitlines()
    for layer in LAYERS:
        for path in (REPOSITORY / layer).rglob("*.py"):
            if "tests" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (getattr(part, "value", "…") for part in node.values)
                    found.append("".join(part if isinstance(part, str) else "…" for part in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return tuple(found)


def has_in_order(text: str, parts: list[str]) -> bool:
    end = 0
    for part in parts:
        if (begin := text.find(part, end)) < 0:
            return False
        end = begin + len(part)
    return True


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_is_one_of_the_code(message: str) -> None:
    parts = re.split("…+", message)
    assert any(has_in_order(text, parts) for text in texts_of_the_code())


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 30 and len(set(MESSAGES)) == len(MESSAGES)
