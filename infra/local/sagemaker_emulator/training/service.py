"""The SageMaker API for training jobs: Create, Describe, Update, Stop, Delete and List."""

from __future__ import annotations

from typing import Any

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import Action, validation_error
from sagemaker_emulator.jobs.outputs import refuse_missing_bucket
from sagemaker_emulator.jobs.service import JobApi
from sagemaker_emulator.sagemaker.tags import check_new_tags
from sagemaker_emulator.training.channels import missing_data_reason
from sagemaker_emulator.training.limits import check_request
from sagemaker_emulator.training.manager import TrainingJobs
from sagemaker_emulator.training.plans import TrainingPlans


class TrainingApi(JobApi[TrainingJobs]):
    """Handles requests about training jobs."""

    kind = "Training"

    def __init__(self, jobs: TrainingJobs, plans: TrainingPlans, clients: ClientFactory) -> None:
        super().__init__(jobs, clients)
        self._plans = plans

    def actions(self) -> dict[str, Action]:
        return super().actions() | {"UpdateTrainingJob": self.update}

    def check(self, region: str, request: dict[str, Any]) -> None:
        check_request(request)
        check_new_tags(request.get("Tags", []))
        self._plans.check(region, request)
        self._refuse_missing_data(region, request)
        refuse_missing_bucket(
            self._clients("s3", region),
            request["OutputDataConfig"]["S3OutputPath"],
            "output data config S3OutputPath",
            request["RoleArn"],
            region,
        )

    def update(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"TrainingJobArn": self._jobs.update(region, request).arn}

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of job summaries, which can be filtered by warm pool and training plan."""
        wanted, plan = request.get("WarmPoolStatusEquals"), request.get("TrainingPlanArnEquals")
        summaries = [
            summary
            for summary in self._jobs.summaries(region)
            if wanted in (None, summary.get("WarmPoolStatus", {}).get("Status"))
            and plan in (None, summary.get("TrainingPlanArn"))
        ]
        return self._listing.page(summaries, request)

    def _refuse_missing_data(self, region: str, request: dict[str, Any]) -> None:
        for channel in request.get("InputDataConfig", []):
            if "S3DataSource" not in channel["DataSource"]:
                continue
            reason = missing_data_reason(self._clients("s3", region), channel)
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
