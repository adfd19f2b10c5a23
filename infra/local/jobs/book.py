"""Keeps the jobs of one kind and runs them in the order they came, as many at once as have room."""

from __future__ import annotations

import copy
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol

from nodesweep.infra.local.api.protocol import ApiError, validation_error
from nodesweep.infra.local.faults.injector import FaultInjector, JobFaults
from nodesweep.infra.local.faults.plan import FaultPlan
from nodesweep.infra.local.interfaces import Room
from nodesweep.infra.local.jobs.endings import Ending, internal_error
from nodesweep.infra.local.jobs.job import Change, J, J_contra, job_key
from nodesweep.infra.local.jobs.queue import JobQueue, OneJob, Waiting
from nodesweep.infra.local.sagemaker.tags import check_new_tags, merged_tags
from nodesweep.infra.local.server.contract import JOBS_STOP_DEADLINE_SECONDS
from nodesweep.infra.local.state.files import RecordStore
from nodesweep.infra.local.state.kept import NotKept

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 1.0
_CLEAN_UP_SECONDS = 30.0

logger = logging.getLogger(__name__.removeprefix("nodesweep."))


class Runner(Protocol[J_contra]):
    """Runs jobs of one kind."""

    def run(
        self, job: J_contra, change: Change[J_contra], faults: JobFaults, stop: threading.Event
    ) -> None:
        """Bring the job to its end in the calling thread."""

    def clean_up(self, job: J_contra) -> None:
        """Remove what a job left that a killed server ran."""


class JobBook(ABC, Generic[J]):
    """The jobs and the threads that run them. Every public method may be called from any thread."""

    kind: ClassVar[str]
    """What kind of job it holds, as in "training job"."""
    not_found: ClassVar[str]
    """What is said of a {name} that no job has."""
    name_taken: ClassVar[str]
    """What is said of a name that the job {arn} has."""

    def __init__(
        self,
        runner: Runner[J],
        store: RecordStore,
        quotas: Mapping[str, int],
        faults: FaultInjector | None = None,
        clock: Callable[[], float] = time.time,
        room: Room | None = None,
    ) -> None:
        """`room` is what the jobs of every kind share; None: one job of this kind at a time."""
        self._runner = runner
        self._store = store
        self._quotas = dict(quotas)
        self._faults = faults or FaultInjector(FaultPlan())
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[tuple[str, str], J] = {}
        self._queue: JobQueue[J] = JobQueue(room or OneJob())
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
        """The job of a record that `to_record` gave. Raises TypeError and KeyError
        for one of another version.
        """

    def _release(self) -> None:
        """Give back what ended jobs keep; under the lock, at the start and at the end."""

    def _keeps(self, job: J) -> str | None:
        """What an ended job keeps, so that it can't be deleted, or None."""
        return None

    def start(self) -> None:
        """Load the records, fail what a killed server left in progress, and begin to take jobs."""
        for job in self._store.load_all(self._readable):
            self._jobs[job_key(job.region, job.name)] = job
            if not job.is_over():
                self._fail_interrupted(job)
        self._release()
        for worker in self._workers:
            worker.start()
        self._clerk.start()

    def _readable(self, record: Mapping[str, Any]) -> J:
        """The job of a record. Raises TypeError and the like for one that can't be described."""
        job = self._read(record)
        job.describe(self._clock())
        return job

    def delete(self, region: str, name: str) -> None:
        """Forget a job that is over and keeps nothing. Raises ResourceInUse otherwise.

        A job that has ended a moment ago is forgotten once its worker has cleaned up after it: a
        new job of the same name has the same folders.
        """
        with self._changed:
            if self._find(region, name).is_over():
                self._changed.wait_for(
                    lambda: job_key(region, name) not in self._stops, _CLEAN_UP_SECONDS
                )
            job = self._find(region, name)
            state = self._keeps(job) if job.is_over() else f"is in status {job.status}"
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
        """Ask a job to stop; a job that already stops is left to it."""
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
        """Set tags by key and return all of them. Raises ResourceLimitExceeded above 50, and
        ValidationException for keys that AWS keeps to itself.
        """
        check_new_tags(tags)
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
        """Every job as its Describe… action has it, with its Tags."""
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

    def ask_all_to_stop(self) -> None:
        """Take no further job, and stop those that are in progress."""
        with self._changed:
            self._closing = True
            for job in self._jobs.values():
                if not job.is_over():
                    self._request_stop(job)
            self._changed.notify_all()

    def close(self, deadline_seconds: float = JOBS_STOP_DEADLINE_SECONDS) -> None:
        """Stop every job and wait until none runs;
        what outlives the deadline is failed at the next start.
        """
        self.ask_all_to_stop()
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
                self._runner.run(job, self._changer(job), waiting.faults, stop)
            except Exception as error:
                # its record can't be written: the next job may still be able to run
                logger.exception("Job %s: lost", job.name)
                with self._changed:
                    job.end(Ending("Failed", internal_error(error)), self._clock())
            with self._changed:
                self._stops.pop(job_key(job.region, job.name), None)
                self._queue.room.give_back(job.run_name)
                self._changed.notify_all()

    def _next(self) -> Waiting[J] | None:
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

    def _changer(self, job: J) -> Change[J]:
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
        """Let a job wait for its turn; one that there is no room for at all fails at once."""
        job, now = waiting.job, waiting.job.creation_time
        self._jobs[job_key(job.region, job.name)] = job
        if problem is not None:
            job.end(Ending("Failed", f"CapacityError: {problem}"), now)
        else:
            self._enqueue(waiting, now)
        self._try_to_save(job)

    def _enqueue(self, waiting: Waiting[J], now: float) -> None:
        job = waiting.job
        has_room = self._queue.room.fits(job.instance_type, job.instance_count)
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
        """Of those that are in progress."""
        return sum(job.instance_count for job in jobs if not job.is_over())

    def _fail_interrupted(self, job: J) -> None:
        """Times of a job whose server died are not known better than
        by its last recorded change.
        """
        job.end_segment(job.last_modified_time)
        reason = "InternalServerError: the local platform stopped while the job was in progress"
        job.end(Ending("Failed", reason), self._clock())
        self._try_to_save(job)
        try:
            self._runner.clean_up(job)
        except Exception:  # what is left of one job must not keep the platform from starting
            logger.exception("Job %s: its nodes' folders could not be removed", job.name)

    def _save(self, job: J) -> None:
        """Raises NotKept: the call that has changed the job fails.
        The change holds, and the next one writes it.
        """
        self._store.save(*job_key(job.region, job.name), record=job.to_record())

    def _save_new(self, job: J) -> None:
        """Raises NotKept, and then there is no such job."""
        try:
            self._save(job)
        except NotKept:
            self._store.remove(*job_key(job.region, job.name))
            raise

    def _try_to_save(self, job: J) -> None:
        """Of a job that changes by itself, and goes on where its record can't be written now."""
        self._store.try_to_save(*job_key(job.region, job.name), record=job.to_record())
