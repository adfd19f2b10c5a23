"""How far a sweep of any design is: what it has asked for, and whether that is all done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.price import Price, price_of
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.design.probe import probe_progress
from nodesweep.scaling.design.sequential import Limits, Point, Progress, follow
from nodesweep.scaling.outcome.attainment import is_disturbed
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import pairs_repeats, repeats_share_seeds

if TYPE_CHECKING:
    from nodesweep.scaling.report.model import ScalingReport


class Attempt(NamedTuple):
    """A run that has ended; `train_seconds` is None where it gave none or is not used."""

    nodes: int
    repeat: int
    train_seconds: float | None
    starved: bool


def progress_of(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> Progress | None:
    """Where a sequential or probe sweep stands by the outcomes of the points that have ended; None
    of a full one.
    """
    if config.sweep.design == "full":
        return None
    rows, runs = summarise_runs(
        outcomes,
        _price(config),
        parity=config.report.parity,
        paired=pairs_repeats(config),
        same_seeds=repeats_share_seeds(config),
    )
    attempts = [
        Attempt(
            run.outcome.nodes,
            run.outcome.repeat,
            run.train_seconds if run.used else None,
            is_disturbed(run.outcome),
        )
        for run in runs
    ]
    return progress_by_rows(config, rows, attempts)


def _price(config: BenchmarkConfig) -> Price:
    """As the report knows it: a budget per run may decide which count is checked."""
    instance = load_catalogue().get(config.training.instance_type)
    return price_of(instance, config.platform.region)


def progress_by_rows(
    config: BenchmarkConfig,
    rows: Sequence[SummaryRow],
    attempts: Sequence[Attempt],
) -> Progress:
    """By what a report has: its rows and attempts.

    Times that hold start-up, too, make no ratio, so that none is taken (docs/method.md, "Clocks").
    """
    if config.sweep.design == "probe":
        return probe_progress(config, rows, {(each.nodes, each.repeat) for each in attempts})
    has_ratios = any(row.train.efficiency is not None for row in rows)
    times: dict[Point, float | None] = {}
    for nodes, repeat, seconds, starved in attempts:
        if times.get((nodes, repeat)) is None:
            times[nodes, repeat] = seconds if has_ratios and not starved else None
    without_cpu = {
        (each.nodes, each.repeat)
        for each in attempts
        if each.starved and times[each.nodes, each.repeat] is None
    }
    goals = config.report.recommendation
    return follow(
        times,
        config.sweep.node_counts,
        Limits(goals.min_efficiency, goals.min_doubling_ratio),
        config.sweep.max_repeats,
        [row.nodes for row in rows if "throughput_only" in row.flags],
        without_cpu,
    )


def asked_points(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> list[Point]:
    """Every (nodes, repeat) that the design has asked for by these outcomes, ascending."""
    progress = progress_of(config, outcomes)
    if progress is not None:
        return sorted(progress.points)
    repeats = range(1, config.sweep.repeats + 1)
    return [(nodes, repeat) for nodes in config.sweep.node_counts for repeat in repeats]


def is_complete(config: BenchmarkConfig, report: ScalingReport) -> bool:
    """Whether each point that the design of this config asks for has a completed run."""
    done, asked = points_done(config, report)
    return done == asked


def points_done(config: BenchmarkConfig, report: ScalingReport) -> tuple[int, int]:
    """(points with a completed run, all points) of those that the design of this config asks for by
    what the report has; of several instance types as the report counted them.
    """
    if report.instances is not None:
        return report.instances.points_done, report.instances.points_asked
    done = {(point.nodes, point.repeat) for point in report.points if point.status == "Completed"}
    asked = set(_asked_by_report(config, report))
    return len(done & asked), len(asked)


def _asked_by_report(config: BenchmarkConfig, report: ScalingReport) -> Iterable[Point]:
    if config.sweep.design == "full":
        return asked_points(config, ())
    attempts = [
        Attempt(
            point.nodes,
            point.repeat,
            point.clocks.train_seconds if point.used else None,
            is_disturbed(point),
        )
        for point in report.points
    ]
    return progress_by_rows(config, report.summary, attempts).points
