"""Keeps every training job of the platform and runs them in the order they came,
as many at once as have room.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infra.local.api.protocol import ApiError, validation_error
from infra.local.faults.injector import FaultInjector
from infra.local.faults.plan import FaultPlan
from infra.local.interfaces import Room
from infra.local.sagemaker.tags import merged_tags
from infra.local.server.contract import JOBS_STOP_DEADLINE_SECONDS
from infra.local.state.files import RecordStore
from infra.local.state.kept import NotKept
from infra.local.training.limits import check_quota, usage_quota, warm_pool_quota
from infra.local.training.record import TrainingJob, internal_error, job_key
from infra.local.training.runner import JobRunner
from infra.local.training.scheduling import JobQueue, OneJob, Waiting
from infra.local.training.warm_pool import WarmPool, instances_in, match_key

_UPDATED_MEMBERS = ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig")
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 1.0
_CLEAN_UP_SECONDS = 30.0
_NOT_FOUND = "Requested resource not found."

logger = logging.getLogger(__name__)


class TrainingJobs:
    """The jobs and the threads that run them. Every public method may be called from any thread."""

    def __init__(
        self,
        runner: JobRunner,
        store: RecordStore,
        quotas: Mapping[str, int],
        faults: FaultInjector | None = None,
        clock: Callable[[], float] = time.time,
        room: Room | None = None,
    ) -> None:
        """`room` is that of an engine that runs several jobs at once; None: one at a time."""
        self._runner = runner
        self._store = store
        self._quotas = dict(quotas)
        self._faults = faults or FaultInjector(FaultPlan())
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[tuple[str, str], TrainingJob] = {}
        self._queue = JobQueue(room or OneJob())
        self._stops: dict[tuple[str, str], threading.Event] = {}
        self._closing = False
        self._workers = [
            threading.Thread(target=self._work, name=f"training-jobs-{number}", daemon=True)
            for number in range(1, self._queue.room.most_jobs + 1)
        ]
        self._clerk = threading.Thread(
            target=self._end_overdue, name="training-jobs-overdue", daemon=True
        )

    def start(self) -> None:
        """Load the records, fail what a killed server left in progress, and begin to take jobs."""
        for record in self._store.load_all():
            try:
                job = TrainingJob.from_record(record)
                key = job_key(job.region, job.name)
            except (
                TypeError,
                KeyError,
                # of another version: one such record must not keep the platform from starting
            ) as error:
                logger.warning("A training job's record can't be read and is left out: %s", error)
                continue
            self._jobs[key] = job
            if not job.is_over():
                self._fail_interrupted(job)
        self._release_pools()
        for worker in self._workers:
            worker.start()
        self._clerk.start()

    def create(self, region: str, request: dict[str, Any]) -> TrainingJob:
        """Accept a valid request. Raises ResourceInUse, ResourceLimitExceeded, NotKept;
        capacity is no API error.
        """
        self._runner.check(request)
        now, account_id = self._clock(), self._runner.account_id
        tags = request.get("Tags", [])
        job = TrainingJob(
            region=region, request=request, creation_time=now, tags=tags, account_id=account_id
        )
        problem = self._runner.capacity_problem(job)
        with self._changed:
            if self._closing:
                raise ApiError(
                    "ServiceUnavailable", "The local platform is stopping.", http_status=503
                )
            self._refuse_taken_name(job)
            donor = self._matching_pool(job, now) if problem is None else None
            self._check_quotas(job, donor, now)
            faults = self._faults.job_faults(job.name, request.get("Environment", {}))
            job.reused_pool_of = donor.name if donor is not None else None
            job.enter("Starting", now, self._starting_message(job))
            self._save_new(job)
            self._give_instances(job, donor, now)
            self._jobs[job_key(region, job.name)] = job
            if problem is not None:
                job.fail(f"CapacityError: {problem}", now)
            else:
                is_virtual = self._runner.has_virtual_clock
                not_before = now if is_virtual else now + faults.pending_seconds
                self._enqueue(Waiting(job, not_before, faults, is_virtual))
            self._try_to_save(job)
        return job

    def update(self, region: str, request: dict[str, Any]) -> TrainingJob:
        """UpdateTrainingJob: the warm pool's keep-alive period;
        profiler and debugging settings are only recorded.
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

    def delete(self, region: str, name: str) -> None:
        """DeleteTrainingJob: forget a job that is over and keeps no warm pool.
        Raises ResourceInUse otherwise.

        A job that has ended a moment ago is forgotten once its worker has cleaned up after it: a
        new job of the same name has the same folders.
        """
        with self._changed:
            if self._find(region, name).is_over():
                self._changed.wait_for(
                    lambda: job_key(region, name) not in self._stops, _CLEAN_UP_SECONDS
                )
            job = self._find(region, name)
            pool = job.warm_pool.status(self._clock()) if job.warm_pool else None
            if not job.is_over() or pool == "Available":
                state = (
                    "retains an Available warm pool"
                    if job.is_over()
                    else f"is in status {job.status}"
                )
                raise ApiError(
                    "ResourceInUse", f"Training job {job.arn} {state} and can't be deleted."
                )
            del self._jobs[job_key(region, name)]
            self._store.remove(*job_key(region, name))

    def describe(self, region: str, name: str) -> dict[str, Any]:
        with self._changed:
            return copy.deepcopy(self._find(region, name).describe(self._clock()))

    def summaries(self, region: str) -> list[dict[str, Any]]:
        with self._changed:
            return [
                job.summary(self._clock()) for job in self._jobs.values() if job.region == region
            ]

    def stop(self, region: str, name: str) -> None:
        """Ask a job to stop; a job that already stops is left to it."""
        with self._changed:
            job = self._find(region, name)
            if job.is_over():
                raise validation_error(
                    f"The request was rejected because the training job is in status {job.status}."
                )
            self._request_stop(job)

    def tags(self, region: str, arn: str) -> list[dict[str, str]]:
        with self._changed:
            return list(self._find_arn(region, arn).tags)

    def add_tags(self, region: str, arn: str, tags: list[dict[str, str]]) -> list[dict[str, str]]:
        """Set tags by key and return all of them. Raises ResourceLimitExceeded above 50."""
        with self._changed:
            job = self._find_arn(region, arn)
            job.tags = merged_tags(job.tags, tags)
            self._save(job)
            return list(job.tags)

    def delete_tags(self, region: str, arn: str, keys: Sequence[str]) -> None:
        """Take tags off by key; a key that isn't there is no error."""
        with self._changed:
            job = self._find_arn(region, arn)
            job.tags = [tag for tag in job.tags if tag["Key"] not in keys]
            self._save(job)

    def described(self, region: str) -> list[dict[str, Any]]:
        """Every job as DescribeTrainingJob has it, with its Tags."""
        with self._changed:
            jobs = [job for job in self._jobs.values() if job.region == region]
            return [copy.deepcopy(job.describe(self._clock()) | {"Tags": job.tags}) for job in jobs]

    def tagged(self, region: str) -> list[tuple[str, dict[str, str]]]:
        """(ARN, tags) of every job."""
        with self._changed:
            jobs = [job for job in self._jobs.values() if job.region == region]
            return [(job.arn, {tag["Key"]: tag["Value"] for tag in job.tags}) for job in jobs]

    def in_progress(self) -> list[str]:
        with self._changed:
            return [job.name for job in self._jobs.values() if not job.is_over()]

    def close(self, deadline_seconds: float = JOBS_STOP_DEADLINE_SECONDS) -> None:
        """Stop every job and wait until none runs;
        what outlives the deadline is failed at the next start.
        """
        with self._changed:
            self._closing = True
            for job in self._jobs.values():
                if not job.is_over():
                    self._request_stop(job)
            self._changed.notify_all()
        deadline = time.monotonic() + deadline_seconds
        for worker in self._workers:
            if worker.is_alive():
                worker.join(max(0.0, deadline - time.monotonic()))
        if any(worker.is_alive() for worker in self._workers):
            logger.error(
                "Jobs still running after %.0f s: %s",
                deadline_seconds,
                ", ".join(self.in_progress()),
            )
        with self._changed:
            self._release_pools()
            self._store.save_rest()

    # -- the workers -------------------------------------------------------------------------------

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            job = waiting.job
            stop = self._stops[job_key(job.region, job.name)]
            try:
                self._runner.run(job, self._changer(job), waiting.faults, stop)
            except Exception as error:
                # its record can't be written: the next job may still be able to run
                logger.exception("Job %s: lost", job.name)
                with self._changed:
                    job.fail(internal_error(error), self._clock())
            with self._changed:
                self._stops.pop(job_key(job.region, job.name), None)
                self._queue.room.give_back(job.name)
                self._changed.notify_all()

    def _next(self) -> Waiting | None:
        """The next job that may begin; None once the platform closes and the queue is empty."""
        with self._changed:
            while (waiting := self._queue.take_ready(self._clock())) is None:
                if self._closing and not self._queue:
                    return None
                self._changed.wait(self._pause_seconds(self._queue.next_ready()))
            return waiting

    def _end_overdue(self) -> None:
        """End the jobs that wait in vain, also while another one runs."""
        with self._changed:
            while not self._closing:
                now = self._clock()
                for waiting, ending in self._queue.take_overdue(now):
                    waiting.job.end(ending, now)
                    self._stops.pop(job_key(waiting.job.region, waiting.job.name), None)
                    self._try_to_save(waiting.job)
                self._changed.wait(self._pause_seconds(self._queue.next_overdue(now)))

    def _pause_seconds(self, until: float) -> float:
        return min(_LONGEST_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, until - self._clock()))

    def _changer(self, job: TrainingJob) -> Callable[[Callable[[TrainingJob], None]], None]:
        def change(apply: Callable[[TrainingJob], None]) -> None:
            with self._changed:
                apply(job)
                self._try_to_save(job)

        return change

    # -- under the lock ----------------------------------------------------------------------------

    def _enqueue(self, waiting: Waiting) -> None:
        job, now = waiting.job, waiting.job.creation_time
        has_room = self._queue.room.fits(job.instance_type, job.instance_count)
        is_delayed = not has_room or bool(self._queue) or waiting.not_before > now
        if is_delayed and not waiting.is_virtual:
            job.enter("Pending", now)
        self._stops[job_key(job.region, job.name)] = threading.Event()
        self._queue.append(waiting)
        self._changed.notify_all()

    def _request_stop(self, job: TrainingJob) -> None:
        if job.status == "InProgress":
            job.enter("Stopping", self._clock())
        if self._queue.remove(job):
            job.enter("Stopped", self._clock())
        else:
            self._stops[job_key(job.region, job.name)].set()
        self._try_to_save(job)

    def _starting_message(self, job: TrainingJob) -> str:
        warm = f" Reusing the warm pool of {job.reused_pool_of}." if job.reused_pool_of else ""
        return f"Preparing the instances for training.{warm} {self._runner.starting_text(job)}"

    # -- quotas and warm pools, under the lock -----------------------------------------------------

    def _check_quotas(self, job: TrainingJob, donor: TrainingJob | None, now: float) -> None:
        """The job's own usage, and its pool's: one that it takes over is not counted twice."""
        kind, count = job.instance_type, job.instance_count
        same_kind = [
            other
            for other in self._jobs.values()
            if other.instance_type == kind and other is not donor
        ]
        in_use = sum(
            other.instance_count
            for other in same_kind
            if other.is_spot == job.is_spot and not other.is_over()
        )
        check_quota(self._quotas, usage_quota(kind, job.is_spot), in_use, count)
        if job.keep_alive_seconds:
            pools = [
                (other.warm_pool, other.instance_count) for other in same_kind if other.warm_pool
            ]
            check_quota(self._quotas, warm_pool_quota(kind), instances_in(pools, now), count)

    def _matching_pool(self, job: TrainingJob, now: float) -> TrainingJob | None:
        """The job whose pool this one reuses: of those that match,
        the one that has waited longest.
        """
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

    def _give_instances(self, job: TrainingJob, donor: TrainingJob | None, now: float) -> None:
        if donor is not None and donor.warm_pool is not None:
            donor.warm_pool.end(now, reused_by=job.name)
            self._try_to_save(donor)
        if job.keep_alive_seconds or donor is not None:
            job.warm_pool = WarmPool(job.keep_alive_seconds)

    def _update_pool(self, job: TrainingJob, seconds: int) -> None:
        now, pool = self._clock(), job.warm_pool
        status = pool.status(now) if pool else None
        if pool is None or status not in ("InUse", "Available"):
            raise validation_error(
                "KeepAlivePeriodInSeconds can be updated only while the job's warm pool is InUse"
                " or Available; it is"
                f" {status or 'not there: the job has no KeepAlivePeriodInSeconds'}."
            )
        job.request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = seconds
        if pool.available_since is not None and pool.available_since + seconds <= now:
            pool.end(now)
        else:
            pool.keep_alive_seconds = seconds

    def _release_pools(self) -> None:
        """Pools don't outlive the platform."""
        now = self._clock()
        for job in self._jobs.values():
            if job.warm_pool is not None and job.warm_pool.status(now) == "Available":
                job.warm_pool.end(now)
                self._save(job)

    # -- records, under the lock -------------------------------------------------------------------

    def _find(self, region: str, name: str) -> TrainingJob:
        job = self._jobs.get(job_key(region, name))
        if job is None:
            raise validation_error(_NOT_FOUND)
        return job

    def _find_arn(self, region: str, arn: str) -> TrainingJob:
        job = self._find(region, arn.rpartition("/")[2])
        if job.arn.lower() != arn.lower():
            raise validation_error(_NOT_FOUND)
        return job

    def _refuse_taken_name(self, job: TrainingJob) -> None:
        taken = self._jobs.get(job_key(job.region, job.name))
        if taken is not None:
            raise ApiError(
                "ResourceInUse",
                "Training job names must be unique within an AWS account and region, "
                f"and a training job with this name already exists ({taken.arn})",
            )

    def _fail_interrupted(self, job: TrainingJob) -> None:
        """Times of a job whose server died are not known better than
        by its last recorded change.
        """
        job.end_segment(job.last_modified_time)
        job.fail(
            "InternalServerError: the local platform stopped while the job was in progress",
            self._clock(),
        )
        self._try_to_save(job)
        try:
            self._runner.clean_up(job)
        except Exception:  # what is left of one job must not keep the platform from starting
            logger.exception("Job %s: its nodes' folders could not be removed", job.name)

    def _save(self, job: TrainingJob) -> None:
        """Raises NotKept: the call that has changed the job fails.
        The change holds, and the next one writes it.
        """
        self._store.save(*job_key(job.region, job.name), record=job.to_record())

    def _save_new(self, job: TrainingJob) -> None:
        """Raises NotKept, and then there is no such job."""
        try:
            self._save(job)
        except NotKept:
            self._store.remove(*job_key(job.region, job.name))
            raise

    def _try_to_save(self, job: TrainingJob) -> None:
        """Of a job that changes by itself, and goes on where its record can't be written now."""
        self._store.try_to_save(*job_key(job.region, job.name), record=job.to_record())
