"""Build the documentation site: `make docs`, which runs `python -m docs.site.build`.

The pages are docs/*.md and the documents in PAGES, as they stand in the repository. They are laid
out in build/docs/pages/, where links to other documents become links to pages, and every other
file that a page links to comes along. Zensical makes build/docs/html/ of them. A link that leads
nowhere ends the build with exit code 1. Nothing is fetched.
"""

from __future__ import annotations

import os.path
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.site.history_tables import history_tables
from docs.site.schema_tables import schema_tables
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.report.schema import report_schema
from nodesweep.scaling.trend.history import COLUMNS

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = Path(__file__).with_name("zensical.toml")
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "infra/local/CHANGELOG.md": "platform-changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "infra/image/README.md": "image.md",
    "infra/image_spark/README.md": "image-spark.md",
    "infra/local/README.md": "platform.md",
}
"""Documents outside docs/ that the site has, too, and what they are called there."""
_LINK = re.compile(r"(?<=\]\()(?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?(?=\))")
_CLI = """
::: mkdocs-click
    :module: nodesweep.cli.main
    :command: main
    :prog_name: nodesweep
    :depth: 1
"""


class BrokenLinks(Exception):
    """Pages link to files that the repository does not have; each is named with its page."""


def build(
    folder: Path,
    repository: Path = REPOSITORY,
    pages: Mapping[str, str] = PAGES,
    settings: Path = SETTINGS,
) -> int:
    """Make `html/` in an empty or missing folder; the exit code of Zensical, which is not 0 where a
    page links to a heading that is not there. Raises BrokenLinks.
    """
    lay_out(folder / "pages", repository, pages)
    shutil.copy(settings, folder / "zensical.toml")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, check=False).returncode


def lay_out(folder: Path, repository: Path, pages: Mapping[str, str]) -> None:
    """Write every page, and every file that one links to, into the folder. Raises BrokenLinks."""
    documents = [path.relative_to(repository).as_posix() for path in repository.glob("docs/*.md")]
    broken: list[str] = []
    for document in sorted([*documents, *pages]):
        text, files, missing = with_site_links(document, repository, pages)
        broken += [f"{document}: {target}" for target in missing]
        _write(folder / site_path(document, pages), with_references(text).encode())
        for file in files:
            _write(folder / site_path(file, pages), (repository / file).read_bytes())
    if broken:
        raise BrokenLinks("links that lead to no file of the repository:\n" + "\n".join(broken))


def site_path(path: str, pages: Mapping[str, str]) -> str:
    """Where a file of the repository lies on the site, by its path in the repository."""
    if path in pages:
        return pages[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def with_site_links(
    document: str, repository: Path, pages: Mapping[str, str]
) -> tuple[str, set[str], list[str]]:
    """(the document with its links as they are on the site, the files that it links to and that are
    no documents, the links that lead to no file).
    """
    files: set[str] = set()
    missing: list[str] = []
    folder = os.path.dirname(document)
    site_folder = os.path.dirname(site_path(document, pages)) or "."

    def mended(link: re.Match[str]) -> str:
        target, anchor = link["target"], link["anchor"] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = os.path.normpath(os.path.join(folder, target))
        if not (repository / path).is_file():
            missing.append(target)
            return link[0]
        if not path.endswith(".md"):
            files.add(path)
        return os.path.relpath(site_path(path, pages), site_folder) + anchor

    text = (repository / document).read_text(encoding="utf-8")
    return _LINK.sub(mended, text), files, missing


def with_references(text: str) -> str:
    """The page with what is made of the code in place of `<!-- reference: NAME -->`."""
    mark = re.compile(r"^<!-- reference: (\w+) -->$", re.MULTILINE)
    return mark.sub(lambda found: _REFERENCES[found[1]](), text)


_REFERENCES: dict[str, Callable[[], str]] = {
    "cli": lambda: _CLI,
    "history": lambda: history_tables(COLUMNS),
    "config": lambda: schema_tables(BenchmarkConfig.model_json_schema(), with_defaults=True),
    "report": lambda: schema_tables(report_schema(), with_defaults=False),
}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> int:
    """Build the site anew in build/docs/, and say where it lies."""
    folder = REPOSITORY / "build" / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        exit_code = build(folder)
    except BrokenLinks as error:
        print(error, file=sys.stderr)
        return 1
    if exit_code == 0:
        html = (folder / "html").relative_to(REPOSITORY)
        print(f"{html}; to read it: python3 -m http.server --bind 127.0.0.1 --directory {html}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
