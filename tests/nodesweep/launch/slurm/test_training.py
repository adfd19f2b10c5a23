"""The image's training program on the nodes of a real cluster, started by srun and torchrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.local.tests.platform_client import wait_until
from nodesweep.configs.distribution import TorchDistributed
from nodesweep.configs.training import TrainingConfig
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.scaling.job import JobStatus
from tests.nodesweep.launch.slurm.cluster import job_spec, running_cluster

REPOSITORY = Path(__file__).resolve().parents[4]
NAME = "bench-20260102030405-0123abcd-n2-r1-a1-abcd"

pytestmark = pytest.mark.slow


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

        def ended() -> JobStatus | None:
            job = jobs.status(NAME)
            return job if job is not None and job.has_ended else None

        job: JobStatus = wait_until(ended, 900)
        folder = cluster.shared / NAME
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
        assert job.completed, logs[-4000:]
        metrics = json.loads((folder / "output" / "data" / "metrics.json").read_text())
        assert (metrics["world"]["nodes"], metrics["world"]["world_size"]) == (2, 4)
        assert {path.name for path in folder.glob("node-*.log")} == {"node-0.log", "node-1.log"}
