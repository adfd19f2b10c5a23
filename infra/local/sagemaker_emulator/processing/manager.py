"""Keeps all Processing jobs of the platform, and enforces their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagemaker_emulator.jobs.book import JobManager
from sagemaker_emulator.jobs.queue import Waiting
from sagemaker_emulator.jobs.quotas import check_quota
from sagemaker_emulator.processing.limits import usage_quota
from sagemaker_emulator.processing.record import ProcessingJob
from sagemaker_emulator.processing.runner import ProcessingRunner


class ProcessingJobs(JobManager[ProcessingJob]):
    """All Processing jobs of the platform."""

    kind = "processing"
    not_found = "Could not find requested job with name: {name}"
    name_taken = (
        "Job name must be unique within an AWS account and region, and a job with this name"
        " already exists ({arn})"
    )
    _runner: ProcessingRunner

    def _read(self, record: Mapping[str, Any]) -> ProcessingJob:
        return ProcessingJob.from_record(record)

    def create(self, region: str, request: dict[str, Any]) -> ProcessingJob:
        """Accept a valid request; a lack of capacity fails the job and is not an API error.

        Raises:
            ResourceInUse: If the name is taken.
            ResourceLimitExceeded: If the quota would be exceeded.
            NotSaved: If the job cannot be saved.
        """
        self._runner.check(request)
        now = self._clock()
        job = ProcessingJob(
            region=region,
            request=request,
            creation_time=now,
            last_modified_time=now,
            tags=request.get("Tags", []),
            account_id=self._runner.account_id,
        )
        problem = self._runner.capacity_problem(job)
        with self._changed:
            self._refuse_while_closing()
            self._refuse_taken_name(job)
            of_type = [
                other for other in self._jobs.values() if other.instance_type == job.instance_type
            ]
            in_use = self._instances_in_use(of_type)
            quota = usage_quota(job.instance_type)
            check_quota(self._quotas, quota, in_use, job.instance_count)
            faults = self._faults.job_faults(job.name, request.get("Environment", {}))
            self._save_new(job)
            is_virtual = self._runner.has_virtual_clock
            not_before = now if is_virtual else now + faults.pending_seconds
            self._accept(Waiting(job, not_before, faults, is_virtual), problem)
        return job
