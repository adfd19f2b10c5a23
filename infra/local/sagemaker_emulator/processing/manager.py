"""Manages the Processing jobs of the platform and their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagemaker_emulator.jobs.book import JobManager
from sagemaker_emulator.jobs.quotas import check_quota
from sagemaker_emulator.processing.limits import usage_quota
from sagemaker_emulator.processing.record import ProcessingJob


class ProcessingJobs(JobManager[ProcessingJob]):
    """The Processing jobs of the platform."""

    kind = "processing"
    not_found = "Could not find requested job with name: {name}"
    name_taken = (
        "Job name must be unique within an AWS account and region, and a job with this name"
        " already exists ({arn})"
    )

    def _read(self, record: Mapping[str, Any]) -> ProcessingJob:
        return ProcessingJob(**record)

    def _admit(self, job: ProcessingJob, now: float, has_room: bool) -> None:
        of_type = [
            other for other in self._jobs.values() if other.instance_type == job.instance_type
        ]
        in_use = self._instances_in_use(of_type)
        check_quota(self._quotas, usage_quota(job.instance_type), in_use, job.instance_count)
