"""Run training jobs through an AWS Batch queue, as service jobs.

Batch names the training job: AWSBatch, the payload's TrainingJobName and 32 hex digits (AWS Batch
user guide, "Service job state change events"). Of 63 characters, this leaves 23, so the payload's
name is a digest of the job's name. The training job can be found by it even after Batch has deleted
the service job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.configs.platform import BatchConfig
from nodesweep.errors import JobRefused, error_code
from nodesweep.launch.protocol import HeldJob, JobLog, Launcher
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.calls import poll_until_known
from nodesweep.launch.sagemaker.cloudwatch import CloudWatchLog
from nodesweep.launch.sagemaker.kind import TRAINING, JobKind
from nodesweep.launch.sagemaker.launcher import SageMakerJobs, submit
from nodesweep.launch.sagemaker.listing import held_jobs
from nodesweep.launch.sagemaker.request import without_none
from nodesweep.launch.sagemaker.status import read_training_job
from nodesweep.polling import Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import OVER_TIME, JobSpec, JobState, JobStatus
from nodesweep.scaling.secrets import hide_in_text, remember_secrets, secrets_of_job

JOB_TYPE = "SAGEMAKER_TRAINING"
PREFIX = "AWSBatch"
NAME_CHARACTERS = 63 - len(PREFIX) - 32
QUEUED = "Queued in AWS Batch"
_WAITING = ("SUBMITTED", "PENDING", "RUNNABLE")
_ENDED = ("SUCCEEDED", "FAILED")
_RECEIVED = "Received status from SageMaker"
"""Start of the reason of a job that ended by itself; its description gives the full reason."""
_FINAL = (
    "not found",
    "not exist",
    "not enabled",
    "disabled",
    "not authorized",
    "must be specified",
)
"""Parts of the messages of final refusals, for which waiting does not help.

AWS documents neither the code nor the message with which it refuses a repeated request.
"""
_SERVICE_JOB, _OWN_NAME = "ServiceJob", "OwnName"
"""Members added to a description: Batch's summary, and the job's name in SageMaker."""
ServiceJob = Mapping[str, Any]
"""An entry of ListServiceJobs."""


def training_launcher(backend: Backend, quick: bool) -> Launcher:
    """Return the launcher of the platform's training jobs, which uses its Batch queue, if any."""
    sagemaker = backend.client("sagemaker", quick)
    if backend.platform.batch is None:
        return SageMakerJobs(sagemaker, backend)
    return BatchJobs(sagemaker, backend, queued_training(backend, quick))


def payload_name(job_name: str) -> str:
    """Return the payload's TrainingJobName: a digest cut to the length that Batch allows."""
    return names.canonical_digest(job_name)[:NAME_CHARACTERS]


def queued_training(backend: Backend, quick: bool = False) -> QueuedTraining:
    """Return the kind of the jobs of a platform's queue."""
    batch, queue = backend.client("batch", quick), backend.platform.batch
    assert queue is not None
    return QueuedTraining(TRAINING.member, TRAINING.method, _read, TRAINING.logger, batch, queue)


