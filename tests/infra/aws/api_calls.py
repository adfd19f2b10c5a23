"""Records the pipeline's API calls and lists the IAM permissions each needs.

The permissions follow AWS's service authorization reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import botocore.client
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import TESTS_CLIENT
from nodesweep.scaling import names
from tests.infra.aws.iam_policy import Access


@dataclass(frozen=True)
class ApiCall:
    """One call as passed to boto3."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    region: str

    @property
    def name(self) -> str:
        """Service and operation, e.g. s3:GetObject."""
        return f"{self.service}:{self.operation}"


Answers = Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]]
"""Responses by call name for calls the platform lacks; None passes one to the platform."""


@contextmanager
def recorded(answers: Answers) -> Iterator[list[ApiCall]]:
    """Record every call made with the platform's user key, that is, by the pipeline.

    The platform's own clients use another key, and the tests' identify themselves in the user
    agent.
    """
    calls: list[ApiCall] = []
    real = botocore.client.BaseClient._make_api_call

    def note(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        credentials = self._request_signer._credentials
        is_users = credentials is not None and credentials.access_key.startswith("LOCALUSER")
        if is_users and self.meta.config.user_agent_extra != TESTS_CLIENT:
            model = self.meta.service_model
            call = ApiCall(model.signing_name, operation, dict(parameters), self.meta.region_name)
            calls.append(call)
            answer = answers[call.name](parameters) if call.name in answers else None
            if answer is not None:
                return answer
            return _as_who_may_not_list(real, self, operation, parameters)
        return real(self, operation, parameters)

    botocore.client.BaseClient._make_api_call = note
    try:
        yield calls
    finally:
        botocore.client.BaseClient._make_api_call = real


def _as_who_may_not_list(
    real: Callable[..., Any], client: Any, operation: str, parameters: dict[str, Any]
) -> Any:
    """Return 403 for a missing object, as S3 does to callers who may not list the bucket.

    The pipeline role may not.
    """
    try:
        return real(client, operation, parameters)
    except ClientError as error:
        if operation in ("GetObject", "HeadObject") and error.response["Error"]["Code"] in (
            "NoSuchKey",
            "404",
        ):
            code = "AccessDenied" if operation == "GetObject" else "403"
            raise ClientError(
                {"Error": {"Code": code, "Message": "Access Denied"}}, operation
            ) from error
        raise


def needed(call: ApiCall, account: str) -> list[Access]:
    """Return the accesses that a call needs.

    Raises:
        KeyError: The call is not listed here; add it with the permissions of AWS's reference.
    """
    return _NEEDED[call.name](call.parameters, _Place(call.region, account))


@dataclass(frozen=True)
class _Place:
    region: str
    account: str

    def arn(self, service: str, resource: str, account: str | None = None) -> str:
        return f"arn:aws:{service}:{self.region}:{account or self.account}:{resource}"


Need = Callable[[Mapping[str, Any], _Place], list[Access]]


def _object(action: str) -> Need:
    return lambda request, _: [Access(action, f"arn:aws:s3:::{request['Bucket']}/{request['Key']}")]


def _bucket(action: str) -> Need:
    def need(request: Mapping[str, Any], _: _Place) -> list[Access]:
        context = {"s3:prefix": request["Prefix"]} if "Prefix" in request else {}
        return [Access(action, f"arn:aws:s3:::{request['Bucket']}", context)]

    return need


def _repository(action: str) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        repositories = request.get("repositoryNames") or [request["repositoryName"]]
        account = request.get("registryId")
        return [
            Access(action, place.arn("ecr", f"repository/{name}", account)) for name in repositories
        ]

    return need


def _project(action: str) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        projects = request.get("names") or [request["projectName"]]
        return [
            Access(action, place.arn("codebuild", f"project/{project}")) for project in projects
        ]

    return need


_OVERRIDE_KEYS = {
    "sourceLocationOverride": "codebuild:source.location",
    "buildspecOverride": "codebuild:source.buildspec",
    "imageOverride": "codebuild:environment.image",
    "serviceRoleOverride": "codebuild:serviceRole",
}
"""Member of StartBuild -> its condition key."""
_OTHER_MEMBERS = frozenset(
    {"projectName", "idempotencyToken", "sourceTypeOverride", "timeoutInMinutesOverride"}
)


def _start_build(request: Mapping[str, Any], place: _Place) -> list[Access]:
    variables = tuple(item["name"] for item in request["environmentVariablesOverride"])
    context: dict[str, str | tuple[str, ...]] = {
        "codebuild:environment.environmentVariables.name": variables
    }
    for member in request.keys() - _OTHER_MEMBERS - {"environmentVariablesOverride"}:
        context[_OVERRIDE_KEYS[member]] = str(request[member])
    return [
        Access(
            "codebuild:StartBuild",
            place.arn("codebuild", f"project/{request['projectName']}"),
            context,
        )
    ]


def _builds(action: str, key: str) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        ids = request[key] if isinstance(request[key], list) else [request[key]]
        return [
            Access(action, place.arn("codebuild", f"project/{one.partition(':')[0]}"))
            for one in ids
        ]

    return need


def _streams(action: str) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        stream = f"log-stream:{request.get('logStreamName', '')}"
        return [Access(action, place.arn("logs", f"log-group:{request['logGroupName']}:{stream}"))]

    return need


def _job(action: str, tagged: bool = False) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        name = request["TrainingJobName"]
        # Every job of a sweep is tagged with its ID; see the recorded CreateTrainingJob.
        tags = (
            {f"aws:ResourceTag/{names.TAG_SWEEP_ID}": str(names.sweep_of_job(name))}
            if tagged
            else {}
        )
        return [Access(action, place.arn("sagemaker", f"training-job/{name}"), tags)]

    return need


def _processing_job(action: str, tagged: bool = False) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        name = request["ProcessingJobName"]
        sweep = str(names.sweep_of_validation_job(name))
        tags = {f"aws:ResourceTag/{names.TAG_SWEEP_ID}": sweep} if tagged else {}
        return [Access(action, place.arn("sagemaker", f"processing-job/{name}"), tags)]

    return need


def _create_processing_job(request: Mapping[str, Any], place: _Place) -> list[Access]:
    """Return job, tag, and role accesses, as for a training job."""
    cluster = request["ProcessingResources"]["ClusterConfig"]
    job = place.arn("sagemaker", f"processing-job/{request['ProcessingJobName']}")
    tags = {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in request["Tags"]}
    limits = {
        "sagemaker:InstanceTypes": cluster["InstanceType"],
        "sagemaker:MaxRuntimeInSeconds": str(request["StoppingCondition"]["MaxRuntimeInSeconds"]),
    }
    return [
        Access("sagemaker:CreateProcessingJob", job, tags | limits),
        Access("sagemaker:AddTags", job, tags),
        Access(
            "iam:PassRole", request["RoleArn"], {"iam:PassedToService": "sagemaker.amazonaws.com"}
        ),
    ]


def _create_job(request: Mapping[str, Any], place: _Place) -> list[Access]:
    """Return the accesses of a training job: its tags need AddTags, and its role PassRole."""
    job = place.arn("sagemaker", f"training-job/{request['TrainingJobName']}")
    tags = {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in request["Tags"]}
    limits = {
        "sagemaker:InstanceTypes": request["ResourceConfig"]["InstanceType"],
        "sagemaker:MaxRuntimeInSeconds": str(request["StoppingCondition"]["MaxRuntimeInSeconds"]),
    }
    plan = request["ResourceConfig"].get("TrainingPlanArn")
    # "IAM for SageMaker training plans", developer guide: both resources of the plan.
    of_plan = [plan, plan.replace(":training-plan/", ":reserved-capacity/")] if plan else []
    return [
        Access("sagemaker:CreateTrainingJob", job, tags | limits),
        *(Access("sagemaker:CreateTrainingJob", resource) for resource in of_plan),
        Access("sagemaker:AddTags", job, tags),
        Access(
            "iam:PassRole", request["RoleArn"], {"iam:PassedToService": "sagemaker.amazonaws.com"}
        ),
    ]


def _role(action: str) -> Need:
    def need(request: Mapping[str, Any], place: _Place) -> list[Access]:
        named = request.get("RoleName")
        return [
            Access(
                action,
                (
                    f"arn:aws:iam::{place.account}:role/{named}"
                    if named
                    else request["PolicySourceArn"]
                ),
            )
        ]

    return need


def _anything(action: str) -> Need:
    """Return an access for an action without resources, which is allowed on all or none."""
    return lambda request, _: [Access(action, "*")]


_NEEDED: dict[str, Need] = {
    "s3:GetBucketLocation": _bucket("s3:GetBucketLocation"),
    "s3:GetBucketVersioning": _bucket("s3:GetBucketVersioning"),
    "s3:ListObjectsV2": _bucket("s3:ListBucket"),
    "s3:ListObjectVersions": _bucket("s3:ListBucketVersions"),
    "s3:GetBucketPolicy": _bucket("s3:GetBucketPolicy"),
    "s3:HeadObject": _object("s3:GetObject"),
    "s3:GetObject": _object("s3:GetObject"),
    "s3:PutObject": _object("s3:PutObject"),
    "s3:CreateMultipartUpload": _object("s3:PutObject"),
    "s3:UploadPart": _object("s3:PutObject"),
    "s3:CompleteMultipartUpload": _object("s3:PutObject"),
    "s3:DeleteObject": _object("s3:DeleteObject"),
    "ecr:DescribeRepositories": _repository("ecr:DescribeRepositories"),
    "ecr:DescribeImages": _repository("ecr:DescribeImages"),
    "ecr:BatchGetImage": _repository("ecr:BatchGetImage"),
    "ecr:GetRepositoryPolicy": _repository("ecr:GetRepositoryPolicy"),
    "codebuild:StartBuild": _start_build,
    "codebuild:BatchGetProjects": _project("codebuild:BatchGetProjects"),
    "codebuild:ListBuildsForProject": _project("codebuild:ListBuildsForProject"),
    "codebuild:BatchGetBuilds": _builds("codebuild:BatchGetBuilds", "ids"),
    "codebuild:StopBuild": _builds("codebuild:StopBuild", "id"),
    "sagemaker:CreateTrainingJob": _create_job,
    "sagemaker:DescribeTrainingJob": _job("sagemaker:DescribeTrainingJob"),
    "sagemaker:StopTrainingJob": _job("sagemaker:StopTrainingJob", tagged=True),
    "sagemaker:UpdateTrainingJob": _job("sagemaker:UpdateTrainingJob", tagged=True),
    "sagemaker:CreateProcessingJob": _create_processing_job,
    "sagemaker:DescribeProcessingJob": _processing_job("sagemaker:DescribeProcessingJob"),
    "sagemaker:StopProcessingJob": _processing_job("sagemaker:StopProcessingJob", tagged=True),
    "sagemaker:ListProcessingJobs": _anything("sagemaker:ListProcessingJobs"),
    "sagemaker:ListTags": lambda request, _: [Access("sagemaker:ListTags", request["ResourceArn"])],
    "sagemaker:DescribeTrainingPlan": lambda request, place: [
        Access(
            "sagemaker:DescribeTrainingPlan",
            place.arn("sagemaker", f"training-plan/{request['TrainingPlanName']}"),
        )
    ],
    "sagemaker:SearchTrainingPlanOfferings": _anything("sagemaker:SearchTrainingPlanOfferings"),
    "sagemaker:ListTrainingJobs": _anything("sagemaker:ListTrainingJobs"),
    "logs:DescribeLogStreams": _streams("logs:DescribeLogStreams"),
    "logs:FilterLogEvents": _streams("logs:FilterLogEvents"),
    "logs:GetLogEvents": _streams("logs:GetLogEvents"),
    "monitoring:GetMetricData": _anything("cloudwatch:GetMetricData"),
    "iam:GetRole": _role("iam:GetRole"),
    "iam:SimulatePrincipalPolicy": _role("iam:SimulatePrincipalPolicy"),
    "ec2:DescribeSpotPriceHistory": _anything("ec2:DescribeSpotPriceHistory"),
    "ec2:DescribeSubnets": _anything("ec2:DescribeSubnets"),
    "ec2:DescribeSecurityGroups": _anything("ec2:DescribeSecurityGroups"),
    "fsx:DescribeFileSystems": _anything("fsx:DescribeFileSystems"),
    "elasticfilesystem:DescribeMountTargets": lambda request, place: [
        Access(
            "elasticfilesystem:DescribeMountTargets",
            place.arn("elasticfilesystem", f"file-system/{request['FileSystemId']}"),
        )
    ],
    "kms:DescribeKey": lambda request, _: [Access("kms:DescribeKey", request["KeyId"])],
    "pricing:GetProducts": _anything("pricing:GetProducts"),
    "servicequotas:ListServiceQuotas": _anything("servicequotas:ListServiceQuotas"),
    "cloudformation:DescribeStacks": lambda request, place: [
        Access(
            "cloudformation:DescribeStacks",
            place.arn("cloudformation", f"stack/{request['StackName']}/id"),
        )
    ],
}
