"""Scripts written without nodesweep in mind run unchanged as a job's own code, on two nodes with
the real toolkit."""

from __future__ import annotations

import io
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.process.image_store import ProcessImageStore
from sagemaker_emulator.interfaces import JobSpec, Node, RunResult
from tests.infra.image.training.processes import IMAGE

pytestmark = pytest.mark.slow

EXAMPLES = IMAGE / "examples"


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archived:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archived.addfile(member, io.BytesIO(content))
    return stream.getvalue()


class OwnCode:
    """Runs jobs of two nodes with their own code."""

    def __init__(
        self, folder: Path, images: ProcessImageStore, image_uri: str, endpoint: str
    ) -> None:
        self.engine = ProcessEngine(folder, images, endpoint)
        self._image_uri, self._endpoint = image_uri, endpoint

    def run(
        self,
        files: dict[str, bytes],
        program: str,
        hyperparameters: dict[str, str],
        data: dict[str, bytes],
    ) -> tuple[RunResult, list[str], list[Node]]:
        self._upload(archive(files))
        toolkit = {
            "sagemaker_program": f'"{program}"',
            "sagemaker_submit_directory": '"s3://source/sourcedir.tar.gz"',
            "sagemaker_region": '"us-east-1"',
            "sagemaker_instance_type": '"ml.local.large"',
        }
        job = JobSpec(
            job_name="own-code",
            job_arn="arn:aws:sagemaker:us-east-1:000000000000:training-job/own-code",
            region="us-east-1",
            image_uri=self._image_uri,
            instance_type="ml.local.large",
            instance_count=2,
            hyperparameters={**toolkit, **hyperparameters},
            environment={"SAGEMAKER_PROGRAM": program},
            input_data_config=[{"ChannelName": "training"}],
        )
        nodes = self.engine.prepare(job)
        for node in nodes:
            for name, content in data.items():
                (node.opt_ml / "input" / "data" / "training" / name).write_bytes(content)
        lines: list[str] = []
        result = self.engine.run(
            job, nodes, lambda _host, text, _at: lines.append(text), threading.Event(), 1800
        )
        return result, lines, nodes

    def _upload(self, content: bytes) -> None:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = boto3.client("s3", endpoint_url=self._endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="source")
        client.put_object(Bucket="source", Key="sourcedir.tar.gz", Body=content)


@pytest.fixture
def own_code(tmp_path: Path, image_store: ProcessImageStore, image_uri: str) -> Iterator[OwnCode]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    own_code = OwnCode(tmp_path, image_store, image_uri, f"http://{host}:{port}")
    yield own_code
    own_code.engine.close()
    server.stop()


def test_a_plain_ddp_script_under_torchrun(own_code: OwnCode) -> None:
    torchrun = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "1",
        "epochs": "8",
    }
    files = {"plain_ddp.py": (EXAMPLES / "plain_ddp.py").read_bytes()}
    result, lines, nodes = own_code.run(files, "plain_ddp.py", torchrun, {})
    assert result.failed_host is None, "\n".join(lines)
    assert {line for line in lines if line.startswith("rank ")} == {"rank 0 of 2;", "rank 1 of 2;"}
    losses = [float(found[1]) for line in lines if (found := re.search(r"loss=([0-9.]+);", line))]
    assert len(losses) == 8 and losses[-1] < losses[0]
    assert (nodes[0].opt_ml / "model" / "model.pt").is_file()


def cifar(rows: int, seed: int) -> bytes:
    """A dataset in CIFAR-10's binary format, in which each class is a shade of gray."""
    random = np.random.default_rng(seed)
    labels = (np.arange(rows) % 10).astype(np.uint8)
    pixels = labels[:, None] * 22 + random.integers(0, 20, (rows, 3072))
    return np.concatenate((labels[:, None], pixels.astype(np.uint8)), axis=1).tobytes()


def test_a_lightning_script_under_torchrun(own_code: OwnCode) -> None:
    torchrun = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "1",
        "max_epochs": "2",
        "num_nodes": "2",
    }
    files = {"lightning_cifar.py": (EXAMPLES / "lightning_cifar.py").read_bytes()}
    data = {"data_batch_1.bin": cifar(640, 0), "test_batch.bin": cifar(100, 1)}
    result, lines, _nodes = own_code.run(files, "lightning_cifar.py", torchrun, data)
    assert result.failed_host is None, "\n".join(lines)
    told = {line.split(":")[0]: line for line in lines if "val_acc=" in line}
    assert told.keys() == {"rank 0 of 2", "rank 1 of 2"}


def test_a_plain_ddp_script_under_the_wrapper_without_torchrun(own_code: OwnCode) -> None:
    """Kind none: the toolkit starts one plain process per node, the wrapper one per rank."""
    names = ("__init__", "cluster", "errors", "wrap")
    files = {
        f"training/{name}.py": (IMAGE / "training" / f"{name}.py").read_bytes() for name in names
    }
    files["plain_ddp.py"] = (EXAMPLES / "plain_ddp.py").read_bytes()
    files["start.py"] = (EXAMPLES / "start.py").read_bytes()
    result, lines, _nodes = own_code.run(files, "start.py", {"epochs": "1"}, {})
    assert result.failed_host is None, "\n".join(lines)
    assert {line for line in lines if line.startswith("rank ")} == {"rank 0 of 2;", "rank 1 of 2;"}
