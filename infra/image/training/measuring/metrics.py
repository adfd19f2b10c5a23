"""Arithmetic and form of metrics.json; the schema is described in the image's README."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any

SCHEMA_VERSION = 1
# A steady window that has either of these is long enough to be quoted.
ENOUGH_STEPS = 100
ENOUGH_SECONDS = 60.0


@dataclass(frozen=True)
class RankSteps:
    """What one rank measured: when every optimiser step started and stopped, in seconds since all
    ranks began to train, and the part of each spent waiting for data.
    """

    start_seconds: Sequence[float]
    stop_seconds: Sequence[float]
    data_wait_seconds: Sequence[float]

    @property
    def step_seconds(self) -> list[float]:
        """How long every step took."""
        marks = zip(self.start_seconds, self.stop_seconds, strict=True)
        return [stop - start for start, stop in marks]


@dataclass(frozen=True)
class Validation:
    """One result of the final metric: after how many steps and samples over all ranks,
    when on the train clock.
    """

    step: int
    samples: int
    elapsed_seconds: float
    value: float


@dataclass(frozen=True)
class SteadyWindow:
    """The steps that count as steady state; `step_seconds` is their median,
    None where the window is empty.
    """

    step_seconds: float | None
    steps: int
    seconds: float
    first_step: int
    short_window: bool


def slowest_rank(ranks: Sequence[RankSteps]) -> list[float]:
    """Seconds of every step of all ranks together: from when the last of them has started it to
    when the last has ended it.

    A step starts where the one before ended, so they add up to the time that passed. The longest
    step of any rank, each time, would add up to more, where one rank is late and then another.
    """
    starts = zip(*(rank.start_seconds for rank in ranks), strict=True)
    stops = zip(*(rank.stop_seconds for rank in ranks), strict=True)
    return [max(stop) - max(start) for start, stop in zip(starts, stops, strict=True)]


def rank_step_spread(ranks: Sequence[RankSteps]) -> float | None:
    """Median over steps of (slowest - fastest rank); None with one rank, which has no spread."""
    if len(ranks) < 2 or not ranks[0].stop_seconds:
        return None
    steps = zip(*(rank.step_seconds for rank in ranks), strict=True)
    return median(max(step) - min(step) for step in steps)


def steady_window(
    step_seconds: Sequence[float], exclude_steps: int, exclude_seconds: float
) -> SteadyWindow:
    """Leave out the first steps until both limits are reached."""
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
    """Share of the window's time that the rank with the slowest loader waited for data; None
    without a window.
    """
    shares = []
    for rank in ranks:
        seconds = math.fsum(rank.step_seconds[first_step:])
        if seconds <= 0:
            return None
        shares.append(math.fsum(rank.data_wait_seconds[first_step:]) / seconds)
    return max(shares, default=None)


def key_value_line(values: Mapping[str, float | int | str | None]) -> str:
    """`name=value; name=value;` without the unknown ones,
    as SageMaker metric definitions match it.
    """
    return " ".join(
        f"{name}={_spell(value)};" for name, value in values.items() if value is not None
    )


def _spell(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def summary_values(metrics: Mapping[str, Any]) -> dict[str, float | int | None]:
    """The facts of metrics.json that are printed for metric definitions."""
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
