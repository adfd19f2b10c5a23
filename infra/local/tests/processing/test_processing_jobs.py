"""The life of Processing jobs as seen through the API: status, times, data, messages, tags and
lists."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    job_request,
    serve_platform,
    wait_until,
)
from infra.local.tests.platform_client import wait_for_end as wait_for_training
from infra.local.tests.processing.processing_requests import (
    cluster,
    log_of,
    processing_request,
    run_job,
    s3_input,
    s3_output,
    texts_below,
    wait_for_end,
)
from sagemaker_emulator.interfaces import JobSpec, Node

Say = Callable[[str], None]


def copy_program(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    """Copy the input of the node to the output."""
    work = node.opt_ml / "processing"
    for file in sorted((work / "input" / "rows").rglob("*.csv")):
        say(f"{node.host} has {file.name}")
        (work / "output" / "out" / f"{node.host}-{file.name}").write_text(file.read_text())
    (node.opt_ml / "output" / "message").write_text(f"{node.host} is done. ")


def failing_program(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    (node.opt_ml / "output" / "message").write_text("12 of 36 expectations failed")
    (node.opt_ml / "processing" / "output" / "out" / "half.csv").write_text("half")
    raise RuntimeError("exit")


def bytes_program(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    (node.opt_ml / "output" / "message").write_bytes(b"\xff\xfe")


def long_program(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    """Fail with 1,023 bytes and a two-byte character, half of which exceeds the message limit."""
    (node.opt_ml / "output" / "message").write_text("x" * 1023 + "ä")


def live_program(job: JobSpec, node: Node, say: Say, stop: threading.Event) -> None:
    (node.opt_ml / "processing" / "output" / "events" / "log").write_text("so far")
    stop.wait()


PROGRAMS = {
    "copy": copy_program,
    "failing": failing_program,
    "bytes": bytes_program,
    "long": long_program,
    "live": live_program,
}


@pytest.fixture(scope="module")
def data(platform: SimpleNamespace) -> SimpleNamespace:
    platform.engine.programs |= PROGRAMS
    platform.s3.create_bucket(Bucket="rows")
    for name in "abc":
        platform.s3.put_object(Bucket="rows", Key=f"in/{name}.csv", Body=f"row {name}".encode())
    return platform


def outputs(name: str) -> dict[str, Any]:
    return {"Outputs": [s3_output("out", f"s3://results/{name}")]}


def refusal(platform: SimpleNamespace, **changes: Any) -> str:
    with pytest.raises(ClientError) as caught:
        platform.sagemaker.create_processing_job(**processing_request("refused", **changes))
    assert caught.value.response["Error"]["Code"] == "ValidationException"
    return str(caught.value.response["Error"]["Message"])


def test_a_job_from_input_to_output(data: SimpleNamespace) -> None:
    job = run_job(
        data,
        "whole",
        "copy",
        ProcessingInputs=[s3_input("rows", "s3://rows/in")],
        ProcessingOutputConfig=outputs("whole"),
    )
    assert (job["ProcessingJobStatus"], job["ExitMessage"]) == ("Completed", "algo-1 is done. ")
    times = [job[f"{name}Time"] for name in ("Creation", "ProcessingStart", "ProcessingEnd")]
    assert times == sorted(times) and job["LastModifiedTime"] >= times[-1]
    assert job["ProcessingJobArn"] == (
        "arn:aws:sagemaker:us-east-1:000000000000:processing-job/whole"
    )
    assert "FailureReason" not in job
    assert texts_below(data.s3, "results", "whole/") == {
        f"algo-1-{name}.csv": f"row {name}" for name in "abc"
    }
    assert log_of(data, "whole", "algo-1") == [f"algo-1 has {name}.csv" for name in "abc"]


@pytest.mark.parametrize(
    ("distribution", "shares"),
    [("FullyReplicated", ["abc", "abc"]), ("ShardedByS3Key", ["ac", "b"])],
)
def test_two_nodes_share_the_input_as_asked(
    data: SimpleNamespace, distribution: str, shares: list[str]
) -> None:
    name = f"two-{distribution}"
    source = s3_input("rows", "s3://rows/in", S3DataDistributionType=distribution)
    job = run_job(
        data,
        name,
        "copy",
        ProcessingResources=cluster(2),
        ProcessingInputs=[source],
        ProcessingOutputConfig=outputs(name),
    )
    assert job["ExitMessage"] == "algo-1 is done. algo-2 is done. "
    assert sorted(texts_below(data.s3, "results", f"{name}/")) == [
        f"algo-{number}-{letter}.csv"
        for number, share in enumerate(shares, start=1)
        for letter in share
    ]


def test_describe_gives_back_what_was_asked_and_the_defaults(data: SimpleNamespace) -> None:
    source, target = s3_input("rows", "s3://rows/in"), s3_output("out", "s3://results/told")
    job = run_job(
        data,
        "told",
        ProcessingInputs=[source],
        ProcessingOutputConfig={"Outputs": [target], "KmsKeyId": "key"},
        NetworkConfig={"EnableNetworkIsolation": True},
        ExperimentConfig={"ExperimentName": "one"},
    )
    defaults = {"S3DataDistributionType": "FullyReplicated", "S3CompressionType": "None"}
    assert job["ProcessingInputs"] == [
        {**source, "AppManaged": False, "S3Input": {**defaults, **source["S3Input"]}}
    ]
    assert job["ProcessingOutputConfig"] == {
        "Outputs": [{**target, "AppManaged": False}],
        "KmsKeyId": "key",
    }
    assert job["NetworkConfig"] == {"EnableNetworkIsolation": True}
    request = processing_request("without-a-limit")
    del request["StoppingCondition"]
    data.sagemaker.create_processing_job(**request)
    limit = wait_for_end(data.sagemaker, "without-a-limit")["StoppingCondition"]
    assert limit == {"MaxRuntimeInSeconds": 86_400}


def test_a_failed_job_says_why_and_uploads_nothing(data: SimpleNamespace) -> None:
    job = run_job(data, "failed", "failing", ProcessingOutputConfig=outputs("failed"))
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"] == (
        "AlgorithmError: See job logs for more information, exit code: 1"
    )
    assert job["ExitMessage"] == "12 of 36 expectations failed"
    assert texts_below(data.s3, "results", "failed/") == {}


def test_a_failed_node_of_several_is_named(data: SimpleNamespace) -> None:
    job = run_job(
        data,
        "failed-two",
        "failing",
        ProcessingResources=cluster(2),
        ProcessingOutputConfig=outputs("failed-two"),
    )
    assert job["FailureReason"].startswith("AlgorithmError: algo-")


def test_the_exit_message_is_text_of_a_kibibyte(data: SimpleNamespace) -> None:
    job = run_job(data, "bytes", "bytes")
    assert (job["ProcessingJobStatus"], "ExitMessage" in job) == ("Failed", False)
    assert job["FailureReason"].startswith("ClientError: ")
    assert run_job(data, "long", "long")["ExitMessage"] == "x" * 1023


def test_missing_input_and_missing_image_fail_the_job(data: SimpleNamespace) -> None:
    gone = [s3_input("rows", "s3://rows/none")]
    job = run_job(data, "no-input", ProcessingInputs=gone)
    assert job["FailureReason"] == (
        "ClientError: Data download failed:S3 key: s3://rows/none matched no files on s3"
    )
    absent = {"ImageUri": "000000000000.dkr.ecr.us-east-1.amazonaws.com/none:1"}
    job = run_job(data, "no-image", AppSpecification=absent)
    assert "Cannot find the requested image" in job["FailureReason"]
    assert "ProcessingStartTime" not in job


def test_no_room_is_a_capacity_error(data: SimpleNamespace) -> None:
    job = run_job(data, "too-many", ProcessingResources=cluster(9))
    assert job["FailureReason"] == "CapacityError: 9 nodes do not fit"


def test_a_stop_and_the_longest_runtime(data: SimpleNamespace) -> None:
    sagemaker = data.sagemaker
    sagemaker.create_processing_job(**processing_request("endless", "endless"))
    wait_until(
        lambda: (
            "ProcessingStartTime" in sagemaker.describe_processing_job(ProcessingJobName="endless")
        )
    )
    sagemaker.stop_processing_job(ProcessingJobName="endless")
    job = wait_for_end(sagemaker, "endless")
    assert (job["ProcessingJobStatus"], "FailureReason" in job) == ("Stopped", False)
    with pytest.raises(ClientError, match=r"the processing job is in status Stopped\."):
        sagemaker.stop_processing_job(ProcessingJobName="endless")
    job = run_job(data, "late", "endless", StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert job["ProcessingJobStatus"] == "Stopped"
    assert job["FailureReason"] == "Processing job runtime exceeded MaxRuntimeInSeconds provided"


def test_a_continuous_output_is_there_while_the_job_runs(data: SimpleNamespace) -> None:
    output = s3_output("events", "s3://results/events", S3UploadMode="Continuous")
    data.sagemaker.create_processing_job(
        **processing_request("live", "live", ProcessingOutputConfig={"Outputs": [output]})
    )
    wait_until(lambda: texts_below(data.s3, "results", "events/") == {"log": "so far"})
    assert data.sagemaker.describe_processing_job(ProcessingJobName="live")[
        "ProcessingJobStatus"
    ] == ("InProgress")
    data.sagemaker.stop_processing_job(ProcessingJobName="live")
    wait_for_end(data.sagemaker, "live")


def test_what_the_application_manages_is_left_to_it(data: SimpleNamespace) -> None:
    own_input = {**s3_input("rows", "s3://nowhere/at-all"), "AppManaged": True}
    job = run_job(data, "app-managed", ProcessingInputs=[own_input])
    assert job["ProcessingJobStatus"] == "Completed"


def test_names_are_unique_among_processing_jobs_alone(data: SimpleNamespace) -> None:
    """A training job with the same name uses different folders."""
    sagemaker = data.sagemaker
    sagemaker.create_processing_job(**processing_request("twin", "endless"))
    sagemaker.create_training_job(**job_request("twin"))
    with pytest.raises(ClientError, match=r"\(ResourceInUse\).*Job name must be unique"):
        sagemaker.create_processing_job(**processing_request("TWIN"))
    with pytest.raises(ClientError, match=r"\(ResourceInUse\).*is in status InProgress"):
        sagemaker.delete_processing_job(ProcessingJobName="twin")
    sagemaker.stop_processing_job(ProcessingJobName="twin")
    wait_for_end(sagemaker, "twin")
    assert wait_for_training(sagemaker, "twin")["TrainingJobStatus"] == "Completed"
    assert data.engine.most_jobs_at_once == 1
    sagemaker.delete_processing_job(ProcessingJobName="twin")
    with pytest.raises(ClientError, match="Could not find requested job with name: twin"):
        sagemaker.describe_processing_job(ProcessingJobName="twin")
    assert wait_for_training(sagemaker, "twin")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"ProcessingInputs": [s3_input("a", "s3://rows/in", LocalPath="/opt/ml/input")]},
            "LocalPath /opt/ml/input must begin with /opt/ml/processing/",
        ),
        (
            {"ProcessingInputs": [s3_input("a", "s3://rows/in"), s3_input("a", "s3://rows/b")]},
            "InputNames must be unique; repeated: a",
        ),
        (
            {
                "ProcessingInputs": [
                    s3_input("a", "s3://rows/in", LocalPath="/opt/ml/processing/x")
                ],
                "ProcessingOutputConfig": {
                    "Outputs": [s3_output("b", "s3://rows/b", LocalPath="/opt/ml/processing/x")]
                },
            },
            "LocalPaths must be unique; repeated: /opt/ml/processing/x",
        ),
        (
            {"ProcessingInputs": [s3_input("a", "s3://rows/in", S3InputMode="Pipe")]},
            "S3InputMode Pipe",
        ),
        (
            {"ProcessingInputs": [s3_input("a", "s3://rows/in", S3CompressionType="Gzip")]},
            "Gzip can only be used with S3InputMode Pipe",
        ),
        ({"ProcessingInputs": [{"InputName": "a"}]}, "processingInputs.1.member.s3Input"),
        (
            {"ProcessingOutputConfig": {"Outputs": [s3_output("a", "s3://absent-bucket/x")]}},
            'The S3 bucket "absent-bucket" given in processing output config S3Uri',
        ),
        ({"ProcessingResources": cluster(1, "ml.none")}, "Member must satisfy enum value set"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": 777_601}}, "less than or equal to 777600"),
        ({"RoleArn": "arn:aws:iam::role/none-at-all"}, "at 'roleArn' failed to satisfy"),
        (
            {"AppSpecification": {"ImageUri": "x", "ContainerEntrypoint": ["absent"]}},
            r"AppSpecification.no absent here",
        ),
    ],
)
def test_requests_that_are_refused(
    data: SimpleNamespace, changes: dict[str, Any], text: str
) -> None:
    assert text in refusal(data, **changes)


def test_tags(data: SimpleNamespace) -> None:
    arn = run_job(data, "tagged", Tags=[{"Key": "team", "Value": "search"}])["ProcessingJobArn"]
    data.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "stage", "Value": "test"}])
    data.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["team"])
    assert data.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "stage", "Value": "test"}]


def test_lists_by_status_and_name(data: SimpleNamespace) -> None:
    for name in ("listed-b", "listed-a"):
        run_job(data, name)
    answer = data.sagemaker.list_processing_jobs(
        NameContains="LISTED", StatusEquals="Completed", SortBy="Name", MaxResults=1
    )
    [first] = answer["ProcessingJobSummaries"]
    assert first["ProcessingJobName"] == "listed-a" and first["ProcessingEndTime"]
    answer = data.sagemaker.list_processing_jobs(
        NameContains="LISTED",
        StatusEquals="Completed",
        SortBy="Name",
        NextToken=answer["NextToken"],
    )
    assert [job["ProcessingJobName"] for job in answer["ProcessingJobSummaries"]] == ["listed-b"]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[SimpleNamespace]:
    quotas = {"ml.local.small for processing job usage": 2, "ml.local.small": 1}
    faults = [
        {"fault": "capacity_error", "jobs": "starved"},
        {"fault": "internal_error", "jobs": "broken", "after_seconds": 0},
        {"fault": "throttle", "operation": "CreateProcessingJob", "calls": [1, 1], "jobs": "eager"},
    ]
    with contextmanager(serve_platform)(tmp_path, faults, **quotas) as served:
        yield served


def test_quota_of_its_own(limited: SimpleNamespace) -> None:
    sagemaker = limited.sagemaker
    sagemaker.create_processing_job(**processing_request("one", "endless"))
    two = processing_request("two", ProcessingResources=cluster(2))
    with pytest.raises(ClientError) as caught:
        sagemaker.create_processing_job(**two)
    assert caught.value.response["Error"]["Code"] == "ResourceLimitExceeded"
    assert (
        "'ml.local.small for processing job usage' is 2 Instances, with current utilization of 1"
        in caught.value.response["Error"]["Message"]
    )
    sagemaker.stop_processing_job(ProcessingJobName="one")
    wait_for_end(sagemaker, "one")
    sagemaker.create_processing_job(**two)
    assert wait_for_end(sagemaker, "two")["ProcessingJobStatus"] == "Completed"


def test_faults_strike_processing_jobs_too(limited: SimpleNamespace) -> None:
    assert run_job(limited, "starved")["FailureReason"].startswith("CapacityError: ")
    job = run_job(limited, "broken", "endless")
    assert job["FailureReason"].startswith("InternalServerError: ")
    with pytest.raises(ClientError, match="ThrottlingException"):
        limited.sagemaker.create_processing_job(**processing_request("eager"))


def test_jobs_outlive_a_restart_and_what_was_running_is_stopped(tmp_path: Path) -> None:
    with contextmanager(serve_platform)(tmp_path) as served:
        run_job(served, "before")
        served.sagemaker.create_processing_job(**processing_request("running", "endless"))
    with contextmanager(serve_platform)(tmp_path) as served:
        found = served.sagemaker.list_processing_jobs(SortBy="Name")["ProcessingJobSummaries"]
        assert [(job["ProcessingJobName"], job["ProcessingJobStatus"]) for job in found] == [
            ("before", "Completed"),
            ("running", "Stopped"),
        ]
