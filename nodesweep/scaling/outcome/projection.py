"""Project the time of a full run from a job that finished early (sweep.design: probe).

The train time is the time of the probe plus the time of the parts that it left out: steps, at the
mean time of its steady steps, and ends of epochs and checkpoints, at the mean time of those that it
ran. The whole job also has the validations that the probe left out. The parts are measured
independently, so their squared errors add up (docs/probe.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any, Literal

from pydantic import Field

from nodesweep.scaling.outcome.metrics_values import (
    finite_or_none,
    nested_value,
    positive_or_none,
    whole_number_or_none,
)
from nodesweep.scaling.report_part import Part
from nodesweep.scaling.t_distribution import t_quantile

ASKED_BY = "NODESWEEP_PROBE_PRECISION"
"""Environment variable that asks a program to finish early (infra/image/nodesweep_clock.py)."""
MOST_STEPS = "NODESWEEP_PROBE_MAX_STEPS"
MOST_SHARE = "NODESWEEP_PROBE_MAX_SHARE"
ASSUMED_ERROR = 0.25
"""Assumed relative error of a part that was timed only once."""
ANY_PART = ("steady_step_seconds", "world_size")
"""Numbers in the log of a probe that also apply to a full run."""
TRENDING = 0.01
"""Smallest change of the step time over a probe, as a share, that counts as a trend."""
_BATCHES = 10
_TREND_OF_BATCHES = 29  # Mann-Kendall: ten values without a trend have |S| >= 29 in 0.9% of cases
_ENDS = ("precise", "max_steps")
PartName = Literal["steps", "epochs", "checkpoints", "validations"]


class ProjectedPart(Part):
    """The items of one kind that a probe left out."""

    name: PartName = Field(
        description=(
            "steps, epochs (the time that the end of an epoch adds to its steps), checkpoints or "
            "validations."
        )
    )
    left_out: int = Field(description="Number of items that the probe did not run.")
    seconds_each: float | None = Field(
        description=(
            "Mean time of an item that the probe ran; null: it ran none, so their time is not "
            "projected."
        )
    )
    error_seconds: float | None = Field(
        description=(
            "Half of the 95% interval of the total time of these items; if only one was timed, an "
            "error of 25% is assumed; null: unknown."
        )
    )

    @property
    def seconds(self) -> float:
        """The total time of the items in seconds."""
        return self.left_out * (self.seconds_each or 0.0)


class Projection(Part):
    """The projection of a full run from a probe.

    Errors are half widths of 95% intervals. They cover the variation within the probe, but not the
    variation between runs.
    """

    train_seconds: float = Field(description="Projected train time of a full run.")
    error_seconds: float | None = Field(description="Error of the projection; null: unknown.")
    extra_seconds: float = Field(
        description="Additional time of a full run compared with the probe, validations included."
    )
    ended: Literal["precise", "max_steps"] | None = Field(
        description=(
            "precise: the probe stopped because its step time was precise enough; max_steps: it "
            "reached sweep.probe.max_steps first; null: not reported by the program."
        )
    )
    steps: int = Field(description="Optimizer steps that the probe ran.")
    planned_steps: int = Field(description="Optimizer steps of a full run.")
    measured_seconds: float = Field(description="Measured train time of the probe itself.")
    parts: tuple[ProjectedPart, ...] = Field(description="The parts that the probe did not run.")
    epochs_seen: int | None = Field(
        default=None,
        exclude_if=lambda seen: seen is None,
        description="Ends of epochs that the probe timed; absent: not reported by the program.",
    )
    checkpoints_seen: int | None = Field(
        default=None,
        exclude_if=lambda seen: seen is None,
        description="Checkpoints that the probe timed; absent: not reported by the program.",
    )
    validations_seen: int | None = Field(
        default=None,
        exclude_if=lambda seen: seen is None,
        description="Validations that the probe timed; absent: not reported by the program.",
    )
    step_trend: float | None = Field(
        default=None,
        exclude_if=lambda trend: trend is None,
        description=(
            "Change of the step time over the timed steps, as a share of its mean; 0: no trend "
            "found; absent: not tested."
        ),
    )

    @property
    def unseen(self) -> tuple[PartName, ...]:
        """The parts of a full run that the probe did not run at all, so their time is unknown."""
        return tuple(part.name for part in self.parts if part.seconds_each is None)

    @property
    def is_trending(self) -> bool:
        """True if the step time was still changing."""
        return self.step_trend is not None and abs(self.step_trend) >= TRENDING


def partial_run_steps(
    metrics: Mapping[str, Any] | None, logged: Mapping[str, float]
) -> tuple[int, int] | None:
    """Return (steps run, steps of a full run) of a job that finished early; None for other jobs."""
    made, planned = _reported_steps(metrics, logged)
    return (made, planned) if made is not None and planned is not None and made < planned else None


def _reported_steps(
    metrics: Mapping[str, Any] | None, logged: Mapping[str, float]
) -> tuple[int | None, int | None]:
    """Return (steps run, steps of a full run) from metrics.json or the log, whichever has both.

    If neither has both numbers, they are combined. Numbers in metrics.json take precedence.
    """
    in_file = (
        whole_number_or_none(nested_value(metrics, ("steps",))),
        whole_number_or_none(nested_value(metrics, ("probe", "planned_steps"))),
    )
    in_log = (
        whole_number_or_none(logged.get("steps")),
        whole_number_or_none(logged.get("planned_steps")),
    )
    for pair in (in_file, in_log):
        if None not in pair:
            return pair
    made, planned = (
        of_log if of_file is None else of_file
        for of_file, of_log in zip(in_file, in_log, strict=True)
    )
    return made, planned


def project(
    metrics: Mapping[str, Any] | None,
    logged: Mapping[str, float],
    steady_seconds: Sequence[float] = (),
) -> Projection | None:
    """Return the projection of a full run from metrics.json; the log supplies missing numbers.

    Return None for a job that ran all its steps, and if the train time or step time is unknown.

    Args:
        metrics: The contents of metrics.json, if any.
        logged: The numbers from the log.
        steady_seconds: The times of the steady steps, if they are in the log.
    """
    steps = partial_run_steps(metrics, logged)
    if steps is None:
        return None
    made, planned = steps
    measured = positive_or_none(nested_value(metrics, ("train_seconds",)))
    each = positive_or_none(nested_value(metrics, ("probe", "step_seconds")))
    error = finite_or_none(nested_value(metrics, ("probe", "step_error_seconds")))
    if measured is None:
        measured = positive_or_none(logged.get("train_seconds"))
    trend = finite_or_none(nested_value(metrics, ("probe", "step_trend")))
    if each is None and steady_seconds:
        each, error = fmean(steady_seconds), _by_batches(steady_seconds)
        trend = step_trend(steady_seconds)
    elif each is None:
        each, error = positive_or_none(logged.get("steady_step_seconds")), None
    if measured is None or each is None:
        return None
    left = planned - made
    if error is not None and trend is not None and abs(trend) >= TRENDING:
        error += each * abs(trend) / 2  # all remaining steps may be like the last or the first one
    parts = [
        ProjectedPart(
            name="steps",
            left_out=left,
            seconds_each=each,
            error_seconds=None if error is None or error < 0 else left * error,
        ),
        _others(metrics, "epochs"),
        _others(metrics, "checkpoints"),
        _others(metrics, "validations"),
    ]
    trained = [part for part in parts if part.name != "validations"]
    return Projection(
        train_seconds=measured + math.fsum(part.seconds for part in trained),
        error_seconds=_combined_error([part.error_seconds for part in trained]),
        extra_seconds=math.fsum(part.seconds for part in parts),
        ended=ended if (ended := nested_value(metrics, ("probe", "ended"))) in _ENDS else None,
        steps=made,
        planned_steps=planned,
        measured_seconds=measured,
        parts=tuple(part for part in parts if part.left_out),
        epochs_seen=_seen(metrics, "epochs"),
        checkpoints_seen=_seen(metrics, "checkpoints"),
        validations_seen=_seen(metrics, "validations"),
        step_trend=trend,
    )


def reports_steps(metrics: Mapping[str, Any] | None) -> bool:
    """Return True if metrics.json alone shows whether the job was a full run."""
    return None not in _reported_steps(metrics, {})


def unprojected_reason(
    metrics: Mapping[str, Any] | None, logged: Mapping[str, float], max_steps: str | None
) -> str | None:
    """Return why a job that was asked to finish early has neither a projection nor a train time.

    Return None if the job is known to have run all its steps, so that its time is measured.
    `max_steps` is the job's value of MOST_STEPS.
    """
    measured = positive_or_none(nested_value(metrics, ("train_seconds",))) or positive_or_none(
        logged.get("train_seconds")
    )
    if measured is None:
        return (
            "the program does not report how long it trained (train_seconds), and the platform's "
            "Training phase may cover only a part"
        )
    made, planned = _reported_steps(metrics, logged)
    if planned is None and made is not None and str(made) == max_steps:
        return (
            f"the program ran as many steps as sweep.probe.max_steps allows, {made}, and does "
            "not report how many a full run has; have it print planned_steps=…"
        )
    if made is None or planned is None:
        lacking = {"how many steps it ran": made, "how many steps a full run has": planned}
        unsaid = " and ".join(what for what, number in lacking.items() if number is None)
        return (
            f"the program does not report {unsaid}, so a partial run cannot be distinguished "
            "from a full one; have it print steps=…; planned_steps=…;"
        )
    if made < planned:
        return (
            f"the program ran {made} of {planned} steps, none of which was timed as a steady step; "
            "raise sweep.probe.max_steps or max_share, shorten its warm-up "
            "(--warmup-exclude-seconds), or have it print steady_step_seconds=…"
        )
    if (
        nested_value(metrics, ("probe", "ended")) is not None
    ):  # written by nodesweep_clock.py, which counts the steps itself
        return None
    if made > planned:
        return (
            f"the program reports that it ran {made} steps, but that a full run has {planned}; "
            "have it count both the same way"
        )
    if str(made) == max_steps:
        return (
            f"the program ran as many steps as sweep.probe.max_steps allows, {made}, and "
            "reports that a full run has no more; if that is true, raise max_steps above it, "
            "otherwise have it print the planned_steps=… of a full run"
        )
    return None


def partial_run_reason(steps: tuple[int, int]) -> str:
    """Return why a job that stopped early without a request has no train time.

    `steps` is (steps run, steps of a full run).
    """
    return (
        f"the program stopped after {steps[0]} of {steps[1]} steps, although nothing had asked it "
        "to stop, and timed no steady step"
    )


def whole_run_metrics(
    metrics: Mapping[str, Any] | None,
) -> Mapping[str, Any] | None:
    """Return the contents of a probe's metrics.json that apply to a full run.

    The quality of the model and the number of samples do not.
    """
    if metrics is None:
        return None
    planned = positive_or_none(nested_value(metrics, ("probe", "planned_epochs")))
    unknown = dict.fromkeys(("final_metric", "validations", "samples"))
    return {**metrics, **unknown, "epochs": planned}


def _others(metrics: Mapping[str, Any] | None, name: PartName) -> ProjectedPart:
    """Return the part for the ends of epochs, checkpoints or validations.

    `made` in metrics.json counts the items during the training. An item after the end of the
    training can be timed too.
    """
    seconds = _timed(metrics, name)
    planned, made = (
        whole_number_or_none(nested_value(metrics, ("probe", name, key)))
        for key in ("planned", "made")
    )
    left = max(0, (planned or 0) - (len(seconds) if made is None else made))
    return ProjectedPart(
        name=name,
        left_out=left,
        seconds_each=fmean(seconds) if seconds else None,
        error_seconds=left * half_width(seconds) if seconds else None if left else 0.0,
    )


def _timed(metrics: Mapping[str, Any] | None, name: PartName) -> list[float]:
    """Return the seconds of each timed item; the time for the end of an epoch can be negative."""
    read = finite_or_none if name == "epochs" else positive_or_none
    given = nested_value(metrics, ("probe", name, "seconds"))
    values = given if isinstance(given, list) else []
    return [number for value in values if (number := read(value)) is not None]


def _seen(metrics: Mapping[str, Any] | None, name: PartName) -> int | None:
    planned = whole_number_or_none(nested_value(metrics, ("probe", name, "planned")))
    return None if planned is None else len(_timed(metrics, name))


def half_width(seconds: Sequence[float]) -> float:
    """Return half of the 95% interval of the mean by Student's t.

    For a single time, return ASSUMED_ERROR times that time.
    """
    n = len(seconds)
    if n == 1:
        return ASSUMED_ERROR * abs(seconds[0])
    return t_quantile(n - 1, 0.975) * stdev(seconds) / math.sqrt(n)


def _by_batches(steady_seconds: Sequence[float]) -> float | None:
    """Return half of the 95% interval of the mean step time, from the means of ten batches.

    Batch means are used because step times are autocorrelated. Return None for fewer than two steps
    per batch.
    """
    means = _batch_means(steady_seconds)
    return half_width(means) if means else None


def _batch_means(steady_seconds: Sequence[float]) -> list[float]:
    """Return the means of ten batches; empty for fewer than two steps per batch."""
    size = len(steady_seconds) // _BATCHES
    if size < 2:
        return []
    used = steady_seconds[len(steady_seconds) - size * _BATCHES :]
    return [fmean(used[at : at + size]) for at in range(0, len(used), size)]


def step_trend(steady_seconds: Sequence[float]) -> float | None:
    """Return the change of the step time as a share of its mean; 0 without a significant trend.

    The trend is tested with the Mann-Kendall test at 1% on ten batch means (Mann, *Econometrica*
    13(3), 1945, pp. 245-259). The change is nine times the slope of Theil and Sen (Sen, *JASA*
    63(324), 1968, pp. 1379-1389). infra/image/nodesweep_clock.py does the same. Return None for
    fewer than two steps per batch.
    """
    means = _batch_means(steady_seconds)
    if not means:
        return None
    slopes = [(means[j] - means[i]) / (j - i) for j in range(_BATCHES) for i in range(j)]
    if abs(sum((slope > 0) - (slope < 0) for slope in slopes)) < _TREND_OF_BATCHES:
        return 0.0
    return (_BATCHES - 1) * median(slopes) / fmean(means)


def _combined_error(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(errors) else None
