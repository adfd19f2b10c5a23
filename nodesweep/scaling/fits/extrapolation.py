"""Predictions of the fitted laws at twice the largest measured count, if they are supported.

Each law has an interval from the noise of the runs (docs/fits.md, "Beyond the measured counts"):

    v_i = (π/2)·s²/n_i               relative variance of the median of n_i runs
    T_j·exp(±t·se_j/T_j)             prediction of law j; se_j by the delta method, Student's t

The prediction's interval spans the intervals of all laws that the runs do not reject, so its
coverage is at least that of whichever law is true. s² is the pure error, pooled over the counts,
and a law is rejected by the F test for lack of fit (Draper and Smith, Applied Regression Analysis,
3rd ed., section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtrc, stdtrit

from nodesweep.scaling.analysis.intervals import LEVEL, MIN_REPEATS, Interval
from nodesweep.scaling.fits.laws import (
    LAWS,
    ROUNDING,
    Floats,
    LawSpec,
    Sample,
    left_out_in_turn,
    relative_columns,
    significant,
    solve,
)
from nodesweep.scaling.fits.models import Extrapolation, Law, LawFit, Verdict
from nodesweep.scaling.formats import format_percent, join_words, nodes_text, pluralize

EXTRAPOLATION_FACTOR = 2
MAX_MARGIN_OF_ERROR = 0.10
"""The largest distance of a supported prediction from an end of its interval, as a share."""
MAX_MORE_RUNS = 50
LACK_OF_FIT_LEVEL = 0.01
"""Significance level of the F test that rejects a law."""
_MAX_EXPONENT = 200.0  # cap on an exponent; anything larger is unsupported anyway
_REQUIRED_MEASUREMENTS = "a prediction needs"


@dataclass(frozen=True)
class RunNoise:
    """The noise of runs: a run's relative standard deviation and its degrees of freedom.

    `variances` are the relative variances of each count's median, in order of the counts.
    """

    deviation: float
    freedom: int
    variances: Floats


@dataclass(frozen=True)
class LawPredictions:
    """Each law's prediction at `nodes`: seconds with a 95% interval of the median.

    `rejected` are the laws that the runs reject.
    """

    nodes: int
    seconds: Mapping[Law, float]
    intervals: Mapping[Law, Interval]
    rejected: tuple[Law, ...]

    @property
    def interval(self) -> Interval | None:
        """The hull of the intervals of all laws that are not rejected; None if all are."""
        left = [self.intervals[law] for law in self.intervals if law not in self.rejected]
        if not left:
            return None
        return Interval(low=min(each.low for each in left), high=max(each.high for each in left))


def run_noise(runs: Sequence[Sequence[float]]) -> RunNoise | None:
    """Return the noise of the runs; None if any count has fewer than 3 runs."""
    if min((len(at) for at in runs), default=0) < MIN_REPEATS:
        return None
    logs = [np.log(np.asarray(at, dtype=np.float64)) for at in runs]
    freedom = sum(len(at) - 1 for at in logs)
    variance = sum(float(((at - at.mean()) ** 2).sum()) for at in logs) / freedom
    # The variance of a median is at most π/2 times that of the mean, its limit for many runs.
    variances = np.array([math.pi / 2 * variance / len(at) for at in logs], dtype=np.float64)
    return RunNoise(math.sqrt(variance), freedom, variances)


def predict_by_law(
    fits: Sequence[LawFit],
    sample: Sample,
    steps_ratio: Mapping[int, float],
    noise: RunNoise,
    nodes: int,
) -> LawPredictions:
    """Return the laws' predictions at `nodes`, supported or not; the noise must be above 0."""
    specs = {spec.law: spec for spec in LAWS}
    quantile = float(stdtrit(noise.freedom, (1 + LEVEL) / 2))
    seconds: dict[Law, float] = {}
    intervals: dict[Law, Interval] = {}
    rejected: list[Law] = []
    for fit in fits:
        spec = specs[fit.law]
        own = _with_ratios(spec, sample, steps_ratio)
        coefficients = solve(spec, own)
        residuals = relative_columns(spec, own) @ coefficients - 1
        left = len(own.nodes) - len(spec.symbols)
        distance = float((residuals**2 / noise.variances).sum())
        if left > 0 and fdtrc(left, noise.freedom, distance / left) < LACK_OF_FIT_LEVEL:
            rejected.append(fit.law)
        terms = _terms(spec, nodes, steps_ratio)
        node_seconds = float(terms @ coefficients)
        error = _standard_error(spec, own, terms, noise.variances) / node_seconds
        factor = math.exp(min(quantile * error, _MAX_EXPONENT))
        said = node_seconds / nodes
        seconds[fit.law] = significant(said)
        intervals[fit.law] = Interval(
            low=significant(said / factor), high=significant(said * factor)
        )
    return LawPredictions(nodes, seconds, intervals, tuple(rejected))


