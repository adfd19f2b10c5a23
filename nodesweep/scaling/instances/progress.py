"""The progress of a sweep of any design and number of arms, and its next points.

The progress depends only on the outcomes so far, so a resumed sweep continues just as the
interrupted one would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run, summarise_runs
from nodesweep.scaling.arms import Arm, Cell, Key, arm_of_job, main_arm
from nodesweep.scaling.design.base import CountAnswer, Progress
from nodesweep.scaling.design.progress import progress_of
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.instances.arms import cells_of, cells_out_of_memory, outcomes_by_arm
from nodesweep.scaling.outcome.attainment import is_contended
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import pairs_repeats, repeats_share_seeds


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep whose next jobs depend on the previous ones.

    `asked` lists all points requested so far. `next_keys` lists those of them that have not ended,
    and is empty if the sweep is done. `reason` explains the next points, or why there are none.
    `answers` are the verdicts on the evaluated node counts of a sequential sweep. With several
    arms, `dropped` maps each cell that gets no further probes to the reason, `later` lists the
    probes that will be requested if no more cells are dropped, and `check` is the validation run.
    """

    asked: tuple[Key, ...]
    next_keys: tuple[Key, ...]
    reason: str
    answers: tuple[CountAnswer, ...] = ()
    dropped: Mapping[Cell, str] = field(default_factory=dict)
    later: tuple[Key, ...] = ()
    check: Key | None = None

    def of_arm(self, arm: Arm) -> Progress:
        """Return the progress of one arm."""
        asked, left = (
            tuple((key.nodes, key.repeat) for key in keys if key.arm == arm)
            for keys in (self.asked, self.next_keys)
        )
        reason = self.reason
        if self.check is not None and self.check.arm != arm:
            reason = f"the sweep's only full run is on {self.check.cell.text}"
        return Progress(asked, left, (), reason)


def sweep_progress(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> SweepProgress | None:
    """Return the progress, or None if the design requests all points at the start.

    `outcomes` are those of all points that have ended.
    """
    if config.sweep.arm_count > 1:
        return design_of(config.sweep).progress_of_arms(config, outcomes)
    progress = progress_of(config, outcomes)
    if progress is None:
        return None
    arm = main_arm(config)
    return SweepProgress(
        tuple(Key(arm, *point) for point in progress.points),
        tuple(Key(arm, *point) for point in progress.next_points),
        progress.reason,
        progress.answers,
    )


def asked_keys(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> list[Key]:
    """Return every point that the design has requested.

    Once any run has completed, the points of cells that memory rules out are left out, since these
    cells need no further runs.
    """
    progress = sweep_progress(config, outcomes)
    if progress is not None:
        asked = list(progress.asked)
    else:
        repeats = range(1, config.sweep.arm_repeats + 1)
        asked = [Key(*cell, repeat) for cell in cells_of(config) for repeat in repeats]
    if not any(outcome.completed for outcome in outcomes):
        return asked
    lost = cells_out_of_memory(config, outcomes)
    return [key for key in asked if key.cell not in lost]


def keys_done(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> set[Key]:
    """Return the points with a completed run."""
    return {key for outcome in outcomes if outcome.completed and (key := key_of(config, outcome))}


def count_points(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> tuple[int, int]:
    """Return the number of planned points, and of those that have no completed run."""
    asked, done = asked_keys(config, outcomes), keys_done(config, outcomes)
    return len(asked), sum(key not in done for key in asked)


def contended_keys(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> dict[Key, int]:
    """Return the last attempt by point, for points whose completed runs were all contended."""
    sound = keys_done(config, [each for each in outcomes if not is_contended(each)])
    found: dict[Key, int] = {}
    for key in sorted(keys_done(config, outcomes) - sound):
        found[key] = max(each.attempt for each in outcomes if key_of(config, each) == key)
    return found


def lacks_sound_runs(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> bool:
    """Return True if contended runs prevent a recommendation or, with several arms, a verdict."""
    if not contended_keys(config, outcomes):
        return False
    if config.sweep.arm_count > 1:
        return any(
            "starved" in row.flags
            for arm, own in outcomes_by_arm(config, outcomes).items()
            for row in summarise_arm(config.of_arm(arm.name), own)[0]
        )
    answer = recommend(summarise_arm(config, outcomes)[0], config.report.recommendation)
    return answer is None or answer.chosen is None


def key_of(config: BenchmarkConfig, outcome: JobOutcome) -> Key | None:
    """Return the key of a job's point, or None if the job's name does not contain an arm."""
    arm = arm_of_job(config, outcome.job_name)
    return None if arm is None else Key(arm, outcome.nodes, outcome.repeat)


def summarise_arm(
    config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
) -> tuple[tuple[SummaryRow, ...], list[Run]]:
    """Return the rows and runs of one arm, with costs at the catalogue price."""
    instance = config.node_type(config.training.instance_type)
    return summarise_runs(
        outcomes,
        price_of(instance, config.platform.region),
        parity=config.report.parity,
        paired=pairs_repeats(config),
        same_seeds=repeats_share_seeds(config),
    )
