"""Goodput: the share of the billed node-time in which jobs trained towards their results.

It is the program's train time, including checkpoints, divided by the billed time or, on spot, by
the time before the discount. If a program saves its clock in its checkpoints, its train time
excludes steps that are repeated after an interruption (docs/training-code.md, "Surviving an
interruption").
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from nodesweep.scaling.formats import format_percent, format_value, pluralize
from nodesweep.scaling.outcome.metrics_values import finite_or_none, nested_value
from nodesweep.scaling.outcome.outcome import OWN_CLOCKS, JobOutcome
from nodesweep.scaling.report_part import Part

_ROUNDING_SECONDS = 1.0  # billed seconds are whole numbers
_TRAIN_CLOCKS = (*OWN_CLOCKS, "measured")
_TRAINED, _CHECKPOINTS = "trained_node_seconds", "checkpoint_node_seconds"
_OF_COMPLETED = (_TRAINED, _CHECKPOINTS, "start_node_seconds", "restart_node_seconds")
_SPENT = {
    "start_node_seconds": "start-up, evaluation and end",
    "restart_node_seconds": "restarts and repeated steps",
    "incomplete_node_seconds": "attempts that did not complete",
    "warm_pool_node_seconds": "warm pools",
}


class Goodput(Part):
    """The parts of the billed time; unknown parts are null."""

    share: float | None = Field(description="(Trained time + checkpoints) / billed time, 0 to 1.")
    billed_node_seconds: float = Field(
        description="Billed time including warm pools; on spot, before the discount."
    )
    trained_node_seconds: float | None = Field(
        description="Train time of completed attempts, without `checkpoint_node_seconds`."
    )
    checkpoint_node_seconds: float | None = Field(
        description="Time spent writing checkpoints; if null, it is unknown and part of "
        "`trained_node_seconds`."
    )
    start_node_seconds: float | None = Field(
        description="Time outside the train clock: download, start-up, evaluation and upload."
    )
    restart_node_seconds: float | None = Field(
        description="Time of restarts after interruptions and retries, and of repeated steps."
    )
    incomplete_node_seconds: float | None = Field(
        description="Time of attempts that did not complete."
    )
    warm_pool_node_seconds: float | None = Field(
        description="Time of nodes kept in warm pools after their jobs."
    )
    unknown_jobs: int = Field(
        default=0,
        exclude_if=lambda number: number == 0,
        description="Number of completed jobs whose train time is unknown; absent if none.",
    )
    exceeding_jobs: int = Field(
        default=0,
        exclude_if=lambda number: number == 0,
        description="Number of completed jobs whose train time exceeds the billed time; absent if "
        "none.",
    )

    @property
    def text(self) -> str:
        """The share, and the parts of the remaining billed time, in words."""
        if self.share is None:
            causes = {
                "is unknown": self.unknown_jobs,
                "exceeds the billed time": self.exceeding_jobs,
            }
            reasons = [
                f"the train time of {pluralize(jobs, 'job')} {is_so}"
                for is_so, jobs in causes.items()
                if jobs
            ]
            return f"unknown, since {' and '.join(reasons)}"
        parts = {name: getattr(self, field) for field, name in _SPENT.items()}
        hours = format_value(self.billed_node_seconds / 3600)
        text = f"{format_percent(self.share)} of {hours} billed node-hours"
        if self.checkpoint_node_seconds:
            written = format_percent(self.checkpoint_node_seconds / self.billed_node_seconds)
            text += f", including {written} for checkpoints"
        spent = [
            f"{format_percent(seconds / self.billed_node_seconds)} {name}"
            for name, seconds in parts.items()
            if seconds
        ]
        parts["checkpoints"] = self.checkpoint_node_seconds
        unknown = [name for name, seconds in parts.items() if seconds is None]
        notes = [", ".join(spent), f"unknown: {', '.join(unknown)}" if unknown else ""]
        return "; ".join([text, *filter(None, notes)])


def goodput(outcome: JobOutcome) -> Goodput | None:
    """Return the parts of the billed time of an attempt.

    Return None if the billed time is unknown, or if only samples per second are known.
    """
    billed = outcome.clocks.billable_seconds
    if outcome.spot and outcome.training_time_seconds is not None:
        billed = outcome.training_time_seconds
    if billed is None or outcome.train_clock == "throughput":
        return None
    pool = outcome.retained_billable_seconds or 0.0
    seconds: dict[str, float | None] = dict.fromkeys((*_OF_COMPLETED, *_SPENT), 0.0)
    seconds |= {"billed_node_seconds": billed + pool, "warm_pool_node_seconds": pool}
    trained = _train_seconds(outcome) if outcome.completed else None
    exceeds = trained is not None and trained > billed + _ROUNDING_SECONDS
    if not outcome.completed:
        seconds["incomplete_node_seconds"] = billed
    elif trained is None or exceeds:
        seconds |= dict.fromkeys(_OF_COMPLETED)
    else:
        seconds |= _parts_of_completed(outcome, billed, min(trained, billed))
    by_nodes = {
        name: None if each is None else each * outcome.nodes for name, each in seconds.items()
    }
    return _with_share(
        by_nodes,
        unknown_jobs=int(outcome.completed and trained is None),
        exceeding_jobs=int(exceeds),
    )


def total_goodput(parts: Iterable[Goodput | None]) -> Goodput | None:
    """Add up the goodput of attempts or arms; return None if no billed time is known."""
    billed = [part for part in parts if part is not None]
    if not billed:
        return None
    seconds: dict[str, float | None] = {}
    for name in ("billed_node_seconds", _TRAINED, _CHECKPOINTS, *_SPENT):
        values = [getattr(part, name) for part in billed]
        seconds[name] = None if None in values else sum(values)
    trained = seconds[_TRAINED]
    if trained is not None and seconds[_CHECKPOINTS] is None:
        seconds[_TRAINED] = trained + sum(part.checkpoint_node_seconds or 0 for part in billed)
    return _with_share(
        seconds,
        unknown_jobs=sum(part.unknown_jobs for part in billed),
        exceeding_jobs=sum(part.exceeding_jobs for part in billed),
    )


def _train_seconds(outcome: JobOutcome) -> float | None:
    """Return the train time of a completed attempt, or None if its clock does not measure it."""
    clock = outcome.train_clock
    if outcome.projection is not None:
        return outcome.projection.measured_seconds
    if clock not in _TRAIN_CLOCKS or (outcome.starts > 1 and clock != "program"):
        return None  # the clock includes start-up, or only covers the time since the last start
    return outcome.clocks.train_seconds


def _parts_of_completed(
    outcome: JobOutcome, billed: float, trained: float
) -> dict[str, float | None]:
    """Return the parts of the billed time of a completed attempt, in seconds of one node."""
    start: float | None = billed - trained
    restarts: float | None = 0.0
    if outcome.starts > 1:
        start = outcome.around_seconds
        start = None if start is None else min(start, billed - trained)
        restarts = None if start is None else billed - trained - start
    written = _checkpoint_seconds(outcome)
    written = None if written is None else min(written, trained)
    return dict(
        zip(_OF_COMPLETED, (trained - (written or 0.0), written, start, restarts), strict=True)
    )


def _checkpoint_seconds(outcome: JobOutcome) -> float | None:
    """Return the maximum seconds that a rank spent writing checkpoints, or None if unknown."""
    ranks = outcome.metric("budget")
    seconds = [
        finite_or_none(nested_value(rank, ("seconds", "checkpoint")))
        for rank in (ranks if isinstance(ranks, list) else ())
    ]
    return max((each for each in seconds if each is not None), default=None)


def _with_share(seconds: dict[str, float | None], **jobs: int) -> Goodput:
    billed, trained = seconds["billed_node_seconds"], seconds[_TRAINED]
    trained = None if trained is None else trained + (seconds[_CHECKPOINTS] or 0)
    share = trained / billed if trained is not None and billed else None
    return Goodput.model_validate({"share": share, **jobs, **seconds})
