"""CreateTrainingJob refuses the same requests as SageMaker, with the same messages."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session

from infra.local.tests.platform_client import (
    job_request,
    resources,
    run_job,
    session,
    wait_for_end,
)
from infra.local.tests.platform_fakes import quick_program
from sagemaker_emulator.api.validation import compile_pattern, service_model

NAME_PATTERN = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"


def refusal(platform: SimpleNamespace, request: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        platform.sagemaker.create_training_job(**request)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def channel(uri: str = "s3://results/none", **source: str) -> dict[str, Any]:
    data = {"S3DataType": "S3Prefix", "S3Uri": uri, **source}
    return {"ChannelName": "train", "DataSource": {"S3DataSource": data}}


def test_bad_name(platform: SimpleNamespace) -> None:
    code, message = refusal(platform, job_request("a_b"))
    assert code == "ValidationException"
    assert (
        message == "1 validation error detected: Value 'a_b' at 'trainingJobName' failed to satisfy"
        f" constraint: Member must satisfy regular expression pattern: {NAME_PATTERN}"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"ResourceConfig": resources(1, "ml.huge")},
            (
                "Value 'ml.huge' at 'resourceConfig.instanceType' failed to satisfy constraint: "
                "Member must satisfy enum value set: [ml.m4.xlarge,"
            ),
        ),
        (
            {"ResourceConfig": resources(0)},
            (
                "Value '0' at 'resourceConfig.instanceCount' failed to satisfy constraint: "
                "Member must have value greater than or equal to 1"
            ),
        ),
        (
            {"ResourceConfig": {"InstanceType": "ml.local.small", "InstanceCount": 1}},
            (
                "Value null at 'resourceConfig.volumeSizeInGB' failed to satisfy constraint: Member"
                " must not be null"
            ),
        ),
        (
            {"HyperParameters": {str(i): "1" for i in range(101)}},
            (
                "at 'hyperParameters' failed to satisfy constraint: Member must have length less"
                " than or equal to 100"
            ),
        ),
        (
            {"HyperParameters": {"text": "x" * 2501}},
            (
                "at 'hyperParameters' failed to satisfy constraint: Map value must satisfy"
                " constraint: [Member must have length less than or equal to 2500,"
            ),
        ),
        (
            {"Environment": {"1BAD": "x"}},
            (
                "Value '{1BAD=x}' at 'environment' failed to satisfy constraint: Map keys must"
                " satisfy constraint: ["
            ),
        ),
        (
            {"InputDataConfig": [channel() | {"ChannelName": "a b"}]},
            r"Value 'a b' at 'inputDataConfig.1.member.channelName' failed to satisfy constraint: "
            r"Member must satisfy regular expression pattern: [A-Za-z0-9\.\-_]+",
        ),
        (
            {"RoleArn": "arn:aws:iam::123:role/short"},
            (
                "Value 'arn:aws:iam::123:role/short' at 'roleArn' failed to satisfy constraint:"
                " Member must satisfy"
            ),
        ),
        ({"Tags": [{"Key": f"k{i}", "Value": ""} for i in range(51)]}, "less than or equal to 50"),
        ({"StoppingCondition": {"MaxWaitTimeInSeconds": 90}}, "only supported for managed spot"),
        (
            {"StoppingCondition": {"MaxRuntimeInSeconds": 30 * 86_400}},
            (
                "Value '2592000' at 'stoppingCondition.maxRuntimeInSeconds' failed to satisfy"
                " constraint: Member must have value less than or equal to 2419200"
            ),
        ),
        (
            {"ResourceConfig": {**resources(1), "VolumeSizeInGB": 0}},
            (
                "Value '0' at 'resourceConfig.volumeSizeInGB' failed to satisfy constraint: "
                "Member must have value greater than or equal to 1"
            ),
        ),
        (
            {"Tags": [{"Key": "AWS:team", "Value": ""}]},
            "aws: prefixed tag key names are not allowed for external use.",
        ),
        ({"Tags": [{"Key": "a", "Value": v} for v in "12"]}, "Duplicate tag keys found: a."),
        ({"EnableManagedSpotTraining": True}, "Invalid MaxWaitTimeInSeconds"),
        (
            {"InputDataConfig": [channel(S3DataType="Wrong")]},
            "Member must satisfy enum value set: [ManifestFile,",
        ),
    ],
)
def test_constraints(platform: SimpleNamespace, changes: dict[str, Any], expected: str) -> None:
    code, message = refusal(platform, job_request("valid", **changes))
    assert code == "ValidationException"
    assert expected in message


def test_two_violations_are_counted(platform: SimpleNamespace) -> None:
    _, message = refusal(platform, job_request("a_b", RoleArn="arn:aws:iam::1:role/" + "x" * 20))
    assert message.startswith("2 validation errors detected: ")
    assert message.count("; Value ") == 1


def test_missing_members_of_a_job_on_instances(platform: SimpleNamespace) -> None:
    request = job_request("valid")
    del request["ResourceConfig"], request["StoppingCondition"]
    _, message = refusal(platform, request)
    assert message.startswith("2 validation errors detected: Value null at 'resourceConfig' failed")


def test_wrong_json_type(platform: SimpleNamespace) -> None:
    body = '{"TrainingJobName": 5}'
    answer = _post(platform.endpoint, "SageMaker.DescribeTrainingJob", body)
    assert answer == (400, {"__type": "SerializationException", "message": _NUMBER_TEXT})


_NUMBER_TEXT = "NUMBER_VALUE can not be converted to a String"


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://example.com"}, {"Host": "rebound.example.com"}]
)
def test_web_pages_are_refused(platform: SimpleNamespace, headers: dict[str, str]) -> None:
    status, answer = _post(platform.endpoint, "SageMaker.ListTrainingJobs", "{}", headers)
    assert (status, answer["__type"]) == (403, "AccessDeniedException")
    host = headers.get("Host") or platform.endpoint.removeprefix("http://")
    assert f"this request has Host {host!r}" in answer["message"]
    assert headers.get("Origin", "") in answer["message"]


@pytest.mark.parametrize(
    ("operation", "member"),
    [("List", "NextToken"), ("List", "MaxResults"), ("Create", "Tags"), ("Create", "Environment")],
)
def test_null_is_as_good_as_absent(platform: SimpleNamespace, operation: str, member: str) -> None:
    request = job_request(f"null-{member}") if operation == "Create" else {}
    target = f"SageMaker.{operation}TrainingJob{'s' * (operation == 'List')}"
    status, answer = _post(platform.endpoint, target, json.dumps({**request, member: None}))
    assert status == 200, answer


def test_body_that_is_no_json(platform: SimpleNamespace) -> None:
    status, answer = _post(platform.endpoint, "SageMaker.DescribeTrainingJob", "{")
    assert (status, answer["__type"]) == (400, "SerializationException")


def test_duplicate_name(platform: SimpleNamespace) -> None:
    arn = platform.sagemaker.create_training_job(**job_request("twice"))["TrainingJobArn"]
    code, message = refusal(platform, job_request("Twice"))
    assert code == "ResourceInUse"
    assert (
        message == "Training job names must be unique within an AWS account and region, "
        f"and a training job with this name already exists ({arn})"
    )


def test_quota(platform: SimpleNamespace) -> None:
    code, message = refusal(
        platform, job_request("too-many", ResourceConfig=resources(3, "ml.m5.large"))
    )
    assert code == "ResourceLimitExceeded"
    assert (
        "'ml.m5.large for training job usage' is 2 Instances, with current utilization of 0"
        in message
    )
    assert "a request delta of 3 Instances" in message


def test_capacity_is_a_failure_of_the_job_and_not_of_the_call(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("crowd", ResourceConfig=resources(9)))
    job = wait_for_end(platform.sagemaker, "crowd")
    assert job["FailureReason"] == "CapacityError: 9 nodes do not fit"
    assert not {"TrainingStartTime", "TrainingEndTime", "BillableTimeInSeconds"} & set(job)


@pytest.mark.parametrize(
    "uri",
    [
        *("s3://results/nothing-here", "s3://no-such-bucket-1/x", "https://x"),
        *("s3://<bucket>/data", "s3://[your-bucket]/data"),
    ],
)
def test_no_data(platform: SimpleNamespace, uri: str) -> None:
    code, message = refusal(platform, job_request("no-data", InputDataConfig=[channel(uri)]))
    assert code == "ValidationException"
    assert message.startswith(
        f'No S3 objects found under S3 URL "{uri}" given in input data source.'
    )
    assert message.endswith("The specified bucket does not exist") is ("no-such" in uri)


def test_unknown_image_fails_the_job(platform: SimpleNamespace) -> None:
    algorithm = {
        "TrainingImage": "000000000000.dkr.ecr.us-east-1.amazonaws.com/x:y",
        "TrainingInputMode": "File",
    }
    platform.sagemaker.create_training_job(
        **job_request("no-image", AlgorithmSpecification=algorithm)
    )
    assert wait_for_end(platform.sagemaker, "no-image")["FailureReason"].startswith(
        "ClientError: Cannot find"
    )


@pytest.mark.parametrize("bucket", ["absent-bucket", "[your-bucket]"])
def test_missing_output_bucket_is_refused(platform: SimpleNamespace, bucket: str) -> None:
    """Without the bucket, the results of the job would be lost."""
    output = {"S3OutputPath": f"s3://{bucket}/x"}
    code, message = refusal(platform, job_request("no-bucket", OutputDataConfig=output))
    assert code == "ValidationException"
    assert message.startswith(f'The S3 bucket "{bucket}" given in output data config S3OutputPath ')
    assert not platform.sagemaker.list_training_jobs(NameContains="no-bucket")[
        "TrainingJobSummaries"
    ]


@pytest.mark.parametrize("uri", ["https://results/jobs", "s3:///jobs"])
def test_output_that_is_no_s3_uri_is_refused(platform: SimpleNamespace, uri: str) -> None:
    """The first part of the path of a different URI is not a bucket."""
    request = job_request("no-s3-uri", OutputDataConfig={"S3OutputPath": uri})
    code, message = refusal(platform, request)
    assert code == "ValidationException"
    assert uri in message and "s3://" in message and "bucket " not in message


def test_output_by_the_address_of_s3(platform: SimpleNamespace) -> None:
    uri = "https://s3.us-east-1.amazonaws.com/results/by-address"
    run_job(platform, "by-address", OutputDataConfig={"S3OutputPath": uri})


def test_output_bucket_that_is_gone_by_the_end_fails_the_job(platform: SimpleNamespace) -> None:
    def remove_bucket(*_: Any) -> None:
        platform.s3.delete_bucket(Bucket="passing")

    platform.s3.create_bucket(Bucket="passing")
    platform.engine.programs["quick-and-gone"] = lambda *arguments: (
        quick_program(*arguments),
        remove_bucket(),
    )
    request = job_request(
        "gone", "quick-and-gone", OutputDataConfig={"S3OutputPath": "s3://passing/x"}
    )
    platform.sagemaker.create_training_job(**request)
    reason = wait_for_end(platform.sagemaker, "gone")["FailureReason"]
    assert reason.startswith("ClientError: Artifact upload failed:")
    assert "NoSuchBucket" in reason and str(platform.state_dir) not in reason


@pytest.mark.parametrize("call", ["describe_training_job", "stop_training_job"])
def test_unknown_job(platform: SimpleNamespace, call: str) -> None:
    with pytest.raises(
        ClientError, match=r"\(ValidationException\).*Requested resource not found\.$"
    ):
        getattr(platform.sagemaker, call)(TrainingJobName="absent")


@pytest.mark.parametrize(
    "metric",
    [
        {"Name": "m", "Regex": "("},
        {"Name": "m", "Regex": "no group"},
        {"Name": "m", "Regex": "(a)\\1"},
    ],
)
def test_metric_definitions(platform: SimpleNamespace, metric: dict[str, str]) -> None:
    algorithm = {**job_request("x")["AlgorithmSpecification"], "MetricDefinitions": [metric]}
    _, message = refusal(platform, job_request("metric", AlgorithmSpecification=algorithm))
    assert message.startswith("Metric m: ")


def test_action_the_platform_does_not_model(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match=r"UnknownOperationException.*SageMaker\.ListTraining"):
        platform.sagemaker.list_training_jobs_for_hyper_parameter_tuning_job(
            HyperParameterTuningJobName="x"
        )


def test_every_pattern_of_our_actions_compiles() -> None:
    patterns = set()
    for service, actions in (
        (
            "sagemaker",
            (
                "CreateTrainingJob",
                "UpdateTrainingJob",
                "DeleteTrainingJob",
                "ListTrainingJobs",
                "AddTags",
                "DeleteTags",
                "ListTags",
            ),
        ),
        ("codebuild", ("StartBuild", "BatchGetBuilds", "ListBuildsForProject", "StopBuild")),
    ):
        for action in actions:
            patterns |= _patterns(service_model(service).operation_model(action).input_shape, set())
    assert len(patterns) > 20
    for pattern in patterns:
        assert isinstance(compile_pattern(pattern), re.Pattern)


def _patterns(shape: Any, seen: set[str]) -> set[str]:
    if shape.name in seen:
        return set()
    seen.add(shape.name)
    children = list(getattr(shape, "members", {}).values())
    children += [
        getattr(shape, part) for part in ("member", "key", "value") if hasattr(shape, part)
    ]
    own = {shape.metadata["pattern"]} if "pattern" in shape.metadata else set()
    return own.union(*(_patterns(child, seen) for child in children))


def _post(
    endpoint: str, target: str, body: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    request = AWSRequest("POST", endpoint + "/", {"X-Amz-Target": target, **(headers or {})}, body)
    SigV4Auth(session(endpoint, "us-east-1").get_credentials(), "sagemaker", "us-east-1").add_auth(
        request
    )
    answer = URLLib3Session().send(request.prepare())
    return answer.status_code, json.loads(answer.content)
