"""The SageMaker service: training jobs, training plans, Processing jobs and tags of jobs."""

from __future__ import annotations

from typing import Any, Protocol

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import JsonService
from sagemaker_emulator.api.validation import RequestValidator
from sagemaker_emulator.processing.manager import ProcessingJobs
from sagemaker_emulator.processing.service import ProcessingApi
from sagemaker_emulator.training.limits import LOCAL_INSTANCE_TYPES
from sagemaker_emulator.training.manager import TrainingJobs
from sagemaker_emulator.training.plans import TrainingPlans
from sagemaker_emulator.training.service import TrainingApi

_REFUSED = frozenset({"ListTrainingJobsForHyperParameterTuningJob", "Search"})
"""Actions for which moto would return its training jobs instead of the platform's."""
_KINDS = (":training-job/", ":processing-job/")


class Tagged(Protocol):
    """The tags of jobs of one kind."""

    def tags(self, region: str, arn: str) -> list[dict[str, str]]: ...

    def add_tags(
        self, region: str, arn: str, tags: list[dict[str, str]]
    ) -> list[dict[str, str]]: ...

    def delete_tags(self, region: str, arn: str, keys: list[str]) -> None: ...


def sagemaker_service(
    training: TrainingJobs,
    processing: ProcessingJobs,
    plans: TrainingPlans,
    clients: ClientFactory,
) -> JsonService:
    tags = TagsApi(training, processing)
    widened = {
        "TrainingInstanceType": LOCAL_INSTANCE_TYPES,
        "ProcessingInstanceType": LOCAL_INSTANCE_TYPES,
        "ReservedCapacityInstanceType": LOCAL_INSTANCE_TYPES,
    }
    return JsonService(
        target_prefix="SageMaker",
        signing_name="sagemaker",
        actions={
            **TrainingApi(training, plans, clients).actions(),
            **ProcessingApi(processing, clients).actions(),
            **plans.actions(),
            "AddTags": tags.add,
            "DeleteTags": tags.delete,
            "ListTags": tags.list,
        },
        refused=_REFUSED,
        check=RequestValidator("sagemaker", widened).check,
        claims=_is_about_jobs,
    )


class TagsApi:
    """The SageMaker operations on tags of jobs, whose ARNs contain the kind of job."""

    def __init__(self, training: Tagged, processing: Tagged) -> None:
        self._jobs = dict(zip(_KINDS, (training, processing), strict=True))

    def add(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        arn = request["ResourceArn"]
        return {"Tags": self._of(arn).add_tags(region, arn, request["Tags"])}

    def delete(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        arn = request["ResourceArn"]
        self._of(arn).delete_tags(region, arn, request["TagKeys"])
        return {}

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        arn = request["ResourceArn"]
        return {"Tags": self._of(arn).tags(region, arn)}

    def _of(self, arn: str) -> Tagged:
        return next(jobs for kind, jobs in self._jobs.items() if kind in arn)


def _is_about_jobs(action: str, request: dict[str, Any]) -> bool:
    """Return False for requests about tags of resources other than jobs, which moto handles."""
    return "Tags" not in action or any(kind in str(request.get("ResourceArn")) for kind in _KINDS)
