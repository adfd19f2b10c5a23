"""The project's image in real containers: the shipped program, and a job's own code, which is
unpacked in its place."""

from __future__ import annotations

import io
import tarfile

import pytest

from infra.local.tests.platform_client import ROLE_ARN
from tests.containers.container_bench import assert_completed, log_of, wait_for_end
from tests.containers.test_both_engines import HYPERPARAMETERS, INSTANCE_TYPE, put_data

pytestmark = [pytest.mark.slow, pytest.mark.containers]

# Where a collective is the last act, gloo may close the connection before the other rank has read
# it ("Connection closed by peer", pytorch issues 11364 and 61670): each rank waits until both have
# their sum.
MINE = """
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"mine ran as one of {int(total)} in {os.getcwd()} beside {sorted(os.listdir())}", flush=True)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store.set(f"summed-{dist.get_rank()}", "yes")
store.wait(["summed-0", "summed-1"])
dist.destroy_process_group()
"""
TORCHRUN = {
    "sagemaker_torch_distributed_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "1",
}


def upload_code(platform):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("mine.py")
        member.size = len(MINE)
        archive.addfile(member, io.BytesIO(MINE.encode()))
    platform.s3.put_object(Bucket="source", Key="sourcedir.tar.gz", Body=stream.getvalue())


def run_job(platform, image, name, hyperparameters, environment=None):
    """Run two nodes; return the job's description after its end."""
    put_data(platform)
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://data/digits/"}
    platform.sagemaker.create_training_job(
        TrainingJobName=name,
        AlgorithmSpecification={"TrainingImage": image, "TrainingInputMode": "File"},
        RoleArn=ROLE_ARN,
        HyperParameters=TORCHRUN | hyperparameters,
        Environment=environment or {},
        InputDataConfig=[{"ChannelName": "training", "DataSource": {"S3DataSource": source}}],
        OutputDataConfig={"S3OutputPath": "s3://results/jobs"},
        ResourceConfig={"InstanceType": INSTANCE_TYPE, "InstanceCount": 2, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 400},
    )
    return wait_for_end(platform, name)


def test_own_code_runs_in_the_projects_image(platform, training_image):
    """As `build_request` asks for it: the hyperparameter for the code, the environment for its
    entry point."""
    upload_code(platform)
    code = {
        "sagemaker_submit_directory": '"s3://source/sourcedir.tar.gz"',
        "sagemaker_region": '"us-east-1"',
    }
    job = run_job(platform, training_image, "own-code", code, {"SAGEMAKER_PROGRAM": "mine.py"})
    assert_completed(platform, job)
    said = "mine ran as one of 2 in /opt/ml/code beside ['mine.py']"
    assert all(said in log_of(platform, "own-code", host) for host in ("algo-1", "algo-2"))


def test_the_images_program_runs_where_no_code_is_sent(platform, training_image):
    job = run_job(
        platform, training_image, "no-code", HYPERPARAMETERS | {"per-replica-batch-size": "2048"}
    )
    assert_completed(platform, job)
    assert any("world_size=2;" in line for line in log_of(platform, "no-code", "algo-1"))
