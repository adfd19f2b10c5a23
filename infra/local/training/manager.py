"""Keeps every training job of the platform and runs them one at a time, in the order they came."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from infra.local.api import ApiError, validation_error
from infra.local.in_process import ClientFactory
from infra.local.interfaces import Engine, ImageStore
from infra.local.server_contract import JOBS_STOP_DEADLINE_SECONDS
from infra.local.state.files import RecordStore
from infra.local.training.execution import JobExecution
from infra.local.training.limits import check_quota
from infra.local.training.record import TrainingJob, job_key

_NOT_FOUND = "Requested resource not found."

logger = logging.getLogger(__name__)


class TrainingJobs:
    """The jobs and the thread that runs them. Every public method may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        images: ImageStore,
        clients: ClientFactory,
        store: RecordStore,
        quotas: Mapping[str, int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._images = images
        self._clients = clients
        self._store = store
        self._quotas = dict(quotas)
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[tuple[str, str], TrainingJob] = {}
        self._queue: deque[TrainingJob] = deque()
        self._running: TrainingJob | None = None
        self._stops: dict[tuple[str, str], threading.Event] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="training-jobs", daemon=True)

    def start(self) -> None:
        """Load the records, fail what a killed server left in progress, and begin to take jobs."""
        for record in self._store.load_all():
            try:
                job = TrainingJob.from_record(record)
                key = job_key(job.region, job.name)
            except (
                TypeError,
                KeyError,
            ) as error:  # of another version: one such record must not keep the platform from starting
                logger.warning("A training job's record can't be read and is left out: %s", error)
                continue
            self._jobs[key] = job
            if not job.is_over():
                self._fail_interrupted(job)
        self._thread.start()

    def create(self, region: str, request: dict[str, Any]) -> TrainingJob:
        """Accept a validated request. Raises ResourceInUse, ResourceLimitExceeded; capacity is no API error."""
        now = self._clock()
        job = TrainingJob(region=region, request=request, creation_time=now, tags=request.get("Tags", []))
        problem = self._engine.capacity_problem(job.instance_type, job.instance_count)
        emulated = f"Emulated nodes: {self._engine.isolation(job.instance_type)}"
        with self._changed:
            if self._closing:
                raise ApiError("ServiceUnavailable", "The local platform is stopping.", http_status=503)
            self._refuse_taken_name(job)
            check_quota(self._quotas, job.instance_type, self._instances_in_use(job.instance_type), job.instance_count)
            job.enter("Starting", now, f"Preparing the instances for training. {emulated}")
            self._jobs[job_key(region, job.name)] = job
            if problem is not None:
                job.fail(f"CapacityError: {problem}", now)
            else:
                if self._running is not None or self._queue:
                    job.enter("Pending", now)
                self._stops[job_key(region, job.name)] = threading.Event()
                self._queue.append(job)
                self._changed.notify_all()
            self._save(job)
        return job

    def describe(self, region: str, name: str) -> dict[str, Any]:
        with self._changed:
            return copy.deepcopy(self._find(region, name).describe())

    def summaries(self, region: str) -> list[dict[str, Any]]:
        with self._changed:
            return [job.summary() for job in self._jobs.values() if job.region == region]

    def stop(self, region: str, name: str) -> None:
        """Ask a job to stop; a job that already stops is left to it."""
        with self._changed:
            job = self._find(region, name)
            if job.is_over():
                raise validation_error(f"The request was rejected because the training job is in status {job.status}.")
            self._request_stop(job)

    def tags(self, region: str, arn: str) -> list[dict[str, str]]:
        with self._changed:
            return list(self._find_arn(region, arn).tags)

    def add_tags(self, region: str, arn: str, tags: list[dict[str, str]]) -> list[dict[str, str]]:
        """Set tags by key and return all of them. Raises ResourceLimitExceeded above 50."""
        with self._changed:
            job = self._find_arn(region, arn)
            merged = {tag["Key"]: tag["Value"] for tag in [*job.tags, *tags]}
            if len(merged) > 50:
                raise ApiError("ResourceLimitExceeded", f"A resource has at most 50 tags, this would be {len(merged)}.")
            job.tags = [{"Key": key, "Value": value} for key, value in merged.items()]
            self._save(job)
            return list(job.tags)

    def in_progress(self) -> list[str]:
        with self._changed:
            return [job.name for job in self._jobs.values() if not job.is_over()]

    def close(self, deadline_seconds: float = JOBS_STOP_DEADLINE_SECONDS) -> None:
        """Stop every job and wait until none runs; what outlives the deadline is failed at the next start."""
        with self._changed:
            self._closing = True
            for job in self._jobs.values():
                if not job.is_over():
                    self._request_stop(job)
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(deadline_seconds)
        if self._thread.is_alive():
            logger.error("Jobs still running after %.0f s: %s", deadline_seconds, ", ".join(self.in_progress()))

    # -- the worker -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._next()) is not None:
            stop = self._stops[job_key(job.region, job.name)]
            try:
                JobExecution(
                    job, self._changer(job), self._engine, self._images, self._clients, stop, self._clock
                ).run()
            except Exception as error:  # its record can't be written: the next job may still be able to run
                logger.exception("Job %s: lost", job.name)
                with self._changed:
                    job.fail(f"InternalServerError: {type(error).__name__}: {error}", self._clock())
            with self._changed:
                self._running = None
                self._stops.pop(job_key(job.region, job.name), None)

    def _next(self) -> TrainingJob | None:
        """The next job that nobody has stopped meanwhile; None once the platform closes and the queue is empty."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait(timeout=1.0)
            self._running = self._queue.popleft()
            return self._running

    def _changer(self, job: TrainingJob) -> Callable[[Callable[[TrainingJob], None]], None]:
        def change(apply: Callable[[TrainingJob], None]) -> None:
            with self._changed:
                apply(job)
                self._save(job)

        return change

    # -- under the lock -------------------------------------------------------------------------------------------

    def _request_stop(self, job: TrainingJob) -> None:
        if job.status == "InProgress":
            job.enter("Stopping", self._clock())
        if job in self._queue:
            self._queue.remove(job)
            job.enter("Stopped", self._clock())
        else:
            self._stops[job_key(job.region, job.name)].set()
        self._save(job)

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

    def _instances_in_use(self, instance_type: str) -> int:
        jobs = self._jobs.values()
        return sum(job.instance_count for job in jobs if job.instance_type == instance_type and not job.is_over())

    def _fail_interrupted(self, job: TrainingJob) -> None:
        """Times of a job whose server died are not known better than by its last recorded change."""
        if job.training_start_time is not None:
            job.training_end_time = job.training_end_time or job.last_modified_time
        job.fail("InternalServerError: the local platform stopped while the job was in progress", self._clock())
        self._save(job)
        try:
            self._engine.clean_up(job.spec())
        except Exception:
            logger.exception("Job %s: its nodes' folders could not be removed", job.name)

    def _save(self, job: TrainingJob) -> None:
        self._store.save(job.region, job.name.lower(), record=job.to_record())
