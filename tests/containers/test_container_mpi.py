"""A launcher of AWS that uses mpirun: two nodes of two processes each, over sshd in the containers.

test_container_recipes.py tests mpirun alone.
"""

from __future__ import annotations

import json

import pytest

from tests.containers.container_bench import assert_completed, log_of, wait_for_end
from tests.containers.test_both_engines import HYPERPARAMETERS, INSTANCE_TYPE, create, put_data

pytestmark = [pytest.mark.slow, pytest.mark.containers]

SMDDP = {  # of smdistributed.dataparallel and of pytorchddp
    "passes-per-epoch": "8",
    "per-replica-batch-size": "1024",
    "sagemaker_mpi_num_of_processes_per_host": "2",
    "sagemaker_distributed_dataparallel_enabled": "true",
    "sagemaker_distributed_dataparallel_custom_mpi_options": '""',
    "sagemaker_instance_type": json.dumps(INSTANCE_TYPE),
}


def test_two_nodes_of_two_processes(platform, training_image):
    put_data(platform)
    create(platform, training_image, "smddp", 2, HYPERPARAMETERS | SMDDP)
    job = wait_for_end(platform, "smddp")
    log = "\n".join(log_of(platform, "smddp", "algo-1"))
    assert_completed(platform, job)
    assert "mpirun --host algo-1:2,algo-2:2 -np 4" in log
    assert "world_size=4;" in log
    message = job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert "smdistributed.dataparallel" in message
