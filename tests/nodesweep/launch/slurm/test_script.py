from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.launch.slurm.script import SCRIPT, build_spec, read_spec
from nodesweep.scaling.job import JobSpec

NAME = "bench-20260102030405-0123abcd-n2-r1-a1-abcd"
FULL = {
    "partition": "gpu",
    "account": "physics",
    "qos": "long",
    "reservation": "workshop",
    "constraint": "a100&nvlink",
    "gres": "gpu:4",
    "requeue": True,
    "setup": ["module load cuda/12.4", "source /home/me/venv/bin/activate"],
    "container_image": "/images/torch.sqsh",
}


def spec(command: tuple[str, ...] = ("train.py", "--epochs", "3"), **options: Any) -> JobSpec:
    of_job = {
        key: options.pop(key)
        for key in ("launch", "processes_per_node", "environment", "max_runtime_seconds")
        if key in options
    }
    platform = SlurmPlatform(launcher="slurm", folder="/shared/me", **options)
    return build_spec(platform, NAME, 2, command, **{"max_runtime_seconds": 3600, **of_job})


@pytest.mark.parametrize(
    "made",
    [
        spec(),
        spec(**FULL, processes_per_node=4, environment={"GREETING": "it's me; $HOME"}),
        spec(("/opt/a b/solver",), exclusive=False, launch="program", processes_per_node=16),
    ],
    ids=["least", "full", "program"],
)
def test_script(made: JobSpec, snapshot: Any) -> None:
    assert made.request[SCRIPT] == snapshot
    checked = subprocess.run(["bash", "-n"], input=made.request[SCRIPT], text=True, check=False)
    assert checked.returncode == 0


def test_the_script_is_the_spec() -> None:
    for made in (spec(), spec(**FULL)):
        assert read_spec(made.name, made.request[SCRIPT]) == made
    assert spec(**FULL).instance_type == "gpu/a100&nvlink/gpu:4"
    assert spec().instance_type == "default"


def test_a_time_limit_is_whole_minutes_and_never_shorter() -> None:
    for seconds, minutes in ((60, 1), (61, 2), (3600, 60)):
        text = spec(max_runtime_seconds=seconds).request[SCRIPT]
        assert f"#SBATCH --time={minutes}\n" in text


def test_values_that_would_end_a_directive_or_be_replaced_by_slurm_are_refused(
    snapshot: Any,
) -> None:
    wrong = {"partition": "gpu --uid=0", "gres": "gpu:1\n", "folder": "/shared/%u"}
    messages = {}
    for field, text in wrong.items():
        with pytest.raises(ValidationError) as refused:
            SlurmPlatform(**{"launcher": "slurm", "folder": "/shared", field: text})
        [error] = refused.value.errors()
        assert error["loc"] == (field,)
        messages[field] = error["msg"]
    assert messages == snapshot


def test_of_two_jobs_of_one_name_the_script_runs_one(tmp_path: Path) -> None:
    """Run here, where the job's number is a variable like any other and srun a program."""
    (tmp_path / NAME).mkdir()
    platform = SlurmPlatform(launcher="slurm", folder=str(tmp_path))
    script = build_spec(platform, NAME, 1, ["x"], 60).request[SCRIPT]
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for program, text in {"srun": "exit 3", "scontrol": "echo n1; echo n2"}.items():
        (bin_folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / program).chmod(0o755)

    def run(job_id: str) -> int:
        environment = {
            "PATH": f"{bin_folder}:/usr/bin:/bin",
            "SLURM_JOB_ID": job_id,
            "SLURM_JOB_NODELIST": "n[1-2]",
        }
        # not as a login shell, whose profile would reset PATH
        return subprocess.run(
            ["bash"], input=script, text=True, env=environment, check=False, timeout=60
        ).returncode

    assert [run("12"), run("13"), run("12")] == [3, 96, 3], "job 12 was requeued"
    lines = (tmp_path / NAME / "runs").read_text().splitlines()
    assert [(line.split()[0], line.split()[2:]) for line in lines] == [
        ("start", []), ("end", ["3"]),
    ] * 2  # fmt: skip
