"""SageMaker's actions on Processing jobs: Create, Describe, Stop, Delete, List."""

from __future__ import annotations

from typing import Any

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import Action
from sagemaker_emulator.jobs.lists import Listing
from sagemaker_emulator.jobs.outputs import refuse_missing_bucket
from sagemaker_emulator.processing.files import output_folders
from sagemaker_emulator.processing.limits import check_request
from sagemaker_emulator.processing.manager import ProcessingJobs
from sagemaker_emulator.sagemaker.tags import check_new_tags

_LISTING = Listing("ProcessingJobSummaries", "ProcessingJobName", "ProcessingJobStatus")


class ProcessingApi:
    """Maps requests to the jobs; methods take (region, request) and return the response."""

    def __init__(self, jobs: ProcessingJobs, clients: ClientFactory) -> None:
        self._jobs = jobs
        self._clients = clients

    def actions(self) -> dict[str, Action]:
        return {
            "CreateProcessingJob": self.create,
            "DescribeProcessingJob": self.describe,
            "StopProcessingJob": self.stop,
            "DeleteProcessingJob": self.delete,
            "ListProcessingJobs": self.list,
        }

    def create(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        check_request(request)
        check_new_tags(request.get("Tags", []))
        for output in output_folders(request):
            refuse_missing_bucket(
                self._clients("s3", region),
                output.uri,
                "processing output config S3Uri",
                request["RoleArn"],
                region,
            )
        return {"ProcessingJobArn": self._jobs.create(region, request).arn}

    def describe(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return self._jobs.describe(region, request["ProcessingJobName"])

    def stop(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.stop(region, request["ProcessingJobName"])
        return {}

    def delete(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.delete(region, request["ProcessingJobName"])
        return {}

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of summaries."""
        return _LISTING.page(self._jobs.summaries(region), request)
