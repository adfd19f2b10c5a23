"""The progress of a sweep of any design and number of instance types, and its next points.

It is a pure function of the outcomes so far, so that a resumed sweep continues as the first run
would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.analysis.speedup import Run, summarise_runs
from nodesweep.scaling.design.base import CountAnswer, Progress
from nodesweep.scaling.design.progress import progress_of
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.instances.arms import Arm, arms_of, arms_out_of_memory, outcomes_by_type
from nodesweep.scaling.outcome.attainment import is_contended
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import Key, pairs_repeats, repeats_share_seeds, type_of_job


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep whose next jobs depend on the previous ones.

    `asked`: all points asked for so far. `next_keys`: those of them that have not ended, () if the
    sweep is done. `reason`: explains the next points, or why there are none. `answers`: the
    evaluated counts of a sequential sweep. With several types, `dropped` has the arms that get no
    further probes, with reasons, `later` the probes that may still come if no more arms are
    dropped, and `check` the validation run.
    """

    asked: tuple[Key, ...]
    next_keys: tuple[Key, ...]
    reason: str
    answers: tuple[CountAnswer, ...] = ()
    dropped: Mapping[Arm, str] = field(default_factory=dict)
    later: tuple[Key, ...] = ()
    check: Key | None = None

    def of_type(self, instance_type: str) -> Progress:
        """Return the part of the progress that concerns one type."""
        asked, left = (
            tuple((key.nodes, key.repeat) for key in keys if key.instance_type == instance_type)
            for keys in (self.asked, self.next_keys)
        )
        reason = self.reason
        if self.check is not None and self.check.instance_type != instance_type:
            arm = Arm(self.check.instance_type, self.check.nodes)
            reason = f"the sweep's only full run is the one of {arm.text}"
        return Progress(asked, left, (), reason)


def sweep_progress(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> SweepProgress | None:
    """Return the progress; None if the design asks for all points at once.

    `outcomes` are those of all points that have ended.
    """
    if config.sweep.instance_types is not None:
        return design_of(config).progress_of_types(config, outcomes)
    progress = progress_of(config, outcomes)
    if progress is None:
        return None
    name = config.training.instance_type
    return SweepProgress(
        tuple(Key(name, *point) for point in progress.points),
        tuple(Key(name, *point) for point in progress.next_points),
        progress.reason,
        progress.answers,
    )


def asked_keys(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> list[Key]:
    """Return every point that the design has asked for.

    Once some arm has a result, the arms that memory rules out are left out, since being ruled out
    is their result.
    """
    progress = sweep_progress(config, outcomes)
    if progress is not None:
        asked = list(progress.asked)
    else:
        repeats = range(1, config.sweep.arm_repeats + 1)
        asked = [Key(*arm, repeat) for arm in arms_of(config) for repeat in repeats]
    if not any(outcome.completed for outcome in outcomes):
        return asked
    lost = arms_out_of_memory(config, outcomes)
    return [key for key in asked if Arm(key.instance_type, key.nodes) not in lost]


def keys_done(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> set[Key]:
    """Return the points with a completed run."""
    return {key for outcome in outcomes if outcome.completed and (key := key_of(config, outcome))}


def contended_keys(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> dict[Key, int]:
    """Return the points whose completed runs were all contended, with their latest attempt."""
    sound = keys_done(config, [each for each in outcomes if not is_contended(each)])
    found: dict[Key, int] = {}
    for key in sorted(keys_done(config, outcomes) - sound):
        found[key] = max(each.attempt for each in outcomes if key_of(config, each) == key)
    return found


def lacks_sound_runs(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> bool:
    """Return True if contended runs prevent a recommendation.

    With several instance types, True if they prevent a verdict on any count of a type.
    """
    if not contended_keys(config, outcomes):
        return False
    if config.sweep.instance_types is not None:
        return any(
            "starved" in row.flags
            for name, own in outcomes_by_type(config, outcomes).items()
            for row in summarise_type(config.of_type(name), own)[0]
        )
    answer = recommend(summarise_type(config, outcomes)[0], config.report.recommendation)
    return answer is None or answer.chosen is None


def key_of(config: BenchmarkConfig, outcome: JobOutcome) -> Key | None:
    """Return the point of a job; None if its name has a type that is not in the config."""
    name = config.training.instance_type
    if config.sweep.instance_types is not None:
        name = type_of_job(config, outcome.job_name) or ""
    return Key(name, outcome.nodes, outcome.repeat) if name else None


def summarise_type(
    config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
) -> tuple[tuple[SummaryRow, ...], list[Run]]:
    """Return the rows and runs of one type, at the catalogue's price."""
    instance = load_catalogue().get(config.training.instance_type)
    return summarise_runs(
        outcomes,
        price_of(instance, config.platform.region),
        parity=config.report.parity,
        paired=pairs_repeats(config),
        same_seeds=repeats_share_seeds(config),
    )
