"""The documentation site, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site import build


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    assert build.build(folder) == 0
    return folder / "html"
