from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.configs.training import TrainingConfig
from nodesweep.launch.slurm.script import (
    SCRIPT,
    is_same_job,
    read_script,
    render,
    secrets_of_script,
)
from nodesweep.scaling.outcome.observed import TIME_ALL_REDUCES
from tests.nodesweep.launch.slurm.cluster import job_spec, slurm_platform

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


SECTIONS: dict[str, Any] = {
    "distribution": {"kind": "torch_distributed"},
    "instance_type": "ml.p4d.24xlarge",
    "max_runtime_seconds": 3600,
    "hyperparameters": {"epochs": 3, "lr": 0.1},
}


def rendered(options: dict[str, Any], *, predicts: bool = False, **training: Any) -> str:
    platform = slurm_platform(Path("/shared/me"), **options)
    section = TrainingConfig.model_validate({**SECTIONS, **training})
    spec = job_spec(NAME, 2, section, Path("/shared/me/code"))
    if predicts:
        spec = replace(spec, variables={TIME_ALL_REDUCES: "1"})
    return str(render(platform, spec)[SCRIPT])


CASES = {
    "least": rendered({}),
    "full": rendered(
        FULL,
        distribution={"kind": "torch_distributed", "processes_per_node": 4},
        environment={"GREETING": "it's me; $HOME"},
    ),
    "apptainer": rendered(
        {
            "container_image": "/images/torch.sif",
            "container_runtime": "apptainer",
            "node": {"cores": 8, "gpus": 4},
        }
    ),
    "predict": rendered({}, predicts=True),
    "predict in a container": rendered(
        {"container_image": "/images/torch.sif", "container_runtime": "apptainer"},
        predicts=True,
        distribution={"kind": "torch_distributed", "processes_per_node": 4},
    ),
    "program": rendered({"exclusive": False}, distribution={"kind": "none"}, entry_point="a b.py"),
}


@pytest.mark.parametrize("name", CASES)
def test_script(name: str, snapshot: Any) -> None:
    assert CASES[name] == snapshot
    checked = subprocess.run(["bash", "-n"], input=CASES[name], text=True, check=False)
    assert checked.returncode == 0


@pytest.mark.parametrize(
    ("runtime", "image"),
    [("apptainer", "/images/torch(2).sif"), ("pyxis", "nvcr.io#nvidia/pytorch:24.05")],
)
def test_the_name_of_an_image_is_one_word_of_the_shell(runtime: str, image: str) -> None:
    script = rendered({"container_image": image, "container_runtime": runtime})
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False)
    assert checked.returncode == 0 and f"'{image}'" in script


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({"node": {"cores": 8, "gpus": 4}}, {}),
        ({}, {"distribution": {"kind": "none"}}),
    ],
    ids=["GPUs", "unknown processes"],
)
def test_all_reduces_are_timed_only_among_known_processes_on_cpus(
    options: dict[str, Any], training: dict[str, Any]
) -> None:
    script = rendered(options, predicts=True, **training)
    asked = f"export {TIME_ALL_REDUCES}=1\n"
    assert script.replace(asked, "") == rendered(options, **training)


def test_a_dataset_is_a_folder_that_the_nodes_share() -> None:
    platform = slurm_platform(Path("/shared/me"))
    spec = job_spec(NAME, 2, TrainingConfig.model_validate(SECTIONS))
    inputs = replace(spec.inputs, dataset_uri="/shared/digits/", dataset_folders=("train", "test"))
    dataset = DatasetConfig(name="digits", source="digits", format="files", channel="training")
    with_one = replace(spec, inputs=inputs, dataset=dataset)
    with_two = replace(with_one, dataset=dataset.model_copy(update={"channel": None}))
    assert "\nexport SM_CHANNEL_TRAINING=/shared/digits/\n" in render(platform, with_one)[SCRIPT]
    assert "\nexport SM_CHANNEL_TEST=/shared/digits/test\n" in render(platform, with_two)[SCRIPT]
    contained = slurm_platform(Path("/shared/me"), container_image="/images/torch.sqsh")
    mounts = " --container-mounts=/shared/me:/shared/me,/shared/digits:/shared/digits "
    assert mounts in render(contained, with_one)[SCRIPT]
    contained = contained.model_copy(update={"container_runtime": "apptainer"})
    bound = ' --pwd "$PWD" --bind /shared/me:/shared/me,/shared/digits:/shared/digits /images/'
    assert bound in render(contained, with_one)[SCRIPT]
    odd = replace(with_one, inputs=replace(inputs, dataset_uri="/shared/my digits/"))
    assert "me,/shared/my digits:/shared/my digits' " in render(contained, odd)[SCRIPT]


def test_a_job_runs_in_the_partition_of_its_arm() -> None:
    platform = slurm_platform(Path("/shared/me"), partition="cpu")
    spec = job_spec(NAME, 2, TrainingConfig.model_validate(SECTIONS))
    script = render(platform, spec)[SCRIPT]
    own = replace(spec, platform=platform.model_copy(update={"partition": "gpu"}))
    assert render(platform, own)[SCRIPT] == script.replace("partition=cpu", "partition=gpu")