@dataclass(frozen=True)
class QueuedTraining(JobKind):
    """Training jobs of one Batch queue; each is a service job of the same name.

    Attributes:
        batch: the Batch client.
        queue: the config's section.
    """

    batch: Any
    queue: BatchConfig

    def send(self, sagemaker: Any, request: Mapping[str, Any], clock: Clock) -> None:
        """Submit the job; client errors propagate, except for refusals.

        With one attempt, Batch never starts a second job by itself, except after SageMaker lacked
        capacity and nothing was billed. The token makes a repeated call fail, possibly before the
        job of the first call is listed, so the list is polled unless a refusal is final.

        Raises:
            JobRefused: Batch does not accept the job.
            ResourceInUse: A job of this name exists. If two were accepted, the newer one is
                terminated, so that every process follows the older one.
        """
        name, queue = request[f"{self.member}Name"], self.queue
        token = payload_name(name)
        seconds = queue.attempt_timeout_seconds
        try:
            sent = self.batch.submit_service_job(
                jobName=name,
                jobQueue=queue.queue,
                serviceJobType=JOB_TYPE,
                serviceRequestPayload=json.dumps({**request, f"{self.member}Name": token}),
                retryStrategy={"attempts": 1},
                clientToken=token,
                **without_none(
                    shareIdentifier=queue.share_identifier,
                    schedulingPriority=queue.scheduling_priority,
                    timeoutConfig=seconds and {"attemptDurationSeconds": seconds},
                ),
            )
        except ClientError as error:
            if error_code(error) != "ClientException":
                raise
            if _is_final(error):
                found = self.find(name).get(name)
            else:
                found = poll_until_known(lambda: self.find(name).get(name), clock)
            if found is not None:
                raise sagemaker.exceptions.ResourceInUse(
                    error.response, error.operation_name
                ) from error
            raise JobRefused(
                f"AWS Batch refused {name} in platform.batch.queue {queue.queue}:"
                f" {hide_in_text(str(error))}"
            ) from error
        oldest = [sent, *self._of_name(name)][-1]
        if oldest["jobId"] != sent["jobId"]:
            self._terminate(sent, "another job of this name is older")
            raise sagemaker.exceptions.ResourceInUse({"Error": {}}, "SubmitServiceJob")

    def find(self, *job_names: str) -> dict[str, ServiceJob]:
        """Return those service jobs with these names that exist, by name, using a single query."""
        pattern = job_names[0]
        if len(job_names) > 1:
            pattern = f"{os.path.commonprefix(job_names)}*"  # noqa: RUF071 (no paths)
        found = self.query_names(pattern)
        return {name: job for name, job in found.items() if name in job_names}

    def query_names(self, pattern: str) -> dict[str, ServiceJob]:
        """Return the queue's service jobs whose names match, by name, oldest first.

        If several jobs have the same name, the oldest that has not ended is returned, or the oldest
        if all have ended.
        """
        found: dict[str, ServiceJob] = {}
        for job in reversed([*self.query("JOB_NAME", pattern)]):
            known = found.setdefault(job["jobName"], job)
            if known["status"] in _ENDED and job["status"] not in _ENDED:
                found[job["jobName"]] = job
        return found

    def _of_name(self, job_name: str) -> list[ServiceJob]:
        """Return the service jobs of this name, newest first; Batch's filter ignores case."""
        return [job for job in self.query("JOB_NAME", job_name) if job["jobName"] == job_name]

    def query(self, name: str, value: str) -> Iterator[ServiceJob]:
        """Yield the queue's service jobs that match a filter, in any status, newest first."""
        for page in self._pages(name, value):
            yield from page["jobSummaryList"]

    def held(self) -> Iterator[HeldJob]:
        """Yield the queue's jobs that have not ended, oldest first."""
        found: list[HeldJob] = []
        for page in self._pages("AFTER_CREATED_AT", "0"):
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            found += [
                HeldJob(
                    job["jobName"],
                    (now - _moment(job, "createdAt")).total_seconds(),
                    True,
                    partial(self._tagged_sweep, job),
                )
                for job in page["jobSummaryList"]
                if job["status"] not in _ENDED
            ]
        yield from reversed(found)

    def _pages(self, name: str, value: str) -> Iterable[Mapping[str, Any]]:
        pages: Iterable[Mapping[str, Any]] = self.batch.get_paginator("list_service_jobs").paginate(
            jobQueue=self.queue.queue, filters=[{"name": name, "values": [value]}]
        )
        return pages

    def own_name(self, sagemaker: Any, job_name: str) -> str | None:
        """Return the job's name in SageMaker, or None while it waits or if it is unknown."""
        found = self.find(job_name).get(job_name)
        return _forgotten(sagemaker, job_name) if found is None else _attempt(found)

    def describe(self, sagemaker: Any, job_name: str) -> dict[str, Any] | None:
        """Return the job's description; see JobKind."""
        return self.describe_found(sagemaker, job_name, self.find(job_name).get(job_name))

    def describe_found(
        self, sagemaker: Any, job_name: str, service_job: ServiceJob | None
    ) -> dict[str, Any] | None:
        """Return the description of the training job, or of the payload of a waiting job.

        Its TrainingJobName is the job's name, as for jobs that are not queued.
        """
        name = _forgotten(sagemaker, job_name) if service_job is None else _attempt(service_job)
        found = None if name is None else TRAINING.describe(sagemaker, name)
        if found is None and service_job is not None:
            found = self._describe_payload(service_job)
        if found is None:
            return None
        own = {_SERVICE_JOB: service_job or {}, _OWN_NAME: found["TrainingJobName"]}
        return {**found, **own, **_from_batch(found, service_job), "TrainingJobName": job_name}

    def _describe_payload(self, service_job: ServiceJob) -> dict[str, Any]:
        """Return the description of a job that has not been sent to SageMaker."""
        payload = self._payload(service_job)
        remember_secrets(secrets_of_job(payload["HyperParameters"], payload.get("Environment", {})))
        is_terminated, reason = service_job.get("isTerminated"), service_job.get("statusReason")
        state = "Stopping" if is_terminated else "InProgress"
        changes: list[dict[str, Any]] = []
        if has_ended := service_job["status"] == "FAILED":
            state = "Stopped" if is_terminated else "Failed"
            if "stoppedAt" in service_job:
                changes = [{"Status": state, "StartTime": _moment(service_job, "stoppedAt")}]
        return {
            **payload,
            "TrainingJobArn": service_job["jobArn"],
            "TrainingJobStatus": state,
            "SecondaryStatus": QUEUED,
            "SecondaryStatusTransitions": changes,
            "CreationTime": _moment(service_job, "createdAt"),
            **without_none(FailureReason=reason if has_ended else None),
        }

    def _payload(self, service_job: ServiceJob) -> dict[str, Any]:
        found = self.batch.describe_service_job(jobId=service_job["jobId"])
        return dict(json.loads(found["serviceRequestPayload"]))

    def _tagged_sweep(self, service_job: ServiceJob) -> str | None:
        return _tags(self._payload(service_job)).get(names.TAG_SWEEP_ID)

    def digest(self, sagemaker: Any, description: Mapping[str, Any]) -> str | None:
        """Return the digest of the request that created the job; see JobKind."""
        if "Tags" in description:
            return _tags(description).get(names.TAG_REQUEST_DIGEST)
        return super().digest(sagemaker, description)

    def stop(self, sagemaker: Any, job_name: str) -> bool:
        """Remove the job from the queue, or have Batch stop it; see JobKind."""
        same_name = self._of_name(job_name)
        if not same_name:
            name = _forgotten(sagemaker, job_name)
            return name is not None and TRAINING.stop(sagemaker, name)
        running = [job for job in same_name if job["status"] not in _ENDED]
        for job in running:
            self._terminate(job, "stopped by nodesweep")
        return bool(running)

    def _terminate(self, service_job: ServiceJob, reason: str) -> None:
        self.batch.terminate_service_job(jobId=service_job["jobId"], reason=reason)


