"""SageMaker's training actions: CreateTrainingJob, Describe, Update, Stop, Delete, List,
Search, and tags.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.local.api.in_process import ClientFactory
from infra.local.api.protocol import ApiError, JsonService, validation_error
from infra.local.api.validation import RequestValidator
from infra.local.s3_objects import S3Location
from infra.local.sagemaker.search import found_jobs
from infra.local.sagemaker.tags import check_new_tags
from infra.local.training.channels import channel_is_empty
from infra.local.training.limits import LOCAL_INSTANCE_TYPES, check_request
from infra.local.training.manager import TrainingJobs

_DEFAULT_PAGE_SIZE = 10
_SORT_FIELDS = {
    "Name": "TrainingJobName",
    "CreationTime": "CreationTime",
    "Status": "TrainingJobStatus",
}
_REFUSED = frozenset({"ListTrainingJobsForHyperParameterTuningJob"})
"""moto would answer it from its own training jobs, which don't know ours."""


def training_service(jobs: TrainingJobs, clients: ClientFactory) -> JsonService:
    """The service as the front dispatches to it."""
    api = TrainingApi(jobs, clients)
    return JsonService(
        target_prefix="SageMaker",
        signing_name="sagemaker",
        actions={
            "CreateTrainingJob": api.create,
            "DescribeTrainingJob": api.describe,
            "UpdateTrainingJob": api.update,
            "StopTrainingJob": api.stop,
            "DeleteTrainingJob": api.delete,
            "ListTrainingJobs": api.list,
            "Search": api.search,
            "AddTags": api.add_tags,
            "DeleteTags": api.delete_tags,
            "ListTags": api.list_tags,
        },
        refused=_REFUSED,
        check=RequestValidator("sagemaker", {"TrainingInstanceType": LOCAL_INSTANCE_TYPES}).check,
        claims=_is_about_training_jobs,
    )


class TrainingApi:
    """Hands requests to the jobs; methods take (region, request) and return the answer."""

    def __init__(self, jobs: TrainingJobs, clients: ClientFactory) -> None:
        self._jobs = jobs
        self._clients = clients

    def create(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        check_request(request)
        check_new_tags(request.get("Tags", []))
        self._refuse_missing_data(region, request)
        self._refuse_missing_output_bucket(region, request)
        return {"TrainingJobArn": self._jobs.create(region, request).arn}

    def describe(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return self._jobs.describe(region, request["TrainingJobName"])

    def stop(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.stop(region, request["TrainingJobName"])
        return {}

    def update(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"TrainingJobArn": self._jobs.update(region, request).arn}

    def delete(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.delete(region, request["TrainingJobName"])
        return {}

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """A page of summaries."""
        found = _sorted(
            [item for item in self._jobs.summaries(region) if _matches(item, request)], request
        )
        return _page("TrainingJobSummaries", found, request)

    def search(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """A page of the training jobs that satisfy an expression."""
        found = found_jobs(self._jobs.described(region), request)
        answer = _page("Results", [{"TrainingJob": job} for job in found], request)
        return answer | {"TotalHits": {"Value": len(found), "Relation": "EqualTo"}}

    def add_tags(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        check_new_tags(request["Tags"])
        return {"Tags": self._jobs.add_tags(region, request["ResourceArn"], request["Tags"])}

    def delete_tags(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.delete_tags(region, request["ResourceArn"], request["TagKeys"])
        return {}

    def list_tags(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"Tags": self._jobs.tags(region, request["ResourceArn"])}

    def _refuse_missing_data(self, region: str, request: dict[str, Any]) -> None:
        """SageMaker looks for the input data before it accepts a job."""
        for channel in request.get("InputDataConfig", []):
            if "S3DataSource" not in channel["DataSource"]:
                continue
            reason = channel_is_empty(self._clients("s3", region), channel)
            if reason is None:
                continue
            uri = channel["DataSource"]["S3DataSource"]["S3Uri"]
            bucket = uri.split("/")[2]
            raise validation_error(
                f'No S3 objects found under S3 URL "{uri}" given in input data source. Please'
                f" ensure that the bucket exists in the selected region ({region}), that objects"
                f' exist under that S3 prefix, and that the role "{request["RoleArn"]}" has'
                f' "s3:ListBucket" permissions on bucket "{bucket}".'
                + (f" Error message from S3: {reason}" if reason else "")
            )

    def _refuse_missing_output_bucket(self, region: str, request: dict[str, Any]) -> None:
        """What a job makes must have a place to go, or its time is lost."""
        uri = request["OutputDataConfig"]["S3OutputPath"]
        bucket = S3Location.parse(uri).bucket
        try:
            self._clients("s3", region).head_bucket(Bucket=bucket)
        except (ClientError, BotoCoreError) as error:
            raise validation_error(
                f'The S3 bucket "{bucket}" given in output data config S3OutputPath "{uri}" does'
                f' not exist or can not be accessed with the role "{request["RoleArn"]}" in region'
                f" {region}."
            ) from error


def _is_about_training_jobs(action: str, request: dict[str, Any]) -> bool:
    """Tags and Search serve many kinds of resource; those that aren't training jobs are moto's."""
    if action == "Search":
        return request.get("Resource") == "TrainingJob"
    return "Tags" not in action or ":training-job/" in str(request.get("ResourceArn"))


def _page(member: str, found: list[dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    """The page of a list that a request asks for.
    Its token carries the query, so that no other one can use it.
    """
    query = {key: value for key, value in request.items() if key not in ("NextToken", "MaxResults")}
    start = _decode_token(request["NextToken"], query) if "NextToken" in request else 0
    end = start + request.get("MaxResults", _DEFAULT_PAGE_SIZE)
    answer: dict[str, Any] = {member: found[start:end]}
    if end < len(found):
        answer["NextToken"] = _encode_token(end, query)
    return answer


def _matches(summary: dict[str, Any], request: dict[str, Any]) -> bool:
    if request.get("NameContains", "").lower() not in summary["TrainingJobName"].lower():
        return False
    if request.get("StatusEquals", summary["TrainingJobStatus"]) != summary["TrainingJobStatus"]:
        return False
    pool = summary.get("WarmPoolStatus", {}).get("Status")
    if request.get("WarmPoolStatusEquals", pool) != pool or "TrainingPlanArnEquals" in request:
        return False  # no job has a training plan
    return all(
        request.get(f"{field}After", float("-inf"))
        < summary[field]
        < request.get(f"{field}Before", float("inf"))
        for field in ("CreationTime", "LastModifiedTime")
    )


def _sorted(summaries: list[dict[str, Any]], request: dict[str, Any]) -> list[dict[str, Any]]:
    field = _SORT_FIELDS[request.get("SortBy", "CreationTime")]
    descending = request.get("SortOrder", "Ascending") == "Descending"
    return sorted(
        summaries, key=lambda item: (item[field], item["TrainingJobName"]), reverse=descending
    )


def _encode_token(position: int, query: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps([position, query], sort_keys=True).encode()).decode()


def _decode_token(token: str, query: dict[str, Any]) -> int:
    try:
        position, asked = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError, binascii.Error) as error:
        raise validation_error("Invalid pagination token.") from error
    if asked != query or not isinstance(position, int):
        raise ApiError(
            "ValidationException", "Invalid pagination token: it belongs to a different request."
        )
    return position
