"""CloudWatch metrics of a job's nodes: utilization, and attainment of the requested CPU time.

Utilization metrics are AWS's. The metrics of attained_per_cent() are this platform's own, since an
AWS instance has its CPUs to itself, while an emulated node must show that it got its share of this
machine's (docs/method.md, "Attainment").
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
"""Sampling interval, shorter than AWS's minute because jobs are shorter here.

A sample of 8 nodes takes about 4 ms of CPU time.
"""
_FIRST_SAMPLE_SECONDS = 0.5
_FULL_CPU_SPEED = 1e9
_MAX_DATA_PER_CALL = 1000
"""Maximum number of values per PutMetricData call."""

logger = logging.getLogger(__name__)


def put_values(cloudwatch: Any, namespace: str, data: Sequence[dict[str, Any]]) -> None:
    """Put the values into a namespace, in as many calls as needed."""
    for start in range(0, len(data), _MAX_DATA_PER_CALL):
        cloudwatch.put_metric_data(
            Namespace=namespace, MetricData=data[start : start + _MAX_DATA_PER_CALL]
        )


class NodeMetrics:
    """A context manager that samples each node's metrics (dimension Host, "<job>/<host>").

    CPUUtilization is the mean since the last sample, as a percentage of the node's vCPUs;
    MemoryUtilization is the processes' resident memory, as a percentage of this machine's memory.
    With several nodes, NodesConnected, the platform's own metric, is 100 if the node's program has
    a connection to another node, else 0.
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
        """Return the means so far, by node and metric."""
        return self._means.values()

    def put_attainment(self, attainment: Mapping[str, NodeAttainment]) -> None:
        """Put the known CPU attainment of each node during the job's measurement, in percent."""
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
        """Put data; failures are only logged, since metrics must not stop the job."""
        try:
            data = make()
            put_values(self._cloudwatch, self._namespace, data)
            self._means.add(data)
        except Exception:
            logger.exception("%s: its nodes' metrics could not be written", self._job_name)

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
    """Yield pauses in seconds, short at first, so that even short jobs have metrics."""
    pause_seconds = min(_FIRST_SAMPLE_SECONDS, longest_seconds)
    while True:
        yield pause_seconds
        pause_seconds = min(2 * pause_seconds, longest_seconds)


def cpu_per_cent(then: float, before: NodeUsage, now: float, usage: NodeUsage) -> float:
    """Return the CPU use between two moments (seconds), as a percentage of the node's vCPUs."""
    used_seconds = max(0.0, usage.cpu_seconds - before.cpu_seconds)
    return 100 * used_seconds / ((now - then) * usage.vcpus)


def attained_per_cent(attained: NodeAttainment) -> dict[str, float]:
    """Return a node's attainment by metric, in percent.

    100% stands for the requested CPU time (CPUAttained), quota x time (CPUQuotaUsed), all periods
    of the quota (CPUThrottled), the elapsed time (CPURunQueueDelay, which exceeds 100% if several
    threads wait at the same time) and 1 GB of BLAKE2b per CPU second (CPUSpeed).
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
