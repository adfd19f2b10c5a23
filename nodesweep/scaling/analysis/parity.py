"""Convergence parity: evidence that a node count trained the same model as the baseline.

A time is a time-to-train if the final metric is worse than the baseline's by no more than the
tolerance, or reached the target metric. Otherwise, the time measures throughput only
(docs/method.md, "Convergence parity").
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from nodesweep.configs.models import ParityConfig
from nodesweep.scaling.analysis.interval import welch_freedom
from nodesweep.scaling.formats import format_value
from nodesweep.scaling.report_part import Part

Verdict = Literal["baseline", "same", "reached_target", "different", "unknown"]
TESTED_FROM_REPEATS = 3
SIGNIFICANCE = 0.05


class FinalMetric(Part):
    """The validation metric at the end of a run."""

    name: str | None = Field(description="Name of the metric in the program; null if unknown.")
    value: float = Field(description="Value of the metric, or the median over several runs.")
    goal: str | None = Field(
        description="maximize or minimize; null if the program did not report it."
    )


class Parity(Part):
    """The verdict on whether a node count trained the same model as the baseline."""

    verdict: Verdict = Field(
        description=(
            "baseline: this is the baseline; same: the final metric is worse by no more than the"
            " tolerance; reached_target: the final metric reached the target; different: the final"
            " metric is not shown to match the baseline, so the time measures throughput only;"
            " unknown: there is no evidence."
        )
    )
    reason: str = Field(description="The evidence for the verdict.")


def judge_parity(
    metric: FinalMetric | None,
    values: Sequence[float],
    base: FinalMetric | None,
    base_values: Sequence[float],
    rule: ParityConfig,
    runs: int | None = None,
    pairs: Sequence[tuple[float, float]] = (),
) -> Parity:
    """Compare the models that the runs at one node count trained with the baseline.

    If the baseline has a metric, a node count without this metric is not shown to have trained the
    same model.

    Args:
        metric: The median of the final metrics of the runs; None unless all runs reported the same
            metric.
        values: The final metrics of the runs.
        base: The metric of the baseline.
        base_values: The final metrics of the runs of the baseline.
        rule: Target and tolerance.
        runs: Number of runs; None for the number of values.
        pairs: (value, value of the baseline) of each repeat that has both, if a repeat uses the
            same seed at every node count. Only these values are then compared, since a different
            seed changes the model, too.
    """
    if base is not None and metric is None:
        return Parity(
            verdict="different", reason=_why_none(values, len(values) if runs is None else runs)
        )
    if metric is None:
        return Parity(verdict="unknown", reason="no run reported a final metric")
    if base is not None and (base.name, base.goal) != (metric.name, metric.goal):
        return Parity(
            verdict="different",
            reason=f"{_described(metric)} instead of {_described(base)} of the baseline",
        )
    if reaches(metric.value, rule.target_metric, metric.goal):
        reason = (
            f"{format_value(metric.value)} reached the target {format_value(rule.target_metric)}"
        )
        return Parity(verdict="reached_target", reason=reason)
    if base is None:
        return Parity(verdict="unknown", reason="the baseline has no final metric")
    if len(pairs) >= TESTED_FROM_REPEATS:
        return _test_pairs(pairs, metric.goal, rule.tolerance)
    if not pairs and min(len(values), len(base_values)) >= TESTED_FROM_REPEATS:
        return _test(values, base_values, metric.goal, rule.tolerance)
    reached, expected = metric.value, base.value
    if pairs:
        reached, expected = map(statistics.median, zip(*pairs, strict=True))
    within = _within(_shortfall(expected - reached, metric.goal), rule.tolerance)
    is_partial = bool(pairs) and len(pairs) < max(len(values), len(base_values))
    same_repeats = f" over the {len(pairs)} repeats that both have" if is_partial else ""
    needed = "such repeats" if is_partial else "runs of each"
    reason = (
        f"{format_value(reached)} vs. the baseline's {format_value(expected)}{same_repeats}, "
        f"tolerance {format_value(rule.tolerance)}; not tested, since a test requires "
        f"{TESTED_FROM_REPEATS} {needed}"
    )
    return Parity(verdict="same" if within else "different", reason=reason)


def reaches(value: float, target: float | None, goal: str | None) -> bool:
    """Return True if a metric is at least as good as the target.

    `goal` is maximize or minimize. Return False if there is no target or the goal is unknown.
    """
    if target is None or goal not in ("maximize", "minimize"):
        return False
    return value >= target if goal == "maximize" else value <= target


def target_for(
    metric: FinalMetric | None, base: FinalMetric | None, target: float | None
) -> float | None:
    """Return the target if it applies to this metric, else None.

    If the baseline has a metric, the target only applies to that metric.
    """
    if base is None:
        return target
    return (
        target
        if metric is not None and (metric.name, metric.goal) == (base.name, base.goal)
        else None
    )


def _why_none(values: Sequence[float], runs: int) -> str:
    if len(values) < runs:
        return f"{runs - len(values)} of {runs} runs reported no final metric"
    return "its runs reported different final metrics"


def _described(metric: FinalMetric) -> str:
    return f"{metric.name or 'unnamed metric'} ({metric.goal or 'no goal'})"


def _shortfall(difference: float, goal: str | None) -> float:
    """Return the amount by which a value is worse than the baseline.

    `difference` is the value of the baseline minus the value. Without a goal, every difference
    counts as worse.
    """
    if goal == "maximize":
        return difference
    return -difference if goal == "minimize" else abs(difference)


def _within(worse_by: float, tolerance: float) -> bool:
    """Return True if `worse_by` is at most the tolerance, up to rounding (0.96 - 0.94 > 0.02)."""
    return worse_by <= tolerance or math.isclose(worse_by, tolerance)


def _test(
    values: Sequence[float], base_values: Sequence[float], goal: str | None, tolerance: float
) -> Parity:
    """Test with a one-sided Welch t-test that the mean is not worse by the tolerance or more.

    Without a goal, a difference in either direction counts as worse.
    """
    means = statistics.mean(values), statistics.mean(base_values)
    errors = _standard_error(values, means[0]), _standard_error(base_values, means[1])
    counts = len(values), len(base_values)
    p_value = _p_not_worse(_shortfall(means[1] - means[0], goal), errors, counts, tolerance)
    same = p_value < SIGNIFICANCE
    reason = (
        f"one-sided t-test against a loss of {format_value(tolerance)}: p = {p_value:.2g} "
        f"({len(values)} and {len(base_values)} runs)"
    )
    return Parity(verdict="same" if same else "different", reason=reason)


def _test_pairs(pairs: Sequence[tuple[float, float]], goal: str | None, tolerance: float) -> Parity:
    """Test with a paired t-test that the mean difference is not worse by the tolerance or more."""
    lost = [base_value - value for value, base_value in pairs]
    mean, count = statistics.mean(lost), len(lost)
    # If the second side does not vary, Welch's test is the t-test of the differences.
    errors = _standard_error(lost, mean), 0.0
    p_value = _p_not_worse(_shortfall(mean, goal), errors, (count, count), tolerance)
    reason = (
        f"one-sided t-test of the differences of {count} repeats against a loss of"
        f" {format_value(tolerance)}: p = {p_value:.2g}"
    )
    return Parity(verdict="same" if p_value < SIGNIFICANCE else "different", reason=reason)


def _p_not_worse(
    worse_by: float, errors: Sequence[float], counts: Sequence[int], tolerance: float
) -> float:
    """Return the p-value, the probability of a mean this good if it is worse by the tolerance.

    It is 0 or 1 if the runs do not vary at all.
    """
    error = math.hypot(*errors)
    if error == 0:
        return 0.0 if _within(worse_by, tolerance) else 1.0
    # Squares of the errors before the division could underflow to 0 or overflow.
    shares = [(each / error) ** 2 for each in errors]
    from scipy.special import stdtr  # slow to import

    return float(stdtr(welch_freedom(shares, counts), (worse_by - tolerance) / error))


def _standard_error(sample: Sequence[float], mean: float) -> float:
    """Return the standard error of the mean of the sample.

    math.dist scales its input, so squared deviations neither underflow to 0 nor overflow.
    """
    count = len(sample)
    return math.dist(sample, [mean] * count) / math.sqrt(count * (count - 1))
