"""The progress of a sweep with any design: the requested and the completed points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.price import Price, price_of
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.design.base import Attempt, Point, Progress
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.outcome.attainment import is_contended
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import pairs_repeats, repeats_share_seeds

if TYPE_CHECKING:
    from nodesweep.scaling.report.model import ScalingReport


def progress_of(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> Progress | None:
    """Return the progress of a sweep from all outcomes so far.

    None if the design requests all points at the start.
    """
    if not config.sweep.rules.decides_as_it_goes:
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
            is_contended(run.outcome),
        )
        for run in runs
    ]
    return design_of(config.sweep).progress(config, rows, attempts)


def _price(config: BenchmarkConfig) -> Price:
    """Return the report's price, since a cost limit can decide which node count is validated."""
    instance = config.node_type(config.training.instance_type)
    return price_of(instance, config.platform.region)


def asked_points(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> list[Point]:
    """Return every (nodes, repeat) that the design has requested, ascending."""
    progress = progress_of(config, outcomes)
    if progress is not None:
        return sorted(progress.points)
    repeats = range(1, config.sweep.arm_repeats + 1)
    return [(nodes, repeat) for nodes in config.sweep.node_counts for repeat in repeats]


def is_complete(config: BenchmarkConfig, report: ScalingReport) -> bool:
    """Return True if every point that the config's design requests has a completed run."""
    done, asked = points_done(config, report)
    return done == asked


def points_done(config: BenchmarkConfig, report: ScalingReport) -> tuple[int, int]:
    """Return (number of requested points with a completed run, number of requested points).

    The points are those that the config's design requests. With several arms, the report contains
    both numbers.
    """
    if report.instances is not None:
        return report.instances.points_done, report.instances.points_asked
    done = {(point.nodes, point.repeat) for point in report.points if point.status == "Completed"}
    asked = set(_asked_by_report(config, report))
    return len(done & asked), len(asked)


def _asked_by_report(config: BenchmarkConfig, report: ScalingReport) -> Iterable[Point]:
    attempts = [
        Attempt(
            point.nodes,
            point.repeat,
            point.clocks.train_seconds if point.used else None,
            is_contended(point),
        )
        for point in report.points
    ]
    progress = design_of(config.sweep).progress(config, report.summary, attempts)
    return asked_points(config, ()) if progress is None else progress.points
