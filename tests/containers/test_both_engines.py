"""The same small sweep on processes and on containers has the same requests, responses and
results."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import ROLE_ARN, client, phases, wait_until
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerConfig
from tests.containers.conftest import SERVICES
from tests.containers.container_bench import ROOT, log_of, wait_for_end

pytestmark = [pytest.mark.slow, pytest.mark.containers]

INSTANCE_TYPE, VCPUS = "ml.local.medium", 0.5
"""A fifth of a processor, as of ml.local.small, takes half a minute to import torch."""
DATA = ROOT / "configs" / "data" / "digits"
HYPERPARAMETERS = {
    "model": "ranking_mlp",
    "layers": "3",
    "hidden-size": "64",
    "epochs": "2",
    "passes-per-epoch": "20",
    "global-batch-size": "4096",
    "learning-rate": "0.002",
    "seed": "1",
    "warmup-exclude-steps": "2",
    "warmup-exclude-seconds": "0",
    "sagemaker_program": '"train.py"',
}
METRICS = [{"Name": "train_seconds", "Regex": r"(?:^|\s)train_seconds=([0-9.eE+-]+);"}]


@pytest.fixture(scope="module")
def processes(image_store, tmp_path_factory):
    """A platform with the process engine in a separate process, with the tests' image store."""
    state_dir = tmp_path_factory.mktemp("processes")
    for name in ("images", "venvs"):
        (state_dir / name).symlink_to(ROOT / ".nodesweep" / "tests" / name)
    config = ServerConfig(0, state_dir, owner_pid=os.getpid())
    endpoint = daemon.start(config)
    clients = {service: client(endpoint, service) for service in SERVICES}
    clients["s3"].create_bucket(Bucket="results")
    yield SimpleNamespace(endpoint=endpoint, state_dir=state_dir, **clients)
    daemon.stop(state_dir)


def run_sweep(platform, image):
    """Run one node and two nodes, a request that the program refuses, and a stopped job; return
    their descriptions by name."""
    put_data(platform)
    for name, count, changes in (
        ("one", 1, {"per-replica-batch-size": "4096"}),
        ("two", 2, {"per-replica-batch-size": "2048"}),
        ("wrong", 2, {"per-replica-batch-size": "4096"}),
        ("stopped", 1, {"per-replica-batch-size": "4096", "epochs": "500"}),
    ):
        create(platform, image, name, count, HYPERPARAMETERS | changes)
    wait_until(lambda: any("step=" in line for line in log_of(platform, "stopped", "algo-1")), 280)
    platform.sagemaker.stop_training_job(TrainingJobName="stopped")
    return {name: wait_for_end(platform, name) for name in ("one", "two", "wrong", "stopped")}


def put_data(platform):
    if "data" not in [bucket["Name"] for bucket in platform.s3.list_buckets()["Buckets"]]:
        platform.s3.create_bucket(Bucket="data")
    for path in sorted(DATA.rglob("*.parquet")):
        platform.s3.put_object(Bucket="data", Key=f"digits/{path.name}", Body=path.read_bytes())


def create(platform, image, name, count, hyperparameters):
    channel = {
        "ChannelName": "training",
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://data/digits/"}},
    }
    platform.sagemaker.create_training_job(
        TrainingJobName=name,
        AlgorithmSpecification={
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "MetricDefinitions": METRICS,
        },
        RoleArn=ROLE_ARN,
        HyperParameters=hyperparameters,
        InputDataConfig=[channel],
        OutputDataConfig={"S3OutputPath": "s3://results/jobs"},
        ResourceConfig={
            "InstanceType": INSTANCE_TYPE,
            "InstanceCount": count,
            "VolumeSizeInGB": 1,
        },
        StoppingCondition={"MaxRuntimeInSeconds": 400},
    )


@pytest.fixture(scope="module")
def both(processes, image_uri, platform, training_image):
    """Yield (platform, jobs) of each engine; the two run one after the other, as they share the
    cores."""
    return (processes, run_sweep(processes, image_uri)), (
        platform,
        run_sweep(platform, training_image),
    )


def results(platform, name):
    """Return the content of each file in a job's output, by name."""
    body = platform.s3.get_object(Bucket="results", Key=f"jobs/{name}/output/output.tar.gz")[
        "Body"
    ].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return {
            item.name: archive.extractfile(item).read()
            for item in archive.getmembers()
            if item.isfile()
        }


def file_names(platform, name):
    """Return the file names without the host and time that TensorBoard adds."""
    return sorted(
        re.sub(r"events\.out\.tfevents\..*", "events", file) for file in results(platform, name)
    )


def schema(value):
    """Return keys and types; a list has the type of its first entry."""
    if isinstance(value, dict):
        return {key: schema(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [schema(entry) for entry in value[:1]]
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else type(value).__name__
    )


def test_statuses_and_phases_are_the_same(both):
    (_, processes), (_, containers) = both
    seen = [
        {name: (job["TrainingJobStatus"], phases(job)) for name, job in jobs.items()}
        for jobs in (processes, containers)
    ]
    for of_one in seen:
        for _status, names in of_one.values():
            if "Pending" in names:  # only whether it had to wait for another job
                names.remove("Pending")
    assert seen[0] == seen[1]
    assert {name: status for name, (status, _) in seen[1].items()} == {
        "one": "Completed",
        "two": "Completed",
        "wrong": "Failed",
        "stopped": "Stopped",
    }


def test_reason_of_a_failure_is_the_same(both):
    def reason(jobs):
        return re.search(r'ErrorMessage "(.*?)\n?"', jobs["wrong"]["FailureReason"], re.DOTALL)[
            1
        ].splitlines()[0]

    (_, processes), (_, containers) = both
    assert reason(processes) == reason(containers)
    assert "--per-replica-batch-size" in reason(containers)


@pytest.mark.parametrize("name", ["one", "two"])
def test_files_left_behind_are_the_same(both, name):
    (processes, _), (containers, _) = both
    assert file_names(processes, name) == file_names(containers, name)


@pytest.mark.parametrize("name", ["one", "two"])
def test_metrics_have_the_same_schema_and_the_same_training(both, name):
    """The same seed gives the same batches: what was trained is equal, only how long it took
    differs."""
    metrics = [json.loads(results(platform, name)["metrics.json"]) for platform, _ in both]
    assert schema(metrics[0]) == schema(metrics[1])
    for field in ("steps", "samples", "world", "batch", "optimizer", "model"):
        assert metrics[0].get(field) == metrics[1].get(field), field
    values = [entry["final_metric"]["value"] for entry in metrics]
    assert values[0] == pytest.approx(values[1], abs=0.05)


@pytest.mark.parametrize("name", ["one", "two"])
def test_nodes_have_the_same_quota(both, name):
    quotas = [json.loads(results(platform, name)["metrics.json"])["device"] for platform, _ in both]
    assert [device["threads"] for device in quotas] == [1, 1]
    assert quotas[1]["cpu_quota_cores"] in (VCPUS, None)


def test_metric_definitions_are_found_in_both_logs(both):
    for _, jobs in both:
        assert [metric["MetricName"] for metric in jobs["two"]["FinalMetricDataList"]] == [
            "train_seconds"
        ]
