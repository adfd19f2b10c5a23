"""Manages the training jobs of the platform, their quotas and their warm pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.jobs.book import JobManager
from sagemaker_emulator.jobs.quotas import check_quota
from sagemaker_emulator.training.limits import usage_quota, warm_pool_quota
from sagemaker_emulator.training.preferences import choices
from sagemaker_emulator.training.record import TrainingJob
from sagemaker_emulator.training.runner import JobRunner
from sagemaker_emulator.training.warm_pool import WarmPool, instances_in, match_key

_UPDATED_MEMBERS = ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")


class TrainingJobs(JobManager[TrainingJob]):
    """The training jobs of the platform and their warm pools."""

    kind = "training"
    not_found = "Requested resource not found."
    name_taken = (
        "Training job names must be unique within an AWS account and region, "
        "and a training job with this name already exists ({arn})"
    )
    _runner: JobRunner

    def _read(self, record: Mapping[str, Any]) -> TrainingJob:
        return TrainingJob.from_record(record)

    def _admit(self, job: TrainingJob, now: float, has_room: bool) -> None:
        donor = self._matching_pool(job, now) if has_room else None
        self._check_quotas(job, donor, now)
        job.reused_pool_of = donor.name if donor is not None else None
        job.enter("Starting", now, self._starting_message(job))

    def _placed(self, job: TrainingJob) -> tuple[TrainingJob, str | None]:
        """Return the job on its first instance type with capacity; without one, also a problem."""
        for resources in choices(job.request["ResourceConfig"]):
            chosen = replace(job, request={**job.request, "ResourceConfig": resources})
            problem = self._runner.capacity_problem(chosen)
            if problem is None:
                return chosen, None
        return job, problem

    def update(self, region: str, request: dict[str, Any]) -> TrainingJob:
        """Handle UpdateTrainingJob.

        A new keep-alive period changes the warm pool. Profiler and debugging settings are recorded
        but have no effect.
        """
        with self._changed:
            job = self._find(region, request["TrainingJobName"])
            if "ResourceConfig" in request:
                self._update_pool(job, request["ResourceConfig"]["KeepAlivePeriodInSeconds"])
            recorded = {name: request[name] for name in _UPDATED_MEMBERS if name in request}
            if recorded and job.is_over():
                raise validation_error(
                    f"{', '.join(recorded)} can't be updated: the job is in status {job.status}."
                )
            for name, value in recorded.items():
                old = job.request.get(name)
                job.request[name] = {**old, **value} if isinstance(old, dict) else value
            job.last_modified_time = self._clock()
            self._save(job)
            return job

    def plan_instances_in_use(self, arn: str) -> int:
        """Return how many instances of a training plan are used by jobs in progress."""
        with self._changed:
            return self._instances_in_use(
                [job for job in self._jobs.values() if job.training_plan_arn == arn]
            )

    def _starting_message(self, job: TrainingJob) -> str:
        warm = f" Reusing the warm pool of {job.reused_pool_of}." if job.reused_pool_of else ""
        return f"Preparing the instances for training.{warm} {self._runner.starting_text(job)}"

    # -- quotas and warm pools, under the lock -----------------------------------------------------

    def _check_quotas(self, job: TrainingJob, donor: TrainingJob | None, now: float) -> None:
        """Check the quotas of the job and of its warm pool, counting a reused pool only once."""
        kind, count = job.instance_type, job.instance_count
        same_kind = [
            other
            for other in self._jobs.values()
            if other.instance_type == kind and other is not donor
        ]
        in_use = self._instances_in_use(
            [other for other in same_kind if other.is_spot == job.is_spot]
        )
        check_quota(self._quotas, usage_quota(kind, job.is_spot), in_use, count)
        if job.keep_alive_seconds:
            pools = [
                (other.warm_pool, other.instance_count) for other in same_kind if other.warm_pool
            ]
            check_quota(self._quotas, warm_pool_quota(kind), instances_in(pools, now), count)

    def _matching_pool(self, job: TrainingJob, now: float) -> TrainingJob | None:
        """Return the job with the oldest pool that the new job can reuse, or None."""
        if job.is_spot:
            return None
        key = match_key(job.request)
        donors = [
            (other.warm_pool.available_since or now, other.name, other)
            for other in self._jobs.values()
            if other.region == job.region
            and other.warm_pool is not None
            and other.warm_pool.status(now) == "Available"
            and match_key(other.request) == key
        ]
        return min(donors, key=lambda donor: donor[:2])[2] if donors else None

    def _give_instances(self, job: TrainingJob, now: float) -> None:
        if job.reused_pool_of:
            donor = self._find(job.region, job.reused_pool_of)
            assert donor.warm_pool is not None  # it matched
            donor.warm_pool.end(now, reused_by=job.name)
            self._try_to_save(donor)
        if job.keep_alive_seconds or job.reused_pool_of:
            job.warm_pool = WarmPool(job.keep_alive_seconds)

    def _update_pool(self, job: TrainingJob, seconds: int) -> None:
        now, pool = self._clock(), job.warm_pool
        status = pool.status(now) if pool else None
        if pool is None or status not in ("InUse", "Available"):
            found = f"it is {status}" if status else "this job has no KeepAlivePeriodInSeconds"
            raise validation_error(
                "KeepAlivePeriodInSeconds can only be updated while the job's warm pool is InUse"
                f" or Available; {found}."
            )
        job.request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = seconds
        if pool.available_since is not None and pool.available_since + seconds <= now:
            pool.end(now)
        else:
            pool.keep_alive_seconds = seconds

    def _release(self) -> None:
        """End available pools, since instances cannot be kept while the platform is stopped."""
        now = self._clock()
        for job in self._jobs.values():
            if job.warm_pool is not None and job.warm_pool.status(now) == "Available":
                job.warm_pool.end(now)
                self._save(job)

    def _retained_resource(self, job: TrainingJob) -> str | None:
        pool = job.warm_pool.status(self._clock()) if job.warm_pool else None
        return "retains an Available warm pool" if pool == "Available" else None
