"""`make up`: what it does to a machine that an earlier version started, without starting
anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.worker import machine as machines
from infra.worker.machine import Machine, up


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `up` does to the processes, in order."""
    done: list[str] = []
    monkeypatch.setattr(
        machines, "_platform", lambda machine, verb, seconds: done.append(f"{verb} platform")
    )
    monkeypatch.setattr(
        machines, "_start", lambda machine, name, *rest: done.append(f"start {name}")
    )
    monkeypatch.setattr(machines, "_stop", lambda machine, name: done.append(f"stop {name}"))
    monkeypatch.setattr(machines, "_deploy", lambda machine: done.append("deploy"))
    return done


def test_processes_that_know_no_password_are_stopped_once(tmp_path: Path, steps: list[str]) -> None:
    starts = ["start platform", "start server", "deploy", "start worker"]
    up(Machine(tmp_path))
    assert steps == ["stop worker", "stop server", *starts]
    steps.clear()
    up(Machine(tmp_path))
    assert steps == starts


def test_the_uis_address_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    machine.auth_file.write_text("user:password\n")
    monkeypatch.delenv("PREFECT_UI_API_URL", raising=False)
    assert machine.environment["PREFECT_UI_API_URL"] == machine.api_url
    monkeypatch.setenv("PREFECT_UI_API_URL", "https://sweeps.example/api")
    assert machine.environment["PREFECT_UI_API_URL"] == "https://sweeps.example/api"
    assert machine.environment["PREFECT_API_URL"] == machine.api_url
