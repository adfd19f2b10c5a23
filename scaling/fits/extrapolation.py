"""What the fitted laws say at twice the largest measured node count, and whether that may be
believed.

docs/fits.md, "Beyond the measured counts". The laws are averaged by how well the runs bear each of
them, and the noise of the runs becomes an interval of the average:

    v_i = (π/2)·s²/n_i               variance of the median of n_i runs, relative to it
    q_j = Σ (residual_i)²/v_i        how far law j is from the medians; refuted by an F test
    w_j ∝ exp(−(q_j + 2·p_j)/2)      Akaike weight of law j, which has p_j parameters
    T   = Σ w_j·T_j,  se = Σ w_j·sqrt(se_j² + (T_j − T)²)

(Buckland, Burnham and Augustin, Biometrics 53, 1997, pp. 603–618, equation 9; se_j by the delta
method; s² is the pure error, pooled over the counts: Draper and Smith, Applied Regression Analysis,
3rd ed., section 2.1.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtrc, stdtrit

from scaling.analysis.intervals import LEVEL, MIN_REPEATS, Interval
from scaling.fits.laws import (
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
from scaling.fits.models import Extrapolation, Law, LawFit, Verdict
from scaling.formats import counted, format_percent, join_words, nodes_text

EXTRAPOLATION_FACTOR = 2
REACH = 0.10
"""How far an end of the interval may be from the prediction, and a refit from it, at most."""
MOST_MORE_RUNS = 50
_WHAT_WOULD = "what would support it"


@dataclass(frozen=True)
class RunNoise:
    """How the runs of one count differ: relative standard deviation of a run, its degrees of
    freedom, and the relative variance of each count's median, in order of the counts.
    """

    deviation: float
    freedom: int
    variances: Floats


@dataclass(frozen=True)
class Average:
    """The laws together: seconds at `nodes`, their standard error, and what each law has in it."""

    nodes: int
    seconds: float
    standard_error: float
    freedom: int
    weights: Mapping[Law, float]
    refuted: tuple[Law, ...]

    @property
    def reach(self) -> float:
        """Logarithm of how many times the prediction its interval's upper end is."""
        quantile = float(stdtrit(self.freedom, (1 + LEVEL) / 2))
        return quantile * self.standard_error / self.seconds

    @property
    def interval(self) -> Interval:
        """95 % interval of the median time there, if one of the laws goes on."""
        factor = math.exp(min(self.reach, 500.0))
        return Interval(
            low=significant(self.seconds / factor), high=significant(self.seconds * factor)
        )


def run_noise(runs: Sequence[Sequence[float]]) -> RunNoise | None:
    """The noise of at least 3 runs at every count; None where a count has fewer."""
    if min((len(at) for at in runs), default=0) < MIN_REPEATS:
        return None
    logs = [np.log(np.asarray(at, dtype=np.float64)) for at in runs]
    freedom = sum(len(at) - 1 for at in logs)
    variance = sum(float(((at - at.mean()) ** 2).sum()) for at in logs) / freedom
    # The variance of a median is at most π/2 times that of the mean, which it nears for many runs.
    variances = np.array([math.pi / 2 * variance / len(at) for at in logs], dtype=np.float64)
    return RunNoise(math.sqrt(variance), freedom, variances)


def average_laws(
    fits: Sequence[LawFit],
    sample: Sample,
    steps_ratio: Mapping[int, float],
    noise: RunNoise,
    nodes: int,
) -> Average:
    """What the laws say at `nodes`, whether or not that is supported; the noise is above 0."""
    specs = {spec.law: spec for spec in LAWS}
    points = len(sample.nodes)
    said: list[float] = []
    errors: list[float] = []
    scores: list[float] = []
    refuted: list[Law] = []
    for fit in fits:
        spec = specs[fit.law]
        own = _with_ratios(spec, sample, steps_ratio)
        coefficients = solve(spec, own)
        residuals = relative_columns(spec, own) @ coefficients - 1
        distance = float((residuals**2 / noise.variances).sum())
        left = points - len(spec.symbols)
        if left > 0 and fdtrc(left, noise.freedom, distance / left) < 1 - LEVEL:
            refuted.append(fit.law)
        terms = _terms(spec, nodes, steps_ratio)
        said.append(float(terms @ coefficients) / nodes)
        errors.append(_standard_error(spec, own, terms, noise.variances) / nodes)
        scores.append(distance + 2 * len(spec.symbols))
    shares = np.exp(-(np.array(scores) - min(scores)) / 2)
    shares /= shares.sum()
    times = np.array(said)
    seconds = float(shares @ times)
    return Average(
        nodes=nodes,
        seconds=significant(seconds),
        standard_error=float(shares @ np.hypot(errors, times - seconds)),
        freedom=noise.freedom,
        weights={
            fit.law: significant(float(share)) for fit, share in zip(fits, shares, strict=True)
        },
        refuted=tuple(refuted),
    )


