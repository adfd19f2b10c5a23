"""How long a sweep still takes, from the jobs that have ended and those that are to come.

A job of a node count that was measured takes the median of what its jobs took, from accepted to
ended. One of another count takes between what the nearest measured count took (no speedup at all)
and that times the ratio of the counts (ideal speedup); the middle of the two is their geometric
mean. What runs is expected to end when its time is over, or when its own steps say. Jobs to come
are then laid out in their order over as many as may run at once.

Of a probe sweep the jobs that have ended are parts of runs, and its check is a whole one: that
takes what the probes foretell of a whole job, and begins once all of them have ended.

Nobody knows how fast one instance type is by another. So each goes by its own jobs, and while one
of them has none, all that is known is how long it takes at least.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

SPREAD = 0.1
"""By which share a measured time may be off, either way: an assumption, not a measurement. Repeats
of a job on the platform of this machine differ by less, where nothing else runs there.
"""
SURE_SHARE = 0.1
"""Of its steps a job must have made before they tell its end: the first ones are slow."""


@dataclass(frozen=True)
class TimeLeft:
    """Seconds: the best guess, and between which it lies if every assumption holds; where the upper
    one is infinite nothing is known of some jobs, and the guess is that of the others.
    """

    seconds: float
    low_seconds: float
    high_seconds: float


class TypedCount(NamedTuple):
    """A node count of an instance type, which is "" in a sweep of one."""

    nodes: int
    instance_type: str = ""


class Took(NamedTuple):
    """A job that ended: its node count, the seconds from accepted to ended, its instance type."""

    nodes: int
    seconds: float
    instance_type: str = ""


@dataclass(frozen=True)
class JobToCome:
    """A job that runs or waits. `elapsed_seconds`: since it was accepted, None where it waits;
    `left_seconds`: what its steps say is left of it, None where they don't. `is_check`: the whole
    job of a probe sweep; `or_at`: further counts that it may run at, where that is not decided.
    `may_be_dropped`: it comes only where what is measured until then leaves the answer open.
    """

    nodes: int
    elapsed_seconds: float | None = None
    left_seconds: float | None = None
    is_check: bool = False
    or_at: tuple[TypedCount, ...] = ()
    instance_type: str = ""
    may_be_dropped: bool = False

    @property
    def counts(self) -> tuple[TypedCount, ...]:
        """Where it runs, or may."""
        return (TypedCount(self.nodes, self.instance_type), *self.or_at)


def left_by_steps(trained_seconds: float, step: int, steps: int) -> float | None:
    """What is left of a training that made so many of its steps in that time; None where it made
    too few to tell.
    """
    if step < SURE_SHARE * steps or step < 1:
        return None
    return trained_seconds * max(0, steps - step) / step


def time_left(
    ended: Sequence[Took],
    to_come: Sequence[JobToCome],
    at_once: int,
    foretold: Sequence[Took] = (),
) -> TimeLeft | None:
    """`ended`: the jobs that completed; `foretold`: whole jobs, as probes foretell them. None where
    nothing says how long any job to come takes.
    """
    known = [
        *ended,
        *(
            Took(job.nodes, job.elapsed_seconds + job.left_seconds, job.instance_type)
            for job in to_come
            if job.elapsed_seconds is not None and job.left_seconds is not None
            if not job.is_check
        ),
    ]
    by_kind = {False: _by_type(known), True: _by_type(foretold)}
    told = [job for job in to_come if _tells_its_end(job) or _is_known(job, by_kind[job.is_check])]
    if to_come and not told:
        return None

    def takes(job: JobToCome) -> list[float]:
        by_type = by_kind[job.is_check]
        return [
            each
            for nodes, instance_type in job.counts
            for each in _bounds(by_type[instance_type], nodes)
        ]

    def low(job: JobToCome) -> float:
        return min(takes(job)) * (1 - SPREAD)

    def middle(job: JobToCome) -> float:
        return math.sqrt(min(takes(job)) * max(takes(job)))

    def high(job: JobToCome) -> float:
        return max(takes(job)) * (1 + SPREAD)

    sure = [job for job in told if not job.may_be_dropped]
    return TimeLeft(
        _makespan(told, middle, at_once, 1.0),
        _makespan(sure, low, at_once, 1 - SPREAD),
        _makespan(told, high, at_once, 1 + SPREAD) if len(told) == len(to_come) else math.inf,
    )


_SecondsByType = dict[str, dict[int, list[float]]]
"""Seconds by instance type and node count."""


def _tells_its_end(job: JobToCome) -> bool:
    return job.elapsed_seconds is not None and job.left_seconds is not None


def _is_known(job: JobToCome, by_type: _SecondsByType) -> bool:
    return all(count.instance_type in by_type for count in job.counts)


def _by_type(known: Sequence[Took]) -> _SecondsByType:
    found: _SecondsByType = {}
    for nodes, seconds, instance_type in known:
        found.setdefault(instance_type, {}).setdefault(nodes, []).append(seconds)
    return found


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
    """Seconds until the last job has ended, each started as soon as fewer than `at_once` run, a
    check once nothing else does. `factor`: on what the steps of a job say is left of it.
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
