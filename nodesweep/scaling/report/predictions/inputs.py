"""Read the inputs of a prediction, the measured parts of T, or explain why they are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

import numpy as np

from nodesweep.configs.designs import FURTHEST_PREDICTED as FURTHEST
from nodesweep.configs.designs import MODEL_PARALLEL_DEGREES
from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.step_budget import CountBudget
from nodesweep.scaling.formats import join_words, nodes_text
from nodesweep.scaling.outcome.timed_passes import PassRatio
from nodesweep.scaling.predict.draws import Measurement
from nodesweep.scaling.predict.physics import Part, Place
from nodesweep.scaling.report.model import ScalingReport

DEFAULT_LARGEST = 8
_WRITTEN: Mapping[Part, tuple[str, ...]] = {
    "gradients": ("forward", "backward"),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "communication": ("communication",),
    "waiting": ("waiting",),
    "data": ("data",),
    "fixed": ("evaluation", "checkpoint", "start", "other"),
}


class NotPredictable(ValueError):
    """Nothing can be predicted from a report; the message gives the reason and the remedy."""


def read_measurements(report: ScalingReport) -> list[Measurement]:
    """Return the node counts with a known step budget whose nodes were not contended.

    Raises:
        NotPredictable: These node counts are not enough for a prediction.
    """
    budget = report.step_budget
    if budget is None:
        raise NotPredictable(
            f"{report.sweep_id}: the report has no step-time breakdown (`step_budget`), which "
            "predictions require. nodesweep measures it in the shipped program and in PyTorch "
            "scripts that report no train time, on CPUs, with steps of 20 ms or more "
            "(docs/own-code.md)"
        )
    _refuse_model_parallelism(report)
    rows = {row.nodes: row for row in report.summary}
    sound = [each for each in budget.counts if "starved" not in rows[each.nodes].flags]
    if len(sound) < 2 or sound[-1].nodes == 1:
        has = join_words(nodes_text(each.nodes) for each in sound)
        raise NotPredictable(
            f"{report.sweep_id}: predictions need the step budget of two node counts or more, at "
            f"least one of them with several nodes; the report has a step budget for: {has} "
            "(contended runs don't count). Measure 1, 2 and 4 nodes"
        )
    found = [measurement_of(each, rows[each.nodes]) for each in sound]
    if report.baseline is None or found[0].place.nodes != report.baseline.nodes:
        raise NotPredictable(
            f"{report.sweep_id}: the baseline, which efficiency is relative to, has no step budget "
            "or was contended; measure it again"
        )
    if len({each.place.processes / each.place.nodes for each in found}) > 1:
        raise NotPredictable(
            f"{report.sweep_id}: the number of processes per node differs between node counts, "
            "which the model doesn't cover; use the same number on all"
        )
    return found


def _refuse_model_parallelism(report: ScalingReport) -> None:
    chosen = _section(report, "training").get("distribution")
    degrees = chosen if isinstance(chosen, Mapping) else {}
    for name in MODEL_PARALLEL_DEGREES:
        if (degrees.get(name) or 1) > 1:
            raise NotPredictable(
                f"training.distribution.{name}: {degrees[name]}; predictions support data "
                "parallelism only: tensor, pipeline, context and expert parallelism exchange more "
                "than gradients. Measure the node count itself"
            )


def measurement_of(budget: CountBudget, row: SummaryRow) -> Measurement:
    """Return the measurement at a node count.

    Raises:
        NotPredictable: Its parts, processes or batch are unknown, or its model is split across
            processes.
    """
    by_name: dict[str, tuple[float, ...]] = {part.name: part.by_run for part in budget.parts}
    if any(len(seconds) != budget.n for seconds in by_name.values()):
        raise NotPredictable(
            f"{nodes_text(row.nodes)}: the report is from before 27 November 2026 and lacks the "
            "parts of single runs; recreate it with `nodesweep report SWEEP_ID`"
        )
    runs = {
        # waiting is a difference, which rounding can make negative
        part: np.sum([by_name.get(name, (0.0,) * budget.n) for name in names], axis=0).clip(0)
        for part, names in _WRITTEN.items()
    }
    world, size = row.world_size, row.global_batch_size
    if world is None or size is None:
        raise NotPredictable(
            f"{nodes_text(row.nodes)}: the number of processes or the global batch is unknown; "
            "set training.batch, and see docs/own-code.md for the world size"
        )
    if size % world:
        raise NotPredictable(
            f"{nodes_text(row.nodes)}: a global batch of {size} is not divisible by the number of "
            f"processes ({world}), so not all of them are replicas of the model; predictions "
            "support data parallelism only. Measure the node count itself"
        )
    work = row.samples_ratio or 1.0
    whole = budget.exchange
    exchange = None
    if whole is not None:
        exchange = Exchange(whole.latency_seconds, whole.transfer_seconds, whole.last_bucket_share)
    return Measurement(
        Place(row.nodes, world, size / world, work / size),
        runs,
        work,
        exchange,
        {each.samples: PassRatio(each.ratio, each.error, each.whole) for each in budget.passes},
    )


def projected_counts(report: ScalingReport) -> frozenset[int]:
    """Return the node counts at which the time of at least one run is projected."""
    return frozenset(
        point.nodes for point in report.points if point.used and point.projection is not None
    )


def choose_counts(measured: Sequence[Measurement], asked: Sequence[int] | None) -> list[int]:
    """Return the node counts to predict, ascending.

    By default, these are the doublings of the largest measured node count up to 8, at least one,
    without those that a fixed global batch does not divide into.

    Raises:
        NotPredictable: A requested node count was measured, or is too far from the measured ones.
    """
    known = [each.place.nodes for each in measured]
    most = known[-1] * FURTHEST
    if asked is None:
        doubled = [known[-1] * 2]
        while doubled[-1] * 2 <= min(DEFAULT_LARGEST, most):
            doubled.append(doubled[-1] * 2)
        size = _fixed_global_batch(measured)
        divided = [each for each in doubled if not (size or 0) % _processes(measured, each)]
        return divided or doubled[:1]  # place_of() refuses the latter
    for nodes in asked:
        if nodes in known:
            raise NotPredictable(f"{nodes_text(nodes)}: already measured; see the report")
        if not 1 < nodes <= most:
            raise NotPredictable(
                f"{nodes_text(nodes)}: cannot be predicted; choose 2 to {most} (at most "
                f"{FURTHEST} times the largest measured count)"
            )
    return sorted(set(asked))


def place_of(measured: Sequence[Measurement], nodes: int) -> tuple[Place, float]:
    """Return the Place with this node count, and the work of a run on it.

    Raises:
        NotPredictable: The batch or the work at this node count is unknown.
    """
    last, processes = measured[-1], _processes(measured, nodes)
    if (size := _fixed_global_batch(measured)) is not None:
        if size % processes:
            raise NotPredictable(
                f"{nodes_text(nodes)}: the global batch of {size:g} is not divisible by the number "
                f"of processes ({processes}); choose other node counts"
            )
    elif len({each.place.batch for each in measured}) == 1:
        size = last.place.batch * processes
    else:
        raise NotPredictable(
            "global batch: the measured counts follow neither fixed_global nor fixed_per_replica, "
            "so the batch of other counts is unknown; measure these counts, or repeat the sweep "
            "with one policy"
        )
    steps = [each.place.steps for each in measured]
    if all(each.work == last.work for each in measured):
        work = last.work
    elif all(isclose(each, steps[0], rel_tol=0.01) for each in steps):
        work = last.place.steps * size
    else:
        raise NotPredictable(
            "samples: the runs at different node counts trained neither the same number of samples "
            "nor of steps, so the work at other counts is unknown; measure these counts"
        )
    return Place(nodes, processes, size / processes, work / size), work


def _processes(measured: Sequence[Measurement], nodes: int) -> int:
    """Return the number of processes on this many nodes, each with as many as in the last run."""
    last = measured[-1].place
    return last.processes // last.nodes * nodes


def _fixed_global_batch(measured: Sequence[Measurement]) -> float | None:
    """Return the global batch in samples if it is the same at all node counts, else None."""
    sizes = {each.place.batch * each.place.processes for each in measured}
    return sizes.pop() if len(sizes) == 1 else None


def read_passes(
    report: ScalingReport, measured: Sequence[Measurement], other: ScalingReport
) -> dict[float, list[float]]:
    """Return the seconds per step of one-node runs in a different report, by samples per process.

    They are the seconds of the forward and backward pass, converted to steps of `measured`.

    Raises:
        NotPredictable: The other report has no step budget for one node, or is not comparable.
    """
    differs = [
        name
        for name in ("platform", "instance_type", "image_uri", "train_clock")
        if getattr(report.conditions, name) != getattr(other.conditions, name)
    ]
    if differs:
        raise NotPredictable(
            f"--batches: {other.sweep_id} differs from {report.sweep_id} in {join_words(differs)}; "
            "give a report with the same conditions"
        )
    rows = {row.nodes: row for row in other.summary}
    alone = other.step_budget and [each for each in other.step_budget.counts if each.nodes == 1]
    if not alone:
        raise NotPredictable(
            f"--batches: {other.sweep_id} has no step budget of 1 node; give a report that has one"
        )
    found = measurement_of(alone[0], rows[1])
    base = measured[0].place
    steps, base_steps = (
        _steps(row) for row in (rows[1], {row.nodes: row for row in report.summary}[base.nodes])
    )
    if steps is None or base_steps is None:
        raise NotPredictable(
            f"--batches: the samples per second of {other.sweep_id} or {report.sweep_id} are "
            "unknown, so their steps can't be compared"
        )
    per_step = found.runs["gradients"] / steps * (base_steps / base.steps)
    return {found.place.batch: per_step.tolist()}


def _steps(row: SummaryRow) -> float | None:
    rate, seconds, size = row.samples_per_second, row.train.seconds, row.global_batch_size
    return None if rate is None or seconds is None or not size else rate * seconds / size


def _section(report: ScalingReport, name: str) -> Mapping[str, Any]:
    """Return a section of the report's config, or an empty mapping if it has no such section."""
    found = (report.config or {}).get(name)
    return found if isinstance(found, Mapping) else {}