def _is_final(error: ClientError) -> bool:
    """Return True if the error rules out that Batch accepted the request before."""
    return any(words in str(error).lower() for words in _FINAL)


def _attempt(service_job: ServiceJob) -> str | None:
    """Return the name of a service job's training job, or None while it waits for one.

    A job that waits again has an attempt for which SageMaker lacked capacity.
    """
    attempt = service_job.get("latestAttempt", {}).get("serviceResourceId", {}).get("value")
    if attempt is None or service_job["status"] in _WAITING:
        return None
    return str(attempt).rpartition("/")[2]


def _from_batch(description: Mapping[str, Any], service_job: ServiceJob | None) -> dict[str, Any]:
    """Return the members of a training job's description that are replaced by Batch's values.

    These are the creation time until instances start, since all tries for capacity count together,
    and the reason why Batch stopped the job, if it did.
    """
    if service_job is None:
        return {}
    found: dict[str, Any] = {}
    if "TrainingStartTime" not in description:
        found["CreationTime"] = _moment(service_job, "createdAt")
    reason = service_job.get("statusReason", _RECEIVED)
    is_over_time = description.get("SecondaryStatus") == OVER_TIME
    if description["TrainingJobStatus"] == "Stopped" and not is_over_time:
        found |= without_none(FailureReason=None if reason.startswith(_RECEIVED) else reason)
    return found


def _forgotten(sagemaker: Any, job_name: str) -> str | None:
    """Return the name in SageMaker of a job that Batch may have deleted, or None.

    Batch keeps ended jobs for at least 7 days (AWS Batch user guide, "Job states").
    """
    listed = sagemaker.list_training_jobs(
        NameContains=PREFIX + payload_name(job_name), SortBy="CreationTime", SortOrder="Descending"
    )["TrainingJobSummaries"]
    return str(listed[0]["TrainingJobName"]) if listed else None


