"""AWS Batch's service jobs: training jobs that wait in a job queue until there is capacity.

The queues move whenever one of these actions is called. A queue has one service environment, whose
instances its jobs in progress share; a training job that exceeds a quota waits on, as on AWS after
a lack of capacity. Fair shares are not modelled: a queue with a scheduling policy requires
a share identifier, and goes by priority.
"""

from __future__ import annotations

import fnmatch
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from sagemaker_emulator.api.protocol import ApiError, JsonService
from sagemaker_emulator.api.validation import RequestValidator
from sagemaker_emulator.state.files import RecordStore

JOB_TYPE = "SAGEMAKER_TRAINING"
_ENDED = ("SUCCEEDED", "FAILED")
_NAME_CHARACTERS = 23
"""Of the payload's TrainingJobName in the training job's, which ends in 32 hex digits."""
_PAGE_SIZE = 100
_STATUS = {"Completed": "SUCCEEDED", "Failed": "FAILED", "Stopped": "FAILED"}
_SECONDARY = {"Starting": "SCHEDULED", "Pending": "SCHEDULED", "Downloading": "STARTING"}
"""Batch's status of a job in progress, RUNNING otherwise: "Mapping AWS Batch service job status to
SageMaker AI status" in the user guide.
"""
_ECHOED = ("shareIdentifier", "schedulingPriority", "retryStrategy", "timeoutConfig", "tags")
_SUMMARY = ("shareIdentifier",)


def client_error(message: str) -> ApiError:
    return ApiError("ClientException", message)


@dataclass
class ServiceJob:
    """A service job; times are Unix milliseconds."""

    region: str
    number: int
    id: str
    queue: str
    request: dict[str, Any]
    created_at: int
    status: str = "RUNNABLE"
    reason: str = ""
    is_terminated: bool = False
    training_job: str | None = None
    times: dict[str, int] = field(default_factory=dict)

    @property
    def payload(self) -> dict[str, Any]:
        """The request for the training job."""
        return dict(json.loads(self.request["serviceRequestPayload"]))

    @property
    def order(self) -> tuple[int, int]:
        """The place in the queue: priorities only count within shares."""
        has_share = "shareIdentifier" in self.request
        return -self.request.get("schedulingPriority", 0) if has_share else 0, self.number

    def summary(self, account_id: str) -> dict[str, Any]:
        """Return the job's entry of ListServiceJobs."""
        arn = f"arn:aws:batch:{self.region}:{account_id}:service-job/{self.id}"
        found = {
            "jobArn": arn,
            "jobId": self.id,
            "jobName": self.request["jobName"],
            "serviceJobType": JOB_TYPE,
            "createdAt": self.created_at,
            "status": self.status,
            "isTerminated": self.is_terminated,
            **self.times,
            **{name: self.request[name] for name in _SUMMARY if name in self.request},
        }
        if self.reason:
            found["statusReason"] = self.reason
        if self.training_job:
            training = f"arn:aws:sagemaker:{self.region}:{account_id}:training-job"
            resource = {"name": "TrainingJobArn", "value": f"{training}/{self.training_job}"}
            found["latestAttempt"] = {"serviceResourceId": resource}
        return found

    def describe(self, account_id: str) -> dict[str, Any]:
        """Return DescribeServiceJob's response."""
        found = self.summary(account_id)
        attempt = found.get("latestAttempt")
        return {
            "startedAt": 0,  # required by the model
            **found,
            "jobQueue": self.queue,
            "serviceRequestPayload": self.request["serviceRequestPayload"],
            "attempts": [] if attempt is None else [attempt],
            **{name: self.request[name] for name in _ECHOED if name in self.request},
        }


