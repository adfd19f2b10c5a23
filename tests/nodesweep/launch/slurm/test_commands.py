from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nodesweep.errors import BackendUnavailable, is_transient
from nodesweep.launch.slurm.commands import environment_of_jobs, run


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a program named squeue that is first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(text: str, mode: int = 0o755) -> None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "squeue").chmod(mode)

    return write


def test_failures(squeue: Any, tmp_path: Path, snapshot: Any) -> None:
    said = {}

    def fail(name: str, command: str = "squeue", passes: bool = True) -> None:
        with pytest.raises(BackendUnavailable) as failed:
            run([command], deadline_seconds=0.2 if name == "silent" else 60)
        assert is_transient(failed.value) == passes
        said[name] = str(failed.value).replace(str(tmp_path), "FOLDER")

    with pytest.MonkeyPatch.context() as alone:
        alone.setenv("PATH", str(tmp_path))  # others may have folders that this user can't read
        fail("not installed", "squeue-of-no-site", passes=False)
    squeue(
        "echo unused; echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    fail("no controller")
    squeue("echo 'squeue: fatal: Could not establish a configuration source' >&2; exit 1")
    fail("no slurm.conf", passes=False)
    squeue("echo 'only on stdout'; exit 3")
    fail("no stderr")
    squeue("exec sleep 60")
    fail("silent")
    assert said == snapshot


def test_variables_that_change_commands_are_left_out(
    squeue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's profile may set them, and Slurm sets them within a job."""
    for name in (
        "SQUEUE_FORMAT",
        "SBATCH_PARTITION",
        "SINFO_ALL",
        "SLURM_JOB_ID",
        "SLURM_TIME_FORMAT",
    ):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    squeue("env")
    found = dict(line.partition("=")[::2] for line in run(["squeue"]).splitlines())
    kept = {name: text for name, text in found.items() if name.startswith(("S", "TZ"))}
    assert kept.get("SLURM_CONF") == "/etc/slurm.conf" and kept["TZ"] == "UTC"
    assert not any(name.startswith(("SQUEUE_", "SBATCH_", "SINFO_")) for name in kept)
    assert {name for name in kept if name.startswith("SLURM")} == {"SLURM_CONF"}


def test_output_that_is_not_utf8_is_read(squeue: Any) -> None:
    squeue(r"printf 'caf\351\n'")
    assert run(["squeue"]) == "caf\ufffd\n"


def test_a_job_does_not_depend_on_where_it_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "AWS_PROFILE", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    found = environment_of_jobs("/opt/slurm/bin/sbatch")
    assert {"LANG", "PATH", "HOME", "SLURM_CONF"} <= found.keys()
    assert not found.keys() & {"VIRTUAL_ENV", "PYTHONPATH", "AWS_PROFILE", "SLURM_JOB_ID"}
    assert found["PATH"] == "/opt/slurm/bin:/usr/local/bin:/usr/bin:/bin"
