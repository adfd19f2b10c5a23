"""CloudWatch metrics of a job's nodes: how busy each is,
and what each got of the CPU that it asked for.

The first are AWS's own. Those of attained_per_cent() are this platform's: an instance has its CPUs
to itself, an emulated node has to prove that it got its share (docs/method.md, "Attainment").
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nodesweep.infra.local.interfaces import NodeAttainment, NodeUsage
from nodesweep.infra.local.jobs.kept_metrics import NodeMeans, Values, percent
from nodesweep.infra.local.periodic import PeriodicThread

SAMPLE_SECONDS = 5.0
"""AWS has a value a minute; jobs are shorter here.
A sample of 8 nodes takes about 4 ms of CPU time.
"""
_FIRST_SAMPLE_SECONDS = 0.5
_FULL_CPU_SPEED = 1e9
_MAX_DATA_PER_CALL = 1000
"""How many values one call of PutMetricData may have."""

logger = logging.getLogger(__name__.removeprefix("nodesweep."))


def put_values(cloudwatch: Any, namespace: str, data: Sequence[dict[str, Any]]) -> None:
    """Put them among a namespace's metrics, in as many calls as they need."""
    for start in range(0, len(data), _MAX_DATA_PER_CALL):
        cloudwatch.put_metric_data(
            Namespace=namespace, MetricData=data[start : start + _MAX_DATA_PER_CALL]
        )


class NodeMetrics:
    """Puts CPUUtilization, MemoryUtilization and, of several nodes, NodesConnected of every node
    (dimension Host, "<job>/<host>") while it is entered.

    CPUUtilization is the mean since the last sample in per cent of the node's vCPUs;
    MemoryUtilization the processes' resident memory in per cent of this machine's; NodesConnected
    is 100 where the node's program had a connection to another node, else 0. The last is this
    platform's own.
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
        """Of what was put so far, by node and metric."""
        return self._means.values()

    def put_attainment(self, attainment: Mapping[str, NodeAttainment]) -> None:
        """What each node got of the CPU while the job measured, all in per cent;
        nothing of what is not known.
        """
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
        """What can't be had or written is reported and left out: metrics must not stop the job."""
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
    """Short at first, so that short jobs have metrics too."""
    pause_seconds = min(_FIRST_SAMPLE_SECONDS, longest_seconds)
    while True:
        yield pause_seconds
        pause_seconds = min(2 * pause_seconds, longest_seconds)


def cpu_per_cent(then: float, before: NodeUsage, now: float, usage: NodeUsage) -> float:
    """CPU time used between two moments (seconds) in per cent of the node's vCPUs over them."""
    used_seconds = max(0.0, usage.cpu_seconds - before.cpu_seconds)
    return 100 * used_seconds / ((now - then) * usage.vcpus)


def attained_per_cent(attained: NodeAttainment) -> dict[str, float]:
    """By metric: CPUAttained of what the node asked for, CPUQuotaUsed of its quota x time,
    CPUThrottled of the quota's periods, CPURunQueueDelay of the time (over 100 where several
    threads waited at once), CPUSpeed of 1 GB of BLAKE2b per CPU second.
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
    """How much memory this machine has."""
    total = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
    return int(total.split()[1]) * 1024
