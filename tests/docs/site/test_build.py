"""The documentation site builds without downloads, its navigation has every page, and its generated
pages are complete."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.site import build
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.report.frames import SUMMARY
from nodesweep.scaling.report.schema import report_schema

DOCS = build.REPOSITORY / "docs"
SETTINGS = tomllib.loads(build.SETTINGS.read_text())["project"]


def pages_of(nav: Any) -> Iterator[str]:
    """Return the pages of Zensical's navigation, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(part)


def test_every_page_stands_once_in_the_navigation() -> None:
    pages = [path.name for path in DOCS.glob("*.md")]
    pages += build.PAGES.values()
    assert sorted(pages_of(SETTINGS["nav"])) == sorted(pages)


def test_a_page_of_the_navigation_is_written(html: Path) -> None:
    for page in pages_of(SETTINGS["nav"]):
        assert (html / page).with_suffix(".html").is_file(), page


def test_nothing_is_loaded_from_elsewhere(html: Path) -> None:
    loaded = {
        address
        for page in html.rglob("*.html")
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        for address in re.findall(r'(?:src|href)="?((?:https?:)?//[^"\s>]+)', tag)
    }
    assert loaded == set()


def test_every_command_and_option_is_in_the_reference(html: Path) -> None:
    page = (html / "reference-cli.html").read_text()
    for told in ("nodesweep-compare", "nodesweep-config-schema"):
        assert f'id="{told}"' in page
    assert "--as-started" in page and "Sentinel" not in page


@pytest.mark.parametrize(
    ("page", "schema"),
    [
        ("reference-config.html", BenchmarkConfig.model_json_schema()),
        ("reference-report.html", report_schema()),
    ],
)
def test_every_field_is_in_the_reference(html: Path, page: str, schema: dict[str, Any]) -> None:
    text = (html / page).read_text()
    parts = [schema, *schema["$defs"].values()]
    fields = {name for part in parts for name in part.get("properties", {})}
    assert len(fields) > 50
    assert {name for name in fields if not re.search(rf">{name}<", text)} == set()


def test_every_column_of_the_summary_is_in_the_reference(html: Path) -> None:
    text = (html / "python.html").read_text()
    assert {name for name in SUMMARY if not re.search(rf">{name}<", text)} == set()


def test_the_summary_table_has_meaning_and_dtype() -> None:
    assert "\n| `nodes` | node count N | Int64 |\n" in build.summary_table()


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "docs").mkdir(parents=True)
    (repository / "docs" / "index.md").write_text("[a](gone.md), [b](../also.py), [c](index.md#x)")
    with pytest.raises(
        build.BrokenLinks, match=r"index\.md: gone\.md\n.*index\.md: \.\./also\.py$"
    ):
        build.lay_out(tmp_path / "pages", repository, pages={})


def test_an_anchor_that_is_not_there_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page, settings = tmp_path / "docs" / "index.md", tmp_path / "settings.toml"
    settings.write_text('project = {site_name = "a", docs_dir = "pages", site_dir = "html"}')
    for name, works in (("home", True), ("nowhere", False)):
        page.write_text(f"# Home\n\n[here](index.md#{name})\n")
        assert (build.build(tmp_path / name, tmp_path, {}, settings) == 0) is works
