"""Arithmetic and format of metrics.json; the image's README describes its schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any

SCHEMA_VERSION = 1
# A steady window with fewer steps and fewer seconds is marked as short in metrics.json.
ENOUGH_STEPS = 100
ENOUGH_SECONDS = 60.0


@dataclass(frozen=True)
class RankSteps:
    """One rank's step times: starts and stops in seconds since training began, and data waits."""

    start_seconds: Sequence[float]
    stop_seconds: Sequence[float]
    data_wait_seconds: Sequence[float]

    @property
    def step_seconds(self) -> list[float]:
        """Duration of every step."""
        marks = zip(self.start_seconds, self.stop_seconds, strict=True)
        return [stop - start for start, stop in marks]


@dataclass(frozen=True)
class Validation:
    """A value of the final metric, with the steps, samples of all ranks, and seconds until then."""

    step: int
    samples: int
    elapsed_seconds: float
    value: float


@dataclass(frozen=True)
class SteadyWindow:
    """The steps in steady state; `step_seconds` is their median, None without steps."""

    step_seconds: float | None
    steps: int
    seconds: float
    first_step: int
    short_window: bool


def slowest_rank(ranks: Sequence[RankSteps]) -> list[float]:
    """Return the duration in seconds of every step over all ranks.

    A step lasts from the last rank's start to the last rank's stop. A step starts when the previous
    one stops, so the durations sum to the elapsed time. The maximum durations over ranks would sum
    to more if different ranks were late in different steps.
    """
    starts = zip(*(rank.start_seconds for rank in ranks), strict=True)
    stops = zip(*(rank.stop_seconds for rank in ranks), strict=True)
    return [max(stop) - max(start) for start, stop in zip(starts, stops, strict=True)]


def rank_step_spread(ranks: Sequence[RankSteps]) -> float | None:
    """Return the median over steps of (slowest - fastest rank); None with one rank."""
    if len(ranks) < 2 or not ranks[0].stop_seconds:
        return None
    steps = zip(*(rank.step_seconds for rank in ranks), strict=True)
    return median(max(step) - min(step) for step in steps)


def steady_window(
    step_seconds: Sequence[float], exclude_steps: int, exclude_seconds: float
) -> SteadyWindow:
    """Exclude the first steps until both limits are reached."""
    first = exclude_steps
    if exclude_seconds > 0:
        elapsed = accumulate(step_seconds)
        reached = next(
            (i + 1 for i, total in enumerate(elapsed) if total >= exclude_seconds),
            len(step_seconds),
        )
        first = max(first, reached)
    first = min(first, len(step_seconds))
    window = step_seconds[first:]
    seconds = math.fsum(window)
    short = len(window) < ENOUGH_STEPS and seconds < ENOUGH_SECONDS
    return SteadyWindow(median(window) if window else None, len(window), seconds, first, short)


def data_wait_share(ranks: Sequence[RankSteps], first_step: int) -> float | None:
    """Return the largest share of its window that a rank spent waiting for data.

    The result is None if the window is empty.
    """
    shares = []
    for rank in ranks:
        seconds = math.fsum(rank.step_seconds[first_step:])
        if seconds <= 0:
            return None
        shares.append(math.fsum(rank.data_wait_seconds[first_step:]) / seconds)
    return max(shares, default=None)


def key_value_line(values: Mapping[str, float | int | str | None]) -> str:
    """Return `name=value; name=value;` without unknown values, for SageMaker metric definitions."""
    return " ".join(
        f"{name}={_spell(value)};" for name, value in values.items() if value is not None
    )


def _spell(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def summary_values(metrics: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Return the values of metrics.json that are printed for metric definitions."""
    steady, batch = metrics["steady"], metrics["batch"]
    step = steady["step_seconds"]
    return {
        "train_seconds": metrics["train_seconds"],
        "steps": metrics["steps"],
        "steady_step_seconds": step,
        "steady_steps": steady["steps"],
        "samples_per_second": batch["global_batch_size"] / step if step else None,
        "data_wait_share": metrics["data_wait_share"],
        "rank_step_spread_seconds": metrics["rank_step_spread_seconds"],
        "final_metric": metrics["final_metric"]["value"],
        "world_size": metrics["world"]["world_size"],
        "global_batch_size": batch["global_batch_size"],
        "learning_rate": metrics["learning_rate"],
        "samples_processed": metrics["samples"]["processed"],
    }
