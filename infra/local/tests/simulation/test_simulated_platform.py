"""The simulated engine through the API: its times fit the model and are marked as simulated
everywhere."""

from __future__ import annotations

import io
import json
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    client,
    job_request,
    phases,
    resources,
    run_job,
    serve_simulated,
    wait_for_end,
    wait_until,
)
from sagemaker_emulator.server.contract import ServerConfig, ServerStartError
from sagemaker_emulator.server.serving import running
from sagemaker_emulator.simulation.execution import SimulatedExecution

ROUNDING_SECONDS = 0.01
NO_SUCH_SERVICE = ("InvalidAction", "UnknownOperation", "UnknownOperationException")
ACCOUNT = "000000000001"
FILE_SYSTEM = {
    "FileSystemId": "fs-0123456789abcdef0",
    "FileSystemType": "FSxLustre",
    "FileSystemAccessMode": "ro",
    "DirectoryPath": "/fsx/corpus",
}
DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1"
IMAGE = {"AlgorithmSpecification": {"TrainingImage": DLC, "TrainingInputMode": "File"}}
MODEL = {
    "t_compute_seconds": 1000,
    "samples": 100_000,
    "serial_share": 0,
    "gradient_bytes": 0,
    "latency_seconds": 0,
    "noise_sigma": 0,
    "global_batch_size": 1000,
    "startup_seconds": 100,
    "download_seconds": 30,
    "setup_seconds": 20,
    "upload_seconds": 10,
}
LONG = {"StoppingCondition": {"MaxRuntimeInSeconds": 86_400}}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    yield from serve_simulated(
        tmp_path_factory.mktemp("simulated"), model=MODEL, **{"ml.g5.xlarge": 4}
    )


def simulate(
    platform: SimpleNamespace, name: str, nodes: int = 1, **changes: Any
) -> dict[str, Any]:
    changes = {"ResourceConfig": resources(nodes, "ml.p4d.24xlarge"), **IMAGE, **LONG, **changes}
    return run_job(platform, name, **changes)


