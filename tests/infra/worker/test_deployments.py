"""`python -m infra.worker deploy`: what `make up` and compose.yaml's `deploy` do alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local import progress
from infra.worker import deployments
from infra.worker.deployments import DeployError, wait_for_server

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "http://127.0.0.1:1/api"


def test_server_that_has_ended_is_not_waited_for() -> None:
    with pytest.raises(DeployError, match=f"the Prefect server did not come up at {NOWHERE}"):
        wait_for_server(NOWHERE, lambda: False)


def test_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "SERVER_START_SECONDS", 0.1)
    with pytest.raises(DeployError, match="did not come up"):
        wait_for_server(NOWHERE)


def test_refused_command_is_named_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments.sys, "executable", "/bin/false")
    with pytest.raises(
        DeployError, match="`prefect work-pool create nodesweep --type process --overwrite` failed"
    ):
        deployments.deploy({})


def test_server_that_gets_nowhere_is_not_waited_for() -> None:
    reasons = iter([None, "without any progress for 60 s"])
    with pytest.raises(DeployError, match=f"up at {NOWHERE} without any progress for 60 s"):
        wait_for_server(NOWHERE, problem=lambda: next(reasons))


def test_command_that_gets_nowhere_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(deployments.sys, "executable", str(program))
    monkeypatch.setattr(progress, "STILL_SECONDS", 0.2)
    with pytest.raises(
        DeployError, match=r"`prefect work-pool create .* gave no answer without any progress"
    ):
        deployments.deploy({"PATH": "/usr/bin:/bin"})


def test_command_asks_for_the_servers_address() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "infra.worker", "deploy"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "PREFECT_API_URL is not set: name the server" in done.stderr
