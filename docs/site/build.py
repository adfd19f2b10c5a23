"""Build the documentation site: `make docs`, which runs `python -m docs.site.build`.

The pages are docs/*.md and the documents in PAGES. They are copied to build/docs/pages/ with links
rewritten to pages, along with every other file that a page links to; Zensical renders them to
build/docs/html/. A broken link ends the build with exit code 1. Nothing is downloaded.
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
from nodesweep.scaling.report.frames import SUMMARY
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
    "nodesweep/launch/sagemaker/README.md": "batch.md",
    "nodesweep/launch/slurm/README.md": "slurm.md",
}
"""Documents outside docs/ -> their names on the site."""
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
    """Build `html/` in an empty or missing folder.

    Returns:
        Zensical's exit code, which is not 0 if a page links to a missing heading.

    Raises:
        BrokenLinks: A page links to a missing file.
    """
    lay_out(folder / "pages", repository, pages)
    shutil.copy(settings, folder / "zensical.toml")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, check=False).returncode


def lay_out(folder: Path, repository: Path, pages: Mapping[str, str]) -> None:
    """Write every page and every file linked by one into the folder.

    Raises:
        BrokenLinks: A page links to a missing file.
    """
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
    """Return the path on the site of a file of the repository."""
    if path in pages:
        return pages[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def with_site_links(
    document: str, repository: Path, pages: Mapping[str, str]
) -> tuple[str, set[str], list[str]]:
    """Return a document with its links rewritten for the site.

    Returns:
        The document, the files it links to that are not documents, and its broken links.
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
    """Return the page with `<!-- reference: NAME -->` replaced by the generated reference."""
    mark = re.compile(r"^<!-- reference: (\w+) -->$", re.MULTILINE)
    return mark.sub(lambda found: _REFERENCES[found[1]](), text)


def summary_table() -> str:
    """Return a table of the columns of `Report.summary()`."""
    rows = "\n".join(
        f"| `{name}` | {field.meaning} | {field.dtype} |" for name, field in SUMMARY.items()
    )
    return f"| column | meaning | dtype |\n|---|---|---|\n{rows}"


_REFERENCES: dict[str, Callable[[], str]] = {
    "cli": lambda: _CLI,
    "history": lambda: history_tables(COLUMNS),
    "config": lambda: schema_tables(BenchmarkConfig.model_json_schema(), with_defaults=True),
    "report": lambda: schema_tables(report_schema(), with_defaults=False),
    "summary": summary_table,
}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> int:
    """Rebuild the site in build/docs/ and print its location."""
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
