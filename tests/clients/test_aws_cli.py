"""The unmodified AWS CLI, v1 and v2, performs all operations that a user of training jobs needs.

v1 reaches the platform by the variables that `nodesweep local start` prints, v2 by --endpoint-url,
because it does not read AWS_ENDPOINT_URL before 2.13.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import (
    job_request,
    resources,
    serve_platform,
    wait_for_end,
    wait_until,
)
from tests.clients.client_environment import client_variables

pytestmark = pytest.mark.slow

OWN = Path(sys.executable).parent
GROUP = "/aws/sagemaker/TrainingJobs"
BUCKET = "s3://results"
WAIT = ("sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name")
SECONDS = 600.0  # for a machine that has much else to do


@dataclass(frozen=True)
class AwsCli:
    """An AWS CLI that calls the platform."""

    major: int
    program: Path
    options: tuple[str, ...]
    variables: dict[str, str]

    @property
    def client_error(self) -> int:
        """The exit code with which this CLI reports an error of the service."""
        return 255 if self.major == 1 else 254

    def name(self, what: str) -> str:
        """Return a name that only this CLI uses, since both call the same platform."""
        return f"{what}-v{self.major}"

    def run(self, *arguments: str, expect: int = 0) -> str:
        """Run the CLI; return its stdout, or its stderr if a nonzero exit code is expected."""
        done = subprocess.run(
            [str(self.program), *self.options, *arguments],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stderr if expect else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--output", "json") or "null")


def find_v2() -> Path:
    """Return the first CLI v2 on PATH; skip the test if there is none."""
    for folder in dict.fromkeys([*os.environ["PATH"].split(os.pathsep), "/usr/bin"]):
        program = Path(folder) / "aws"
        if program.parent != OWN and os.access(program, os.X_OK):
            command = [str(program), "--version"]
            said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if said.stdout.startswith("aws-cli/2."):
                return program
    pytest.skip("there is no AWS CLI v2 on this machine: apt-get install awscli (Debian 12)")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A platform whose nodes are threads, since only the API's responses are tested."""
    for served in serve_platform(tmp_path_factory.mktemp("platform")):
        served.s3.create_bucket(Bucket="results")
        yield served


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def cli(request: pytest.FixtureRequest, platform: SimpleNamespace, tmp_path: Path) -> AwsCli:
    variables = client_variables(platform.endpoint, platform.state_dir, tmp_path, AWS_PAGER="")
    if request.param == 1:
        return AwsCli(1, OWN / "aws", (), variables)
    del variables["AWS_ENDPOINT_URL"]
    return AwsCli(2, find_v2(), ("--endpoint-url", platform.endpoint), variables)


def create(cli: AwsCli, folder: Path, name: str, program: str = "quick", **changes: Any) -> str:
    """Create a job from a file and return its ARN."""
    file = folder / "job.json"
    file.write_text(json.dumps(job_request(name, program, **changes)))
    made = cli.json("sagemaker", "create-training-job", "--cli-input-json", f"file://{file}")
    return str(made["TrainingJobArn"])


