"""SageMaker as the front dispatches to it: the actions of training jobs and of Processing jobs, and
the tags of both.
"""

from __future__ import annotations

from typing import Any, Protocol

from nodesweep.infra.local.api.in_process import ClientFactory
from nodesweep.infra.local.api.protocol import Action, ApiError, JsonService
from nodesweep.infra.local.api.validation import RequestValidator
from nodesweep.infra.local.processing.manager import ProcessingJobs
from nodesweep.infra.local.processing.service import ProcessingApi
from nodesweep.infra.local.training.limits import LOCAL_INSTANCE_TYPES
from nodesweep.infra.local.training.manager import TrainingJobs
from nodesweep.infra.local.training.service import TrainingApi

_REFUSED = frozenset({"ListTrainingJobsForHyperParameterTuningJob"})
"""moto would answer it from its own training jobs, which don't know ours."""
_SEARCHED_BY_MOTO = frozenset(
    {
        "Endpoint",
        "Experiment",
        "ExperimentTrial",
        "ExperimentTrialComponent",
        "FeatureGroup",
        "Image",
        "ImageVersion",
        "ModelPackage",
        "ModelPackageGroup",
        "Pipeline",
        "PipelineExecution",
        "Project",
    }
)
_KINDS = (":training-job/", ":processing-job/")


class Tagged(Protocol):
    """Jobs of one kind, as far as their tags go."""

    def tags(self, region: str, arn: str) -> list[dict[str, str]]: ...

    def add_tags(
        self, region: str, arn: str, tags: list[dict[str, str]]
    ) -> list[dict[str, str]]: ...

    def delete_tags(self, region: str, arn: str, keys: list[str]) -> None: ...


def sagemaker_service(
    training: TrainingJobs, processing: ProcessingJobs, clients: ClientFactory
) -> JsonService:
    tags = TagsApi(training, processing)
    of_training = TrainingApi(training, clients).actions()
    widened = {
        "TrainingInstanceType": LOCAL_INSTANCE_TYPES,
        "ProcessingInstanceType": LOCAL_INSTANCE_TYPES,
    }
    return JsonService(
        target_prefix="SageMaker",
        signing_name="sagemaker",
        actions={
            **of_training,
            "Search": searching_training_jobs_only(of_training["Search"]),
            **ProcessingApi(processing, clients).actions(),
            "AddTags": tags.add,
            "DeleteTags": tags.delete,
            "ListTags": tags.list,
        },
        refused=_REFUSED,
        check=RequestValidator("sagemaker", widened).check,
        claims=_is_about_jobs,
    )


def searching_training_jobs_only(search: Action) -> Action:
    """Search, refused for a kind of resource that neither the platform nor moto can search."""

    def searched(region: str, request: dict[str, Any]) -> dict[str, Any]:
        if request["Resource"] != "TrainingJob":
            known = ", ".join(sorted({"TrainingJob", *_SEARCHED_BY_MOTO}))
            raise ApiError(
                "UnknownOperationException",
                f"The local platform does not model SageMaker.Search for {request['Resource']}."
                f" It models it for: {known}.",
            )
        return search(region, request)

    return searched


class TagsApi:
    """Tags of jobs, whose ARN says of which kind they are.
    Methods take (region, request) and return the answer.
    """

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
    """Tags and Search serve many kinds of resource; those that aren't our jobs are moto's."""
    if action == "Search":
        return request.get("Resource") not in _SEARCHED_BY_MOTO
    return "Tags" not in action or any(kind in str(request.get("ResourceArn")) for kind in _KINDS)
