"""The record of a Processing job: its request, status and API descriptions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.interfaces import JobSpec, ProcessingFiles
from sagemaker_emulator.jobs.endings import (
    FAILURE_REASON_MAX_CHARACTERS,
    INTERNAL_ERROR,
    Ending,
)
from sagemaker_emulator.jobs.job import Job
from sagemaker_emulator.processing.files import input_folders, output_folders
from sagemaker_emulator.sagemaker.description import described_processing_request

_RUN_SUFFIX = ".processing"
"""Job names cannot contain a dot, so this cannot collide with the name of a training job."""
RUNTIME_EXCEEDED = Ending("Stopped", "Processing job runtime exceeded MaxRuntimeInSeconds provided")
"""Worded as for training jobs, since SageMaker's message is unknown."""


@dataclass
class ProcessingJob(Job):
    """The record of a Processing job."""

    kind = "Processing"

    processing_start_time: float | None = None
    processing_end_time: float | None = None
    exit_message: str | None = None

    @property
    def run_name(self) -> str:
        return f"{self.name}{_RUN_SUFFIX}"

    @property
    def image_uri(self) -> str:
        return str(self.request["AppSpecification"]["ImageUri"])

    @property
    def cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = self.request["ProcessingResources"]["ClusterConfig"]
        return cluster

    @property
    def max_runtime_seconds(self) -> float:
        described = described_processing_request(self.request)
        return float(described["StoppingCondition"]["MaxRuntimeInSeconds"])

    def longest_wait(self, now: float) -> tuple[float, Ending]:
        """Return infinity, since Processing jobs wait for capacity without a limit."""
        return math.inf, Ending("Stopped")

    def note_wait(self, now: float) -> None:
        """Do nothing, since a Processing job that waits is InProgress, like one that runs."""

    def begin_segment(self, now: float) -> None:
        self.processing_start_time = now
        self.last_modified_time = now

    def end_segment(self, now: float) -> None:
        if self.processing_start_time is not None and self.processing_end_time is None:
            self.processing_end_time = now

    def begin_stop(self, now: float) -> None:
        if self.status == "InProgress":
            self.status, self.last_modified_time = "Stopping", now

    def end(self, ending: Ending, now: float) -> None:
        """Set the final status, the failure reason and the end of the processing time."""
        self.status, self.last_modified_time = ending.status, now
        self.processing_end_time = self.processing_end_time or now
        reason = ending.reason or (INTERNAL_ERROR if ending.status == "Failed" else None)
        self.failure_reason = reason and reason[:FAILURE_REASON_MAX_CHARACTERS]

    def spec(self) -> JobSpec:
        app = self.request["AppSpecification"]
        folders = [one.folder for one in input_folders(self.request)]
        folders += [one.folder for one in output_folders(self.request)]
        return JobSpec(
            job_name=self.run_name,
            job_arn=self.arn,
            region=self.region,
            image_uri=self.image_uri,
            instance_type=self.instance_type,
            instance_count=self.instance_count,
            hyperparameters={},
            environment=self.request.get("Environment", {}),
            container_entrypoint=app.get("ContainerEntrypoint", ()),
            container_arguments=app.get("ContainerArguments", ()),
            processing=ProcessingFiles(
                config=self._described() | {"ProcessingJobArn": self.arn},
                folders=folders,
            ),
        )

    def _described(self) -> dict[str, Any]:
        return described_processing_request(self.request)

    def describe(self, now: float) -> dict[str, Any]:
        """Return the response of DescribeProcessingJob: the request, status and times."""
        return self._described() | self.summary(now) | self._started()

    def _started(self) -> dict[str, Any]:
        """Return the member of the response with the start time, if the instances have started."""
        if self.processing_start_time is None:
            return {}
        return {"ProcessingStartTime": self.processing_start_time}

    def summary(self, now: float) -> dict[str, Any]:
        known = {
            "ProcessingEndTime": self.processing_end_time if self.is_over() else None,
            "FailureReason": self.failure_reason,
            "ExitMessage": self.exit_message,
        }
        return super().summary(now) | {
            name: value for name, value in known.items() if value is not None
        }
