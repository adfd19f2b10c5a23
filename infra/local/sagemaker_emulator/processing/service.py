"""The SageMaker API for Processing jobs: Create, Describe, Stop, Delete and List."""

from __future__ import annotations

from typing import Any

from sagemaker_emulator.jobs.outputs import refuse_missing_bucket
from sagemaker_emulator.jobs.service import JobApi
from sagemaker_emulator.processing.files import output_folders
from sagemaker_emulator.processing.limits import check_request
from sagemaker_emulator.processing.manager import ProcessingJobs
from sagemaker_emulator.sagemaker.tags import check_new_tags


class ProcessingApi(JobApi[ProcessingJobs]):
    """Handles requests about Processing jobs."""

    kind = "Processing"

    def check(self, region: str, request: dict[str, Any]) -> None:
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
