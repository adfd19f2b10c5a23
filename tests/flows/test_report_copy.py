"""If a report cannot be written on this machine, it is in the bucket, and the error says how to get
the copy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

import nodesweep.flows.report
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import ReportNotWritten
from nodesweep.launch.registry import backend_of


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "writable")]
)
def test_the_remedy_fits_the_error(
    monkeypatch: pytest.MonkeyPatch,
    make_config: Callable[..., BenchmarkConfig],
    number: int,
    remedy: str,
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number), "reports/a")

    monkeypatch.setattr(nodesweep.flows.report, "write_report", refuse)
    config = make_config()
    store = backend_of(config.platform).store
    with pytest.raises(ReportNotWritten, match=f"^reports/a: .*s3://.*{remedy}"):
        nodesweep.flows.report._write_local_copy(config.report, store, "a", {})
