"""Processing jobs whose nodes are processes: the script, its data and the files at /opt/ml."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.engine.engine_bench import TIMES, OneImage, add_environment, write_image
from infra.local.tests.platform_client import client
from infra.local.tests.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.engine.host.containment import Containment
from sagemaker_emulator.engine.host.port_lock import training_slot
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.engine.run import exclusive_engine
from sagemaker_emulator.server.backends import Backend, with_real_nodes
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running

IMAGE = "000000000000.dkr.ecr.us-east-1.amazonaws.com/tiny:1"
APP = """
import json, os, pathlib, sys
ml = pathlib.Path("/opt/ml")
resources = json.loads((ml / "config/resourceconfig.json").read_text())
config = json.loads((ml / "config/processingjobconfig.json").read_text())
host = resources["current_host"]
rows = sorted(path.read_text() for path in (ml / "processing/input/rows").iterdir())
found = {
    "hosts": resources["hosts"],
    "rows": rows,
    "arguments": sys.argv[1:],
    "job": os.environ["PROCESSING_JOB_NAME"],
    "arn": config["ProcessingJobArn"] == os.environ["PROCESSING_JOB_ARN"],
    "instances": config["ProcessingResources"]["ClusterConfig"]["InstanceCount"],
    "own": os.environ["OWN"],
    "folders": sorted(path.name for path in ml.iterdir()),
}
(ml / "processing/output/out" / f"{host}.json").write_text(json.dumps(found))
(ml / "output/message").write_text(f"{host}: {len(rows)} rows. ")
print("read", len(rows))
sys.exit(int(os.environ.get("EXIT_CODE", 0)) if host == "algo-1" else 0)
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("platform")
    if problem := Containment.find(folder).opt_ml_problem:
        pytest.skip(f"no /opt/ml of a node's own on this machine: {problem}")
    image = write_image(folder / "image")
    add_environment(image)

    def make(config: ServerConfig, endpoint_url: str) -> Backend:
        images, key = OneImage(image), access_keys(config.state_dir).node
        engine = ProcessEngine(folder / "engine", images, endpoint_url, key, TIMES)
        return with_real_nodes(config, engine, images)

    # tests must not wait for a job of another platform on this machine
    slot = functools.partial(training_slot, address=f"\0test-{folder}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exclusive_engine, "training_slot", slot)
        with running(ServerConfig(0, folder / "state"), make) as endpoint:
            clients = {name: client(endpoint, name) for name in ("sagemaker", "s3", "logs")}
            s3 = clients["s3"]
            for bucket in ("rows", "results"):
                s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket="rows", Key="code/app.py", Body=APP.encode())
            for name in "abc":
                s3.put_object(Bucket="rows", Key=f"in/{name}.csv", Body=name.encode())
            yield SimpleNamespace(**clients)


def run_app(platform: SimpleNamespace, name: str, nodes: int, **environment: str) -> dict:
    entrypoint = ["python3", "/opt/ml/processing/input/code/app.py"]
    app = {"ImageUri": IMAGE, "ContainerEntrypoint": entrypoint, "ContainerArguments": ["--x", "1"]}
    rows = s3_input("rows", "s3://rows/in", S3DataDistributionType="ShardedByS3Key")
    platform.sagemaker.create_processing_job(
        **processing_request(
            name,
            AppSpecification=app,
            Environment={"OWN": "variable", **environment},
            ProcessingResources=cluster(nodes),
            ProcessingInputs=[s3_input("code", "s3://rows/code/app.py"), rows],
            ProcessingOutputConfig={"Outputs": [s3_output("out", f"s3://results/{name}/")]},
        )
    )
    return wait_for_end(platform.sagemaker, name)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_script_on_each_node(platform: SimpleNamespace, nodes: int) -> None:
    name = f"script-{nodes}"
    job = run_app(platform, name, nodes)
    shares = [["a", "b", "c"]] if nodes == 1 else [["a", "c"], ["b"]]
    assert job["ProcessingJobStatus"] == "Completed", job.get("FailureReason")
    assert job["ExitMessage"] == "".join(
        f"algo-{number}: {len(share)} rows. " for number, share in enumerate(shares, start=1)
    )
    hosts = [f"algo-{number}" for number in range(1, nodes + 1)]
    written = texts_below(platform.s3, "results", f"{name}/")
    assert {host: json.loads(text) for host, text in written.items()} == {
        f"{host}.json": {
            "hosts": hosts,
            "rows": share,
            "arguments": ["--x", "1"],
            "job": name,
            "arn": True,
            "instances": nodes,
            "own": "variable",
            "folders": ["config", "output", "processing"],
        }
        for host, share in zip(hosts, shares, strict=True)
    }
    assert log_of(platform, name, hosts[-1])[-1] == f"read {len(shares[-1])}"


def test_the_exit_code_of_a_failed_script(platform: SimpleNamespace) -> None:
    job = run_app(platform, "failing", 2, EXIT_CODE="3")
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"] == (
        "AlgorithmError: algo-1: See job logs for more information, exit code: 3"
    )
    assert texts_below(platform.s3, "results", "failing/") == {}


def test_without_an_entry_point_there_is_nothing_to_run(platform: SimpleNamespace) -> None:
    request = processing_request("refused", AppSpecification={"ImageUri": IMAGE})
    with pytest.raises(ClientError) as caught:
        platform.sagemaker.create_processing_job(**request)
    assert caught.value.response["Error"]["Message"].startswith(
        "AppSpecification.ContainerEntrypoint: "
    )
