"""The version, its date and the license agree wherever a release names them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DISTRIBUTIONS = {
    "CHANGELOG.md": "pyproject.toml",
    "infra/local/CHANGELOG.md": "infra/local/pyproject.toml",
}
"""Changelog -> settings of its distribution."""
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
OWN_SECTIONS = {"Known limits"}


def releases(changelog: str) -> list[tuple[str, str]]:
    """Return the version and date of each release, newest first."""
    text = (REPOSITORY / changelog).read_text()
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", text, re.M)


@pytest.mark.parametrize(("changelog", "settings"), DISTRIBUTIONS.items())
def test_changelog_has_the_version_as_its_newest_release(changelog, settings):
    project = tomllib.loads((REPOSITORY / settings).read_text())["project"]
    assert releases(changelog)[0][0] == project["version"]
    assert project["license"]["text"] == "Apache-2.0"


@pytest.mark.parametrize("changelog", DISTRIBUTIONS)
def test_changelog_is_short_and_keeps_to_the_usual_sections(changelog):
    lines = (REPOSITORY / changelog).read_text().splitlines()
    assert len(lines) <= 150
    sections = {line[4:] for line in lines if line.startswith("### ")}
    assert {
        name for name in sections if not name.startswith("Upgrading from ")
    } <= SECTIONS | OWN_SECTIONS


def test_citation_names_the_release_and_the_licence():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    version, date = releases("CHANGELOG.md")[0]
    assert citation["version"] == version
    assert str(citation["date-released"]) == date
    assert citation["license"] == PROJECT["license"]["text"] == "Apache-2.0"


def test_the_licence_goes_with_the_package():
    assert PYPROJECT["tool"]["setuptools"]["license-files"] == ["LICENSE"]
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
