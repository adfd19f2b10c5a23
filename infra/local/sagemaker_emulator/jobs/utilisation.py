"""CloudWatch metrics of a job's nodes: utilization, and attainment of the requested CPU time.

AWS has the same utilization metrics, but not the metrics of attained_per_cent(): AWS instances have
dedicated CPUs, but emulated nodes must prove that they got their share of this machine's CPUs
(docs/method.md, "Attainment").
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sagemaker_emulator.interfaces import NodeAttainment, NodeUsage
from sagemaker_emulator.jobs.node_metrics_store import NodeMeans, Values, percent
from sagemaker_emulator.periodic import PeriodicThread

SAMPLE_SECONDS = 5.0
"""Sampling interval, which is a minute on AWS, where jobs are longer.

Sampling 8 nodes takes about 4 ms of CPU time.
"""
_FIRST_SAMPLE_SECONDS = 0.5
_FULL_CPU_SPEED = 1e9
_MAX_DATA_PER_CALL = 1000
"""Maximum number of values per PutMetricData call."""

logger = logging.getLogger(__name__)


def put_values(cloudwatch: Any, namespace: str, data: Sequence[dict[str, Any]]) -> None:
    """Write values to a CloudWatch namespace, in as many calls as needed."""
    for start in range(0, len(data), _MAX_DATA_PER_CALL):
        cloudwatch.put_metric_data(
            Namespace=namespace, MetricData=data[start : start + _MAX_DATA_PER_CALL]
        )


class NodeMetrics:
    """A context manager that samples the metrics of nodes (dimension Host, "<job>/<host>").

    CPUUtilization is the mean since the last sample, as a percentage of the node's vCPUs.
    MemoryUtilization is the resident memory of all processes, as a percentage of this machine's
    memory. With several nodes, NodesConnected, which AWS does not have, is 100 if the program is
    connected to another node, else 0.
    """

    def __init__(
        self,
        cloudwatch: Any,
        namespace: str,
        job_name: str,
        usage: Callable[[], Mapping[str, NodeUsage]],
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self._cloudwatch = cloudwatch
        self._namespace = namespace
        self._job_name = job_name
        self._usage = usage
        self._memory_bytes = machine_memory_bytes()
        self._last: dict[str, tuple[float, NodeUsage]] = {}
        self._means = NodeMeans()
        self._samples = PeriodicThread(
            f"node-metrics {job_name}", self._sample, _pauses(sample_seconds)
        )

    def __enter__(self) -> Self:
        self._samples.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._samples.stop()

    def means(self) -> Values:
        """Return the means of all values so far, by node and metric."""
        return self._means.values()

    def put_attainment(self, attainment: Mapping[str, NodeAttainment]) -> None:
        """Write each node's CPU attainment during the measurement, as far as it is known."""
        values = {host: attained_per_cent(attained) for host, attained in attainment.items()}
        self._put(
            lambda: [
                datum
                for host, of_host in values.items()
                for datum in self._described(host, of_host)
            ]
        )

    def _sample(self) -> None:
        now = time.monotonic()
        self._put(
            lambda: [
                datum
                for host, usage in self._usage().items()
                for datum in self._data(host, usage, now)
            ]
        )

    def _put(self, make: Callable[[], list[dict[str, Any]]]) -> None:
        """Write data, or log an error if that fails, since metrics must not stop the job."""
        try:
            data = make()
            put_values(self._cloudwatch, self._namespace, data)
            self._means.add(data)
        except Exception:
            logger.exception("%s: the metrics of its nodes could not be written", self._job_name)

    def _data(self, host: str, usage: NodeUsage, now: float) -> list[dict[str, Any]]:
        values = {"MemoryUtilization": 100 * usage.memory_bytes / self._memory_bytes}
        if usage.is_connected is not None:
            values["NodesConnected"] = 100.0 * usage.is_connected
        if host in self._last:
            values["CPUUtilization"] = cpu_per_cent(*self._last[host], now, usage)
        self._last[host] = (now, usage)
        return self._described(host, values)

    def _described(self, host: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
        now = datetime.now(UTC)
        return [
            percent(f"{self._job_name}/{host}", name, value, now)
            for name, value in sorted(values.items())
        ]


def _pauses(longest_seconds: float) -> Iterator[float]:
    """Yield pauses in seconds, which are short at first, so that even short jobs have metrics."""
    pause_seconds = min(_FIRST_SAMPLE_SECONDS, longest_seconds)
    while True:
        yield pause_seconds
        pause_seconds = min(2 * pause_seconds, longest_seconds)


def cpu_per_cent(then: float, before: NodeUsage, now: float, usage: NodeUsage) -> float:
    """Return the CPU usage from `then` to `now`, as a percentage of the node's vCPUs."""
    used_seconds = max(0.0, usage.cpu_seconds - before.cpu_seconds)
    return 100 * used_seconds / ((now - then) * usage.vcpus)


def attained_per_cent(attained: NodeAttainment) -> dict[str, float]:
    """Return the attainment of a node by metric, in percent.

    100% means the requested CPU time (CPUAttained), the CPU time allowed by the quota
    (CPUQuotaUsed), all quota periods (CPUThrottled), the elapsed time (CPURunQueueDelay, which can
    exceed 100% if several threads wait), or 1 GB of BLAKE2b per CPU second (CPUSpeed).
    """
    shares = {
        "CPUAttained": attained.share,
        "CPUQuotaUsed": (
            attained.cpu_seconds / attained.quota_seconds if attained.quota_seconds > 0 else None
        ),
        "CPUThrottled": attained.throttled_share,
        "CPURunQueueDelay": (
            None
            if attained.run_queue_delay_seconds is None
            else attained.run_queue_delay_seconds / attained.seconds
        ),
        "CPUSpeed": None if attained.cpu_speed is None else attained.cpu_speed / _FULL_CPU_SPEED,
    }
    return {name: 100 * share for name, share in shares.items() if share is not None}


def machine_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return this machine's memory in bytes."""
    total = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
    return int(total.split()[1]) * 1024
