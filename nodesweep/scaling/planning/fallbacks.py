"""The instance type of a sweep with training.instance_fallbacks: the type that its first job got.

Only the first job, on the smallest node count, requests any of the types, and it runs alone. All
other jobs, including its own retries, request the type that it got, because a curve has one type.
The type is derived from the outcomes, so a resumed sweep continues on it without stored state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.scaling.arms import Key
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.planning.plan import PlannedPoint
from nodesweep.scaling.planning.workload import first_key, is_sized, sizing_key, unsized_reason

if TYPE_CHECKING:
    from nodesweep.scaling.outcome.outcome import JobOutcome


def deciding_key(config: BenchmarkConfig) -> Key | None:
    """Return the point that runs first and alone, since it decides the steps or type of all points.

    None if no point decides anything.
    """
    return first_key(config) if config.training.instance_fallbacks else sizing_key(config)


def selected_type(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> str | None:
    """Return the type that the first job got; None without fallbacks, or before it got a type."""
    if not config.training.instance_fallbacks:
        return None
    key = first_key(config)
    runs = [
        outcome
        for outcome in outcomes
        if (outcome.nodes, outcome.repeat) == (key.nodes, key.repeat)
        and outcome.instance_type is not None
    ]
    first = min(runs, key=lambda outcome: outcome.attempt, default=None)
    return None if first is None else first.instance_type


def training_on_selected(
    config: BenchmarkConfig, training: TrainingConfig, point: PlannedPoint, selected: str | None
) -> TrainingConfig:
    """Return the point's `training` section on the selected type; the first job keeps all types."""
    if selected is None and point.key == deciding_key(config):
        return training
    return training.on_type(selected or training.instance_type)


def undecided_reason(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> str | None:
    """Return why jobs other than the deciding one can't start; None if they can."""
    if config.training.instance_fallbacks and selected_type(config, outcomes) is None:
        return (
            "not run: with training.instance_fallbacks, the first run on "
            f"{nodes_text(min(config.sweep.node_counts))} decides the instance type of every job, "
            "and it got none of them; --resume tries again"
        )
    return None if is_sized(config, outcomes) else unsized_reason(config.sweep)


def fallback_notes(config: BenchmarkConfig | None, outcomes: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a caveat on the instance type of a sweep that could use several."""
    if config is None or (selected := selected_type(config, outcomes)) is None:
        return
    training = config.training
    how = "the first choice" if selected == training.instance_type else "a fallback"
    yield (
        f"Instance type: the first job got {selected}, {how} of training.instance_type "
        f"({training.instance_type}) and instance_fallbacks "
        f"({', '.join(training.instance_fallbacks)}); every other job requested it."
    )
