"""The image's training program on the nodes of a real cluster, started by srun and torchrun."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.local.tests.platform_client import wait_until
from nodesweep.configs.distribution import TorchDistributed
from nodesweep.configs.training import TrainingConfig
from nodesweep.launch.slurm.inputs import send_code
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.observed import TIME_ALL_REDUCES
from nodesweep.tasks.jobs.source import pack
from tests.nodesweep.launch.slurm.cluster import job_spec, running_cluster

REPOSITORY = Path(__file__).resolve().parents[4]
NAME = "bench-20260102030405-0123abcd-n2-r1-a1-abcd"

pytestmark = pytest.mark.slow


def end_of(jobs: SlurmJobs) -> JobStatus:
    def ended() -> JobStatus | None:
        job = jobs.status(NAME)
        return job if job is not None and job.has_ended else None

    job: JobStatus = wait_until(ended, 900)
    return job


def test_two_nodes_train_together(tmp_path: Path, image_python: str) -> None:
    with running_cluster(tmp_path) as cluster:
        training = TrainingConfig(
            distribution=TorchDistributed(kind="torch_distributed", processes_per_node=2),
            instance_type="main",
            max_runtime_seconds=1200,
            hyperparameters={"data": str(REPOSITORY / "configs" / "data" / "digits"), "epochs": 1},
            environment={"OMP_NUM_THREADS": "1"},
        )
        spec = job_spec(NAME, 2, training, REPOSITORY / "infra" / "image")
        setup = [f"export PATH={Path(image_python).parent}:$PATH"]
        jobs = SlurmJobs(cluster.platform(setup=setup))
        jobs.submit(spec)
        job = end_of(jobs)
        folder = cluster.shared / NAME
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
        assert job.completed, logs[-4000:]
        metrics = json.loads((folder / "output" / "data" / "metrics.json").read_text())
        assert (metrics["world"]["nodes"], metrics["world"]["world_size"]) == (2, 4)
        assert {path.name for path in folder.glob("node-*.log")} == {"node-0.log", "node-1.log"}


def test_all_reduces_are_timed_before_the_program(tmp_path: Path, image_python: str) -> None:
    program = tmp_path / "program"
    program.mkdir()
    (program / "train.py").write_text(
        "import os; print('times of rank', os.environ['RANK'], os.environ['NODESWEEP_ALL_REDUCES'])"
    )
    with running_cluster(tmp_path) as cluster:
        training = TrainingConfig(
            distribution=TorchDistributed(kind="torch_distributed", processes_per_node=2),
            instance_type="main",
            max_runtime_seconds=1200,
        )
        key = "nodesweep/code/0123456789abcdef/sourcedir.tar.gz"
        code = send_code(str(cluster.shared), key, pack(program, "train.py"))
        spec = job_spec(NAME, 2, training, Path(code))
        setup = [f"export PATH={Path(image_python).parent}:$PATH"]
        jobs = SlurmJobs(cluster.platform(setup=setup))
        jobs.submit(replace(spec, variables={TIME_ALL_REDUCES: "1"}))
        job = end_of(jobs)
        logs = "\n".join(path.read_text() for path in sorted((cluster.shared / NAME).glob("*.log")))
        assert job.completed, logs[-4000:]
    times = [line.split(" ", 4)[3:] for line in logs.splitlines() if "times of rank" in line]
    assert sorted(rank for rank, _ in times) == ["0", "1", "2", "3"]
    assert {json.loads(found)["world_size"] for _, found in times} == {4}
