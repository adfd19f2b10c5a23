"""Keeps CloudWatch metrics of nodes across restarts, as means over the segments of jobs.

Regenerated reports and resumed sweeps need them, since CPU-throttled nodes would otherwise look
healthy. The files are <state>/node_metrics/<region>/<job>-<end of the segment in Unix ms>.json.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.state.files import RecordStore

logger = logging.getLogger(__name__)

Values = Mapping[str, Mapping[str, float]]
"""Percentages by host ("<job>/algo-1") and metric."""


class NodeMeans:
    """Computes the means of metric values by node and metric (thread-safe)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Add the values in the MetricData of a PutMetricData call."""
        with self._lock:
            for datum in data:
                [dimension] = datum["Dimensions"]
                self._values[dimension["Value"], datum["MetricName"]].append(datum["Value"])

    def values(self) -> Values:
        with self._lock:
            means: dict[str, dict[str, float]] = {}
            for (host, metric), values in self._values.items():
                means.setdefault(host, {})[metric] = fmean(values)
            return means


class NodeMetricsStore:
    """Stores the metrics of job segments that have ended."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def keep(
        self, region: str, namespace: str, job_name: str, values: Values, unix_seconds: float
    ) -> None:
        """Save the metrics of a segment that ended at `unix_seconds`.

        If the disk is full, the metrics are lost, since they must not stop the job.
        """
        if values:
            record = {
                "region": region,
                "namespace": namespace,
                "unix_seconds": unix_seconds,
                "values": values,
            }
            key = f"{job_name}-{round(unix_seconds * 1000)}"
            self._store.try_to_save(region, key, record=record)

    def damaged(self) -> list[str]:
        """Return messages about unreadable records."""
        return self._store.ledger.damaged()

    def restore(
        self, clients: ClientFactory, put: Callable[[Any, str, Sequence[dict[str, Any]]], None]
    ) -> None:
        """Write all metrics to CloudWatch, with their times, by calling `put`.

        Args:
            clients: Returns the client of a service in a region.
            put: Called with the CloudWatch client, the namespace and the data.
        """
        data: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for region, namespace, of_segment in self._store.load_all(_readable):
            data[region, namespace] += of_segment
        for (region, namespace), of_all in data.items():
            put(clients("cloudwatch", region), namespace, of_all)


def _readable(record: Mapping[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the region, the namespace and the data of a record.

    Raises:
        KeyError: If the record has a different structure. Other exceptions mean the same.
    """
    return str(record["region"]), str(record["namespace"]), _data_of(record)


def _data_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    at = datetime.fromtimestamp(record["unix_seconds"], UTC)
    return [
        percent(host, metric, value, at)
        for host, values in record["values"].items()
        for metric, value in values.items()
    ]


def percent(host: str, metric: str, value: float, at: datetime) -> dict[str, Any]:
    """Return a metric value of a node as a datum for PutMetricData."""
    return {
        "MetricName": metric,
        "Dimensions": [{"Name": "Host", "Value": host}],
        "Timestamp": at,
        "Value": value,
        "Unit": "Percent",
        "StorageResolution": 1,
    }
