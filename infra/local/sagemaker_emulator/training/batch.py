"""AWS Batch service jobs: training jobs that wait in a job queue until there is capacity.

Jobs start in order of submission, whenever an operation on service jobs is called. A queue has one
service environment, whose capacity limits the total instances of the jobs in progress. As on AWS
when capacity is lacking, a job whose training job would exceed a quota continues to wait. Shares,
priorities, timeouts and retries are recorded but have no effect.
"""

from __future__ import annotations

import fnmatch
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from sagemaker_emulator.api.protocol import ApiError, JsonService, decode_request
from sagemaker_emulator.api.validation import RequestValidator
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.state.unsaved import NotSaved

JOB_TYPE = "SAGEMAKER_TRAINING"
_ENDED = ("SUCCEEDED", "FAILED")
_NAME_CHARACTERS = 23
"""Length of the prefix of TrainingJobName that training jobs keep in their names."""
_PAGE_SIZE = 100
_STATUS = {"Completed": "SUCCEEDED", "Failed": "FAILED", "Stopped": "FAILED"}
_SECONDARY = {"Starting": "SCHEDULED", "Pending": "SCHEDULED", "Downloading": "STARTING"}
"""Status in AWS Batch by the training job's secondary status. All others map to RUNNING.

Source: "Mapping AWS Batch service job status to SageMaker AI status" in the user guide.
"""
_ECHOED = ("shareIdentifier", "schedulingPriority", "retryStrategy", "timeoutConfig", "tags")

logger = logging.getLogger(__name__)


def client_error(message: str) -> ApiError:
    return ApiError("ClientException", message)


@dataclass
class ServiceJob:
    """A service job, with times in Unix milliseconds."""

    region: str
    id: str
    queue: str
    request: dict[str, Any]
    times: dict[str, int]
    status: str = "RUNNABLE"
    reason: str = ""
    is_terminated: bool = False
    training_job: str | None = None

    @property
    def payload(self) -> dict[str, Any]:
        """The CreateTrainingJob request."""
        return decode_request(self.request["serviceRequestPayload"])

    @property
    def instances(self) -> int:
        """The number of instances of the training job."""
        return int(self.payload.get("ResourceConfig", {}).get("InstanceCount", 1))

    def describe(self, account_id: str) -> dict[str, Any]:
        """Return the response of DescribeServiceJob; ListServiceJobs omits some of its members."""
        found = {
            "startedAt": 0,  # required by the model
            "jobArn": f"arn:aws:batch:{self.region}:{account_id}:service-job/{self.id}",
            "jobId": self.id,
            "jobName": self.request["jobName"],
            "jobQueue": self.queue,
            "serviceJobType": JOB_TYPE,
            "serviceRequestPayload": self.request["serviceRequestPayload"],
            "status": self.status,
            "isTerminated": self.is_terminated,
            "attempts": [],
            **self.times,
            **{name: self.request[name] for name in _ECHOED if name in self.request},
        }
        if self.reason:
            found["statusReason"] = self.reason
        if self.training_job:
            training = f"arn:aws:sagemaker:{self.region}:{account_id}:training-job"
            resource = {"name": "TrainingJobArn", "value": f"{training}/{self.training_job}"}
            found["latestAttempt"] = {"serviceResourceId": resource}
            found["attempts"] = [found["latestAttempt"]]
        return found


