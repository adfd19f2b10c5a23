"""How long a sweep still takes, from the jobs that have ended and those that are to come.

A job of a node count that was measured takes the median of what its jobs took, from accepted to
ended. One of another count takes between what the nearest measured count took (no speedup at all)
and that times the ratio of the counts (ideal speedup); the middle of the two is their geometric
mean. What runs is expected to end when its time is over, or when its own steps say. Jobs to come
are then laid out in their order over as many as may run at once.

Of a probe sweep the jobs that have ended are parts of runs, and its check is a whole one: that
takes what the probes foretell of a whole job, and begins once all of them have ended.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

SPREAD = 0.1
"""By which share a measured time may be off, either way: an assumption, not a measurement. Repeats
of a job on the platform of this machine differ by less, where nothing else runs there.
"""
SURE_SHARE = 0.1
"""Of its steps a job must have made before they tell its end: the first ones are slow."""


@dataclass(frozen=True)
class TimeLeft:
    """Seconds: the best guess, and between which it lies if every assumption holds."""

    seconds: float
    low_seconds: float
    high_seconds: float


@dataclass(frozen=True)
class JobToCome:
    """A job that runs or waits. `elapsed_seconds`: since it was accepted, None where it waits;
    `left_seconds`: what its steps say is left of it, None where they don't. `is_check`: the whole
    job of a probe sweep; `or_at`: further counts that it may run at, where that is not decided.
    """

    nodes: int
    elapsed_seconds: float | None = None
    left_seconds: float | None = None
    is_check: bool = False
    or_at: tuple[int, ...] = ()


def left_by_steps(trained_seconds: float, step: int, steps: int) -> float | None:
    """What is left of a training that made so many of its steps in that time; None where it made
    too few to tell.
    """
    if step < SURE_SHARE * steps or step < 1:
        return None
    return trained_seconds * max(0, steps - step) / step


def time_left(
    ended: Sequence[tuple[int, float]],
    to_come: Sequence[JobToCome],
    at_once: int,
    foretold: Sequence[tuple[int, float]] = (),
) -> TimeLeft | None:
    """`ended`: (nodes, seconds from accepted to ended) of each job that completed; `foretold`: the
    same of a whole job, as probes foretell it. None where nothing says how long a job to come
    takes.
    """
    known = [
        *ended,
        *(
            (job.nodes, job.elapsed_seconds + job.left_seconds)
            for job in to_come
            if job.elapsed_seconds is not None and job.left_seconds is not None
            if not job.is_check
        ),
    ]
    by_kind = {False: _by_nodes(known), True: _by_nodes(foretold)}
    if any(not by_kind[job.is_check] for job in to_come if not _tells_its_end(job)):
        return None

    def takes(job: JobToCome) -> list[float]:
        by_nodes = by_kind[job.is_check]
        return [each for nodes in (job.nodes, *job.or_at) for each in _bounds(by_nodes, nodes)]

    def low(job: JobToCome) -> float:
        return min(takes(job)) * (1 - SPREAD)

    def middle(job: JobToCome) -> float:
        return math.sqrt(min(takes(job)) * max(takes(job)))

    def high(job: JobToCome) -> float:
        return max(takes(job)) * (1 + SPREAD)

    factors = (1.0, 1 - SPREAD, 1 + SPREAD)
    return TimeLeft(
        *(
            _makespan(to_come, of, at_once, factor)
            for of, factor in zip((middle, low, high), factors, strict=True)
        )
    )


def _tells_its_end(job: JobToCome) -> bool:
    return job.elapsed_seconds is not None and job.left_seconds is not None


def _by_nodes(known: Sequence[tuple[int, float]]) -> dict[int, list[float]]:
    by_nodes: dict[int, list[float]] = {}
    for nodes, seconds in known:
        by_nodes.setdefault(nodes, []).append(seconds)
    return by_nodes


def _bounds(by_nodes: dict[int, list[float]], nodes: int) -> tuple[float, float]:
    """Seconds that a job of this node count takes without and with ideal speedup, from the nearest
    count that was measured; both are the same where that is this count.
    """
    nearest = min(by_nodes, key=lambda count: abs(math.log(count / nodes)))
    seconds = median(by_nodes[nearest])
    return seconds, seconds * nearest / nodes


def _makespan(
    to_come: Sequence[JobToCome],
    takes: Callable[[JobToCome], float],
    at_once: int,
    factor: float,
) -> float:
    """Seconds until the last job has ended, each started as soon as a place is free, a check once
    nothing else runs. `factor`: on what the steps of a job say is left of it.
    """
    ends = [_left(job, takes, factor) for job in to_come if job.elapsed_seconds is not None]
    ends += [0.0] * max(0, at_once - len(ends))
    heapq.heapify(ends)
    waiting = [job for job in to_come if job.elapsed_seconds is None]
    for job in waiting:
        if not job.is_check:
            heapq.heapreplace(ends, ends[0] + takes(job))
    return max(ends, default=0.0) + math.fsum(takes(job) for job in waiting if job.is_check)


def _left(job: JobToCome, takes: Callable[[JobToCome], float], factor: float) -> float:
    if job.left_seconds is not None:
        return job.left_seconds * factor
    return max(0.0, takes(job) - (job.elapsed_seconds or 0.0))