def extrapolate(
    ranked: Sequence[LawFit],
    sample: Sample,
    steps_ratio: Mapping[int, float],
    runs: Sequence[Sequence[float]],
) -> Extrapolation:
    """The prediction at twice the largest count, or why there is none.

    runs: the times that each point of the sample is the median of, in its order.
    """
    if not len(sample.nodes):
        return _not_supported(None, "no points")
    nodes = EXTRAPOLATION_FACTOR * int(sample.nodes[-1])
    if (why := _why_not_asked(ranked, nodes, steps_ratio)) is not None:
        return _not_supported(nodes, why)
    noise = run_noise(runs)
    if noise is None:
        few = [int(n) for n, at in zip(sample.nodes, runs, strict=True) if len(at) < MIN_REPEATS]
        return _not_supported(
            nodes,
            f"fewer than {MIN_REPEATS} runs at {_at(few)}, so the noise of a run is not known;"
            f" what it takes at least: {MIN_REPEATS} runs of each count",
        )
    if noise.deviation <= ROUNDING:
        return _not_supported(
            nodes,
            "the runs of each count took exactly as long as each other, so the noise of a run is"
            f" not known; {_WHAT_WOULD}: times that are not rounded, of runs of their own",
        )
    average = average_laws(ranked, sample, steps_ratio, noise, nodes)
    known = [fit.law for fit in ranked if fit.identifiable.value and fit.law not in average.refuted]
    if not known:
        refuted = join_words(fit.law for fit in ranked if fit.identifiable.value)
        return _not_supported(
            nodes,
            f"the measured times do not follow {refuted} within the noise of their runs"
            f" (F test, 5 %); {_WHAT_WOULD}: runs at {nodes_text(nodes)} themselves",
        )
    refits = _refits(known[0], sample, nodes, steps_ratio)
    if (why := _why_not_believed(average, refits, known[0], runs)) is not None:
        return _not_supported(nodes, why)
    return Extrapolation(
        nodes=nodes,
        supported=Verdict(value=True, reason=_reason(average, noise, runs)),
        train_seconds=average.seconds,
        interval=average.interval,
        by_law={fit.law: fit.predict(nodes, steps_ratio.get(nodes)) for fit in ranked},
        law_weights=average.weights,
        leave_one_out_seconds=refits,
    )


def _not_supported(nodes: int | None, reason: str) -> Extrapolation:
    return Extrapolation(
        nodes=nodes,
        supported=Verdict(value=False, reason=reason),
        train_seconds=None,
        by_law={},
        leave_one_out_seconds=None,
    )


def _why_not_asked(
    ranked: Sequence[LawFit], nodes: int, steps_ratio: Mapping[int, float]
) -> str | None:
    """Why the laws are not asked at all; None: they are."""
    more_counts = (
        f"{_WHAT_WOULD}: further node counts, each with {MIN_REPEATS} runs or more, or runs at"
        f" {nodes_text(nodes)} themselves"
    )
    if not ranked:
        return f"no law could be fitted; {more_counts}"
    if not any(fit.identifiable.value for fit in ranked):
        why = "; ".join(f"{fit.law}: {fit.identifiable.reason}" for fit in ranked)
        return f"no law is identifiable ({why}); {more_counts}"
    if len(ranked) == 1:
        return f"{ranked[0].law} alone could be fitted, so no other law confirms it; {more_counts}"
    if nodes not in steps_ratio and any(fit.law == "ring" for fit in ranked):
        return (
            f"ring gives no prediction: the number of optimiser steps at {nodes_text(nodes)} is not"
            f" known; {_WHAT_WOULD}: a batch policy"
        )
    return None