class Batch:
    """Service environments, job queues and service jobs. Actions take a region and a request."""

    def __init__(
        self,
        store: RecordStore,
        account_id: str,
        sagemaker: JsonService,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty set of environments, queues and jobs; see `load`.

        Args:
            store: Stores the records of environments, queues and jobs.
            account_id: The account in ARNs.
            sagemaker: The service that runs the training jobs.
            clock: Returns Unix seconds.
        """
        self._store, self._account_id = store, account_id
        self._sagemaker, self._clock = sagemaker, clock
        self._lock = threading.RLock()
        self._resources: dict[str, dict[str, Any]] = {}
        """Job queues and service environments by ARN."""
        self._jobs: dict[str, ServiceJob] = {}

    def load(self) -> None:
        """Load the records that an earlier server saved."""
        jobs = []
        for found in self._store.load_all(self._readable):
            if isinstance(found, ServiceJob):
                jobs.append(found)
            else:
                self._resources[_arn_of(found)] = found
        self._jobs = {job.id: job for job in sorted(jobs, key=_creation_time)}

    def _readable(self, record: Mapping[str, Any]) -> ServiceJob | dict[str, Any]:
        """Return the service job, job queue or service environment with this record.

        Raises:
            TypeError: If the record cannot be used. Other exceptions mean the same.
        """
        if "arn" not in record:
            job = ServiceJob(**record)
            job.describe(self._account_id)
            _creation_time(job)
            return job
        resource = dict(record["resource"])
        if ":job-queue/" in _arn_of(resource):
            _environment_of(resource)
        else:
            _most_instances(resource)
        return resource

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
        """Return False for requests about queues of container jobs, which moto handles."""
        if action == "CreateJobQueue":
            return "serviceEnvironmentOrder" in request
        named = request.get("jobQueues", [str(request.get("jobQueue"))])
        own = {arn.rpartition("/")[2] for arn in self._resources}
        return not action.endswith(("JobQueue", "JobQueues")) or any(
            name.rpartition("/")[2] in own for name in named
        )

    # -- environments and queues -------------------------------------------------------------------

    def create_environment(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        limits = request["capacityLimits"]
        if len(limits) != 1 or "maxCapacity" not in limits[0]:
            raise client_error("capacityLimits must have one limit, which has a maxCapacity.")
        return self._create(region, "service-environment", "serviceEnvironment", request)

    def create_queue(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        self._check_order(region, request["serviceEnvironmentOrder"])
        fixed = {"jobQueueType": JOB_TYPE, "computeEnvironmentOrder": []}
        return self._create(region, "job-queue", "jobQueue", {**request, **fixed})

    def update_queue(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            queue = self._find(region, "job-queue", request["jobQueue"])
            changes = {name: value for name, value in request.items() if name != "jobQueue"}
            if "serviceEnvironmentOrder" in changes:
                self._check_order(region, changes["serviceEnvironmentOrder"])
            self._save_resource(queue["jobQueueArn"], {**queue, **changes})
            return {name: queue[name] for name in ("jobQueueName", "jobQueueArn")}

    def _check_order(self, region: str, order: Sequence[Mapping[str, Any]]) -> None:
        if len(order) != 1:
            raise client_error("A job queue must have one service environment.")
        self._find(region, "service-environment", order[0]["serviceEnvironment"])

    def describe_environments(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        named = request.get("serviceEnvironments", ())
        return {"serviceEnvironments": self._described(region, "service-environment", named)}

    def describe_queues(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"jobQueues": self._described(region, "job-queue", request["jobQueues"])}

    def _described(self, region: str, kind: str, named: Sequence[str]) -> list[dict[str, Any]]:
        """Return the resources with these names or ARNs, or all resources if none are named."""
        wanted = [name.rpartition("/")[2] for name in named]
        start = self._arn(region, kind, "")
        return [
            one
            for arn, one in self._resources.items()
            if arn.startswith(start) and (not wanted or arn.removeprefix(start) in wanted)
        ]

    def _find(self, region: str, kind: str, name: str) -> dict[str, Any]:
        found = self._described(region, kind, [name])
        if not found:
            raise client_error(f"{name} not found.")
        return found[0]

    def _create(
        self, region: str, kind: str, member: str, request: dict[str, Any]
    ) -> dict[str, Any]:
        arn = self._arn(region, kind, request[f"{member}Name"])
        names = {f"{member}Name": request[f"{member}Name"], f"{member}Arn": arn}
        with self._lock:
            if arn in self._resources:
                raise client_error("Object already exists")
            self._save_resource(arn, {"state": "ENABLED", **request, **names, "status": "VALID"})
        return names

    def _arn(self, region: str, kind: str, name: str) -> str:
        return f"arn:aws:batch:{region}:{self._account_id}:{kind}/{name}"

    def _save_resource(self, arn: str, resource: dict[str, Any]) -> None:
        region, key = arn.split(":")[3], arn.rpartition(":")[2].replace("/", "-")
        self._store.save(region, key, record={"arn": arn, "resource": resource})
        self._resources[arn] = resource

    # -- service jobs ------------------------------------------------------------------------------

    def submit(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Add a job to its queue.

        Raises:
            ClientException: If the payload is no valid CreateTrainingJob request, the queue does
                not accept the job, or the client token is not new.
        """
        try:
            payload = decode_request(request["serviceRequestPayload"])
            self._sagemaker.check("CreateTrainingJob", payload)
        except ApiError as error:
            raise client_error(f"serviceRequestPayload is invalid: {error.message}") from error
        with self._lock:
            queue = self._find(region, "job-queue", request["jobQueue"])
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
                id=str(uuid.uuid4()),
                queue=queue["jobQueueArn"],
                request=request,
                times={"createdAt": self._now()},
            )
            self._save(job)
            self._jobs[job.id] = job
            self._move(region)
            answer = job.describe(self._account_id)
            return {name: answer[name] for name in ("jobArn", "jobName", "jobId")}

    def describe(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._job(region, request["jobId"]).describe(self._account_id)

    def list(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the jobs in a queue, newest first. The token is the last job's id."""
        matches, size = _filter(request), request.get("maxResults", _PAGE_SIZE)
        if not 1 <= size <= _PAGE_SIZE:
            raise client_error(f"maxResults must be between 1 and {_PAGE_SIZE}.")
        with self._lock:
            self._move(region)
            arn = self._find(region, "job-queue", request.get("jobQueue", ""))["jobQueueArn"]
            jobs = [job for job in reversed(tuple(self._of(region))) if job.queue == arn]
            if token := request.get("nextToken"):
                ids = [job.id for job in jobs]
                if token not in ids:
                    raise client_error("Invalid nextToken")
                del jobs[: ids.index(token) + 1]
            found = [job.describe(self._account_id) for job in jobs if matches(job)]
        for job in found:
            del job["serviceRequestPayload"], job["attempts"]
        page = found[:size]
        more = {"nextToken": page[-1]["jobId"]} if size < len(found) else {}
        return {"jobSummaryList": page, **more}

    def terminate(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            job = self._job(region, request["jobId"])
            if job.status not in _ENDED:
                job.is_terminated, job.reason = True, request["reason"]
                if job.training_job is None:
                    self._enter(job, "FAILED")
                else:
                    with suppress(ApiError):  # the training job has just ended
                        self._call(job, "StopTrainingJob")
                    self._save(job)
        return {}

    def _of(self, region: str) -> Iterator[ServiceJob]:
        return (job for job in self._jobs.values() if job.region == region)

    def _job(self, region: str, identity: str) -> ServiceJob:
        self._move(region)
        job = self._jobs.get(identity.rpartition("/")[2])
        if job is None or job.region != region:
            raise client_error(f"Service job {identity} not found.")
        return job

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _save(self, job: ServiceJob) -> None:
        self._store.save(job.region, job.id, record=asdict(job))

    def _call(self, job: ServiceJob, action: str, **request: Any) -> dict[str, Any]:
        return self._sagemaker.call(
            action, job.region, {**request, "TrainingJobName": job.training_job}
        )

    def _enter(self, job: ServiceJob, status: str) -> None:
        job.status = status
        if status in (*_ENDED, "SCHEDULED", "RUNNING"):
            place = (
                "stopped" if status in _ENDED else {"RUNNING": "started"}.get(status, "scheduled")
            )
            job.times.setdefault(f"{place}At", self._now())
        self._save(job)

    def _move(self, region: str) -> None:
        """Update service jobs from their training jobs, and start jobs that have capacity."""
        for job in self._of(region):
            if job.training_job and job.status not in _ENDED:
                self._follow(job)
        blocked = set()
        for job in self._of(region):
            if job.status == "RUNNABLE" and job.queue not in blocked and not self._started(job):
                blocked.add(job.queue)

    def _follow(self, job: ServiceJob) -> None:
        try:
            found = self._call(job, "DescribeTrainingJob")
        except ApiError:
            found = {"TrainingJobStatus": "Failed", "FailureReason": "the training job was deleted"}
        ended = _STATUS.get(found["TrainingJobStatus"])
        status = ended or _SECONDARY.get(found["SecondaryStatus"], "RUNNING")
        if ended:
            state = f"Training job {found['TrainingJobStatus'].lower()}"
            reason = f"Received status from SageMaker: {found.get('FailureReason') or state}"
            job.reason = job.reason or reason
        if status != job.status:
            self._enter(job, status)

    def _started(self, job: ServiceJob) -> bool:
        """Start the training job, or return False if the service job must wait.

        If the training job cannot be created, the service job fails. It must not raise, since all
        operations on service jobs would then fail.
        """
        try:
            if not self._has_room(job):
                return False
            payload = job.payload
            start = str(payload["TrainingJobName"])[:_NAME_CHARACTERS]
            job.training_job = f"AWSBatch{start}{uuid.uuid4().hex}"
            self._call(job, "CreateTrainingJob", **payload)
        except Exception as error:
            job.training_job = None
            if isinstance(error, NotSaved) or getattr(error, "code", "") == "ResourceLimitExceeded":
                return False
            job.reason = str(error)
            if not isinstance(error, ApiError):
                logger.exception("Service job %s could not be started", job.id)
                job.reason = f"{type(error).__name__}: {error}"
            self._enter(job, "FAILED")
        else:
            self._enter(job, "SCHEDULED")
        return True

    def _has_room(self, job: ServiceJob) -> bool:
        """Return True if the service environment of the job's queue has room for the job."""
        queue = self._find(job.region, "job-queue", job.queue)
        environment = self._find(job.region, "service-environment", _environment_of(queue))
        used = sum(
            other.instances
            for other in self._of(job.region)
            if other.queue == job.queue and other.training_job and other.status not in _ENDED
        )
        is_enabled = environment["state"] == "ENABLED"
        return is_enabled and used + job.instances <= _most_instances(environment)


def _creation_time(job: ServiceJob) -> int:
    return int(job.times["createdAt"])


def _arn_of(resource: Mapping[str, Any]) -> str:
    """Return the ARN of a job queue or a service environment."""
    return str(resource.get("jobQueueArn") or resource["serviceEnvironmentArn"])


def _environment_of(queue: Mapping[str, Any]) -> str:
    return str(queue["serviceEnvironmentOrder"][0]["serviceEnvironment"])


def _most_instances(environment: Mapping[str, Any]) -> int:
    return int(environment["capacityLimits"][0]["maxCapacity"])


def _filter(request: dict[str, Any]) -> Callable[[ServiceJob], bool]:
    """Return a function that tests if a job matches the filter or, without one, the status.

    Raises:
        ClientException: If the filter is invalid or not supported.
    """
    if not request.get("filters"):
        status = request.get("jobStatus", "RUNNING")
        return lambda job: bool(job.status == status)
    if len(request["filters"]) > 1 or len(request["filters"][0].get("values", ())) != 1:
        raise client_error("filters must have one filter, which has one value.")
    [(name, value)] = [(each.get("name"), each["values"][0]) for each in request["filters"]]
    if name == "JOB_NAME":
        return lambda job: fnmatch.fnmatchcase(job.request["jobName"].lower(), value.lower())
    if name == "AFTER_CREATED_AT" and value.isdecimal():
        return lambda job: job.times["createdAt"] > int(value)
    raise client_error(f"The local platform does not model the filter {name} with value {value}.")
