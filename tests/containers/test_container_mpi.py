"""Options that are launched with mpirun: two nodes of two processes each, over sshd in the
containers.
"""

from __future__ import annotations

import json

import pytest

from tests.containers.container_bench import assert_completed, log_of, wait_for_end
from tests.containers.test_both_engines import HYPERPARAMETERS, INSTANCE_TYPE, create, put_data

pytestmark = [pytest.mark.slow, pytest.mark.containers]

SHORT = {
    "passes-per-epoch": "8",
    "per-replica-batch-size": "1024",
    "sagemaker_mpi_num_of_processes_per_host": "2",
}
LAUNCHERS = {
    "mpi": {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '""'},
    "smddp": {  # of smdistributed.dataparallel and of pytorchddp
        "sagemaker_distributed_dataparallel_enabled": "true",
        "sagemaker_distributed_dataparallel_custom_mpi_options": '""',
        "sagemaker_instance_type": json.dumps(INSTANCE_TYPE),
    },
}


@pytest.fixture(scope="module")
def jobs(platform, training_image):
    """All at once, as far as this machine has room."""
    put_data(platform)
    for name, launcher in LAUNCHERS.items():
        create(platform, training_image, name, 2, HYPERPARAMETERS | SHORT | launcher)
    return {name: wait_for_end(platform, name) for name in LAUNCHERS}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_nodes_of_two_processes(platform, jobs, launcher):
    job = jobs[launcher]
    log = "\n".join(log_of(platform, launcher, "algo-1"))
    assert_completed(platform, job)
    assert "mpirun --host algo-1:2,algo-2:2 -np 4" in log
    assert "world_size=4;" in log
    message = job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert ("launch path only: smdistributed.dataparallel" in message) == (launcher == "smddp")
