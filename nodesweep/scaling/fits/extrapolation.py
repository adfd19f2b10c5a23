"""Predictions of the fitted laws at twice the largest measured node count, if supported.

The interval holds if one of many laws does (docs/fits.md, "Beyond the measured counts"). It spans
every law of nodesweep/scaling/fits/envelope.py that fits within the noise of the runs:

    Q = Σ (relative residual)²/v_i ≤ m·F(0.95; m, ν),   v_i = s²/n_i

v_i is the relative variance of the geometric mean of n_i runs at one of m node counts, and s² is
the pure error of the logarithms, pooled over the node counts with ν degrees of freedom. The true
law fits in 95% of sweeps (Scheffé, Biometrika 40, 1953), so the interval covers the true time at
least that often, whichever law is true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtri

from nodesweep.scaling.analysis.intervals import LEVEL, MIN_REPEATS, Interval
from nodesweep.scaling.fits.envelope import envelope
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
from nodesweep.scaling.formats import (
    counts_text,
    format_interval,
    format_percent,
    format_seconds,
    join_words,
    nodes_text,
)

EXTRAPOLATION_FACTOR = 2
MAX_MARGIN_OF_ERROR = 0.10
"""Maximum distance from a prediction to a bound of its interval, relative to the prediction."""
_REQUIRED_MEASUREMENTS = "a prediction needs"


@dataclass(frozen=True)
class RunNoise:
    """The noise of runs: a run's relative standard deviation and its degrees of freedom.

    `variances` are the relative variances of the geometric means, in the order of the node counts.
    """

    deviation: float
    freedom: int
    variances: Floats


@dataclass(frozen=True)
class LawPredictions:
    """The prediction of each law at `nodes`, in seconds, with a 95% interval.

    `rejected` are the laws that don't fit within the noise of the runs. The interval spans all laws
    that do, including the sums of terms in envelope.py; it is None if no such sum fits.
    """

    nodes: int
    seconds: Mapping[Law, float]
    rejected: tuple[Law, ...]
    interval: Interval | None


def run_noise(runs: Sequence[Sequence[float]]) -> RunNoise | None:
    """Return the noise of the runs, or None if a node count has fewer than 3 runs."""
    if min((len(at) for at in runs), default=0) < MIN_REPEATS:
        return None
    logs = [np.log(np.asarray(at, dtype=np.float64)) for at in runs]
    freedom = sum(len(at) - 1 for at in logs)
    variance = sum(float(((at - at.mean()) ** 2).sum()) for at in logs) / freedom
    variances = np.array([variance / len(at) for at in logs], dtype=np.float64)
    return RunNoise(math.sqrt(variance), freedom, variances)


def predict_by_law(
    fits: Sequence[LawFit],
    sample: Sample,
    steps_ratio: Mapping[int, float],
    noise: RunNoise,
    nodes: int,
) -> LawPredictions:
    """Return the prediction of every law at `nodes`, including laws that the runs don't support.

    The noise must be above 0.
    """
    specs = {spec.law: spec for spec in LAWS}
    points = len(sample.nodes)
    most = points * float(fdtri(points, noise.freedom, LEVEL))
    seconds: dict[Law, float] = {}
    rejected: list[Law] = []
    for fit in fits:
        spec = specs[fit.law]
        own = _with_ratios(spec, sample, steps_ratio)
        coefficients = solve(spec, own)
        residuals = relative_columns(spec, own) @ coefficients - 1
        if (residuals**2 / noise.variances).sum() > most:
            rejected.append(fit.law)
        node_seconds = float(_terms(spec, nodes, steps_ratio) @ coefficients)
        seconds[fit.law] = significant(node_seconds / nodes)
    interval = envelope(sample.nodes, sample.node_seconds, noise.variances, nodes, most)
    if interval is not None:
        ends = [seconds[law] for law in seconds if law not in rejected]
        ends += [significant(end / nodes) for end in (interval.low, interval.high)]
        interval = Interval(low=min(ends), high=max(ends))
    return LawPredictions(nodes, seconds, tuple(rejected), interval)


def is_narrow(interval: Interval, seconds: float) -> bool:
    """Return True if both bounds are within MAX_MARGIN_OF_ERROR of `seconds`."""
    most = 1 + MAX_MARGIN_OF_ERROR
    return interval.high <= seconds * most and seconds <= interval.low * most


def leave_one_out_seconds(
    law: Law, sample: Sample, nodes: int, steps_ratio: Mapping[int, float]
) -> tuple[float, float]:
    """Return the (minimum, maximum) seconds that the law predicts when one point is left out."""
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
    """Return the prediction at twice the largest node count, or the reason why there is none.

    Args:
        ranked: The fits, best first.
        sample: The fitted points.
        steps_ratio: r(N) by node count.
        runs: The seconds of the runs behind each point's mean, in the order of the points.
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
            f"fewer than {MIN_REPEATS} runs at {counts_text(few)}, so the noise of a run is "
            f"unknown; required: at least {MIN_REPEATS} runs of each node count",
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
            f"test, 5%); {_REQUIRED_MEASUREMENTS} runs on {nodes_text(nodes)}",
        )
    best = known[0]
    predicted = beyond.seconds[best]
    if not is_narrow(interval, predicted):
        unit = " per sample" if sample.per_sample else ""
        return _not_supported(
            nodes,
            "if one of the laws that fit within the noise of the runs holds, the 95% interval of "
            f"the time at {nodes_text(nodes)} is {format_interval(interval, format_seconds)}{unit}"
            f", with a bound more than {format_percent(MAX_MARGIN_OF_ERROR)} from the "
            f"{format_seconds(predicted)} that {best} predicts; {_REQUIRED_MEASUREMENTS} runs on "
            f"{nodes_text(nodes)}",
        )
    return Extrapolation(
        nodes=nodes,
        supported=Verdict(value=True, reason=_reason(best, noise, runs)),
        law=best,
        train_seconds=predicted,
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
    more_counts = (
        f"{_REQUIRED_MEASUREMENTS} further node counts, each with {MIN_REPEATS} runs or more, or "
        f"runs on {nodes_text(nodes)}"
    )
    if not ranked:
        return f"no law could be fitted; {more_counts}"
    if not any(fit.identifiable.value for fit in ranked):
        why = "; ".join(f"{fit.law}: {fit.identifiable.reason}" for fit in ranked)
        return f"no law is identifiable ({why}); {more_counts}"
    if nodes not in steps_ratio and any(fit.law == "ring" for fit in ranked):
        return (
            f"ring gives no prediction: the number of optimizer steps at {nodes_text(nodes)} is "
            f"unknown; {_REQUIRED_MEASUREMENTS} a batch policy"
        )
    return None


def _reason(law: Law, noise: RunNoise, runs: Sequence[Sequence[float]]) -> str:
    least, most = min(len(at) for at in runs), max(len(at) for at in runs)
    each = str(least) if least == most else f"{least} to {most}"
    return (
        f"by {law}; the interval spans every sum of the laws' terms that fits within the noise of "
        f"{each} runs per node count, which vary by {noise.deviation * 100:.2g}%"
    )


def _with_ratios(spec: LawSpec, sample: Sample, steps_ratio: Mapping[int, float]) -> Sample:
    """Return the sample with the r(N) that the ring law needs."""
    if spec.law != "ring":
        return sample
    ratios = np.array([steps_ratio[int(nodes)] for nodes in sample.nodes], dtype=np.float64)
    return replace(sample, steps_ratio=ratios)


def _terms(spec: LawSpec, nodes: int, steps_ratio: Mapping[int, float]) -> Floats:
    """Return the law's terms at one node count; N·T(N) is their dot product with coefficients."""
    ratio = np.array([steps_ratio.get(nodes, 1.0)], dtype=np.float64)
    return np.column_stack(spec.columns(np.array([nodes], dtype=np.float64), ratio))[0]