def _why_not_believed(
    average: Average, refits: tuple[float, float], law: Law, runs: Sequence[Sequence[float]]
) -> str | None:
    """Why the average may be too far from the truth; None: it is believed."""
    at, most = nodes_text(average.nodes), format_percent(REACH)
    spread = max(refits[1], average.seconds) / min(refits[0], average.seconds) - 1
    if math.exp(min(average.reach, 500.0)) - 1 > REACH:
        return (
            f"the noise of the runs and the laws leave the time at {at} open by more than {most};"
            f" {_WHAT_WOULD}: {_what_would(average, runs)}"
        )
    if spread > REACH:
        return (
            f"the prediction at {at} rests on one node count: {law} fitted without it moves it by"
            f" {format_percent(spread)}, more than {most}; {_WHAT_WOULD}: further"
            f" node counts, or runs at {at} themselves"
        )
    return None


def _what_would(average: Average, runs: Sequence[Sequence[float]]) -> str:
    """More runs where a sensible number would be enough, else the count itself. An interval's width
    falls with the square root of the number of runs.
    """
    least = min(len(at) for at in runs)
    more = math.ceil(least * (min(average.reach, 500.0) / math.log1p(REACH)) ** 2) - least
    there = f"runs at {nodes_text(average.nodes)} themselves"
    if more > MOST_MORE_RUNS:
        return there
    return f"about {counted(more, 'more run')} of each count that scatter as these do, or {there}"


def _reason(average: Average, noise: RunNoise, runs: Sequence[Sequence[float]]) -> str:
    """On what the prediction rests: how the laws count, the runs and their noise."""
    shown = [f"{law} {format_percent(share)}" for law, share in average.weights.items()]
    least, most = min(len(at) for at in runs), max(len(at) for at in runs)
    each = str(least) if least == most else f"{least} to {most}"
    return (
        f"the laws averaged by how well they fit, {join_words(shown)}; {each} runs of each count,"
        f" which scatter by {noise.deviation * 100:.2g} %"
    )


def _with_ratios(spec: LawSpec, sample: Sample, steps_ratio: Mapping[int, float]) -> Sample:
    """The sample with the r(N) that ring is fitted with."""
    if spec.law != "ring":
        return sample
    ratios = np.array([steps_ratio[int(nodes)] for nodes in sample.nodes], dtype=np.float64)
    return replace(sample, steps_ratio=ratios)


def _terms(spec: LawSpec, nodes: int, steps_ratio: Mapping[int, float]) -> Floats:
    """The curve's terms at one node count: times its coefficients they are N·T(N)."""
    ratio = np.array([steps_ratio.get(nodes, 1.0)], dtype=np.float64)
    return np.column_stack(spec.columns(np.array([nodes], dtype=np.float64), ratio))[0]


def _standard_error(spec: LawSpec, sample: Sample, terms: Floats, variances: Floats) -> float:
    """Of N·T(N) at `terms`, by the delta method, as if no coefficient had a bound: one at its bound
    may be there by noise.
    """
    relative = relative_columns(spec, sample)
    scale = np.linalg.norm(relative, axis=0)
    influence = (terms / scale) @ np.linalg.pinv(relative / scale)
    return float(np.sqrt((influence**2 * variances).sum()))


def _refits(
    law: Law, sample: Sample, nodes: int, steps_ratio: Mapping[int, float]
) -> tuple[float, float]:
    """(least, most) seconds at `nodes` that the law predicts when one of the points is left out."""
    spec = next(spec for spec in LAWS if spec.law == law)
    sample = _with_ratios(spec, sample, steps_ratio)
    terms = _terms(spec, nodes, steps_ratio)
    seconds = [
        significant(float(terms @ solve(spec, sample.without(index))) / nodes)
        for index in left_out_in_turn(len(sample.nodes))
    ]
    return min(seconds), max(seconds)


def _at(counts: Sequence[int]) -> str:
    return nodes_text(counts[0]) if len(counts) == 1 else f"{join_words(counts)} nodes"
