"""The systemd scope in which an ordinary user's platform runs.

A fake program replaces systemd-run, because no user manager runs in these tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sagemaker_emulator.engine.host import cgroups, scope
from sagemaker_emulator.engine.host.scope import scope_command


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a user who may write no quota, with a `systemd-run` that runs its
    command."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(cgroups, "_candidate_parents", lambda: iter([(2, tmp_path)]))
    place(
        tmp_path, f'echo "$@" > {tmp_path}/asked; while [ "$1" != -- ]; do shift; done; shift; "$@"'
    )
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def place(folder: Path, script: str) -> None:
    program = folder / "systemd-run"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_user_manager_that_gives_a_scope_is_asked_for_one(environment, tmp_path):
    command = scope_command(environment)
    assert command[0] == str(tmp_path / "systemd-run")
    assert command[-1] == "--"
    assert {"--user", "--scope", "Delegate=yes"} < set(command)
    assert (tmp_path / "asked").read_text().endswith("-- true\n")


def test_without_a_user_manager_there_is_none(environment, tmp_path):
    place(tmp_path, "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    assert scope_command(environment) == []


def test_a_manager_that_does_not_answer_is_given_up(environment, tmp_path, monkeypatch):
    monkeypatch.setattr(scope, "_DEADLINE_SECONDS", 0.2)
    place(tmp_path, "exec sleep 30")
    assert scope_command(environment) == []


def test_none_is_asked_for_where_there_is_no_systemd(environment):
    assert scope_command({"PATH": "/nowhere"}) == []


@pytest.mark.parametrize(("user", "version"), [(0, 2), (1000, 1)])
def test_none_is_asked_for_where_quotas_can_be_written(
    environment, tmp_path, monkeypatch, user, version
):
    """The folder is writable. For a cgroup v2 folder, this is not enough, as other tests show."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(cgroups, "_candidate_parents", lambda: iter([(version, tmp_path)]))
    assert scope_command(environment) == []
    assert not (tmp_path / "asked").exists()


def test_what_a_server_will_find_is_looked_for_where_it_will_be(environment, tmp_path, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert scope.main() in (0, 1)
    assert (tmp_path / "asked").read_text().endswith("sagemaker_emulator.engine.host.cgroups\n")
