"""A result that Prefect's server refuses causes a warning only, since the files of a sweep hold
everything."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from nodesweep.launch.store import FolderStore
from nodesweep.tasks.report import publish


def test_a_busy_server_costs_neither_run_nor_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def busy(*_: Any, **__: Any) -> NoReturn:
        raise httpx.ReadTimeout("no answer within 60 s")

    monkeypatch.setattr(publish, "create_link_artifact", busy)
    monkeypatch.setattr(publish, "create_markdown_artifact", busy)
    stored: list[Any] = []
    store = FolderStore(tmp_path / "store")
    monkeypatch.setattr(publish, "store_data_docs", lambda *given: stored.append(given))
    report: Any = SimpleNamespace(success=True, dataset="digits", problems=())
    with caplog.at_level(logging.WARNING):
        publish.publish_report(store, "s", "# Report")
        publish.publish_trend("s", "# Trend")
        publish.keep_data_docs(store, "s", report, tmp_path)
    assert len(stored) == 1
    assert len([each for each in caplog.records if "60 s" in each.getMessage()]) == 3
