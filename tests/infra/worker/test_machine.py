"""`make up`: what it does to a machine that an earlier version started, without starting
anything.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows.stages.form import LOCAL_PLATFORM, config_of_run
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


def test_the_deployments_find_the_machines_own_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever port its config names; what the form says wins, and AWS stays AWS."""
    machine = Machine(tmp_path, platform_port=4999)
    machine.auth_file.write_text("a:b")
    for name in LOCAL_PLATFORM.values():
        monkeypatch.setenv(name, machine.environment[name])
    local = config_of_run({"preset": "local"}).platform
    assert (local.endpoint_url, local.state_directory) == (
        "http://127.0.0.1:4999",
        str(tmp_path / "platform"),
    )
    settings = {"platform.endpoint_url": "http://127.0.0.1:5000"}
    named = config_of_run({"preset": "local", "settings": settings}).platform
    assert named.endpoint_url == "http://127.0.0.1:5000"
    assert config_of_run({"preset": "search_mlp_p3"}).platform.endpoint_url is None


def test_platform_is_started_on_the_port_and_ended_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append(command[3:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(machines.subprocess, "run", run)
    machine = Machine(tmp_path, platform_port=4999)
    for verb in ("start", "stop"):
        machines._platform(machine, verb, 1.0)
    where = ["--state-dir", str(tmp_path / "platform")]
    assert called == [["start", *where, "--port", "4999"], ["stop", *where]]


def test_make_up_hands_its_ports_on() -> None:
    command = ["make", "--dry-run", "up", "PORT=4300", "PLATFORM_PORT=4670"]
    said = subprocess.run(command, cwd=machines.REPOSITORY, capture_output=True, text=True)
    assert "-m infra.worker up --port 4300 --platform-port 4670" in said.stdout
