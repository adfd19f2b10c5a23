"""Every response of the platform's own services matches botocore's output shapes and has all of the
required members."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape

from infra.local.tests.platform_client import (
    ServedPlatform,
    client,
    job_request,
    made_plan,
    run_job,
    wait_until,
)
from infra.local.tests.processing.processing_requests import processing_request
from infra.local.tests.processing.processing_requests import run_job as run_processing_job
from sagemaker_emulator.api.validation import service_model
from sagemaker_emulator.builds.service import Builds
from sagemaker_emulator.sagemaker.service import sagemaker_service
from sagemaker_emulator.training.plans import TrainingPlans

Call = Callable[[Any, SimpleNamespace], Any]
NAME = "described"
ARN = f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{NAME}"
TAGS = [{"Key": "team", "Value": "search"}]

CALLS: dict[tuple[str, str], Call] = {
    ("sagemaker", "CreateTrainingJob"): lambda c, p: c.create_training_job(
        **job_request("created")
    ),
    ("sagemaker", "DescribeTrainingJob"): lambda c, p: c.describe_training_job(
        TrainingJobName=NAME
    ),
    ("sagemaker", "UpdateTrainingJob"): lambda c, p: c.update_training_job(
        TrainingJobName=p.kept, ResourceConfig={"KeepAlivePeriodInSeconds": 60}
    ),
    ("sagemaker", "StopTrainingJob"): lambda c, p: c.stop_training_job(TrainingJobName=p.endless()),
    ("sagemaker", "DeleteTrainingJob"): lambda c, p: c.delete_training_job(
        TrainingJobName=p.over()
    ),
    ("sagemaker", "ListTrainingJobs"): lambda c, p: c.list_training_jobs(),
    ("sagemaker", "CreateProcessingJob"): lambda c, p: c.create_processing_job(
        **processing_request("created")
    ),
    ("sagemaker", "DescribeProcessingJob"): lambda c, p: c.describe_processing_job(
        ProcessingJobName=NAME
    ),
    ("sagemaker", "StopProcessingJob"): lambda c, p: c.stop_processing_job(
        ProcessingJobName=p.endless_processing()
    ),
    ("sagemaker", "DeleteProcessingJob"): lambda c, p: c.delete_processing_job(
        ProcessingJobName=p.processed("over")
    ),
    ("sagemaker", "ListProcessingJobs"): lambda c, p: c.list_processing_jobs(),
    ("sagemaker", "SearchTrainingPlanOfferings"): lambda c, p: c.search_training_plan_offerings(
        InstanceType="ml.p5.48xlarge", InstanceCount=4, TargetResources=["training-job"]
    ),
    ("sagemaker", "CreateTrainingPlan"): lambda c, p: c.create_training_plan(
        TrainingPlanName="created",
        TrainingPlanOfferingId=p.sagemaker.search_training_plan_offerings(
            InstanceType="ml.p5.48xlarge", InstanceCount=4, TargetResources=["training-job"]
        )["TrainingPlanOfferings"][0]["TrainingPlanOfferingId"],
    ),
    ("sagemaker", "DescribeTrainingPlan"): lambda c, p: c.describe_training_plan(
        TrainingPlanName=made_plan(p, "ml.p5.48xlarge", 8).rpartition("/")[2]
    ),
    ("sagemaker", "AddTags"): lambda c, p: c.add_tags(ResourceArn=ARN, Tags=TAGS),
    ("sagemaker", "DeleteTags"): lambda c, p: c.delete_tags(ResourceArn=ARN, TagKeys=["other"]),
    ("sagemaker", "ListTags"): lambda c, p: c.list_tags(ResourceArn=ARN),
    ("codebuild", "StartBuild"): lambda c, p: c.start_build(**p.build),
    ("codebuild", "BatchGetBuilds"): lambda c, p: c.batch_get_builds(ids=[p.build_id(), "none:1"]),
    ("codebuild", "ListBuilds"): lambda c, p: c.list_builds(),
    ("codebuild", "ListBuildsForProject"): lambda c, p: c.list_builds_for_project(
        projectName="images"
    ),
    ("codebuild", "StopBuild"): lambda c, p: c.stop_build(id=p.build_id()),
}

ALWAYS: dict[tuple[str, str], Any] = {
    ("sagemaker", "DescribeTrainingJob"): {
        "TrainingJobName": NAME,
        "RoleArn": "arn:aws:iam::000000000000:role/SageMakerRole",
        "AlgorithmSpecification": {"EnableSageMakerMetricsTimeSeries": False},
        "InputDataConfig": [
            {
                "CompressionType": "None",
                "RecordWrapperType": "None",
                "DataSource": {"S3DataSource": {"S3DataDistributionType": "FullyReplicated"}},
            }
        ],
        "OutputDataConfig": {"KmsKeyId": "", "S3OutputPath": "s3://results/jobs"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "EnableManagedSpotTraining": False,
        "SecondaryStatusTransitions": ...,
        "LastModifiedTime": ...,
        "TrainingStartTime": ...,
        "TrainingEndTime": ...,
        "TrainingTimeInSeconds": ...,
        "BillableTimeInSeconds": ...,
        "ProfilingStatus": ...,
    },
    ("sagemaker", "DescribeProcessingJob"): {
        "ProcessingJobName": NAME,
        "RoleArn": "arn:aws:iam::000000000000:role/SageMakerRole",
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "ProcessingStartTime": ...,
        "ProcessingEndTime": ...,
        "LastModifiedTime": ...,
    },
    ("sagemaker", "ListTags"): {"Tags": ...},
    ("sagemaker", "AddTags"): {"Tags": TAGS},
    ("codebuild", "BatchGetBuilds"): {"builds": ..., "buildsNotFound": ["none:1"]},
    ("codebuild", "ListBuilds"): {"ids": ...},
    ("codebuild", "ListBuildsForProject"): {"ids": ...},
    ("codebuild", "StartBuild"): {
        "build": {"id": ..., "arn": ..., "buildStatus": ..., "phases": ..., "startTime": ...}
    },
}
"""Of members that botocore calls optional: those that the services return in every answer of this
kind, as the examples of their API references show. `...`: whatever it is.
"""


@pytest.fixture(scope="module")
def world(platform: SimpleNamespace) -> SimpleNamespace:
    """A platform with a job and a build for every kind of operation."""
    platform.s3.put_object(Bucket="results", Key="data/a.csv", Body=b"1")
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://results/data/"}
    channels = [{"ChannelName": "train", "DataSource": {"S3DataSource": source}}]
    run_job(platform, NAME, InputDataConfig=channels, Tags=TAGS, StoppingCondition={})
    kept = {
        "InstanceType": "ml.local.small",
        "InstanceCount": 2,
        "VolumeSizeInGB": 1,
        "KeepAlivePeriodInSeconds": 600,
    }
    run_job(platform, "kept", ResourceConfig=kept)
    processed(platform, NAME)
    platform.s3.put_object(Bucket="results", Key="context/Dockerfile", Body=b"WAIT")
    variables = [{"name": "IMAGE_REPO_NAME", "value": "made"}, {"name": "IMAGE_TAG", "value": "v1"}]
    build = {
        "projectName": "images",
        "sourceTypeOverride": "S3",
        "sourceLocationOverride": "results/context/",
        "environmentVariablesOverride": variables,
    }

    def endless() -> str:
        platform.sagemaker.create_training_job(**job_request("endless", "endless"))
        return "endless"

    def endless_processing() -> str:
        platform.sagemaker.create_processing_job(**processing_request("endless", "endless"))
        return "endless"

    def over() -> str:
        run_job(platform, "over")
        return "over"

    def build_id() -> str:
        return str(
            wait_until(
                lambda: platform.codebuild.list_builds_for_project(projectName="images")["ids"]
            )[0]
        )

    return ServedPlatform(
        **vars(platform),
        kept="kept",
        endless=endless,
        endless_processing=endless_processing,
        over=over,
        processed=lambda name: processed(platform, name),
        build=build,
        build_id=build_id,
    )


def processed(platform: SimpleNamespace, name: str) -> str:
    """The name of a Processing job that has ended."""
    run_processing_job(platform, name)
    return name


def test_there_is_a_call_for_every_operation_that_is_modelled() -> None:
    nothing: Any = None
    services = {
        "sagemaker": sagemaker_service(
            nothing, nothing, TrainingPlans(nothing, nothing, nothing), nothing
        ),
        "codebuild": Builds(nothing, nothing, nothing).service(),
    }
    modelled = {(name, action) for name, service in services.items() for action in service.actions}
    assert set(CALLS) == modelled


@pytest.mark.parametrize(("service", "operation"), CALLS, ids=lambda part: part)
def test_answer(world: SimpleNamespace, service: str, operation: str) -> None:
    called = client(world.endpoint, service)
    bodies: list[bytes] = []

    def keep(response_dict: dict[str, Any], **_: Any) -> None:
        bodies.append(response_dict["body"])

    called.meta.events.register(f"before-parse.*.{operation}", keep)
    CALLS[service, operation](called, world)
    answer = json.loads(bodies[0])
    shape = service_model(service).operation_model(operation).output_shape
    assert list(problems(shape, answer, operation) if shape is not None else []) == []
    assert list(missing(ALWAYS.get((service, operation), {}), answer, operation)) == []


def problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    """Return the members that are missing, unknown or unreadable for a client with this shape."""
    kinds = {
        "string": str,
        "boolean": bool,
        "integer": int,
        "long": int,
        "timestamp": (int, float),
        "list": list,
    }
    kinds |= {"float": (int, float), "double": (int, float), "structure": dict, "map": dict}
    if not isinstance(value, kinds[shape.type_name]):  # type: ignore[arg-type]
        yield f"{path}: {value!r} is no {shape.type_name}"
    elif isinstance(shape, StructureShape):
        yield from (
            f"{path}.{name} is missing" for name in shape.required_members if name not in value
        )
        for name, item in value.items():
            if name in shape.members:
                yield from problems(shape.members[name], item, f"{path}.{name}")
            else:
                yield f"{path}.{name} is not in the model"
    elif isinstance(shape, ListShape):
        for item in value:
            yield from problems(shape.member, item, f"{path}[]")
    elif isinstance(shape, MapShape):
        for key, item in value.items():
            yield from problems(shape.value, item, f"{path}.{key}")
    elif (enum := shape.metadata.get("enum")) and value not in enum and "ml.local" not in value:
        yield f"{path}: {value!r} is not in its enum"


def missing(expected: Any, answer: Any, path: str) -> Iterator[str]:
    """Return the members that a response lacks."""
    if expected is ...:
        return
    if isinstance(expected, dict):
        for name, value in expected.items():
            if name in answer:
                yield from missing(value, answer[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(expected, list) and len(expected) == len(answer):
        for one, other in zip(expected, answer, strict=True):
            yield from missing(one, other, f"{path}[]")
    elif expected != answer:
        yield f"{path}: {answer!r}, expected {expected!r}"


def test_such_problems_are_seen() -> None:
    shape = service_model("sagemaker").operation_model("DescribeTrainingJob").output_shape
    assert shape is not None
    found = list(
        problems(shape, {"TrainingJobName": 1, "Nonsense": 1, "TrainingJobStatus": "Odd"}, "x")
    )
    assert {
        "x.TrainingJobArn is missing",
        "x.TrainingJobName: 1 is no string",
        "x.Nonsense is not in the model",
    } <= set(found)
    assert "x.TrainingJobStatus: 'Odd' is not in its enum" in found
    assert list(missing({"a": {"b": ""}, "c": ...}, {"a": {}}, "x")) == ["x.a.b", "x.c"]
