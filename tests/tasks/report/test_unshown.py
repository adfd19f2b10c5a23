"""A result that Prefect's server refuses is a warning: the files of a sweep hold everything."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.store import FolderStore
from nodesweep.tasks.dataset import validation
from nodesweep.tasks.report import publish

PLATFORM = PlatformConfig(
    region="eu-west-1", bucket="bench", role_arn="arn:aws:iam::000000000000:role/training"
)


def test_a_busy_server_costs_neither_run_nor_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def busy(*_: Any, **__: Any) -> NoReturn:
        raise httpx.ReadTimeout("no answer within 60 s")

    monkeypatch.setattr("prefect.artifacts.create_link_artifact", busy)
    monkeypatch.setattr("prefect.artifacts.create_markdown_artifact", busy)
    stored: list[Any] = []
    monkeypatch.setattr(validation, "store_data_docs", lambda *given: stored.append(given))
    monkeypatch.setattr(validation, "store_of", lambda *_: None)
    report: Any = SimpleNamespace(success=True, dataset="digits", problems=())
    with caplog.at_level(logging.WARNING):
        publish.publish_report(FolderStore(tmp_path / "store"), "s", "# Report")
        publish.publish_trend.fn("s", "# Trend")
        validation.keep_data_docs.fn(PLATFORM, "s", report, tmp_path)
    assert len(stored) == 1
    assert len([each for each in caplog.records if "60 s" in each.getMessage()]) == 3
