"""Each sentence of docs/security.md has tests that fail if it is wrong, or a reason why none can,
in security_claims.yaml."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"
LISTED: dict[str, dict[str, str]] = yaml.safe_load((TESTS / "security_claims.yaml").read_text())
"""Heading -> first words of a sentence, or of a row of a table -> its tests, or "none: " why."""
_SENTENCE_END = re.compile(r"(?<=\.)(?:\*\*)? (?=[A-Z`*(]|nodesweep)")
_RULE = re.compile(r"[-| ]+")


def claims_of(section: str) -> list[str]:
    """Return the sentences of a section, and the rows of its tables without their headers."""
    examples_left_out = re.sub(r"(?m)^ {4,}\S.*$", "", section)
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- |\|)", examples_left_out.strip()):
        line = " ".join(block.split())
        if _RULE.fullmatch(line):
            found.pop()  # the table's head
        elif line.startswith("|"):
            found.append(line.strip("| "))
        elif line:
            found += _SENTENCE_END.split(line.removeprefix("- "))
    return found


def claims_by_heading() -> dict[str, list[str]]:
    """Return the claims of the page below its table of contents, by heading."""
    parts = re.split(r"(?m)^##+ (.+)$", PAGE.read_text())[1:]
    found = dict(zip(parts[::2], map(claims_of, parts[1::2]), strict=True))
    return {heading: claims for heading, claims in found.items() if claims}


def named_in(listed: str) -> Iterator[tuple[str, str]]:
    """Return (file below tests/ or infra/local/tests, name) of each test."""
    file = ""
    for word in listed.split():
        named, _, name = word.partition("::")
        file = named or file
        yield file, name


@functools.cache
def functions_of(file: str) -> frozenset[str]:
    folder = TESTS.parent if file.startswith("infra/local/tests/") else TESTS
    tree = ast.parse((folder / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_each_sentence_of_the_page_is_listed_and_nothing_else() -> None:
    claims = claims_by_heading()
    assert list(claims) == list(LISTED), "the headings, in their order"
    unlike = {}
    for heading, listed in LISTED.items():
        for claim in claims[heading]:
            if (hits := sum(claim.startswith(words) for words in listed)) != 1:
                unlike[f"{heading}: {claim[:60]}"] = f"listed {hits} times"
        for words in listed:
            if (hits := sum(claim.startswith(words) for claim in claims[heading])) != 1:
                unlike[f"{heading}: {words}"] = f"begins {hits} sentences of the page"
    assert unlike == {}


@pytest.mark.parametrize("heading", LISTED)
def test_each_test_that_is_named_is_there(heading: str) -> None:
    for words, listed in LISTED[heading].items():
        if listed.startswith("none: "):
            assert len(listed) > len("none: because"), words
            continue
        named = list(named_in(listed))
        missing = [f"{file}::{name}" for file, name in named if name not in functions_of(file)]
        assert named and missing == [], words


def test_sentences_rows_and_examples_are_told_apart() -> None:
    text = "\nOne.\nTwo `a.b` is, e.g. here. Three:\n\n| head | x |\n|---|---|\n| row | 1. A |\n\n"
    text += "    example: 1\n\n- **Four.** Five\n  goes on. nodesweep is six.\n- Seven"
    assert claims_of(text) == [
        "One.",
        "Two `a.b` is, e.g. here.",
        "Three:",
        "row | 1. A",
        "**Four.",
        "Five goes on.",
        "nodesweep is six.",
        "Seven",
    ]
