"""Which container program is found, which arguments it gets, and which engine `auto` chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagemaker_emulator.engine import choice
from sagemaker_emulator.engine.choice import choose_engine, make_container_engine
from sagemaker_emulator.engine.container import cli as container_cli
from sagemaker_emulator.engine.container.cli import ContainerCli, ContainerCommandError
from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.server.contract import ENGINE_FILE
from sagemaker_emulator.state.files import write_json


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """programs("podman", "script") puts a program on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(container_cli, "_SYSTEM_PATH", str(folder))
    monkeypatch.setattr(container_cli.os, "geteuid", lambda: 0)

    def add(name: str, script: str = "exit 0") -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return add


def test_podman_goes_before_docker(programs, tmp_path):
    assert ContainerCli.find(tmp_path) is None
    programs("docker")
    assert ContainerCli.find(tmp_path).name == "docker"
    podman = programs("podman")
    assert ContainerCli.find(tmp_path).program == str(podman)


def test_settings_are_files_of_the_platforms_own(programs, tmp_path, monkeypatch):
    programs("podman")
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    monkeypatch.delenv("CONTAINERS_REGISTRIES_CONF", raising=False)
    cli = ContainerCli.find(tmp_path / "settings", ["127.0.0.1:5055"])
    registries = Path(cli.environment["CONTAINERS_REGISTRIES_CONF"]).read_text()
    assert 'location = "127.0.0.1:5055"\ninsecure = true' in registries
    limits = Path(cli.environment["CONTAINERS_CONF"]).read_text()
    assert 'default_ulimits = ["nofile=' in limits
    assert "AWS_ACCESS_KEY_ID" not in cli.environment


def test_users_own_settings_count(programs, tmp_path, monkeypatch):
    programs("podman")
    monkeypatch.setenv("CONTAINERS_CONF", "/etc/mine.conf")
    assert ContainerCli.find(tmp_path).environment["CONTAINERS_CONF"] == "/etc/mine.conf"


def test_failed_command_says_what_the_program_said(programs, tmp_path):
    programs("podman", "echo no such thing >&2; exit 125")
    with pytest.raises(
        ContainerCommandError,
        match=r"exit code 125: no such thing",
    ):
        ContainerCli.find(tmp_path).call("network", "create", "x")


def test_auto_takes_processes_without_a_container_program(programs, tmp_path):
    engine, reason = choose_engine(tmp_path)
    assert engine == "process" and "podman" in reason and "docker" in reason


def test_auto_takes_processes_where_containers_fail_and_says_why(programs, tmp_path):
    programs("docker-registry")
    programs("podman", '[ "$1" != run ] || { echo no runtime >&2; exit 126; }')
    engine, reason = choose_engine(tmp_path)
    assert engine == "process"
    assert "no runtime" in reason


def test_auto_takes_containers_that_were_seen_to_run(programs, tmp_path):
    programs("podman")
    name, why = choose_engine(tmp_path)
    assert name == "process" and "docker-registry" in why and "--registry" in why
    assert choose_engine(tmp_path, "127.0.0.1:5000")[0] == "container"
    programs("docker-registry")
    engine, reason = choose_engine(tmp_path)
    assert engine == "container" and "podman" in reason


def test_auto_asks_for_root(programs, tmp_path, monkeypatch):
    programs("podman")
    monkeypatch.setattr(container_cli.os, "geteuid", lambda: 1000)
    engine, reason = choose_engine(tmp_path)
    assert engine == "process"
    assert "needs root" in reason


def test_auto_stays_with_the_folders_engine(programs, tmp_path):
    programs("podman")
    write_json(tmp_path / ENGINE_FILE, {"engine": "process"})
    assert choose_engine(tmp_path, "127.0.0.1:5000") == ("process", f"already used by {tmp_path}")


def test_container_engine_that_can_not_work_is_refused_with_the_reason(programs, tmp_path):
    with pytest.raises(EngineError, match=r"podman.*--engine process"):
        make_container_engine(tmp_path, "http://127.0.0.1:1", None)
    assert not (tmp_path / "registry").exists()


def test_only_what_is_labelled_is_removed(programs, tmp_path):
    log = tmp_path / "calls"
    programs(
        "podman",
        f'echo "$@" >> {log}\ncase "$*" in "ps "*) echo c1;; "network ls"*) echo n1;; esac',
    )
    ContainerCli.find(tmp_path).remove_labelled("nodesweep.state=abc")
    calls = log.read_text().splitlines()
    assert calls == [
        "ps --all --quiet --filter label=nodesweep.state=abc",
        "rm --force --volumes --time 0 --ignore c1",
        "network ls --quiet --filter label=nodesweep.state=abc",
        "network rm n1",
    ]


def test_command_says_whether_containers_run_here_and_why_not(programs, capsys):
    programs("docker-registry")
    programs("podman", '[ "$1" != run ] || { echo operation not permitted >&2; exit 126; }')
    assert choice.main() == 1
    assert "operation not permitted" in capsys.readouterr().out
    programs("podman")
    assert choice.main() == 0
    assert capsys.readouterr().out.startswith("podman ")
