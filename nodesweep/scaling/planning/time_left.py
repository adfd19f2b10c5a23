"""Estimate the remaining time of a sweep from its completed, running and waiting jobs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

SPREAD = 0.1
"""Assumed (not measured) relative error of a measured time, in either direction.

Repeats of a job on the local platform differ by less if nothing else is running there.
"""
SURE_SHARE = 0.1
"""Share of its steps after which a job's end is predicted, because the first steps are slow."""


@dataclass(frozen=True)
class TimeLeft:
    """The estimated seconds left, with bounds that hold if all assumptions do.

    An infinite upper bound means that some jobs cannot be estimated. The estimate then covers only
    the others.
    """

    seconds: float
    low_seconds: float
    high_seconds: float


class ArmCount(NamedTuple):
    """A node count and the code of its arm, which is "" in a sweep of one arm."""

    nodes: int
    arm: str = ""


class CompletedJob(NamedTuple):
    """A finished job: its node count, the seconds from acceptance to end, and its arm."""

    nodes: int
    seconds: float
    arm: str = ""


@dataclass(frozen=True)
class PendingJob:
    """A running or waiting job.

    `elapsed_seconds`: since it was accepted, None while it waits. `left_seconds`: the remaining
    time according to its steps, None if unknown. `is_validation_run`: True for the validation run
    of a probe sweep. `or_at`: further node counts that it may run at, until one is decided.
    `may_be_dropped`: True if earlier measurements can make the job superfluous.
    """

    nodes: int
    elapsed_seconds: float | None = None
    left_seconds: float | None = None
    is_validation_run: bool = False
    or_at: tuple[ArmCount, ...] = ()
    arm: str = ""
    may_be_dropped: bool = False

    @property
    def counts(self) -> tuple[ArmCount, ...]:
        """The node counts at which the job runs or may run."""
        return (ArmCount(self.nodes, self.arm), *self.or_at)


def left_by_steps(trained_seconds: float, step: int, steps: int) -> float | None:
    """Return a job's remaining training seconds; None if too few of its steps are completed."""
    if step < SURE_SHARE * steps or step < 1:
        return None
    return trained_seconds * max(0, steps - step) / step


def time_left(
    ended: Sequence[CompletedJob],
    to_come: Sequence[PendingJob],
    at_once: int,
    projected: Sequence[CompletedJob] = (),
) -> TimeLeft | None:
    """Return the time left; None if no pending job can be estimated.

    A job at a measured node count takes the median time of the jobs there, from acceptance to end.
    At a different node count it takes between the time at the nearest measured one (no speedup) and
    that time multiplied by the ratio of the node counts (ideal speedup). The middle estimate is
    their geometric mean. Running jobs end after that time, or as their own steps predict. Waiting
    jobs are scheduled in order. A probe sweep's validation run takes the projected time of a full
    job and starts after all probes. The relative speed of arms is unknown, so each arm is estimated
    from its own jobs. As long as an arm has none, there is only a lower bound.

    Args:
        ended: The jobs that completed.
        to_come: The running and waiting jobs, in order.
        at_once: Maximum number of jobs that run at the same time.
        projected: Full jobs, as projected from probes.
    """
    known = [
        *ended,
        *(
            CompletedJob(job.nodes, job.elapsed_seconds + job.left_seconds, job.arm)
            for job in to_come
            if job.elapsed_seconds is not None and job.left_seconds is not None
            if not job.is_validation_run
        ),
    ]
    by_kind = {False: _by_arm(known), True: _by_arm(projected)}
    estimable = [
        job
        for job in to_come
        if _has_own_estimate(job) or _is_known(job, by_kind[job.is_validation_run])
    ]
    if to_come and not estimable:
        return None

    def possible_seconds(job: PendingJob) -> list[float]:
        by_arm = by_kind[job.is_validation_run]
        return [each for nodes, arm in job.counts for each in _bounds(by_arm[arm], nodes)]

    def low(job: PendingJob) -> float:
        return min(possible_seconds(job)) * (1 - SPREAD)

    def middle(job: PendingJob) -> float:
        return math.sqrt(min(possible_seconds(job)) * max(possible_seconds(job)))

    def high(job: PendingJob) -> float:
        return max(possible_seconds(job)) * (1 + SPREAD)

    certain = [job for job in estimable if not job.may_be_dropped]
    return TimeLeft(
        _makespan(estimable, middle, at_once, 1.0),
        _makespan(certain, low, at_once, 1 - SPREAD),
        _makespan(estimable, high, at_once, 1 + SPREAD)
        if len(estimable) == len(to_come)
        else math.inf,
    )


_SecondsByArm = dict[str, dict[int, list[float]]]
"""Seconds by arm and node count."""


def _has_own_estimate(job: PendingJob) -> bool:
    return job.elapsed_seconds is not None and job.left_seconds is not None


def _is_known(job: PendingJob, by_arm: _SecondsByArm) -> bool:
    return all(count.arm in by_arm for count in job.counts)


def _by_arm(known: Sequence[CompletedJob]) -> _SecondsByArm:
    found: _SecondsByArm = {}
    for nodes, seconds, arm in known:
        found.setdefault(arm, {}).setdefault(nodes, []).append(seconds)
    return found


def _bounds(by_nodes: dict[int, list[float]], nodes: int) -> tuple[float, float]:
    """Return the seconds of a job without speedup and with ideal speedup.

    Both are derived from the nearest measured node count, and are equal if the job runs there.
    """
    nearest = min(by_nodes, key=lambda count: abs(math.log(count / nodes)))
    seconds = median(by_nodes[nearest])
    return seconds, seconds * nearest / nodes


def _makespan(
    to_come: Sequence[PendingJob],
    takes: Callable[[PendingJob], float],
    at_once: int,
    factor: float,
) -> float:
    """Return the seconds until the last job has ended.

    Each job starts as soon as fewer than `at_once` jobs run, and a validation run starts once no
    other job is running. `takes` returns the seconds of a full job. `factor` multiplies the
    remaining seconds that a job's own steps predict.
    """
    ends = [
        _remaining_seconds(job, takes, factor) for job in to_come if job.elapsed_seconds is not None
    ]
    ends += [0.0] * max(0, at_once - len(ends))
    heapq.heapify(ends)
    waiting = [job for job in to_come if job.elapsed_seconds is None]
    for job in waiting:
        if not job.is_validation_run:
            heapq.heapreplace(ends, ends[0] + takes(job))
    return max(ends, default=0.0) + math.fsum(
        takes(job) for job in waiting if job.is_validation_run
    )


def _remaining_seconds(
    job: PendingJob, takes: Callable[[PendingJob], float], factor: float
) -> float:
    if job.left_seconds is not None:
        return job.left_seconds * factor
    return max(0.0, takes(job) - (job.elapsed_seconds or 0.0))
