"""Read the utilization of a job's nodes from CloudWatch's metrics for SageMaker training jobs.

Namespace and units are documented in "Monitor Amazon SageMaker AI with Amazon CloudWatch" in the
developer guide. CPUUtilization is summed over cores and GPUUtilization over GPUs, so 400 means that
four of them are fully used.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

from nodesweep.errors import best_effort
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.logs import own_name
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.attainment import ATTAINED, CONNECTED
from nodesweep.scaling.outcome.cpu_speed import CPU_SPEED, QUOTA_USED

NAMESPACE = "/aws/sagemaker/TrainingJobs"
METRICS = {
    "cpu_percent": "CPUUtilization",
    "memory_percent": "MemoryUtilization",
    "gpu_percent": "GPUUtilization",
    "gpu_memory_percent": "GPUMemoryUtilization",
    "disk_percent": "DiskUtilization",
}
EMULATED_METRICS = {
    ATTAINED: "CPUAttained",
    CONNECTED: "NodesConnected",
    QUOTA_USED: "CPUQuotaUsed",
    "throttled_percent": "CPUThrottled",
    "run_queue_delay_percent": "CPURunQueueDelay",
    CPU_SPEED: "CPUSpeed",
}
"""Metrics of emulated nodes only, never requested from AWS (docs/method.md, "Attainment")."""
PERIOD_SECONDS = 60
# 5 metrics of 64 nodes are 320 queries, within the 500 of one GetMetricData call. More nodes would
# hardly change the mean.
MAX_NODES = 64


def read_utilisation(
    cloudwatch: Any,
    job_name: str,
    nodes: int,
    started: datetime,
    ended: datetime,
    metrics: Mapping[str, str] = METRICS,
) -> dict[str, float]:
    """Return the mean of each metric over nodes and time, in percent, or {} if none can be read.

    For attainment, return the minimum, because nodes wait for the slowest one.
    """
    queries = [
        _query(f"m{index}", metric, f"{job_name}/algo-{node}")
        for index, (metric, node) in enumerate(
            (metric, node)
            for metric in metrics.values()
            for node in range(1, min(nodes, MAX_NODES) + 1)
        )
    ]
    labels = {query["Id"]: query["MetricStat"]["Metric"]["MetricName"] for query in queries}
    values: dict[str, list[float]] = {}
    # A data point has the time at which its minute starts. EndTime is exclusive, and moto truncates
    # it to whole seconds.
    window = {
        "StartTime": started - timedelta(seconds=PERIOD_SECONDS),
        "EndTime": ended + timedelta(seconds=1),
    }
    with best_effort(f"the utilisation of {job_name} can't be read"):
        for page in cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries, **window
        ):
            for result in page["MetricDataResults"]:
                values.setdefault(labels[result["Id"]], []).extend(result["Values"])
    return {
        name: (min if name == ATTAINED else fmean)(values[metric])
        for name, metric in metrics.items()
        if values.get(metric)
    }


def _query(identifier: str, metric: str, host: str) -> dict[str, Any]:
    dimensions = [{"Name": "Host", "Value": host}]
    described = {"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": dimensions}
    return {
        "Id": identifier,
        "MetricStat": {"Metric": described, "Period": PERIOD_SECONDS, "Stat": "Average"},
    }


def read_job_utilisation(backend: Backend, job: JobStatus) -> dict[str, float]:
    """Return the mean utilization of a job's nodes by metric, in percent, from CloudWatch.

    Return an empty dict if the job never ran.
    """
    began, ended = job.billing_began_at, job.billing_ended_at
    if began is None or ended is None:
        return {}
    cloudwatch, name = backend.client("cloudwatch"), own_name(backend, job.name)
    found = read_utilisation(cloudwatch, name, job.nodes, began, ended)
    if job.platform_kind == "emulated":
        found |= read_utilisation(cloudwatch, name, job.nodes, began, ended, EMULATED_METRICS)
    return found
