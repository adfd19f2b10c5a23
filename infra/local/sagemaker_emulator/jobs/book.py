"""Manages the jobs of one kind, which run in order of arrival and in parallel if they fit."""

from __future__ import annotations

import copy
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol

from sagemaker_emulator.api.protocol import ApiError, validation_error
from sagemaker_emulator.faults.injector import FaultInjector, JobFaults
from sagemaker_emulator.faults.plan import FaultPlan
from sagemaker_emulator.jobs.endings import Ending, internal_error
from sagemaker_emulator.jobs.job import Change, J, J_contra, job_key
from sagemaker_emulator.jobs.queue import JobQueue, SharedRoom, SingleJobRoom, Waiting
from sagemaker_emulator.sagemaker.tags import check_new_tags, merged_tags
from sagemaker_emulator.server.contract import JOBS_STOP_DEADLINE_SECONDS
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.state.unsaved import NotSaved

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 1.0
_CLEAN_UP_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Runner(Protocol[J_contra]):
    """The interface of runners, which run jobs of one kind."""

    @property
    def account_id(self) -> str:
        """The account in the ARNs of jobs: twelve digits that no AWS account has."""

    @property
    def has_virtual_clock(self) -> bool:
        """True if jobs wait for capacity in `run`, on a virtual clock, instead of in the queue.

        In this case, `run` also ends jobs that get no capacity or exceed MaxWaitTimeInSeconds.
        """

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that the runner supports a request.

        Raises:
            ValidationException: If the runner does not support the request.
        """

    def capacity_problem(self, job: J_contra) -> str | None:
        """Return why the job gets no capacity (without "CapacityError: "), or None if it does."""

    def run(
        self, job: J_contra, change: Change[J_contra], faults: JobFaults, stop: threading.Event
    ) -> None:
        """Run the job in the calling thread until it ends."""

    def clean_up(self, job: J_contra) -> None:
        """Clean up after a job whose server was killed."""


class JobManager(ABC, Generic[J]):
    """Jobs and the threads that run them. All public methods are thread-safe."""

    kind: ClassVar[str]
    """The kind of jobs, as in "training job"."""
    not_found: ClassVar[str]
    """Error message for a {name} that does not exist."""
    name_taken: ClassVar[str]
    """Error message for a name that is taken by the job {arn}."""

    def __init__(
        self,
        runner: Runner[J],
        store: RecordStore,
        quotas: Mapping[str, int],
        faults: FaultInjector | None = None,
        clock: Callable[[], float] = time.time,
        room: SharedRoom | None = None,
    ) -> None:
        """Set up the manager.

        Args:
            runner: Runs the jobs.
            store: Stores the records of jobs.
            quotas: The maximum number of instances by quota name or instance type.
            faults: Faults to inject.
            clock: Returns Unix seconds.
            room: The capacity that jobs of all kinds share; None runs one job at a time.
        """
        self._runner = runner
        self._store = store
        self._quotas = dict(quotas)
        self._faults = faults or FaultInjector(FaultPlan())
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[tuple[str, str], J] = {}
        self._queue: JobQueue[J] = JobQueue(room or SharedRoom(SingleJobRoom()))
        self._stops: dict[tuple[str, str], threading.Event] = {}
        self._closing = False
        self._workers = [
            threading.Thread(target=self._work, name=f"{self.kind}-jobs-{number}", daemon=True)
            for number in range(1, self._queue.room.most_jobs + 1)
        ]
        self._clerk = threading.Thread(
            target=self._end_overdue, name=f"{self.kind}-jobs-overdue", daemon=True
        )

    @abstractmethod
    def _read(self, record: Mapping[str, Any]) -> J:
        """Return the job with this record, which is new or was returned by `to_record`.

        Raises:
            TypeError: If the record is from a different version. KeyError means the same.
        """

    @abstractmethod
    def _admit(self, job: J, now: float, has_room: bool) -> None:
        """Check the quotas for a new job, and prepare the job. The lock is held.

        Raises:
            ResourceLimitExceeded: If a quota would be exceeded.
        """

    def _placed(self, job: J) -> tuple[J, str | None]:
        """Return the job with its selected instances, and why it gets no capacity (or None)."""
        return job, self._runner.capacity_problem(job)

    def _give_instances(self, job: J, now: float) -> None:
        """Assign instances to a new job that was saved. The lock is held."""

    def _release(self) -> None:
        """Release the resources that ended jobs keep. Called under the lock at start and stop."""

    def _retained_resource(self, job: J) -> str | None:
        """Return why an ended job cannot be deleted, such as "retains …", or None if it can."""
        return None

    def start(self) -> None:
        """Load the records, fail jobs that a killed server left unfinished, and start workers."""
        for job in self._store.load_all(self._readable):
            self._jobs[job_key(job.region, job.name)] = job
            if not job.is_over():
                self._fail_interrupted(job)
        self._release()
        for worker in self._workers:
            worker.start()
        self._clerk.start()

    def _readable(self, record: Mapping[str, Any]) -> J:
        """Return the job with this record.

        Raises:
            TypeError: If the record cannot be read or described. Other errors mean the same.
        """
        job = self._read(record)
        job.describe(self._clock())
        return job

    def create(self, region: str, request: dict[str, Any]) -> J:
        """Create a job from a valid request. A lack of capacity fails the job, not the request.

        Raises:
            ResourceInUse: If the name is taken.
            ResourceLimitExceeded: If a quota would be exceeded.
            NotSaved: If the job cannot be saved.
        """
        self._runner.check(request)
        now, is_virtual = self._clock(), self._runner.has_virtual_clock
        job = self._read(
            {
                "region": region,
                "request": request,
                "creation_time": now,
                "last_modified_time": now,
                "tags": request.get("Tags", []),
                "account_id": self._runner.account_id,
            }
        )
        job, problem = self._placed(job)
        with self._changed:
            self._refuse_while_closing()
            self._refuse_taken_name(job)
            self._admit(job, now, has_room=problem is None)
            faults = self._faults.job_faults(job.name, request.get("Environment", {}))
            self._save_new(job)
            self._give_instances(job, now)
            not_before = now if is_virtual else now + faults.pending_seconds
            self._accept(Waiting(job, not_before, faults, is_virtual), problem)
        return job

    def delete(self, region: str, name: str) -> None:
        """Delete a job that has ended and retains no resources.

        If the job has just ended, this waits until its worker has cleaned up, since a new job with
        the same name would use the same folders.

        Raises:
            ResourceInUse: If the job is in progress or retains a resource.
        """
        with self._changed:
            if self._find(region, name).is_over():
                self._changed.wait_for(
                    lambda: job_key(region, name) not in self._stops, _CLEAN_UP_SECONDS
                )
            job = self._find(region, name)
            state = self._retained_resource(job) if job.is_over() else f"is in status {job.status}"
            if state:
                raise ApiError(
                    "ResourceInUse",
                    f"{self.kind.capitalize()} job {job.arn} {state} and can't be deleted.",
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
        """Request that a job stops, unless it is already stopping.

        Raises:
            ValidationException: If the job has ended.
        """
        with self._changed:
            job = self._find(region, name)
            if job.is_over():
                raise validation_error(
                    f"The request was rejected because the {self.kind} job is in status"
                    f" {job.status}."
                )
            self._request_stop(job)

    def tags(self, region: str, arn: str) -> list[dict[str, str]]:
        with self._changed:
            return list(self._find_arn(region, arn).tags)

    def add_tags(self, region: str, arn: str, tags: list[dict[str, str]]) -> list[dict[str, str]]:
        """Add or replace tags and return all tags of the job.

        Raises:
            ResourceLimitExceeded: If the job would have more than 50 tags.
            ValidationException: If a key is reserved by AWS.
        """
        check_new_tags(tags)
        with self._changed:
            job = self._find_arn(region, arn)
            job.tags = merged_tags(job.tags, tags)
            self._save(job)
            return list(job.tags)

    def delete_tags(self, region: str, arn: str, keys: Sequence[str]) -> None:
        """Remove tags by key, ignoring missing keys."""
        with self._changed:
            job = self._find_arn(region, arn)
            job.tags = [tag for tag in job.tags if tag["Key"] not in keys]
            self._save(job)

    def in_progress(self) -> list[str]:
        with self._changed:
            return [job.name for job in self._jobs.values() if not job.is_over()]

    def request_stop_of_all(self) -> None:
        """Refuse new jobs, and request that all jobs in progress stop."""
        with self._changed:
            self._closing = True
            for job in self._jobs.values():
                if not job.is_over():
                    self._request_stop(job)
            self._changed.notify_all()

    def close(self, deadline_seconds: float = JOBS_STOP_DEADLINE_SECONDS) -> None:
        """Stop all jobs and wait until none is running.

        A job that still runs at the deadline is marked as failed when the platform starts again.
        """
        self.request_stop_of_all()
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
            self._release()
            self._store.save_rest()

    # -- the workers -------------------------------------------------------------------------------

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            job = waiting.job
            stop = self._stops[job_key(job.region, job.name)]
            try:
                self._runner.run(job, self._change_under_lock(job), waiting.faults, stop)
            except Exception as error:
                # Fail this job, but keep the worker for other jobs.
                logger.exception("Job %s: the platform failed", job.name)
                with self._changed:
                    job.end(Ending("Failed", internal_error(error)), self._clock())
            with self._changed:
                self._stops.pop(job_key(job.region, job.name), None)
                self._queue.room.release(job)
                self._changed.notify_all()

    def _next(self) -> Waiting[J] | None:
        """Wait for the next job that can start, and return it.

        Return None if the platform is closing and no job is queued.
        """
        with self._changed:
            while (waiting := self._queue.take_ready(self._clock())) is None:
                if self._closing and not self._queue:
                    return None
                self._changed.wait(self._pause_seconds(self._queue.next_ready()))
            return waiting

    def _end_overdue(self) -> None:
        """End queued jobs that have waited too long, even while other jobs run."""
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

    def _change_under_lock(self, job: J) -> Change[J]:
        def change(apply: Callable[[J], None]) -> None:
            with self._changed:
                apply(job)
                self._try_to_save(job)

        return change

    # -- under the lock ----------------------------------------------------------------------------

    def _refuse_while_closing(self) -> None:
        if self._closing:
            raise ApiError("ServiceUnavailable", "The local platform is stopping.", http_status=503)

    def _accept(self, waiting: Waiting[J], problem: str | None) -> None:
        job, now = waiting.job, waiting.job.creation_time
        self._jobs[job_key(job.region, job.name)] = job
        if problem is not None:
            job.end(Ending("Failed", f"CapacityError: {problem}"), now)
        else:
            self._enqueue(waiting, now)
        self._try_to_save(job)

    def _enqueue(self, waiting: Waiting[J], now: float) -> None:
        job = waiting.job
        has_room = self._queue.room.fits(job)
        is_delayed = not has_room or bool(self._queue) or waiting.not_before > now
        if is_delayed and not waiting.is_virtual:
            job.note_wait(now)
        self._stops[job_key(job.region, job.name)] = threading.Event()
        self._queue.append(waiting)
        self._changed.notify_all()

    def _request_stop(self, job: J) -> None:
        job.begin_stop(self._clock())
        if self._queue.remove(job):
            job.end(Ending("Stopped"), self._clock())
        else:
            self._stops[job_key(job.region, job.name)].set()
        self._try_to_save(job)

    def _find(self, region: str, name: str) -> J:
        job = self._jobs.get(job_key(region, name))
        if job is None:
            raise validation_error(self.not_found.format(name=name))
        return job

    def _find_arn(self, region: str, arn: str) -> J:
        name = arn.rpartition("/")[2]
        job = self._find(region, name)
        if job.arn.lower() != arn.lower():
            raise validation_error(self.not_found.format(name=name))
        return job

    def _refuse_taken_name(self, job: J) -> None:
        taken = self._jobs.get(job_key(job.region, job.name))
        if taken is not None:
            raise ApiError("ResourceInUse", self.name_taken.format(arn=taken.arn))

    def _instances_in_use(self, jobs: Sequence[J]) -> int:
        return sum(job.instance_count for job in jobs if not job.is_over())

    def _fail_interrupted(self, job: J) -> None:
        """Fail a job whose server died. Its billable time ends with its last recorded change."""
        job.end_segment(job.last_modified_time)
        reason = "InternalServerError: the local platform stopped while the job was in progress"
        job.end(Ending("Failed", reason), self._clock())
        self._try_to_save(job)
        try:
            self._runner.clean_up(job)
        except Exception:  # must not keep the platform from starting
            logger.exception("Job %s: the folders of its nodes could not be removed", job.name)

    def _save(self, job: J) -> None:
        """Save a job.

        Raises:
            NotSaved: If the job cannot be written. The API call fails, but its change remains in
                memory and is written by the next save.
        """
        self._store.save(*job_key(job.region, job.name), record=job.to_record())

    def _save_new(self, job: J) -> None:
        """Save a new job.

        Raises:
            NotSaved: If the job cannot be written, in which case it does not exist.
        """
        try:
            self._save(job)
        except NotSaved:
            self._store.remove(*job_key(job.region, job.name))
            raise

    def _try_to_save(self, job: J) -> None:
        """Save a job, or log an error if that fails."""
        self._store.try_to_save(*job_key(job.region, job.name), record=job.to_record())
