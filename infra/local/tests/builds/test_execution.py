"""The phases of a build that ends during a command of its buildspec."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sagemaker_emulator.builds.execution import BuildExecution, PhaseFailure
from sagemaker_emulator.builds.shell import ShellEnded


@pytest.mark.parametrize(
    ("is_stopped", "status_code"), [(True, "STOPPED"), (False, "BUILD_TIMED_OUT")]
)
def test_a_stopped_build_has_not_timed_out(is_stopped: bool, status_code: str) -> None:
    stop = threading.Event()
    if is_stopped:
        stop.set()

    def run(command: str, deadline: float) -> int:
        raise ShellEnded

    execution: Any = BuildExecution(
        SimpleNamespace(region="us-east-1"),  # type: ignore[arg-type]
        lambda change: None,
        SimpleNamespace(),  # type: ignore[arg-type]
        lambda service, region: None,
        stop,
    )
    execution._log = lambda line: None
    with pytest.raises(PhaseFailure) as failure:
        execution._run_command(SimpleNamespace(run=run), "docker build .", 0.0)
    assert failure.value.status_code == status_code