def test_the_account_is_the_sweeps_and_not_part_of_what_a_job_measures() -> None:
    folder, began = Path("/shared/me"), {"account": "physics", "requeue": True}
    current, recorded = slurm_platform(folder, account="other"), slurm_platform(folder, **began)
    spec = job_spec(NAME, 2, TrainingConfig.model_validate(SECTIONS))
    own, script = replace(spec, platform=current), render(recorded, spec)[SCRIPT]
    assert render(current.with_jobs_of(recorded.model_dump()), own)[SCRIPT] == script
    assert "account=other" in render(current, own)[SCRIPT]
    assert is_same_job(render(current, own)[SCRIPT], script)
    assert not is_same_job(script.replace("nodes=2", "nodes=3"), script)


def test_the_nodes_are_read_back_from_a_script() -> None:
    for script in CASES.values():
        assert read_script(script) == (2, "ml.p4d.24xlarge")


def test_the_secrets_of_a_job_are_those_of_its_script() -> None:
    script = rendered(
        {"setup": ["echo it\\'s set up", "export HF_TOKEN=of-the-setup"]},
        hyperparameters={"epochs": 3, "api_key": "it's a key", "url": f"http://me:{'word'}@host/"},
        environment={
            "DB_PASSWORD": "the first line\nand 'the second'",
            "SOME_ID": "0a1b2c3d4e5f6a7b",
            "GREETING": "hello you",
        },
    )
    assert set(secrets_of_script(script)) == {
        "the first line\nand 'the second'", "0a1b2c3d4e5f6a7b", "it's a key", "word",
        "of-the-setup",
    }  # fmt: skip
    assert secrets_of_script("export TOKEN='never closed\n") == ()


def test_a_shell_script_is_run_by_bash() -> None:
    script = rendered({}, distribution={"kind": "none"}, entry_point="work.sh")
    assert script.endswith(" bash bash work.sh --epochs=3 --lr=0.1\n")


def test_a_time_limit_is_whole_minutes_and_never_shorter() -> None:
    for seconds, minutes in ((60, 1), (61, 2), (3600, 60)):
        assert f"#SBATCH --time={minutes}\n" in rendered({}, max_runtime_seconds=seconds)


def test_values_that_would_end_a_directive_or_be_replaced_by_slurm_are_refused(
    snapshot: Any, tmp_path: Path
) -> None:
    wrong = {"partition": "gpu --uid=0", "gres": "gpu:1\n", "folder": "/shared/%u"}
    messages = {}
    for field, text in wrong.items():
        with pytest.raises(ValidationError) as refused:
            SlurmPlatform.model_validate({**slurm_platform(tmp_path).model_dump(), field: text})
        [error] = refused.value.errors()
        assert error["loc"] == (field,)
        messages[field] = error["msg"]
    assert messages == snapshot


@pytest.mark.parametrize(
    ("srun", "said"),
    [
        (
            'case "$*" in *exchange.py*" auto "[1-9]*) echo times > all-reduces;; *) env;; esac',
            "times",
        ),
        ('case "$*" in *exchange.py*) exit 1;; *) env;; esac', None),
        ('case "$*" in *exchange.py*) kill -9 $$;; *) env;; esac', None),
    ],
    ids=["timed", "failed", "killed"],
)
def test_the_program_gets_the_times_or_starts_without(
    srun: str, said: str | None, tmp_path: Path
) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "all-reduces").write_text("of the run before the job was requeued")
    (tmp_path / "socket.py").write_text("raise SystemExit('a module of the program')")
    training = TrainingConfig.model_validate({**SECTIONS, "environment": {"port": "the program's"}})
    spec = job_spec(NAME, 2, training, tmp_path)
    spec = replace(spec, variables={TIME_ALL_REDUCES: "1"})
    script = render(slurm_platform(tmp_path), spec)[SCRIPT]
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for program, text in {"srun": f"cd {tmp_path / NAME}; {srun}", "scontrol": "echo n1"}.items():
        (bin_folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / program).chmod(0o755)
    environment = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    done = subprocess.run(
        ["bash"], input=script, text=True, env=environment, check=True, timeout=300,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables.get("NODESWEEP_ALL_REDUCES") == said
    assert variables["port"] == "the program's"


def test_of_two_jobs_of_one_name_the_script_runs_one(tmp_path: Path) -> None:
    """Run here, where the job's number is a variable like any other and srun a program."""
    (tmp_path / NAME).mkdir()
    platform = slurm_platform(tmp_path)
    spec = job_spec(NAME, 1, TrainingConfig.model_validate(SECTIONS), tmp_path)
    script = render(platform, spec)[SCRIPT]
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
            ["bash"], input=script, text=True, env=environment, check=False, timeout=300
        ).returncode

    assert [run("12"), run("13"), run("12")] == [3, 96, 3], "job 12 was requeued"
    lines = (tmp_path / NAME / "runs").read_text().splitlines()
    assert [(line.split()[0], line.split()[2:]) for line in lines] == [
        ("start", []), ("end", ["3"]),
    ] * 2  # fmt: skip