def phase_lengths(job: dict[str, Any]) -> dict[str, float]:
    return {
        item["Status"]: (item["EndTime"] - item["StartTime"]).total_seconds()
        for item in job["SecondaryStatusTransitions"]
    }


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the real seconds since this call."""
    began = time.monotonic()
    return lambda: time.monotonic() - began


def metrics_of(platform: SimpleNamespace, name: str) -> dict[str, Any]:
    body = platform.s3.get_object(Bucket="results", Key=f"jobs/{name}/output/output.tar.gz")[
        "Body"
    ].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        file = archive.extractfile("metrics.json")
        assert file is not None
        return dict(json.load(file))


def test_phases_last_as_the_model_says(platform: SimpleNamespace) -> None:
    before = datetime.now(UTC)
    job = simulate(platform, "phases", nodes=4)
    lengths = phase_lengths(job)
    assert phases(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    expected = {
        "Starting": 100,
        "Downloading": 30,
        "Training": 20 + 1000 / 4,
        "Uploading": 10,
        "Completed": 0,
    }
    assert lengths == pytest.approx(expected, abs=ROUNDING_SECONDS)
    assert (job["TrainingTimeInSeconds"], job["BillableTimeInSeconds"]) == (310, 310)
    end = job["SecondaryStatusTransitions"][-1]["StartTime"]
    # the end is now, and the start is in the past
    assert before.timestamp() - 1 <= end.timestamp() <= time.time()
    assert (end - job["CreationTime"]).total_seconds() == pytest.approx(410, abs=ROUNDING_SECONDS)
    assert (
        job["TrainingEndTime"] - job["TrainingStartTime"]
        == end - job["SecondaryStatusTransitions"][1]["StartTime"]
    )


def test_stop_that_comes_when_the_work_is_done_leaves_no_trace(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log = SimulatedExecution._write_log

    def stop_first(execution: SimulatedExecution) -> None:
        platform.sagemaker.stop_training_job(TrainingJobName="stopped-too-late")
        write_log(execution)

    monkeypatch.setattr(SimulatedExecution, "_write_log", stop_first)
    job = simulate(platform, "stopped-too-late", nodes=4)
    assert phases(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert phase_lengths(job)["Uploading"] == pytest.approx(10, abs=ROUNDING_SECONDS)


def test_everything_is_marked(platform: SimpleNamespace) -> None:
    job = simulate(platform, "marked")
    assert job["TrainingJobArn"] == f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/marked"
    message = job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert "Simulated" in message
    assert "Emulated" not in message
    assert metrics_of(platform, "marked")["versions"]["simulated"] is True
    assert platform.sts.get_caller_identity()["Account"] == ACCOUNT
    repository = platform.ecr.create_repository(repositoryName="marked")["repository"]
    assert repository["repositoryUri"].startswith(f"{ACCOUNT}.dkr.ecr.")


def test_metrics_fit_the_job(platform: SimpleNamespace) -> None:
    seconds = stopwatch()
    job = simulate(
        platform,
        "metrics",
        2,
        HyperParameters={"global-batch-size": "400", "per-replica-batch-size": "50"},
    )
    metrics = metrics_of(platform, "metrics")
    assert metrics["train_seconds"] == pytest.approx(500)
    assert (metrics["steps"], metrics["steady"]["step_seconds"]) == (250, pytest.approx(2.0))
    assert metrics["world"] | {"backend": 0, "launcher": 0} == {
        "nodes": 2,
        "processes_per_node": 4,
        "world_size": 8,
        "backend": 0,
        "launcher": 0,
    }
    training = next(
        item for item in job["SecondaryStatusTransitions"] if item["Status"] == "Training"
    )
    # The file is written before the job ends, so its times are earlier by as much as that took.
    stopped, started = (metrics[f"run_{name}_unix_seconds"] for name in ("stop", "start"))
    delay_seconds = training["EndTime"].timestamp() - stopped
    assert -ROUNDING_SECONDS <= delay_seconds <= seconds()
    assert training["StartTime"].timestamp() + 20 - started == pytest.approx(
        delay_seconds, abs=ROUNDING_SECONDS
    )
    samples = metrics["samples"]
    assert (
        samples["requested"]
        == samples["processed"] - samples["padded"] + samples["dropped"]
        == 100_000
    )
    assert metrics["validations"][-1]["value"] == metrics["final_metric"]["value"] == 0.9
    assert metrics["validations"][-1]["elapsed_seconds"] == pytest.approx(500)


def test_metrics_have_the_fields_of_the_images_schema(platform: SimpleNamespace) -> None:
    simulate(platform, "schema")
    found = metrics_of(platform, "schema")
    readme = (Path(__file__).resolve().parents[4] / "infra/image/README.md").read_text()
    table = readme.partition("## metrics.json")[2].partition("\n## ")[0]
    for name in found.keys() - {"schema_version"}:
        assert f"`{name}" in table, name


def test_log_and_final_metrics(platform: SimpleNamespace) -> None:
    definitions = [{"Name": "train", "Regex": r"(?:^|\s)train_seconds=([0-9.eE+-]+);"}]
    algorithm = {**IMAGE["AlgorithmSpecification"], "MetricDefinitions": definitions}
    seconds = stopwatch()
    job = simulate(platform, "logged", 3, AlgorithmSpecification=algorithm)
    [metric] = job["FinalMetricDataList"]
    assert metric["Value"] == pytest.approx(1000 / 3)
    training = next(
        item for item in job["SecondaryStatusTransitions"] if item["Status"] == "Training"
    )
    assert metric["Timestamp"].timestamp() == pytest.approx(
        training["EndTime"].timestamp(), abs=seconds() + ROUNDING_SECONDS
    )
    group = "/aws/sagemaker/TrainingJobs"
    [stream] = platform.logs.describe_log_streams(
        logGroupName=group, logStreamNamePrefix="logged/"
    )["logStreams"]
    answer = platform.logs.get_log_events(
        logGroupName=group, logStreamName=stream["logStreamName"], startFromHead=True
    )
    events = answer["events"]
    assert stream["logStreamName"].startswith("logged/algo-1-")
    assert events[0]["message"].startswith("[simulated] ")
    assert (events[-1]["timestamp"] - events[0]["timestamp"]) / 1000 == pytest.approx(
        1000 / 3, abs=ROUNDING_SECONDS
    )


def test_a_warm_pool_spares_the_start(platform: SimpleNamespace) -> None:
    kept = {**resources(1, "ml.p4d.24xlarge"), "KeepAlivePeriodInSeconds": 600}
    cold = simulate(platform, "cold", ResourceConfig=kept)
    warm = simulate(platform, "warm", ResourceConfig=kept)
    assert phase_lengths(cold)["Starting"] == pytest.approx(100, abs=ROUNDING_SECONDS)
    assert phase_lengths(warm)["Starting"] == pytest.approx(0, abs=ROUNDING_SECONDS)
    assert "cold" in warm["SecondaryStatusTransitions"][0]["StatusMessage"]


def test_quotas_apply(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match="ResourceLimitExceeded"):
        simulate(platform, "too-many", ResourceConfig=resources(5, "ml.g5.xlarge"))


def test_a_broken_environment_is_refused(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match=r"NODESWEEP_SIM_SAMPLES: .*integer"):
        simulate(platform, "bad", Environment={"NODESWEEP_SIM_SAMPLES": "many"})
    job = simulate(platform, "own", Environment={"NODESWEEP_SIM_UPLOAD_SECONDS": "77"})
    assert phase_lengths(job)["Uploading"] == pytest.approx(77, abs=ROUNDING_SECONDS)


def test_missing_bucket_and_missing_image(platform: SimpleNamespace) -> None:
    with pytest.raises(
        ClientError, match=r"\(ValidationException\).*The S3 bucket \"not-there\" given in output"
    ):
        simulate(platform, "no-bucket", OutputDataConfig={"S3OutputPath": "s3://not-there/jobs"})
    algorithm = {
        "TrainingImage": f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/none:v1",
        "TrainingInputMode": "File",
    }
    job = simulate(platform, "no-image", AlgorithmSpecification=algorithm)
    assert job["FailureReason"].startswith("ClientError: Cannot find the requested image")


def test_builds_are_not_carried_out(platform: SimpleNamespace) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("Dockerfile", "FROM scratch\nRUN sleep 1000\n")
    platform.s3.put_object(Bucket="results", Key="src.zip", Body=archive.getvalue())

    def build(tag: str) -> str:
        variables = [
            {"name": "IMAGE_REPO_NAME", "value": "trainer"},
            {"name": "IMAGE_TAG", "value": tag},
        ]
        started = platform.codebuild.start_build(
            projectName="images",
            sourceLocationOverride="results/src.zip",
            environmentVariablesOverride=variables,
        )["build"]
        assert f":{ACCOUNT}:" in started["arn"]

        def ended() -> dict[str, Any] | None:
            [found] = platform.codebuild.batch_get_builds(ids=[started["id"]])["builds"]
            return found if found["buildComplete"] else None

        assert wait_until(ended)["buildStatus"] == "SUCCEEDED"
        [image] = platform.ecr.batch_get_image(
            repositoryName="trainer", imageIds=[{"imageTag": tag}]
        )["images"]
        assert json.loads(image["imageManifest"])["annotations"] == {"nodesweep.simulated": "true"}
        return str(image["imageId"]["imageDigest"])

    digest = build("v1")
    uri = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/trainer"
    for number, image in enumerate((f"{uri}:v1", f"{uri}@{digest}")):
        algorithm = {"TrainingImage": image, "TrainingInputMode": "File"}
        job = simulate(platform, f"built-{number}", AlgorithmSpecification=algorithm)
        assert job["TrainingJobStatus"] == "Completed"


def test_thirty_jobs_of_64_nodes(platform: SimpleNamespace) -> None:
    names = [f"many-n64-{number}" for number in range(30)]
    changes = {"ResourceConfig": resources(64, "ml.p4d.24xlarge"), **IMAGE, **LONG}
    for name in names:
        platform.sagemaker.create_training_job(**job_request(name, **changes))
    jobs = [wait_for_end(platform.sagemaker, name) for name in names]
    assert {job["TrainingJobStatus"] for job in jobs} == {"Completed"}
    assert jobs[-1]["TrainingTimeInSeconds"] == round(60 + 1000 / 64)


def test_time_scale_takes_real_time_and_stops(tmp_path: Path) -> None:
    with contextmanager(serve_simulated)(tmp_path, model=MODEL, time_scale=0.001) as platform:
        began = time.monotonic()
        job = simulate(platform, "scaled")  # 100 + 30 + 20 + 1000 + 10 virtual seconds
        assert time.monotonic() - began >= 1.1
        assert phase_lengths(job)["Training"] == pytest.approx(1020, rel=0.05)
        request = job_request(
            "stopped", **IMAGE, **LONG, Environment={"NODESWEEP_SIM_STARTUP_SECONDS": "1e7"}
        )
        platform.sagemaker.create_training_job(**request)
        platform.sagemaker.stop_training_job(TrainingJobName="stopped")
        assert wait_for_end(platform.sagemaker, "stopped")["TrainingJobStatus"] == "Stopped"


def test_state_survives_and_belongs_to_one_engine(tmp_path: Path) -> None:
    with contextmanager(serve_simulated)(tmp_path, model=MODEL) as platform:
        first = simulate(platform, "kept")
        platform.s3.put_object(Bucket="results", Key="a", Body=b"1")
    config = ServerConfig(0, tmp_path, engine="simulated")
    with running(config) as endpoint:
        from infra.local.tests.platform_client import client

        again = client(endpoint, "sagemaker").describe_training_job(TrainingJobName="kept")
        assert again["TrainingJobArn"] == first["TrainingJobArn"]
        assert again["SecondaryStatusTransitions"] == first["SecondaryStatusTransitions"]
        assert client(endpoint, "s3").get_object(Bucket="results", Key="a")["Body"].read() == b"1"
    with (
        pytest.raises(ServerStartError, match=r"--engine simulated, .*process"),
        running(ServerConfig(0, tmp_path)),
    ):
        pass


@pytest.mark.parametrize(
    "changes",
    [
        {"CheckpointConfig": {"S3Uri": "s3://results/cp", "LocalPath": "/tmp/checkpoints"}},
        {"AlgorithmSpecification": {"TrainingImage": DLC, "TrainingInputMode": "Pipe"}},
        {
            "AlgorithmSpecification": {
                **IMAGE["AlgorithmSpecification"],
                "ContainerEntrypoint": ["python", "train.py"],
            }
        },
        {
            "InputDataConfig": [
                {"ChannelName": "corpus", "DataSource": {"FileSystemDataSource": FILE_SYSTEM}}
            ],
            "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
        },
    ],
)
def test_what_only_real_nodes_lack_is_taken(
    platform: SimpleNamespace, changes: dict[str, Any]
) -> None:
    name = "taken-" + "".join(part[0] for part in changes) + str(len(str(changes)))
    assert simulate(platform, name, **changes)["TrainingJobStatus"] == "Completed"


def test_no_command_of_a_job_is_run(platform: SimpleNamespace, tmp_path: Path) -> None:
    command = {"ContainerEntrypoint": ["touch", str(tmp_path / "was-run")]}
    algorithm = {"AlgorithmSpecification": {**IMAGE["AlgorithmSpecification"], **command}}
    assert simulate(platform, "no-command", **algorithm)["TrainingJobStatus"] == "Completed"
    assert list(tmp_path.iterdir()) == []


def test_what_lies_elsewhere_is_not_said_to_be_missing(platform: SimpleNamespace) -> None:
    """Roles, networks, file systems and images of other accounts are accepted by name, but
    resources that were created here are known.
    """
    iam, ec2, efs = (client(platform.endpoint, service) for service in ("iam", "ec2", "efs"))
    image = {"repositoryName": "pytorch-training", "imageIds": [{"imageTag": "2.1"}]}
    for ask in (
        lambda: iam.get_role(RoleName="nobody"),
        lambda: ec2.describe_subnets(SubnetIds=["subnet-0123456789abcdef0"]),
        lambda: ec2.describe_security_groups(GroupIds=["sg-0123456789abcdef0"]),
        lambda: efs.describe_mount_targets(FileSystemId="fs-0123456789abcdef0"),
        lambda: platform.ecr.batch_get_image(registryId="763104351884", **image),
    ):
        with pytest.raises(ClientError, match="simulation") as caught:
            ask()
        assert caught.value.response["Error"]["Code"] in NO_SUCH_SERVICE
    with pytest.raises(ClientError, match="RepositoryNotFoundException"):
        platform.ecr.batch_get_image(**image)
    with pytest.raises(ClientError, match="RepositoryNotFoundException"):
        platform.ecr.batch_get_image(registryId=ACCOUNT, **image)
    iam.create_role(RoleName="somebody", AssumeRolePolicyDocument="{}")
    assert iam.get_role(RoleName="somebody")["Role"]["RoleName"] == "somebody"
    assert iam.list_roles()["Roles"] != []
    made = efs.create_file_system(CreationToken="somewhere")["FileSystemId"]
    assert efs.describe_mount_targets(FileSystemId=made)["MountTargets"] == []
