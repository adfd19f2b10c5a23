"""Convert SageMaker's descriptions of training and Processing jobs to a JobStatus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from nodesweep.scaling.job import (
    OVER_TIME,
    TRAINING_PHASE,
    JobState,
    JobStatus,
    PhaseVisit,
    PlatformKind,
    Retention,
)
from nodesweep.scaling.secrets import hide_in_text

# Account ids of emulated and simulated platforms, which AWS never assigns.
EMULATED_ACCOUNT = "000000000000"
SIMULATED_ACCOUNT = "000000000001"
_TERMINAL = ("Completed", "Failed", "Stopped")
_LAUNCH_PATH_ONLY = re.compile(r"launch path only: (?P<text>[^;\n]+)")
_ISOLATION = re.compile(r"Emulated nodes: (?P<text>[^\n]+)")
_RETENTIONS: Mapping[str | None, Retention] = {
    "Available": "available",
    "InUse": "in_use",
    "Reused": "over",
    "Terminated": "over",
}
"""The values of WarmPoolStatus.Status; the retained time is final once the pool is over."""
WAITING, RUNNING = "Waiting for instances", "Running"
"""Phases of a Processing job, whose description has no secondary status."""


def read_training_job(description: Mapping[str, Any]) -> JobStatus:
    """Read a DescribeTrainingJob response, or an entry of ListTrainingJobs."""
    name, arn = description["TrainingJobName"], description.get("TrainingJobArn") or ""
    transitions = description.get("SecondaryStatusTransitions") or ()
    resources = description.get("ResourceConfig") or {}
    pool = description.get("WarmPoolStatus") or {}
    algorithm = description.get("AlgorithmSpecification") or {}
    return JobStatus(
        name=name,
        state=_STATES.get(description["TrainingJobStatus"], "running"),
        phase=str(description.get("SecondaryStatus") or description["TrainingJobStatus"]),
        message=str((transitions or [{}])[-1].get("StatusMessage") or ""),
        reason=failure_reason(description),
        created_at=description.get("CreationTime"),
        started_at=next(
            (step["StartTime"] for step in transitions if step.get("Status") == TRAINING_PHASE),
            None,
        ),
        changed_at=description.get("LastModifiedTime"),
        ended_at=_ended_at(transitions),
        # A job is billed from TrainingStartTime to TrainingEndTime (API reference of
        # DescribeTrainingJob), or for less than that on spot: BillableTimeInSeconds.
        billing_began_at=description.get("TrainingStartTime"),
        billing_ended_at=description.get("TrainingEndTime"),
        billable_seconds=description.get("BillableTimeInSeconds"),
        training_seconds=description.get("TrainingTimeInSeconds"),
        # With InstancePreferences, SageMaker reports the type and count that it selected.
        nodes=resources.get("SelectedInstanceCount", resources.get("InstanceCount", 1)),
        instance_type=resources.get("SelectedInstanceType", resources.get("InstanceType")),
        keep_alive_seconds=resources.get("KeepAlivePeriodInSeconds") or 0,
        retained_seconds=pool.get("ResourceRetainedBillableTimeInSeconds"),
        retention=_RETENTIONS.get(pool.get("Status")),
        reused_by=pool.get("ReusedByJob") or None,
        spot=description.get("EnableManagedSpotTraining") is True,
        visits=tuple(
            PhaseVisit(step["Status"], step.get("StartTime"), step.get("EndTime"))
            for step in transitions
            if step.get("Status") not in (None, *_TERMINAL)
        ),
        isolation=_first_match(transitions, _ISOLATION),
        launch_path_only=_first_match(transitions, _LAUNCH_PATH_ONLY),
        platform_kind=kind_of_arn(arn),
        region=arn.split(":")[3] or None if arn.count(":") >= 5 else None,
        image_uri=algorithm.get("TrainingImage"),
        output_uri=_output_uri(description),
        environment=description.get("Environment") or {},
        metric_definitions={
            each["Name"]: each["Regex"] for each in algorithm.get("MetricDefinitions") or ()
        },
        final_metrics={
            each["MetricName"]: each["Value"]
            for each in description.get("FinalMetricDataList") or ()
        },
    )


def read_processing_job(description: Mapping[str, Any]) -> JobStatus:
    """Read a DescribeProcessingJob response."""
    state = _STATES.get(description["ProcessingJobStatus"], "running")
    started = description.get("ProcessingStartTime")
    resources = description.get("ProcessingResources", {})
    phase = str(description["ProcessingJobStatus"])
    if state == "running":
        phase = WAITING if started is None else RUNNING
    return JobStatus(
        name=description["ProcessingJobName"],
        state=state,
        phase=phase,
        reason=description.get("FailureReason"),
        exit_message=description.get("ExitMessage"),
        created_at=description.get("CreationTime"),
        started_at=started,
        changed_at=description.get("LastModifiedTime"),
        billing_began_at=started,
        billing_ended_at=description.get("ProcessingEndTime"),
        nodes=resources.get("ClusterConfig", {}).get("InstanceCount", 1),
    )


_STATES: Mapping[str, JobState] = {
    "InProgress": "running",
    "Stopping": "stopping",
    "Completed": "completed",
    "Failed": "failed",
    "Stopped": "stopped",
}


def kind_of_arn(arn: str) -> PlatformKind:
    """Return the kind of platform that created this ARN, according to its account ID."""
    account = arn.split(":")[4] if arn.count(":") >= 5 else ""
    kinds: dict[str, PlatformKind] = {EMULATED_ACCOUNT: "emulated", SIMULATED_ACCOUNT: "simulated"}
    return kinds.get(account, "aws")


def failure_reason(description: Mapping[str, Any]) -> str | None:
    """Return FailureReason or why the training job stopped, or None for a completed job."""
    status = description["TrainingJobStatus"]
    if status == "Completed":
        return None
    if reason := description.get("FailureReason"):
        return hide_in_text(str(reason))
    if description.get("SecondaryStatus") == OVER_TIME:
        limit = (description.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds")
        return f"{OVER_TIME}: the job reached its limit of {limit} s (training.max_runtime_seconds)"
    return "stopped on request" if status == "Stopped" else None


def _ended_at(transitions: Any) -> datetime | None:
    """Return the time at which the terminal status began, by the platform's clock."""
    ends = [
        step["StartTime"]
        for step in transitions
        if step.get("Status") in (*_TERMINAL, OVER_TIME, "MaxWaitTimeExceeded")
    ]
    return cast("datetime", ends[-1]) if ends else None


def _output_uri(description: Mapping[str, Any]) -> str | None:
    """Return the URI of the job's output.tar.gz, which contains its metrics.json."""
    path = (description.get("OutputDataConfig") or {}).get("S3OutputPath")
    if not path:
        return None
    return f"{path.rstrip('/')}/{description['TrainingJobName']}/output/output.tar.gz"


def _first_match(transitions: Any, pattern: re.Pattern[str]) -> str | None:
    """Return the pattern's `text` group in the first status message that matches, or None."""
    for step in transitions:
        if match := pattern.search(step.get("StatusMessage") or ""):
            return match["text"].strip()
    return None