def test_version_and_caller(cli: AwsCli) -> None:
    done = subprocess.run(
        [str(cli.program), "--version"],
        env=cli.variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.startswith(f"aws-cli/{cli.major}.")
    assert cli.json("sts", "get-caller-identity")["Account"] == "000000000000"


def test_buckets_and_files(cli: AwsCli, tmp_path: Path) -> None:
    bucket = f"s3://{cli.name('own')}"
    folder, back = tmp_path / "data", tmp_path / "back"
    (folder / "deep").mkdir(parents=True)
    (folder / "a b.csv").write_text("1,2\n")
    (folder / "deep" / "large.bin").write_bytes(os.urandom(9 * 2**20))  # in parts
    assert cli.run("s3", "mb", bucket) == f"make_bucket: {cli.name('own')}\n"
    assert f" {cli.name('own')}\n" in cli.run("s3", "ls")
    cli.run("s3", "cp", "--quiet", str(folder / "a b.csv"), f"{bucket}/one/a b.csv")
    assert cli.run("s3", "cp", f"{bucket}/one/a b.csv", "-") == "1,2\n"
    said = cli.run("s3", "sync", "--no-progress", str(folder), f"{bucket}/all")
    assert said.count("upload: ") == 2
    assert cli.run("s3", "sync", str(folder), f"{bucket}/all") == ""  # all is there
    listed = cli.run("s3", "ls", "--recursive", f"{bucket}/")
    sizes_and_keys = [line.split(maxsplit=3)[2:] for line in listed.splitlines()]
    assert sizes_and_keys == [
        ["4", "all/a b.csv"],
        [str(9 * 2**20), "all/deep/large.bin"],
        ["4", "one/a b.csv"],
    ]
    cli.run("s3", "sync", "--quiet", f"{bucket}/all", str(back))
    for path in ("a b.csv", "deep/large.bin"):
        assert (back / path).read_bytes() == (folder / path).read_bytes()
    (folder / "a b.csv").unlink()
    said = cli.run("s3", "sync", "--delete", "--no-progress", str(folder), f"{bucket}/all")
    assert said == f"delete: {bucket}/all/a b.csv\n"
    cli.run("s3", "rb", "--force", bucket)
    assert f" {cli.name('own')}\n" not in cli.run("s3", "ls")


def test_a_job_from_its_file_to_its_end(
    cli: AwsCli, platform: SimpleNamespace, tmp_path: Path
) -> None:
    name = cli.name("trained")
    algorithm = job_request(name)["AlgorithmSpecification"] | {
        "MetricDefinitions": [{"Name": "train:loss", "Regex": "train_loss=([0-9.]+)"}]
    }
    arn = create(cli, tmp_path, name, AlgorithmSpecification=algorithm, ResourceConfig=resources(2))
    wait_for_end(platform.sagemaker, name)  # the CLI's wait looks every two minutes
    assert cli.run(*WAIT, name) == ""
    job = cli.json("sagemaker", "describe-training-job", "--training-job-name", name)
    assert (job["TrainingJobStatus"], job["TrainingJobArn"]) == ("Completed", arn)
    listed = cli.json("sagemaker", "list-training-jobs", "--name-contains", name)
    assert [item["TrainingJobName"] for item in listed["TrainingJobSummaries"]] == [name]

    cli.run("sagemaker", "add-tags", "--resource-arn", arn, "--tags", f"Key=team,Value={name}")
    tags = cli.json("sagemaker", "list-tags", "--resource-arn", arn)
    assert tags == {"Tags": [{"Key": "team", "Value": name}]}

    of_job = ("--log-group-name", GROUP, "--log-stream-name-prefix", f"{name}/")
    events = cli.json("logs", "filter-log-events", *of_job)["events"]
    assert len(events) == 6  # three lines of each node
    assert {event["logStreamName"].rpartition("-")[0] for event in events} == {
        f"{name}/algo-1",
        f"{name}/algo-2",
    }
    if cli.major == 2:  # v1 has no `logs tail`
        tail = cli.run("logs", "tail", GROUP, "--log-stream-name-prefix", f"{name}/algo-2")
        assert tail.count("train_loss=") == 3 and f" {name}/algo-2-" in tail
    assert metric_values(cli, name) == [1.0]  # the largest


def metric_values(cli: AwsCli, name: str) -> list[float]:
    """Return CloudWatch's values of the job's train:loss by minute, for the last hour."""
    metric = {
        "Namespace": GROUP,
        "MetricName": "train:loss",
        "Dimensions": [{"Name": "TrainingJobName", "Value": name}],
    }
    query = [{"Id": "loss", "MetricStat": {"Metric": metric, "Period": 3600, "Stat": "Maximum"}}]
    now = datetime.now(UTC)
    times = (now - timedelta(hours=1)).isoformat(), (now + timedelta(minutes=1)).isoformat()
    window = ("--start-time", times[0], "--end-time", times[1])
    arguments = ("--metric-data-queries", json.dumps(query), *window)
    (result,) = cli.json("cloudwatch", "get-metric-data", *arguments)["MetricDataResults"]
    return list(result["Values"])


def test_stop(cli: AwsCli, platform: SimpleNamespace, tmp_path: Path) -> None:
    name = cli.name("stopped")
    create(cli, tmp_path, name, "endless")
    assert cli.run("sagemaker", "stop-training-job", "--training-job-name", name) == ""
    wait_for_end(platform.sagemaker, name)
    assert cli.run(*WAIT, name) == ""
    query = ("--query", "SecondaryStatusTransitions[-1].Status", "--output", "text")
    said = cli.run("sagemaker", "describe-training-job", "--training-job-name", name, *query)
    assert said == "Stopped\n"


def test_build_and_its_image(cli: AwsCli, platform: SimpleNamespace, tmp_path: Path) -> None:
    repository, archive = cli.name("box"), tmp_path / "box.zip"
    with zipfile.ZipFile(archive, "w") as box:
        box.writestr("Dockerfile", "FROM python:3.11-slim\n")
    cli.run("s3", "cp", "--quiet", str(archive), f"{BUCKET}/{repository}.zip")
    source = ("--source-type-override", "S3")
    place = ("--source-location-override", f"results/{repository}.zip")
    variables = (
        "--environment-variables-override",
        f"name=IMAGE_REPO_NAME,value={repository}",
        "name=IMAGE_TAG,value=1",
    )
    started = cli.json(
        *("codebuild", "start-build", "--project-name", "images"), *source, *place, *variables
    )
    identity = started["build"]["id"]
    wait_until(
        lambda: platform.codebuild.batch_get_builds(ids=[identity])["builds"][0]["buildComplete"]
    )
    answer = cli.json("codebuild", "batch-get-builds", "--ids", identity, "images:absent")
    assert [build["buildStatus"] for build in answer["builds"]] == ["SUCCEEDED"]
    assert answer["buildsNotFound"] == ["images:absent"]
    assert identity in cli.json("codebuild", "list-builds")["ids"]
    found = cli.json("ecr", "describe-images", "--repository-name", repository)["imageDetails"]
    assert [image["imageTags"] for image in found] == [["1"]]
    assert len(cli.run("ecr", "get-login-password").strip()) > 8


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "sagemaker describe-training-job --training-job-name absent",
            "(ValidationException) when calling the DescribeTrainingJob operation: "
            "Requested resource not found.",
        ),
        (
            "codebuild stop-build --id images:absent",
            "(ResourceNotFoundException) when calling the StopBuild operation: "
            "Build not found: images:absent",
        ),
        (
            "ecr describe-images --repository-name absent",
            "(RepositoryNotFoundException) when calling the DescribeImages operation: "
            "The repository with name 'absent' does not exist in the registry",
        ),
        (
            "logs filter-log-events --log-group-name absent",
            "(ResourceNotFoundException) when calling the FilterLogEvents operation: "
            "The specified log group does not exist.",
        ),
        (
            "s3api head-bucket --bucket absent-bucket",
            "(404) when calling the HeadBucket operation: Not Found",
        ),
        (
            "cloudwatch describe-anomaly-detectors",  # not modelled
            "when calling the DescribeAnomalyDetectors operation: "
            "The local platform does not model this call",
        ),
    ],
    ids=("sagemaker", "codebuild", "ecr", "logs", "s3", "not-modelled"),
)
def test_errors_in_the_services_words(cli: AwsCli, command: str, says: str) -> None:
    said = cli.run(*command.split(), expect=cli.client_error)
    assert "An error occurred " in said
    assert says in said


def test_wait_for_a_job_that_is_not_there(cli: AwsCli) -> None:
    said = cli.run(*WAIT, "absent", expect=255)
    assert "Waiter TrainingJobCompletedOrStopped failed" in said
