"""SageMaker Metrics (`sagemaker-metrics`): time series of training jobs and trial components.

They are kept in memory. A training job's points are the matches of its metric definitions if
EnableSageMakerMetricsTimeSeries is set; a trial component's come from BatchPutMetrics.
"""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import JsonService
from sagemaker_emulator.api.validation import RequestValidator

MOST_POINTS = 100_000
"""Maximum number of points per metric and resource; the oldest ones are dropped."""
_PERIOD_SECONDS = {"OneMinute": 60, "FiveMinute": 300, "OneHour": 3600}
_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "Min": min,
    "Max": max,
    "Avg": statistics.fmean,
    "Count": len,
    "StdDev": statistics.pstdev,
    "Last": lambda values: values[-1],
}


@dataclass(frozen=True)
class Point:
    """One value of a metric."""

    unix_seconds: float
    value: float
    step: int | None = None


class MetricSeries:
    """The points of every metric by resource and name, in order of arrival; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: defaultdict[tuple[str, str], deque[Point]] = defaultdict(
            lambda: deque(maxlen=MOST_POINTS)
        )

    def add(self, resource: str, metric: str, point: Point) -> None:
        with self._lock:
            self._points[resource, metric].append(point)

    def points(self, resource: str, metric: str) -> list[Point]:
        with self._lock:
            return list(self._points.get((resource, metric), ()))


def metrics_service(series: MetricSeries, clients: ClientFactory) -> JsonService:
    """Return the rest-json service, whose operations the front end selects by path."""
    api = MetricsApi(series, clients)
    validator = RequestValidator("sagemaker-metrics")
    operations = [
        validator.model.operation_model(name) for name in ("BatchPutMetrics", "BatchGetMetrics")
    ]
    return JsonService(
        target_prefix="sagemaker-metrics",  # unused: these operations are called by path
        signing_name="sagemaker",
        actions={"BatchPutMetrics": api.put, "BatchGetMetrics": api.get},
        refused=frozenset(),
        check=validator.check,
        paths={
            (model.http["method"], model.http["requestUri"]): model.name for model in operations
        },
    )


class MetricsApi:
    """SageMaker Metrics; methods take (region, request) and return the response."""

    def __init__(self, series: MetricSeries, clients: ClientFactory) -> None:
        self._series = series
        self._clients = clients

    def put(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Store the data of a trial component; if there is none of that name, every datum fails."""
        name, data = request["TrialComponentName"], request["MetricData"]
        arn = self._component_arn(region, name)
        if arn is None:
            return {
                "Errors": [
                    {"Code": "VALIDATION_ERROR", "MetricIndex": index} for index in range(len(data))
                ]
            }
        for datum in data:
            self._series.add(
                arn,
                datum["MetricName"],
                Point(float(datum["Timestamp"]), float(datum["Value"]), datum.get("Step")),
            )
        return {}

    def get(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"MetricQueryResults": [self._answer(query) for query in request["MetricQueries"]]}

    def _component_arn(self, region: str, name: str) -> str | None:
        sagemaker = self._clients("sagemaker", region)
        try:
            return str(
                sagemaker.describe_trial_component(TrialComponentName=name)["TrialComponentArn"]
            )
        except sagemaker.exceptions.ClientError:
            return None

    def _answer(self, query: Mapping[str, Any]) -> dict[str, Any]:
        points = self._series.points(query["ResourceArn"], query["MetricName"])
        by_step = query["XAxisType"] == "IterationNumber"
        if by_step != (query["Period"] == "IterationNumber"):
            message = "Period and XAxisType must both be IterationNumber, or neither."
            return {
                "Status": "ValidationError",
                "Message": message,
                "XAxisValues": [],
                "MetricValues": [],
            }
        groups: defaultdict[int, list[float]] = defaultdict(list)
        for point in points:
            position = point.step if by_step else _bucket(point.unix_seconds, query["Period"])
            if position is not None and query.get("Start", position) <= position <= query.get(
                "End", position
            ):
                groups[position].append(point.value)
        positions = sorted(groups)
        values = [
            float(_STATISTICS[query["MetricStat"]](groups[position])) for position in positions
        ]
        return {"Status": "Complete", "XAxisValues": positions, "MetricValues": values}


def _bucket(unix_seconds: float, period: str) -> int:
    """Return the beginning of the period that contains a moment."""
    seconds = _PERIOD_SECONDS[period]
    return int(unix_seconds // seconds) * seconds
