"""The growth of the global batch with the node count, and the samples and rates of the runs.

A larger batch takes fewer steps for the same samples, so the trained model may differ. Unless a
metric shows otherwise, only samples per second can be compared (docs/method.md, "Convergence
parity").
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from nodesweep.scaling.analysis.intervals import geometric_mean
from nodesweep.scaling.formats import format_count
from nodesweep.scaling.outcome.outcome import PHASE_CLOCKS, JobOutcome, TrainClock

SAME = 0.01
"""Relative difference up to which batches or numbers of samples are considered equal.

Numbers of samples differ slightly, since each run processes whole batches.
"""
WEAK_TIME_SHARE = 0.9
"""Minimum T(N)/T(N0) at every N for runs to count as weak scaling.

With the same number of steps, a shorter time would mean an efficiency above 1/0.9 = 111%, so the
work must have been divided instead.
"""
_SIZES: tuple[Callable[[JobOutcome], int | None], ...] = (
    attrgetter("global_batch_size"),
    attrgetter("world_size"),
    attrgetter("nodes"),
)

TimedRun = tuple[JobOutcome, float]
"""A used run and its train time in seconds."""


def grown_batches(used: Mapping[int, Sequence[JobOutcome]], base: int) -> dict[int, str]:
    """Return a clause for each node count whose global batch is larger than the baseline's.

    If both batch sizes are known, they are compared. Otherwise, a larger batch is assumed if the
    policy is fixed_per_replica or if the known sizes differ.

    Args:
        used: The used runs by node count.
        base: N0.
    """
    sizes = {
        nodes: [run.global_batch_size for run in runs if run.global_batch_size is not None]
        for nodes, runs in used.items()
    }
    known = [size for at in sizes.values() for size in at]
    by_policy = any(run.batch_policy == "fixed_per_replica" for at in used.values() for run in at)
    grows = by_policy or _is_larger(known, known)
    grown: dict[int, str] = {}
    for nodes, at in sizes.items():
        if at and sizes[base]:
            if _is_larger(at, sizes[base]):
                small, large = format_count(min(sizes[base])), format_count(max(at))
                grown[nodes] = f"the global batch grows from {small} to {large} samples"
        elif grows and nodes != base:
            by = " (fixed_per_replica)" if by_policy else ""
            grown[nodes] = f"the global batch grows with the nodes{by}"
    return grown


def _is_larger(sizes: Sequence[int], than: Sequence[int]) -> bool:
    return bool(sizes) and max(sizes) > min(than) * (1 + SAME)


def samples_ratios(
    runs: Mapping[int, Sequence[TimedRun]], base: int, clock: TrainClock | None
) -> dict[int, float]:
    """Return each node count's samples per run relative to N0; empty if times are compared.

    If all programs counted their samples, these numbers are used. Otherwise, runs that no sweep
    planned count as weak scaling, with the same number of steps of a growing batch, if times do not
    decrease with the number of nodes.

    Args:
        runs: The used runs by node count.
        base: N0.
        clock: Clock of the times. The result is empty for rates, which are per sample, and for the
            times of a platform phase.
    """
    if clock == "throughput" or clock in PHASE_CLOCKS:
        return {}
    counted = {nodes: samples for nodes, at in runs.items() if (samples := _samples(at))}
    if len(counted) == len(runs):
        medians = {nodes: statistics.median(samples) for nodes, samples in counted.items()}
        ratios = {nodes: samples / medians[base] for nodes, samples in medians.items()}
        return ratios if any(abs(ratio - 1) > SAME for ratio in ratios.values()) else {}
    times = {nodes: statistics.median(seconds for _, seconds in at) for nodes, at in runs.items()}
    is_weak = min(times.values()) >= WEAK_TIME_SHARE * times[base]
    outcomes = [outcome for at in runs.values() for outcome, _ in at]
    if not is_weak or any(outcome.planned for outcome in outcomes):  # a sweep plans equal work
        return {}
    size = next(read for read in _SIZES if all(read(outcome) for outcome in outcomes))
    sizes = {nodes: size(at[0][0]) or 0 for nodes, at in runs.items()}
    return {nodes: each / sizes[base] for nodes, each in sizes.items()}


def samples_per_second(
    runs: Sequence[TimedRun], clock: TrainClock | None, steady_seconds: float | None
) -> float | None:
    """Return the samples per second over all nodes; None if unknown.

    Args:
        runs: The used runs of one node count.
        clock: Clock of the times.
        steady_seconds: Geometric mean of the seconds per sample in the steady window; None if
            unknown.
    """
    times = [seconds for _, seconds in runs]
    samples = [1.0] * len(times) if clock == "throughput" else _samples(runs)
    if samples and clock not in PHASE_CLOCKS:
        return 1 / geometric_mean(list(map(operator.truediv, times, samples)))
    return None if steady_seconds is None else 1 / steady_seconds


def _samples(runs: Sequence[TimedRun]) -> list[float]:
    """Return the number of samples that each run processed, or [] if a run did not count them."""
    processed = [outcome.metric_number("samples", "processed") for outcome, _ in runs]
    known = [samples for samples in processed if samples is not None and samples > 0]
    return known if len(known) == len(runs) else []