class Batch:
    """Service environments, job queues of training jobs, and their jobs; actions take (region,
    request).
    """

    def __init__(
        self,
        store: RecordStore,
        account_id: str,
        sagemaker: JsonService,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set up the queues.

        Args:
            store: Stores their records.
            account_id: Account of their ARNs.
            sagemaker: The service that runs the training jobs.
            clock: Returns Unix seconds.
        """
        self._store, self._account_id = store, account_id
        self._sagemaker, self._clock = sagemaker, clock
        self._lock = threading.RLock()
        self._environments: dict[str, dict[str, Any]] = {}
        self._queues: dict[str, dict[str, Any]] = {}
        self._jobs: dict[str, ServiceJob] = {}

    def load(self) -> None:
        """Load the records of the last server."""
        for record in self._store.load_all(dict):
            if "payload_of" in record:
                job = ServiceJob(**record["payload_of"])
                self._jobs[job.id] = job
            elif "jobQueueArn" in record:
                self._queues[record["jobQueueArn"]] = record
            else:
                self._environments[record["serviceEnvironmentArn"]] = record

    def service(self) -> JsonService:
        return JsonService(
            target_prefix="batch",
            signing_name="batch",
            actions={
                "CreateServiceEnvironment": self.create_environment,
                "DescribeServiceEnvironments": self.describe_environments,
                "CreateJobQueue": self.create_queue,
                "UpdateJobQueue": self.update_queue,
                "DescribeJobQueues": self.describe_queues,
                "SubmitServiceJob": self.submit,
                "DescribeServiceJob": self.describe,
                "ListServiceJobs": self.list,
                "TerminateServiceJob": self.terminate,
            },
            refused=frozenset(),
            check=RequestValidator("batch").check,
            claims=self._claims,
        )

    def _claims(self, action: str, request: dict[str, Any]) -> bool:
        """Return False for queues of containers, which moto has."""
        if action == "CreateJobQueue":
            return "serviceEnvironmentOrder" in request
        named = request.get("jobQueues", [request.get("jobQueue")])
        return not action.endswith(("JobQueue", "JobQueues")) or any(
            name in (arn, queue["jobQueueName"])
            for name in named
            for arn, queue in self._queues.items()
        )

    # -- environments and queues -------------------------------------------------------------------

    def create_environment(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        name = request["serviceEnvironmentName"]
        arn = f"arn:aws:batch:{region}:{self._account_id}:service-environment/{name}"
        with self._lock:
            if arn in self._environments:
                raise client_error("Object already exists")
            names = {"serviceEnvironmentName": name, "serviceEnvironmentArn": arn}
            record = {"state": "ENABLED", **request, **names, "status": "VALID"}
            self._store.save(region, f"environment-{name}", record=record)
            self._environments[arn] = record
            return names

    def describe_environments(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            named = request.get("serviceEnvironments", ())
            return {"serviceEnvironments": _of_names(self._environments, region, named)}

    def create_queue(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        name = request["jobQueueName"]
        arn = f"arn:aws:batch:{region}:{self._account_id}:job-queue/{name}"
        with self._lock:
            if arn in self._queues:
                raise client_error("Object already exists")
            if len(request["serviceEnvironmentOrder"]) != 1:
                raise client_error("A job queue must have one service environment.")
            [used] = request["serviceEnvironmentOrder"]
            if not _of_names(self._environments, region, [used["serviceEnvironment"]]):
                raise client_error(f"{used['serviceEnvironment']} does not exist")
            names = {"jobQueueName": name, "jobQueueArn": arn}
            fixed = {"jobQueueType": JOB_TYPE, "computeEnvironmentOrder": [], "status": "VALID"}
            self._save_queue(region, {"state": "ENABLED", **request, **names, **fixed})
            return names

    def update_queue(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            queue = self._queue(region, request["jobQueue"])
            changes = {name: value for name, value in request.items() if name != "jobQueue"}
            self._save_queue(region, {**queue, **changes})
            return {name: queue[name] for name in ("jobQueueName", "jobQueueArn")}

    def describe_queues(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return {"jobQueues": _of_names(self._queues, region, request["jobQueues"])}

    def _save_queue(self, region: str, queue: dict[str, Any]) -> None:
        self._store.save(region, f"queue-{queue['jobQueueName']}", record=queue)
        self._queues[queue["jobQueueArn"]] = queue

    def _queue(self, region: str, name: str) -> dict[str, Any]:
        arn = f"arn:aws:batch:{region}:{self._account_id}:job-queue/{name.rpartition('/')[2]}"
        if arn not in self._queues:
            raise client_error(f"JobQueue {name} not found.")
        return self._queues[arn]

    # -- service jobs ------------------------------------------------------------------------------

    def submit(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Put a job into its queue.

        Raises:
            ClientException: If the queue takes no such job, or the token is that of another one.
        """
        with self._lock:
            queue = self._queue(region, request["jobQueue"])
            if queue["state"] != "ENABLED":
                raise client_error(f"JobQueue {queue['jobQueueName']} is not enabled.")
            if ("schedulingPolicyArn" in queue) != ("shareIdentifier" in request):
                raise client_error(
                    "shareIdentifier must be specified if, and only if, the job queue has a"
                    " fair-share scheduling policy."
                )
            token = request.get("clientToken")
            if token and any(token == job.request.get("clientToken") for job in self._of(region)):
                raise client_error(f"A request with clientToken {token} was received before.")
            job = ServiceJob(
                region=region,
                number=len(self._jobs),
                id=str(uuid.uuid4()),
                queue=queue["jobQueueArn"],
                request=request,
                created_at=int(self._clock() * 1000),
            )
            self._save(job)
            self._jobs[job.id] = job
            self._move(region)
            answer = job.summary(self._account_id)
            return {name: answer[name] for name in ("jobArn", "jobName", "jobId")}

    def describe(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._move(region)
            return self._job(region, request["jobId"]).describe(self._account_id)

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of a queue's jobs, newest first."""
        with self._lock:
            self._move(region)
            arn = self._queue(region, request.get("jobQueue", ""))["jobQueueArn"]
            found = [
                job.summary(self._account_id)
                for job in sorted(self._of(region), key=lambda job: job.number, reverse=True)
                if job.queue == arn and _matches(job, request)
            ]
            start = int(request.get("nextToken", "0"))
            end = start + request.get("maxResults", _PAGE_SIZE)
            more = {"nextToken": str(end)} if end < len(found) else {}
            return {"jobSummaryList": found[start:end], **more}

    def terminate(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._move(region)
            job = self._job(region, request["jobId"])
            if job.status in _ENDED:
                return {}
            job.is_terminated, job.reason = True, request["reason"]
            if job.training_job is None:
                self._end(job, "FAILED")
            else:
                self._stop(job)
            self._save(job)
            return {}

    def _of(self, region: str) -> Iterator[ServiceJob]:
        return (job for job in self._jobs.values() if job.region == region)

    def _job(self, region: str, identity: str) -> ServiceJob:
        job = self._jobs.get(identity.rpartition("/")[2])
        if job is None or job.region != region:
            raise client_error(f"Service job {identity} not found.")
        return job

    def _save(self, job: ServiceJob) -> None:
        self._store.save(job.region, job.id, record={"payload_of": asdict(job)})

    def _end(self, job: ServiceJob, status: str) -> None:
        job.status = status
        job.times["stoppedAt"] = int(self._clock() * 1000)

    def _stop(self, job: ServiceJob) -> None:
        with suppress(ApiError):  # it has just ended
            named = {"TrainingJobName": job.training_job}
            self._sagemaker.call("StopTrainingJob", job.region, named)

    def _move(self, region: str) -> None:
        """Note what became of the training jobs, then start those that have room."""
        for job in self._of(region):
            if job.training_job and job.status not in _ENDED:
                self._follow(job, job.training_job)
        blocked = set()
        for job in sorted(self._of(region), key=lambda job: job.order):
            if job.status == "RUNNABLE" and job.queue not in blocked and not self._started(job):
                blocked.add(job.queue)

    def _follow(self, job: ServiceJob, name: str) -> None:
        named = {"TrainingJobName": name}
        try:
            found = self._sagemaker.call("DescribeTrainingJob", job.region, named)
        except ApiError:
            found = {"TrainingJobStatus": "Failed", "FailureReason": f"{name} was deleted"}
        before, ended = job.status, _STATUS.get(found["TrainingJobStatus"])
        job.status = ended or _SECONDARY.get(found["SecondaryStatus"], "RUNNING")
        seconds = job.request.get("timeoutConfig", {}).get("attemptDurationSeconds")
        if seconds and not ended and self._clock() > job.times["scheduledAt"] / 1000 + seconds:
            job.reason = "Job attempt duration exceeded timeout"
            self._stop(job)
        if job.status == before:
            return
        if job.status not in ("SCHEDULED", "STARTING"):
            job.times.setdefault("startedAt", int(self._clock() * 1000))
        if ended:
            self._end(job, ended)
            job.reason = job.reason or "Received status from SageMaker: " + (
                found.get("FailureReason") or f"Training job {found['TrainingJobStatus'].lower()}"
            )
        self._save(job)

    def _started(self, job: ServiceJob) -> bool:
        """Start the training job; return False if it has to wait."""
        payload = job.payload
        queue = self._queues[job.queue]
        used_environment = queue["serviceEnvironmentOrder"][0]["serviceEnvironment"]
        [environment] = _of_names(self._environments, job.region, [used_environment])
        used = sum(
            _instances(other.payload)
            for other in self._of(job.region)
            if other.queue == job.queue and other.training_job and other.status not in _ENDED
        )
        most = environment["capacityLimits"][0]["maxCapacity"]
        if environment["state"] != "ENABLED" or used + _instances(payload) > most:
            return False
        name = f"AWSBatch{payload['TrainingJobName'][:_NAME_CHARACTERS]}{uuid.uuid4().hex}"
        try:
            self._sagemaker.call(
                "CreateTrainingJob", job.region, {**payload, "TrainingJobName": name}
            )
        except ApiError as error:
            if error.code == "ResourceLimitExceeded":
                return False
            job.reason = f"{error.code}: {error.message}"
            self._end(job, "FAILED")
        else:
            job.training_job, job.status = name, "SCHEDULED"
            job.times["scheduledAt"] = int(self._clock() * 1000)
        self._save(job)
        return True


def _instances(payload: Mapping[str, Any]) -> int:
    return int(payload.get("ResourceConfig", {}).get("InstanceCount", 1))


def _of_names(
    found: Mapping[str, dict[str, Any]], region: str, named: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the queues or environments of these names or ARNs; all of them without any."""
    wanted = [name.rpartition("/")[2] for name in named]
    return [
        one
        for arn, one in found.items()
        if arn.split(":")[3] == region and (not wanted or arn.rpartition("/")[2] in wanted)
    ]


def _matches(job: ServiceJob, request: Mapping[str, Any]) -> bool:
    """Return True if a job matches the filter; without one, if it has the status or is RUNNING."""
    status = request.get("jobStatus")
    if not request.get("filters"):
        return job.status == (status or "RUNNING")
    [one] = request["filters"]
    name, values = one["name"], one["values"]
    if name == "JOB_NAME":
        wanted = [value.lower() for value in values]
        return any(fnmatch.fnmatchcase(job.request["jobName"].lower(), each) for each in wanted)
    if name == "SHARE_IDENTIFIER":
        return job.request.get("shareIdentifier") in values and status in (None, job.status)
    if name == "AFTER_CREATED_AT":
        return job.created_at > int(values[0])
    if name == "BEFORE_CREATED_AT":
        return job.created_at < int(values[0])
    raise client_error(f"{name} is not a filter of service jobs.")
