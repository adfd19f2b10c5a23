"""The shipped image, built and run: the real toolkit, torch and gloo on two nodes."""

from __future__ import annotations

import io
import re
import shutil
import sys
import tarfile
import threading
import uuid
from dataclasses import replace

import boto3
import pytest
from moto.server import ThreadedMotoServer

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.host.network import Loopback
from sagemaker_emulator.engine.host.process_tree import Membership
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.run.job_run import RunTimes
from tests.infra.image.training.processes import IMAGE

pytestmark = pytest.mark.slow

SCRIPT = """
import argparse, json, os
import torch, torch.distributed as dist
import own_requirement
hosts = json.loads(os.environ["SM_HOSTS"])
rank = hosts.index(os.environ["SM_CURRENT_HOST"])
os.environ["GLOO_SOCKET_IFNAME"] = os.environ["SM_NETWORK_INTERFACE_NAME"]
dist.init_process_group("gloo", rank=rank, world_size=len(hosts))
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
print(f"sum={int(total)}; own={own_requirement.__file__}", flush=True)
parser = argparse.ArgumentParser()
parser.add_argument("--boom", type=int, default=99)
if parser.parse_args().boom == rank:
    raise ValueError(f"boom on rank {rank}")
if parser.parse_args().boom == -rank:
    os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def s3():
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def own_training_slot():
    """Don't replace the slot, so that these programs wait for their turn.

    They meet on the machine's port 7777, like the programs of every platform.
    """


@pytest.fixture(params=["contained", "bare"])
def engine(request, tmp_path, image_store, s3):
    # what of several nodes fails last is the cause, if the others have only lost it
    times = RunTimes(misleading_failure_grace_seconds=HANG_SECONDS)
    engine = ProcessEngine(tmp_path, image_store, s3, times=times)
    if request.param == "bare":
        engine._containment = Containment()
        engine._network = Loopback(7, "bare")
    yield engine
    assert Membership(state_id=engine._state_id).members() == set()
    engine.close()


once = pytest.mark.parametrize("engine", ["contained"], indirect=True)
"""For what does not depend on how nodes are kept apart, which test_engine.py tries both ways."""
REQUIREMENTS = {
    "requirements.txt": "./own\n",
    "own/setup.py": (
        'from setuptools import setup\nsetup(name="own", py_modules=["own_requirement"])\n'
    ),
    "own/own_requirement.py": "",
}
"""A package that the image doesn't have."""


def source_archive(**files):
    """Return an archive of the script and of the other files that are sent with it."""
    files = {"train.py": SCRIPT, **files}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture
def own_code_job(job, s3, image_uri):
    client = boto3.client(
        "s3",
        endpoint_url=s3,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    client.create_bucket(Bucket="source")
    client.put_object(Bucket="source", Key="sourcedir.tar.gz", Body=source_archive(**REQUIREMENTS))
    client.put_object(Bucket="source", Key="alone/sourcedir.tar.gz", Body=source_archive())
    hyperparameters = {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://source/sourcedir.tar.gz"',
        "sagemaker_region": '"us-east-1"',
    }
    return replace(
        job,
        image_uri=image_uri,
        instance_type="ml.local.large",
        instance_count=2,
        hyperparameters=hyperparameters,
        input_data_config=[],
    )


def last(lines):
    """Return the complete last lines of the nodes."""
    return "\n".join(f"{host}: {text}" for host, text in lines[-60:])


def run(engine, job):
    lines = []
    nodes = engine.prepare(job)
    result = engine.run(
        job,
        nodes,
        lambda host, text, _at: lines.append((host, text)),
        threading.Event(),
        3 * HANG_SECONDS,
    )
    return result, lines


def test_jobs_own_code_and_requirements(engine, own_code_job, image_store, image_uri):
    result, lines = run(engine, own_code_job)
    assert result.failed_host is None, last(lines)
    sums = {
        (host, text.split("; own=")[0]): text for host, text in lines if text.startswith("sum=")
    }
    assert sums.keys() == {("algo-1", "sum=3"), ("algo-2", "sum=3")}
    assert all(f"/{host}/python/lib/" in text for (host, _), text in sums.items())
    packages = f"lib/python3.{sys.version_info.minor}/site-packages"
    assert not (image_store.resolve(image_uri) / "venv" / packages / "own_requirement.py").exists()


@once
def test_packages_in_a_layer_of_the_image_are_found_and_nothing_is_installed(
    engine, own_code_job, image_store, image_uri, tmp_path
):
    """Under torchrun, too, a script of the environment that starts the program with the
    environment's Python.
    """
    layer = tmp_path / "layer"
    for name, text in REQUIREMENTS.items():
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).write_text(text)
    (layer / "Dockerfile").write_text(
        f"FROM {image_uri}\nCOPY requirements.txt /opt/packages/requirements.txt\nCOPY own"
        " /opt/packages/own\nRUN pip list --format=freeze | sed -nE '/^torch==/p' > /opt/kept\nRUN"
        " pip install -c /opt/kept -r /opt/packages/requirements.txt\n"
    )
    tag = f"layer-on-{image_uri.rpartition(':')[2]}"
    image_store.build(layer, "training", tag, {}, print, threading.Event(), 300)
    sent = {
        **own_code_job.hyperparameters,
        "sagemaker_submit_directory": '"s3://source/alone/sourcedir.tar.gz"',
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_instance_type": '"ml.local.large"',
    }
    result, lines = run(
        engine, replace(own_code_job, image_uri=f"localhost/training:{tag}", hyperparameters=sent)
    )
    assert result.failed_host is None, last(lines)
    said = [text for _, text in lines if text.startswith("sum=3; own=")]
    packages = (image_store.resolve(f"training:{tag}") / "venv" / "lib").resolve()
    assert len(said) == 2 and all(f"own={packages}/" in text for text in said)
    assert any("torchrun" in text for _, text in lines)
    assert not [text for _, text in lines if "pip install" in text or "Installing" in text]


