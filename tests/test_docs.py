"""The documents agree with the repository: their links and the commands that they name exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from nodesweep.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "infra/*/README.md", "examples/README.md")
    for path in REPOSITORY.glob(pattern)
)
README_MAX_LINES = 120


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def anchors(document: Path) -> set[str]:
    """Return GitHub's anchors: headings in lower case, without punctuation, with hyphens for
    spaces."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_a_file_and_a_heading_of_the_repository(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (document.parent / file).resolve() if file else document
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def named_commands(text: str) -> set[tuple[str, ...]]:
    """Return the words of every `nodesweep …` in a code span or an indented line, up to the next
    command."""
    spans = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    found = set()
    for span in spans:
        for part in re.split(r"&&|;|\||  #", span):
            words = re.sub(r"[\[\]]", " ", part).split()
            if len(words) > 1 and Path(words[0]).name == "nodesweep" and words[1].isalpha():
                found.add(tuple(words[1:]))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_and_options_that_are_named_exist(document: Path) -> None:
    unknown = []
    for words in sorted(named_commands(document.read_text())):
        command: click.Command = main
        rest = list(words)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            command = command.commands.get(rest.pop(0), click.Command("unknown"))
        options = {name for parameter in command.params for name in parameter.opts} | {
            "--help",
            "--version",
        }
        named = {word.partition("=")[0] for word in rest if word.startswith("--")}
        passes_on = command.context_settings.get("ignore_unknown_options", False)
        if command.name == "unknown" or (named - options and not passes_on):
            unknown.append(" ".join(words))
    assert unknown == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_make_targets_that_are_named_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^ {4})make ([a-z]+)", document.read_text(), re.MULTILINE)
    assert set(named) - targets == set()


def test_every_dependency_has_its_reason() -> None:
    listed: list[str] = []
    for folder in (REPOSITORY, REPOSITORY / "infra" / "local"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        listed += project["dependencies"]
        listed += (
            name for extra in project.get("optional-dependencies", {}).values() for name in extra
        )
    page = (REPOSITORY / "docs" / "dependencies.md").read_text()
    told = {
        word.strip("`,[]()<>=")
        for entry in re.findall(r"^- \*\*(.+?)\*\*", page, re.MULTILINE)
        for word in entry.split()
    }
    named = {re.split(r"[<>=\[]", name)[0] for name in listed}
    assert named - {word.split("[")[0] for word in told} == set()


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= README_MAX_LINES
