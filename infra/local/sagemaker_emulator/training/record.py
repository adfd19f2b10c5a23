"""The record of a training job: its request, status, transitions and API descriptions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagemaker_emulator.interfaces import JobSpec
from sagemaker_emulator.jobs.endings import (
    FAILURE_REASON_MAX_CHARACTERS,
    INTERNAL_ERROR,
    Ending,
)
from sagemaker_emulator.jobs.job import Job
from sagemaker_emulator.sagemaker.description import (
    DEFAULT_MAX_RUNTIME_SECONDS,
    described_request,
)
from sagemaker_emulator.training.preferences import instances_of
from sagemaker_emulator.training.warm_pool import WarmPool, is_kept

SPOT_BILLABLE_SHARE = 0.3
"""Billable share of the training time of a managed spot job.

This assumes that spot saves 70%. AWS advertises savings of up to 90%.
"""
_MESSAGES = {
    "Pending": "Training job waiting for capacity",
    "Interrupted": "Training job interrupted: its spot instances were reclaimed",
    "Restarting": "Restarting the training job",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job wait time exceeded MaxWaitTimeInSeconds provided",
}
_FINAL_STATUS = {
    "Completed": "Completed",
    "Failed": "Failed",
    "Stopped": "Stopped",
    "MaxRuntimeExceeded": "Stopped",
    "MaxWaitTimeExceeded": "Stopped",
    "Stopping": "Stopping",
}
_ACCELERATED = re.compile(r"ml\.(p|g|trn)\d")
"""Instance types with GPUs or Neuron devices.