def table():
    """64 samples of two features."""
    rows = [f"{i % 7},{i % 5},{i % 2}" for i in range(64)]
    return "a,b,label\n" + "\n".join(rows) + "\n"


def test_the_images_program_runs_where_the_job_sends_no_code(engine, job, image_uri):
    """The toolkit puts the program into /opt/ml/code on every node."""
    program = {
        "format": '"csv"',
        "epochs": "1",
        "per-replica-batch-size": "8",
        "warmup-exclude-seconds": "0",
    }
    job = replace(
        job,
        image_uri=image_uri,
        instance_type="ml.local.large",
        instance_count=2,
        hyperparameters=program,
    )
    nodes = engine.prepare(job)
    for node in nodes:
        assert list((node.opt_ml / "code").iterdir()) == []
        (node.opt_ml / "input" / "data" / "training" / "table.csv").write_text(table())
    lines = []
    result = engine.run(
        job,
        nodes,
        lambda host, text, _at: lines.append((host, text)),
        threading.Event(),
        3 * HANG_SECONDS,
    )
    assert result.failed_host is None, last(lines)
    assert any(
        host == "algo-1" and "train_seconds=" in text and "world_size=2;" in text
        for host, text in lines
    )
    assert all((node.opt_ml / "code" / "train.py").is_file() for node in nodes)


@once
def test_own_code_in_an_image_with_code_in_the_toolkits_folder_does_not_run(
    engine, own_code_job, tmp_path, image_uri
):
    """This is as on AWS, for an image that has the user's program by the guide's recipe."""
    context = tmp_path / "context"
    shutil.copytree(IMAGE, context, ignore=shutil.ignore_patterns("__pycache__"))
    (context / "baked.py").write_text("print('the image has run', flush=True)\n")
    with (context / "Dockerfile").open("a") as file:
        file.write("COPY baked.py /opt/ml/code/baked.py\nENV SAGEMAKER_PROGRAM=baked.py\n")
    tag = f"baked-{uuid.uuid4().hex[:8]}"  # the store outlives a run, and its tags are immutable
    engine._images.build(context, "training", tag, {}, print, threading.Event(), 300)
    baked = replace(
        own_code_job, image_uri=f"{image_uri.rpartition(':')[0]}:{tag}", instance_count=1
    )
    without_code = {
        name: value for name, value in baked.hyperparameters.items() if "submit" not in name
    }
    for job in (baked, replace(baked, hyperparameters=without_code)):
        result, lines = run(engine, job)
        assert result.failed_host is None, last(lines)
        said = [text for _, text in lines]
        assert "the image has run" in said
        assert any("is not empty, abandoning unzipping" in text for text in said)


@once
def test_failing_rank_is_the_reason(engine, own_code_job):
    hyperparameters = {**own_code_job.hyperparameters, "boom": "1"}
    result, lines = run(engine, replace(own_code_job, hyperparameters=hyperparameters))
    assert result.failed_host == "algo-2", last(lines)
    # -6: gloo's threads may abort the process that is ending with its exception.
    cause = r"AlgorithmError: algo-2: ExecuteUserScriptError:\nExitCode (1|-6)\nErrorMessage "
    assert re.match(cause, result.failure_reason)
    assert "on rank 1" in result.failure_reason


@once
def test_program_killed_on_one_node(engine, own_code_job):
    """The out-of-memory killer ends the program, while the toolkit's `train` continues and reports
    this."""
    hyperparameters = {**own_code_job.hyperparameters, "boom": "-1"}
    result, lines = run(engine, replace(own_code_job, hyperparameters=hyperparameters))
    assert result.failed_host == "algo-2", last(lines)
    assert "ExitCode -9" in result.failure_reason
