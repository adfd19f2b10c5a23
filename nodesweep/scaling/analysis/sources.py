"""Choose one source of a value for all runs of a curve, so that sources are never mixed.

The sources of the train time, step time and final metric are, best first, metrics.json, the log
and, for the train time only, the platform's Training phase. The best source that is available at
every node count with a completed run is chosen, and runs without it are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

from nodesweep.scaling.outcome.outcome import OWN_CLOCKS, PHASE_CLOCKS, JobOutcome, TrainClock

Source = Literal["program", "logged"]
"""The source of a value that a program reported: its metrics.json or its log."""
STEP_SECONDS: Mapping[Source, Callable[[JobOutcome], float | None]] = {
    "program": attrgetter("clocks.steady_step_seconds"),
    "logged": lambda outcome: outcome.logged.get("steady_step_seconds"),
}
"""Functions that read the steady step time of an outcome, by source."""


def choose_train_clock(outcomes: Sequence[JobOutcome]) -> TrainClock | None:
    """Return the best clock that has a completed on-demand run at every node count.

    Return None if no run has a time. `projected` comes first, since a probe has no other clock and
    the validation run is not part of the curve. If no clock is available at every node count,
    return `training_phase`, since clocks must not be mixed.
    """
    clocks = {outcome.train_clock for outcome in outcomes if outcome.completed and not outcome.spot}
    clocks.discard(None)
    if len(clocks) < 2:
        return clocks.pop() if clocks else None
    timed = [outcome for outcome in _measured(outcomes) if outcome.train_clock is not None]
    for clock in ("projected", *OWN_CLOCKS, *PHASE_CLOCKS):
        if _every_count(timed, [train_seconds_on(outcome, clock) for outcome in timed]):
            return clock
    return "training_phase"


def train_seconds_on(outcome: JobOutcome, clock: TrainClock | None) -> float | None:
    """Return the train seconds of a completed attempt on a clock; None if unknown or incomplete."""
    if clock is None or not outcome.completed:
        return None
    if outcome.train_clock == clock:
        return outcome.clocks.train_seconds
    seconds = outcome.train_seconds_by.get(clock)
    if seconds is None and clock == "training_phase":
        seconds = outcome.whole_run_phases.get("Training")
    return seconds if seconds is not None and seconds > 0 else None


def _measured(outcomes: Sequence[JobOutcome]) -> list[JobOutcome]:
    """Return the outcomes that can be part of a curve.

    These jobs completed on demand and did more than test the launch path.
    """
    return [
        each
        for each in outcomes
        if each.completed and not each.spot and each.launch_path_only is None
    ]


def _every_count(outcomes: Sequence[JobOutcome], values: Iterable[object]) -> bool:
    """Return True if at least one run at each node count has a value.

    `values` holds a value or None for each outcome.
    """
    known = {
        outcome.nodes for outcome, value in zip(outcomes, values, strict=True) if value is not None
    }
    return {outcome.nodes for outcome in outcomes} == known


def choose_source(
    outcomes: Sequence[JobOutcome], logged: str, in_file: Callable[[JobOutcome], object]
) -> Source:
    """Return "logged" if only the log has the value at every node count, else "program"."""
    measured = _measured(outcomes)
    by_log = _every_count(measured, [outcome.logged.get(logged) for outcome in measured])
    return "logged" if by_log and not _every_count(measured, map(in_file, measured)) else "program"


def seconds_per_sample(outcome: JobOutcome, source: Source = "program") -> float | None:
    """Return the steady step time divided by the global batch, to compare different batch sizes.

    Return None if the step time or the batch size is unknown.
    """
    step = STEP_SECONDS[source](outcome)
    return (
        None if step is None or not outcome.global_batch_size else step / outcome.global_batch_size
    )