MaxPendingTimeInSeconds only applies to them (StoppingCondition in SageMaker's API reference).
"""
_BETWEEN_SEGMENTS = ("Interrupted", "Restarting", "Pending", "Starting")


PENDING_TOO_LONG = Ending(
    "Stopped", "Training job pending time exceeded MaxPendingTimeInSeconds provided"
)
"""nodesweep's wording, since SageMaker's message and secondary status are unknown."""


@dataclass
class Retries:
    """Counts the retries of a job after InternalServerErrors.

    RetryStrategy only applies to these failures.
    """

    most: int
    """MaximumRetryAttempts in the RetryStrategy of the request, or 0 without one."""
    made: int = 0

    def may_follow(self, ending: Ending) -> bool:
        """Return True if the job is retried after a segment that ended this way."""
        is_internal = ending.status == "Failed" and (ending.reason or "").startswith(
            "InternalServerError"
        )
        return is_internal and self.made < self.most

    def begin_next(self) -> str:
        """Count a retry and return the message for its Starting status."""
        self.made += 1
        return (
            f"Preparing the instances for training: retry {self.made} of {self.most} after an"
            " InternalServerError"
        )


@dataclass
class TrainingJob(Job):
    """The record of a training job."""

    kind = "Training"

    transitions: list[dict[str, Any]] = field(default_factory=list)
    """SecondaryStatusTransitions of the API: {Status, StartTime, EndTime?, StatusMessage}."""
    training_start_time: float | None = None
    training_end_time: float | None = None
    segment_start_time: float | None = None
    """Time at which the instances of the current segment started, or None outside of segments."""
    training_seconds: float = 0.0
    """Total duration of all segments that have ended."""
    final_metrics: list[dict[str, Any]] = field(default_factory=list)
    warm_pool: WarmPool | None = None
    reused_pool_of: str | None = None
    """Name of the job whose warm pool this job reuses."""

    @property
    def image_uri(self) -> str:
        return str(self.request["AlgorithmSpecification"]["TrainingImage"])

    @property
    def secondary_status(self) -> str:
        return str(self.transitions[-1]["Status"])

    @property
    def cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = self.request["ResourceConfig"]
        return cluster

    @property
    def instance_type(self) -> str:
        return instances_of(self.request["ResourceConfig"])[0]

    @property
    def instance_count(self) -> int:
        return instances_of(self.request["ResourceConfig"])[1]

    @property
    def max_runtime_seconds(self) -> float:
        return float(
            self.request["StoppingCondition"].get(
                "MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_SECONDS
            )
        )

    @property
    def is_spot(self) -> bool:
        return bool(self.request.get("EnableManagedSpotTraining"))

    @property
    def training_plan_arn(self) -> str | None:
        return self.cluster.get("TrainingPlanArn")

    @property
    def keep_alive_seconds(self) -> int:
        return int(self.cluster.get("KeepAlivePeriodInSeconds", 0))

    @property
    def max_wait_seconds(self) -> float:
        """MaxWaitTimeInSeconds, or infinity if it is not in the request."""
        return float(self.request["StoppingCondition"].get("MaxWaitTimeInSeconds", math.inf))

    @property
    def wait_deadline(self) -> float:
        """The end of the maximum wait, in Unix seconds."""
        return self.creation_time + self.max_wait_seconds

    @property
    def max_pending_seconds(self) -> float:
        """MaxPendingTimeInSeconds, or infinity if absent or ignored for the instance type."""
        if not _ACCELERATED.match(self.instance_type):
            return math.inf
        return float(self.request["StoppingCondition"].get("MaxPendingTimeInSeconds", math.inf))

    def longest_wait(self, now: float) -> tuple[float, Ending]:
        """Return when (in Unix seconds) and how the job ends if it stays Pending."""
        pending_seconds = sum(
            phase.get("EndTime", now) - phase["StartTime"]
            for phase in self.transitions
            if phase["Status"] == "Pending"
        )
        return min(
            (self.wait_deadline, Ending("MaxWaitTimeExceeded")),
            (now + self.max_pending_seconds - pending_seconds, PENDING_TOO_LONG),
            key=lambda end: end[0],
        )

    @property
    def retry_attempts(self) -> int:
        return int((self.request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0))

    @property
    def output_prefix(self) -> str:
        """S3OutputPath/<job>/output, where SageMaker puts model.tar.gz and output.tar.gz."""
        return f"{self.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{self.name}/output"

    @property
    def model_uri(self) -> str:
        plain = self.request["OutputDataConfig"].get("CompressionType") == "NONE"
        return f"{self.output_prefix}/model/" if plain else f"{self.output_prefix}/model.tar.gz"

    def enter(self, secondary_status: str, now: float, message: str | None = None) -> None:
        """End the current transition and begin the next one.

        A terminal transition ends the job and ends immediately itself.
        """
        if self.transitions:
            self.transitions[-1].setdefault("EndTime", now)
        transition = {
            "Status": secondary_status,
            "StartTime": now,
            "StatusMessage": message or _MESSAGES[secondary_status],
        }
        self.transitions.append(transition)
        self.status = _FINAL_STATUS.get(secondary_status, self.status)
        if self.is_over():
            transition["EndTime"] = now
            self._settle_pool(secondary_status, now)
        self.last_modified_time = now

    def fail(self, reason: str, now: float) -> None:
        self.failure_reason = reason[:FAILURE_REASON_MAX_CHARACTERS]
        self.enter("Failed", now)

    def end(self, ending: Ending, now: float) -> None:
        if ending.status == "Failed":
            self.fail(ending.reason or INTERNAL_ERROR, now)
        else:
            self.enter(ending.status, now, ending.reason)

    def note_wait(self, now: float) -> None:
        self.enter("Pending", now)

    def begin_stop(self, now: float) -> None:
        if self.status == "InProgress":
            self.enter("Stopping", now)

    def complete(self, now: float) -> None:
        """Complete the job, and remove the Stopping transition if a stop request came too late."""
        if len(self.transitions) > 1 and self.transitions[-1]["Status"] == "Stopping":
            self.transitions.pop()
            self.transitions[-1].pop("EndTime", None)
        self.enter("Completed", now)

    def _settle_pool(self, secondary_status: str, now: float) -> None:
        if self.warm_pool is None:
            return
        was_launched = self.training_start_time is not None or self.reused_pool_of is not None
        if is_kept(secondary_status, self.failure_reason, was_launched):
            self.warm_pool.keep(now)
        else:
            self.warm_pool.end(now)

    def begin_segment(self, now: float) -> None:
        """Record that the instances have started, which begins Downloading and billable time."""
        self.training_start_time = self.training_start_time or now
        self.segment_start_time, self.training_end_time = now, None
        self.enter("Downloading", now)

    def end_segment(self, now: float) -> None:
        """Record that the instances were released, if there were any."""
        if self.segment_start_time is not None:
            self.training_seconds += now - self.segment_start_time
            self.segment_start_time, self.training_end_time = None, now

    def shift(self, seconds: float) -> None:
        """Shift all times of the job except those of its warm pool, which begin when it ends."""
        for transition in self.transitions:
            transition |= {
                name: transition[name] + seconds
                for name in ("StartTime", "EndTime")
                if name in transition
            }
        for metric in self.final_metrics:
            metric["Timestamp"] += seconds
        super().shift(seconds)

    def spec(self) -> JobSpec:
        algorithm = self.request["AlgorithmSpecification"]
        return JobSpec(
            job_name=self.name,
            job_arn=self.arn,
            region=self.region,
            image_uri=self.image_uri,
            instance_type=self.instance_type,
            instance_count=self.instance_count,
            hyperparameters=self.request.get("HyperParameters", {}),
            environment=self.request.get("Environment", {}),
            input_data_config=self.request.get("InputDataConfig", []),
            checkpoint_config=self.request.get("CheckpointConfig"),
            container_entrypoint=algorithm.get("ContainerEntrypoint", ()),
            container_arguments=algorithm.get("ContainerArguments", ()),
        )

    def describe(self, now: float) -> dict[str, Any]:
        """Return the response of DescribeTrainingJob: the request and the current state."""
        answer = described_request(self.request) | super().summary(now)
        answer |= {
            "SecondaryStatus": self.secondary_status,
            "SecondaryStatusTransitions": self.transitions,
            "ModelArtifacts": {"S3ModelArtifacts": self.model_uri},
            "ProfilingStatus": "Disabled",
        }
        if self.failure_reason is not None:
            answer["FailureReason"] = self.failure_reason
        if self.final_metrics:
            answer["FinalMetricDataList"] = self.final_metrics
        return answer | self._billing() | self._pool_status(now)

    def _billing(self) -> dict[str, Any]:
        """Return the members of the response with times and billing.

        There are none if the instances never started. The seconds are added once the last segment
        has ended.
        """
        if self.training_start_time is None:
            return {}
        answer: dict[str, Any] = {"TrainingStartTime": self.training_start_time}
        if self.training_end_time is not None and self.secondary_status not in _BETWEEN_SEGMENTS:
            seconds = max(1, round(self.training_seconds))
            answer["TrainingEndTime"] = self.training_end_time
            answer["TrainingTimeInSeconds"] = seconds
            answer["BillableTimeInSeconds"] = (
                max(1, round(seconds * SPOT_BILLABLE_SHARE)) if self.is_spot else seconds
            )
        return answer

    def _pool_status(self, now: float) -> dict[str, Any]:
        return {} if self.warm_pool is None else {"WarmPoolStatus": self.warm_pool.describe(now)}

    def summary(self, now: float) -> dict[str, Any]:
        answer = super().summary(now) | {"SecondaryStatus": self.secondary_status}
        if self.training_end_time is not None and self.secondary_status not in _BETWEEN_SEGMENTS:
            answer["TrainingEndTime"] = self.training_end_time
        if self.training_plan_arn is not None:
            answer["TrainingPlanArn"] = self.training_plan_arn
        return answer | self._pool_status(now)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TrainingJob:
        pool = record.get("warm_pool")
        return cls(**{**record, "warm_pool": WarmPool(**pool) if pool else None})