def _read(description: Mapping[str, Any]) -> JobStatus:
    """Read a description from QueuedTraining.

    A training job that failed or stopped may have lacked capacity, so it has ended only if Batch
    reports that the service job has ended.
    """
    found = read_training_job({**description, "TrainingJobName": description[_OWN_NAME]})
    found = replace(found, name=description["TrainingJobName"])
    service_job = description[_SERVICE_JOB]
    if found.state in ("failed", "stopped") and service_job.get("status", "FAILED") not in _ENDED:
        return replace(found, state=_state(service_job), reason=None, ended_at=None)
    return found


def _tags(request: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in request.get("Tags", ())}


def _moment(service_job: ServiceJob, member: str) -> datetime:
    """Return a time of a service job, which Batch reports in Unix milliseconds."""
    return datetime.fromtimestamp(service_job[member] / 1000, UTC)


@dataclass(frozen=True)
class BatchJobs(SageMakerJobs):
    """Training jobs of a Batch queue; a nodesweep.launch.protocol.Launcher."""

    @property
    def queued(self) -> QueuedTraining:
        """The kind of the jobs."""
        assert isinstance(self.kind, QueuedTraining)
        return self.kind

    def submit(self, spec: JobSpec) -> JobStatus:
        """Submit the job to the queue, or adopt the existing one; see SageMakerJobs."""
        queued = self.queued
        send = partial(queued.send, clock=self.clock)
        return submit(self.sagemaker, self.render(spec), self.clock, queued, send)

    def describe(
        self, job_names: Iterable[str], take: Callable[[], None] = lambda: None
    ) -> dict[str, JobStatus]:
        """Return the status of each given job that exists in Batch or SageMaker, by name."""
        found: dict[str, JobStatus] = {}
        if not (wanted := list(job_names)):
            return found
        take()
        service_jobs = self.queued.find(*wanted)
        for name in wanted:
            take()
            job = self.queued.describe_found(self.sagemaker, name, service_jobs.get(name))
            if job is not None:
                found[name] = self.kind.read(job)
        return found

    def logs(self, job_name: str, since: datetime) -> JobLog:
        """Return a reader of the job's lines from `since` on."""
        assert self.backend is not None
        find = partial(self.queued.own_name, self.sagemaker, job_name)
        return _LaterLog(self.backend.client("logs"), job_name, since, find)

    def release(self, job_name: str) -> None:
        """Do nothing, because queued jobs keep no nodes (PlatformConfig.problems)."""

    def jobs_of(self, sweep: str) -> Sequence[JobStatus]:
        """Return the sweep's jobs in Batch, oldest first, without duplicate names."""
        return [
            JobStatus(name, _state(job), created_at=_moment(job, "createdAt"), retention="over")
            for name, job in self.queued.query_names(f"{names.job_prefix(sweep)}*").items()
            if names.sweep_of_job(name) == sweep
        ]

    def held(self) -> Iterator[HeldJob]:
        """Yield the queue's jobs, then the account's other jobs that run or keep a warm pool."""
        yield from self.queued.held()
        for job in held_jobs(self.sagemaker, TRAINING):
            if not job.name.startswith(PREFIX):
                yield job


def _state(service_job: ServiceJob) -> JobState:
    if service_job["status"] == "SUCCEEDED":
        return "completed"
    if service_job["status"] != "FAILED":
        return "stopping" if service_job.get("isTerminated") else "running"
    return "stopped" if service_job.get("isTerminated") else "failed"


@dataclass
class _LaterLog:
    """The log of a job whose log streams may not have a name yet; a JobLog."""

    logs: Any
    job_name: str
    since: datetime
    find_name: Callable[[], str | None]
    name: str | None = None
    found: CloudWatchLog | None = None
    has_lines: bool = False

    @property
    def location(self) -> str:
        """A description of where the full log is."""
        return f"CloudWatch Logs ({self.job_name} in AWS Batch)"

    @property
    def has_more(self) -> bool:
        """True if a further page of existing lines is ready to be read."""
        return self.found is not None and self.found.has_more

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Yield the new lines of the next page, or nothing while the job waits.

        A try that lacks capacity writes no lines, and the next try has a different name.
        """
        if not self.has_lines and (name := self.find_name()) != self.name:
            self.name = name
            self.found = None if name is None else CloudWatchLog(self.logs, name, self.since)
        if self.found is not None:
            for line in self.found.new_lines():
                self.has_lines = True
                yield line