def margin_of_error(interval: Interval, seconds: float) -> float:
    """Return the distance from `seconds` to the interval's farther end, on the log scale."""
    return max(math.log(interval.high / seconds), math.log(seconds / interval.low))


def leave_one_out_seconds(
    law: Law, sample: Sample, nodes: int, steps_ratio: Mapping[int, float]
) -> tuple[float, float]:
    """Return the (least, most) seconds that the law predicts with any one point left out."""
    spec = next(spec for spec in LAWS if spec.law == law)
    sample = _with_ratios(spec, sample, steps_ratio)
    terms = _terms(spec, nodes, steps_ratio)
    seconds = [
        significant(float(terms @ solve(spec, sample.without(index))) / nodes)
        for index in left_out_in_turn(len(sample.nodes))
    ]
    return min(seconds), max(seconds)


def extrapolate(
    ranked: Sequence[LawFit],
    sample: Sample,
    steps_ratio: Mapping[int, float],
    runs: Sequence[Sequence[float]],
) -> Extrapolation:
    """Return the prediction at twice the largest count, or the reason why there is none.

    Args:
        ranked: The fits, best first.
        sample: The points.
        steps_ratio: r(N) by node count.
        runs: For each point, in order, the times whose median it is.
    """
    if not len(sample.nodes):
        return _not_supported(None, "no points")
    nodes = EXTRAPOLATION_FACTOR * int(sample.nodes[-1])
    if (why := _no_prediction_reason(ranked, nodes, steps_ratio)) is not None:
        return _not_supported(nodes, why)
    noise = run_noise(runs)
    if noise is None:
        few = [int(n) for n, at in zip(sample.nodes, runs, strict=True) if len(at) < MIN_REPEATS]
        return _not_supported(
            nodes,
            f"fewer than {MIN_REPEATS} runs at {_at(few)}, so the noise of a run is unknown; "
            f"required: at least {MIN_REPEATS} runs of each node count",
        )
    if noise.deviation <= ROUNDING:
        return _not_supported(
            nodes,
            "the runs of each node count took exactly the same time, so the noise of a run is "
            f"unknown; {_REQUIRED_MEASUREMENTS} unrounded times of separate runs",
        )
    beyond = predict_by_law(ranked, sample, steps_ratio, noise, nodes)
    known = [fit.law for fit in ranked if fit.identifiable.value and fit.law not in beyond.rejected]
    interval = beyond.interval
    if not known or interval is None:
        rejected = join_words(fit.law for fit in ranked if fit.identifiable.value)
        return _not_supported(
            nodes,
            f"the measured times do not follow {rejected} within the noise of their runs (F "
            f"test, 1%); {_REQUIRED_MEASUREMENTS} runs on {nodes_text(nodes)}",
        )
    best = known[0]
    excess = margin_of_error(interval, beyond.seconds[best]) / math.log1p(MAX_MARGIN_OF_ERROR)
    if excess > 1:
        return _not_supported(
            nodes,
            f"the noise of the runs and the laws leave the time at {nodes_text(nodes)} "
            f"uncertain by more than {format_percent(MAX_MARGIN_OF_ERROR)}; "
            f"{_REQUIRED_MEASUREMENTS} "
            f"{_required_measurement(nodes, excess, runs)}",
        )
    return Extrapolation(
        nodes=nodes,
        supported=Verdict(value=True, reason=_reason(beyond, best, noise, runs)),
        law=best,
        train_seconds=beyond.seconds[best],
        interval=interval,
        by_law=beyond.seconds,
        leave_one_out_seconds=leave_one_out_seconds(best, sample, nodes, steps_ratio),
    )


