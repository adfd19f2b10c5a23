"""Estimate how much a benchmark's sweeps differ from day to day, for bounds on the next run.

The runs of one sweep cannot show these differences, but the benchmark's history can
(docs/history.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.trend.chart import LEARNING_SWEEPS, scatter, sweep_level
from nodesweep.scaling.trend.history import history_frame, read_history

if TYPE_CHECKING:
    from pandas import DataFrame


def night_sigmas(report: ScalingReport, frames: Sequence[DataFrame]) -> dict[int, float]:
    """Return the standard deviation of log T between sweeps, by node count.

    It is the control chart's scatter() of the other sweeps under the report's conditions. Node
    counts with fewer than LEARNING_SWEEPS uncontended sweeps under these conditions are absent.

    Args:
        report: The report of a sweep.
        frames: Rows of each file of the benchmark's history.
    """
    digest = history_frame(report)["conditions_digest"].iloc[0]
    trend = next((each for each in read_history(frames) if each.conditions_digest == digest), None)
    if trend is None:
        return {}
    points = trend.points
    points = points[(points["sweep_id"] != report.sweep_id) & ~points["contended"]]
    sigmas: dict[int, float] = {}
    for nodes, own in points.sort_values(["at", "sweep_id"]).groupby("nodes"):
        levels = [
            sweep_level(sweep, times)
            for sweep, times in zip(own["sweep_id"], own["train_seconds_of_runs"], strict=True)
        ]
        if len(levels) >= LEARNING_SWEEPS:
            middle = statistics.median(level.log_seconds for level in levels)
            within = statistics.median(level.error_variance for level in levels)
            deviations = [level.log_seconds - middle for level in levels]
            sigmas[int(nodes)] = scatter(deviations, math.sqrt(within))
    return sigmas
