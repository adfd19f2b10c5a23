"""Determine the steps of each job, from training.steps or training.baseline_seconds.

The first run at the smallest node count derives its number of steps from the pace of its first
steps (infra/image/nodesweep_clock.py), and every other job runs the same number. The number is read
from the outcomes, so a resumed sweep uses it again without an extra job or stored state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nodesweep.configs.models import BenchmarkConfig, SweepConfig
from nodesweep.scaling.arms import Key, main_arm
from nodesweep.scaling.formats import format_seconds, nodes_text, pluralize
from nodesweep.scaling.planning.plan import PlannedPoint

if TYPE_CHECKING:
    from nodesweep.scaling.outcome.outcome import JobOutcome

RUN_SECONDS = "NODESWEEP_RUN_SECONDS"
"""Environment variable with the target duration, for the run that determines the steps."""
RUN_STEPS = "NODESWEEP_RUN_STEPS"
"""Environment variable with the number of steps, for every other run."""


def first_key(config: BenchmarkConfig) -> Key:
    """Return the first run of the main arm at the smallest node count."""
    return Key(main_arm(config), min(config.sweep.node_counts), 1)


def sizing_key(config: BenchmarkConfig) -> Key | None:
    """Return the point whose run determines the steps, or None if the program chooses them."""
    return None if config.training.baseline_seconds is None else first_key(config)


def is_sized(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> bool:
    """Return True if every job's number of steps is known, or left to the program."""
    return sizing_key(config) is None or _sizing(config, outcomes) is not None


def sized_steps(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> int | None:
    """Return the number of steps that each job runs.

    None until the run that determines it has completed, or if that run's program reported none. The
    program then chooses its own number.
    """
    run = _sizing(config, outcomes)
    steps = None if run is None else run.metric_number("steps")
    return round(steps) if steps is not None and steps >= 1 else None


def unsized_reason(sweep: SweepConfig) -> str:
    """Return why a job with an unknown number of steps is not started."""
    return (
        "not run: with training.baseline_seconds, the first run on "
        f"{nodes_text(min(sweep.node_counts))} determines the number of steps of every "
        "job, and it did not complete; --resume retries it"
    )


def workload_variables(
    config: BenchmarkConfig, point: PlannedPoint, steps: int | None
) -> dict[str, str]:
    """Return the environment variables that give a job's program its amount of work.

    `steps` is training.steps of the point's arm, or the result of sized_steps().
    """
    if steps is not None:
        return {RUN_STEPS: str(steps)}
    if config.training.baseline_seconds is None:
        return {}
    if point.key == sizing_key(config):
        return {RUN_SECONDS: f"{config.training.baseline_seconds:g}"}
    return {}


def workload_notes(config: BenchmarkConfig | None, outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield caveats on how much work each job did, and how that was determined."""
    if config is None:
        return
    if config.training.steps is not None:
        yield from _other_steps(config.training.steps, outcomes)
    run = _sizing(config, outcomes)
    if run is None:
        return
    asked = f"training.baseline_seconds is {config.training.baseline_seconds:g}"
    steps, place = sized_steps(config, outcomes), nodes_text(run.nodes)
    if steps is None:
        yield (
            f"Not sized: {asked}, but the program's run on {place} reported no step count, "
            "so every job did the program's default amount of work (docs/own-code.md)."
        )
        return
    seconds = run.metric_number("train_seconds")
    took = "" if seconds is None else f"; it took {format_seconds(seconds)}"
    yield f"Sized: {asked}, so {place} chose {pluralize(steps, 'step')} for every job{took}."


def _other_steps(steps: int, outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a caveat if a program did not report exactly the steps that training.steps sets."""
    reported = {each.metric_number("steps") or 0 for each in outcomes if each.completed} - {steps}
    if reported:
        made = " or ".join(
            f"{each:.0f} steps" if each else "no step count" for each in sorted(reported)
        )
        yield (
            f"Step count not applied: training.steps is {steps}, but the program reported {made}, "
            "so jobs may have done different amounts of work (docs/own-code.md)."
        )


def _sizing(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> JobOutcome | None:
    """Return the first completed run of the point that determines the steps."""
    key = sizing_key(config)
    runs = [
        outcome
        for outcome in outcomes
        if key is not None
        and outcome.completed
        and (outcome.nodes, outcome.repeat) == (key.nodes, key.repeat)
        and outcome.instance_type
        in (None, config.training.instance_type, *config.training.instance_fallbacks)
    ]
    return min(runs, key=lambda outcome: outcome.attempt, default=None)