def _not_supported(nodes: int | None, reason: str) -> Extrapolation:
    return Extrapolation(
        nodes=nodes,
        supported=Verdict(value=False, reason=reason),
        train_seconds=None,
        by_law={},
        leave_one_out_seconds=None,
    )


def _no_prediction_reason(
    ranked: Sequence[LawFit], nodes: int, steps_ratio: Mapping[int, float]
) -> str | None:
    """Return the reason why no law can make a prediction, or None."""
    more_counts = (
        f"{_REQUIRED_MEASUREMENTS} further node counts, each with {MIN_REPEATS} runs or more, or "
        f"runs on "
        f"{nodes_text(nodes)}"
    )
    if not ranked:
        return f"no law could be fitted; {more_counts}"
    if not any(fit.identifiable.value for fit in ranked):
        why = "; ".join(f"{fit.law}: {fit.identifiable.reason}" for fit in ranked)
        return f"no law is identifiable ({why}); {more_counts}"
    if len(ranked) == 1:
        return f"only {ranked[0].law} could be fitted, so no other law confirms it; {more_counts}"
    if nodes not in steps_ratio and any(fit.law == "ring" for fit in ranked):
        return (
            f"ring gives no prediction: the number of optimizer steps at {nodes_text(nodes)} is "
            f"unknown; {_REQUIRED_MEASUREMENTS} a batch policy"
        )
    return None


def _required_measurement(nodes: int, excess: float, runs: Sequence[Sequence[float]]) -> str:
    """Return the measurement that would support a prediction.

    It is more runs if a reasonable number would be enough, else runs at the count itself. The
    margin of error is `excess` times the largest allowed and falls with the square root of the
    number of runs.
    """
    least = min(len(at) for at in runs)
    more = math.ceil(least * excess**2) - least
    there = f"runs on {nodes_text(nodes)}"
    if more > MAX_MORE_RUNS:
        return there
    return f"about {pluralize(more, 'more run')} per node count that vary as these do, or {there}"


def _reason(
    beyond: LawPredictions, law: Law, noise: RunNoise, runs: Sequence[Sequence[float]]
) -> str:
    """Return the basis of the prediction: the laws, the runs and their noise."""
    left = [each for each in beyond.seconds if each not in beyond.rejected]
    least, most = min(len(at) for at in runs), max(len(at) for at in runs)
    each = str(least) if least == most else f"{least} to {most}"
    return (
        f"by {law}; the interval covers what {join_words(left)} "
        f"leave{'s' if len(left) == 1 else ''} open with {each} runs per node count, which vary "
        f"by {noise.deviation * 100:.2g}%"
    )


def _with_ratios(spec: LawSpec, sample: Sample, steps_ratio: Mapping[int, float]) -> Sample:
    """Return the sample with the r(N) that the ring law needs."""
    if spec.law != "ring":
        return sample
    ratios = np.array([steps_ratio[int(nodes)] for nodes in sample.nodes], dtype=np.float64)
    return replace(sample, steps_ratio=ratios)


def _terms(spec: LawSpec, nodes: int, steps_ratio: Mapping[int, float]) -> Floats:
    """Return the curve's terms at one node count; their product with the coefficients is N·T(N)."""
    ratio = np.array([steps_ratio.get(nodes, 1.0)], dtype=np.float64)
    return np.column_stack(spec.columns(np.array([nodes], dtype=np.float64), ratio))[0]


def _standard_error(spec: LawSpec, sample: Sample, terms: Floats, variances: Floats) -> float:
    """Return the standard error of N·T(N) at `terms`, by the delta method.

    Bounds on coefficients are ignored, since noise alone may put a coefficient on its bound.
    """
    relative = relative_columns(spec, sample)
    scale = np.linalg.norm(relative, axis=0)
    influence = (terms / scale) @ np.linalg.pinv(relative / scale)
    return float(np.sqrt((influence**2 * variances).sum()))


def _at(counts: Sequence[int]) -> str:
    return nodes_text(counts[0]) if len(counts) == 1 else f"{join_words(counts)} nodes"
