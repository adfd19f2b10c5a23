"""Calls have at most five positional arguments, and keywords for all others."""

from __future__ import annotations

import ast
from pathlib import Path

LOCAL = Path(__file__).resolve().parents[1] / "sagemaker_emulator"
MOST_POSITIONAL = 5
COMMAND_LINES = {"call", "tethered"}
"""Functions whose arguments are the words of a command line."""


def crowded_calls(source: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = [(call, getattr(call.func, "attr", getattr(call.func, "id", None))) for call in calls]
    return [
        f"line {call.lineno}: {name}"
        for call, name in names
        if len(call.args) > MOST_POSITIONAL and name not in COMMAND_LINES
    ]


def test_no_call_has_more_than_five_positional_arguments() -> None:
    found = {
        path.relative_to(LOCAL): crowded_calls(path.read_text()) for path in LOCAL.rglob("*.py")
    }
    assert not {path: calls for path, calls in found.items() if calls}


def test_such_a_call_is_seen() -> None:
    assert crowded_calls("\nrun(1, 2, 3, 4, 5, 6)\nrun(1, 2, 3, 4, 5, last=6)\n") == ["line 2: run"]
