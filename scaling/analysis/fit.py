"""Median train times over node counts -> fitted scaling laws and what they may be asked.

docs/method.md, "Fits", and docs/fits.md.

Laws are fitted to node-time N·T(N), where each is linear in coefficients that may not be negative:

    amdahl  N·T = t1·(1 − sigma) + t1·sigma·N                   Amdahl, AFIPS 1967
    usl     N·T = t1 + t1·alpha·(N − 1) + t1·beta·N·(N − 1)     Gunther, Guerrilla Capacity
                                                                Planning, 2007; gamma = 1/t1
    ring    N·T = t_compute + c·r(N)·(N − 1)                    Patarasuk and Yuan, JPDC 69, 2009;
                                                                arXiv 2006.15704

so bounded linear least squares on the relative residuals (fitted − observed)/observed finds the one
best fit, without a starting point. r(N) = optimiser steps at N over those at N0. Where r is the
same everywhere, ring is amdahl's curve with sigma = c·r/t1 and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.special import stdtrit

from scaling.analysis.fit_models import Extrapolation, Fits, Law, LawFit, Parameter, Verdict
from scaling.analysis.intervals import LEVEL, Interval
from scaling.formats import counted, join_words

Floats = NDArray[np.float64]
EXTRA_POINTS = 2  # node counts beyond the number of parameters, for a law to be identifiable
EXTRAPOLATION_FACTOR = 2
AGREEMENT = 0.10
MAX_LEFT_OUT = 100
_DIGITS = 12  # of every number: the last four of a double depend on the processor's linear algebra
# A term that adds less than this share of the node-time everywhere is rounding:
# its coefficient is 0.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Sample:
    """The points: node counts ascending, N·T(N) in node-seconds,
    r(N) (all 1 where no fitted law uses it).

    `per_sample`: the seconds are of a sample, not of a run.
    """

    nodes: Floats
    node_seconds: Floats
    steps_ratio: Floats
    per_sample: bool = False

    def without(self, index: int) -> _Sample:
        """The points without one of them, which the law is then asked to predict."""
        keep = np.arange(len(self.nodes)) != index
        return _Sample(
            self.nodes[keep], self.node_seconds[keep], self.steps_ratio[keep], self.per_sample
        )


@dataclass(frozen=True)
class _Symbol:
    """A parameter before it has a value; it lies between 0 and `upper`."""

    name: str
    unit: str | None
    meaning: str
    meaning_per_sample: str | None = None  # where the points are seconds per sample; None: the same
    upper: float = math.inf


@dataclass(frozen=True)
class _LawSpec:
    """`columns(N, r)` are the curve's terms, one per coefficient;
    `to_parameters` makes parameters of coefficients.
    """

    law: Law
    equation: str
    symbols: tuple[_Symbol, ...]
    columns: Callable[[Floats, Floats], tuple[Floats, ...]]
    to_parameters: Callable[[Floats], Floats]
    gradient: Callable[[Floats], Floats]  # d parameter_i / d coefficient_j


_T1 = _Symbol("t1", "s", "train time on one node", "train time per sample on one node")
_LAWS = (
    _LawSpec(
        law="amdahl",
        equation="N·T(N) = t1·(1 + sigma·(N − 1))",
        symbols=(
            _T1,
            _Symbol("sigma", None, "share of t1 that more nodes do not shorten", upper=1.0),
        ),
        columns=lambda n, r: (np.ones_like(n), n),
        to_parameters=lambda k: np.array([k[0] + k[1], k[1] / (k[0] + k[1])]),
        gradient=lambda k: np.array(
            [[1.0, 1.0], [-k[1] / (k[0] + k[1]) ** 2, k[0] / (k[0] + k[1]) ** 2]]
        ),
    ),
    _LawSpec(
        law="usl",
        equation="N·T(N) = t1·(1 + alpha·(N − 1) + beta·N·(N − 1))",
        symbols=(
            _T1,
            _Symbol("alpha", None, "contention: cost of sharing, per further node"),
            _Symbol("beta", None, "coherency: cost of keeping each pair of nodes consistent"),
        ),
        columns=lambda n, r: (np.ones_like(n), n - 1, n * (n - 1)),
        to_parameters=lambda k: np.array([k[0], k[1] / k[0], k[2] / k[0]]),
        gradient=lambda k: np.array(
            [
                [1.0, 0.0, 0.0],
                [-k[1] / k[0] ** 2, 1 / k[0], 0.0],
                [-k[2] / k[0] ** 2, 0.0, 1 / k[0]],
            ]
        ),
    ),
    _LawSpec(
        law="ring",
        equation="N·T(N) = t_compute + c·r(N)·(N − 1), r(N) = optimiser steps at N / at N0",
        symbols=(
            _Symbol(
                "t_compute",
                "s",
                "train time on one node, where nothing is exchanged",
                "train time per sample on one node, where nothing is exchanged",
            ),
            _Symbol(
                "c",
                "s",
                "2·M/B times the steps at N0: M bytes of gradients over a link of B bytes/s",
                "2·M/B times the steps per sample at N0:"
                " M bytes of gradients over a link of B bytes/s",
            ),
        ),
        columns=lambda n, r: (np.ones_like(n), r * (n - 1)),
        to_parameters=lambda k: k,
        gradient=lambda k: np.eye(2),
    ),
)


def fit_laws(
    points: Sequence[tuple[int, float]],
    steps_ratio: Mapping[int, float] | None,
    *,
    per_sample: bool = False,
) -> Fits:
    """Fit every law the points allow and rank the fits by leave-one-out error.

    points: (nodes, median train seconds), one per node count, in any order; N0 need not be 1.
    per_sample: the seconds are per sample (1/rate), not of a run; parameters in seconds and
    predictions are too. steps_ratio: r(N) at each measured N and at 2 × the largest, where the
    prediction is made; 1 under a fixed global batch, N0/N under a fixed per-replica batch; None:
    unknown. Raises ValueError for numbers that can't be node counts, times or ratios.
    """
    _check(points, steps_ratio)
    ordered = sorted(points)
    sample = _Sample(
        nodes=np.array([nodes for nodes, _ in ordered], dtype=np.float64),
        node_seconds=np.array([nodes * seconds for nodes, seconds in ordered], dtype=np.float64),
        steps_ratio=np.ones(len(ordered)),
        per_sample=per_sample,
    )
    fits: list[LawFit] = []
    left_out: dict[Law, str] = {}
    for spec in _LAWS:
        fit = _fit_or_reason(spec, sample, steps_ratio)
        if isinstance(fit, str):
            left_out[spec.law] = fit
        else:
            fits.append(fit)
    ranked = tuple(sorted(fits, key=_rank))
    return Fits(
        laws=ranked,
        left_out=left_out,
        extrapolation=_extrapolate(ranked, sample, steps_ratio or {}),
    )


def _check(points: Sequence[tuple[int, float]], steps_ratio: Mapping[int, float] | None) -> None:
    seen: set[int] = set()
    for nodes, seconds in points:
        if nodes < 1:
            raise ValueError(f"points: nodes is {nodes}; allowed: whole numbers from 1")
        if nodes in seen:
            raise ValueError(
                f"points: {nodes} nodes stand twice; give one point per node count, the median"
            )
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(
                f"points: {seconds} s at {nodes} nodes; allowed: finite seconds above 0"
            )
        seen.add(nodes)
    for nodes, ratio in (steps_ratio or {}).items():
        if not (math.isfinite(ratio) and ratio > 0):
            raise ValueError(
                f"steps_ratio: {ratio} at {nodes} nodes; allowed: finite numbers above 0"
            )


def _fit_or_reason(
    spec: _LawSpec, sample: _Sample, steps_ratio: Mapping[int, float] | None
) -> LawFit | str:
    """The law's fit, or why it is left out."""
    points, parameters = len(sample.nodes), len(spec.symbols)
    if points < parameters:
        return f"{counted(points, 'point')} for {parameters} parameters"
    if spec.law == "ring":
        ratios = _measured_ratios(sample, steps_ratio)
        if isinstance(ratios, str):
            return ratios
        sample = replace(sample, steps_ratio=ratios)
    coefficients = _solve(spec, sample)
    if spec.law != "amdahl" and coefficients[0] == 0:
        return "the time on one node is fitted as 0 s: node-time grows faster than the law allows"
    return _law_fit(spec, sample, coefficients)


def _measured_ratios(sample: _Sample, steps_ratio: Mapping[int, float] | None) -> Floats | str:
    """r(N) at the measured N, or why ring can't be fitted with it."""
    if steps_ratio is None:
        return "the number of optimiser steps is not known"
    missing = [int(nodes) for nodes in sample.nodes if int(nodes) not in steps_ratio]
    if missing:
        return f"the number of optimiser steps is not known at {join_words(missing)} nodes"
    ratios = np.array([steps_ratio[int(nodes)] for nodes in sample.nodes], dtype=np.float64)
    if np.ptp(ratios) <= _ROUNDING * ratios.max():
        return (
            "the number of optimiser steps is the same at every N, which makes this amdahl's curve"
            " (sigma = c·r/t1)"
        )
    return ratios


def _solve(spec: _LawSpec, sample: _Sample) -> Floats:
    """Coefficients, none negative, with the least sum of squared relative residuals; negligible
    ones are exactly 0.
    """
    relative = _relative_columns(spec, sample)
    scale = np.linalg.norm(relative, axis=0)
    solution = lsq_linear(
        relative / scale,
        np.ones(len(sample.nodes)),
        bounds=(0, np.inf),
        method="bvls",
        tol=1e-14,
        max_iter=100,
    )
    coefficients: Floats = np.maximum(solution.x, 0) / scale
    share = (relative * coefficients).max(axis=0)
    return np.where(share < _ROUNDING, 0.0, coefficients)


def _relative_columns(spec: _LawSpec, sample: _Sample) -> Floats:
    """The curve's terms over the observed node-time: shape (points, coefficients); their sum is 1
    for a perfect fit.
    """
    return (
        np.column_stack(spec.columns(sample.nodes, sample.steps_ratio))
        / sample.node_seconds[:, np.newaxis]
    )


def _law_fit(spec: _LawSpec, sample: _Sample, coefficients: Floats) -> LawFit:
    residuals = _relative_columns(spec, sample) @ coefficients - 1
    parameters = _parameters(spec, sample, coefficients, residuals)
    by_name = {parameter.name: parameter for parameter in parameters}
    return LawFit(
        law=spec.law,
        equation=spec.equation,
        parameters=parameters,
        leave_one_out_error=_leave_one_out_error(spec, sample),
        relative_residual_rms=_root_mean_square(residuals),
        identifiable=_identifiable(len(sample.nodes), parameters),
        peak_nodes=(
            _peak_nodes(by_name["alpha"].value, by_name["beta"]) if spec.law == "usl" else None
        ),
    )


def _parameters(
    spec: _LawSpec, sample: _Sample, coefficients: Floats, residuals: Floats
) -> tuple[Parameter, ...]:
    values = spec.to_parameters(coefficients)
    freedom = len(sample.nodes) - len(values)
    half_widths = (
        _half_widths(spec, sample, coefficients, residuals, freedom) if freedom > 0 else None
    )
    parameters = []
    for index, symbol in enumerate(spec.symbols):
        value = _significant(values[index])
        on_bound = value in (0.0, symbol.upper)
        interval = no_interval = None
        if on_bound:
            no_interval = f"it lies on its bound {value:g}, where the covariance does not hold"
        elif half_widths is None:
            no_interval = (
                f"{counted(len(sample.nodes), 'point')} for {len(values)} parameters leave no"
                " spread to judge by"
            )
        else:
            half = float(half_widths[index])
            low, high = max(value - half, 0.0), min(value + half, symbol.upper)
            interval = Interval(low=_significant(low), high=_significant(high))
        parameters.append(
            Parameter(
                name=symbol.name,
                value=value,
                interval=interval,
                no_interval=no_interval,
                unit=symbol.unit,
                on_bound=on_bound,
                meaning=(sample.per_sample and symbol.meaning_per_sample) or symbol.meaning,
            )
        )
    return tuple(parameters)


def _half_widths(
    spec: _LawSpec, sample: _Sample, coefficients: Floats, residuals: Floats, freedom: int
) -> Floats:
    """t quantile × standard error of each parameter; coefficients on their bound are held there."""
    free = coefficients > 0
    # In units of the coefficients themselves the matrix is well scaled, whatever the seconds.
    inverse = np.linalg.pinv(_relative_columns(spec, sample)[:, free] * coefficients[free])
    gradient = spec.gradient(coefficients)[:, free] * coefficients[free]
    variance = float(residuals @ residuals) / freedom
    errors: Floats = np.sqrt(variance) * np.linalg.norm(gradient @ inverse, axis=1)
    return float(stdtrit(freedom, (1 + LEVEL) / 2)) * errors


def _leave_one_out_error(spec: _LawSpec, sample: _Sample) -> float | None:
    points = len(sample.nodes)
    if points - 1 < len(spec.symbols):
        return None
    relative = _relative_columns(spec, sample)
    errors = [
        float(relative[index] @ _solve(spec, sample.without(index))) - 1
        for index in _left_out(points)
    ]
    return _root_mean_square(np.array(errors))


def _left_out(points: int) -> Sequence[int]:
    """The points that are left out in turn: all,
    or evenly spaced ones where a refit for each would take seconds.
    """
    if points <= MAX_LEFT_OUT:
        return range(points)
    return [int(index) for index in np.linspace(0, points - 1, MAX_LEFT_OUT).round()]


def _identifiable(points: int, parameters: tuple[Parameter, ...]) -> Verdict:
    needed = len(parameters) + EXTRA_POINTS
    few = f"{counted(points, 'node count')}, {needed} needed for {len(parameters)} parameters"
    problems = [few] if points < needed else []
    problems += [
        f"{each.name} lies on its bound {each.value:g}" for each in parameters if each.on_bound
    ]
    if problems:
        return Verdict(value=False, reason=" and ".join(problems))
    return Verdict(
        value=True,
        reason=f"{points} node counts for {len(parameters)} parameters, none on its bound",
    )


def _peak_nodes(alpha: float, beta: Parameter) -> float | None:
    """Gunther's N*; 1 where throughput falls from the first node on, None where beta may be 0."""
    if beta.interval is None or beta.interval.low == 0:
        return None
    return max(math.sqrt(max(1 - alpha, 0) / beta.value), 1.0)


def _rank(fit: LawFit) -> tuple[bool, float, int]:
    """Smallest leave-one-out error first, unknown last; of equals the one with fewer parameters."""
    error = fit.leave_one_out_error
    return error is None, round(error or 0.0, 9), len(fit.parameters)


def _extrapolate(
    ranked: tuple[LawFit, ...], sample: _Sample, steps_ratio: Mapping[int, float]
) -> Extrapolation:
    if not len(sample.nodes):
        nothing = Verdict(value=False, reason="no points")
        return Extrapolation(
            nodes=None, supported=nothing, train_seconds=None, by_law={}, leave_one_out_seconds=None
        )
    nodes = EXTRAPOLATION_FACTOR * int(sample.nodes[-1])
    ratio = steps_ratio.get(nodes)
    by_law = {
        fit.law: fit.predict(nodes, ratio)
        for fit in ranked
        if fit.law != "ring" or ratio is not None
    }
    best = next((fit.law for fit in ranked if fit.identifiable.value and fit.law in by_law), None)
    refits = None if best is None else _refits(best, sample, nodes, steps_ratio)
    supported = _judge_extrapolation(ranked, by_law, refits, nodes)
    return Extrapolation(
        nodes=nodes,
        supported=supported,
        train_seconds=by_law[best] if supported.value and best is not None else None,
        by_law=by_law,
        leave_one_out_seconds=refits,
    )


def _refits(
    law: Law, sample: _Sample, nodes: int, steps_ratio: Mapping[int, float]
) -> tuple[float, float]:
    """(least, most) seconds at `nodes` that the law predicts when one of the points is left out."""
    spec = next(spec for spec in _LAWS if spec.law == law)
    if law == "ring":
        sample = replace(
            sample,
            steps_ratio=np.array([steps_ratio[int(n)] for n in sample.nodes], dtype=np.float64),
        )
    there = (
        np.array([nodes], dtype=np.float64),
        np.array([steps_ratio.get(nodes, 1.0)], dtype=np.float64),
    )
    terms = np.column_stack(spec.columns(*there))[0]
    left_out = _left_out(len(sample.nodes))
    seconds = [
        _significant(terms @ _solve(spec, sample.without(index)) / nodes) for index in left_out
    ]
    return min(seconds), max(seconds)


def _judge_extrapolation(
    ranked: tuple[LawFit, ...],
    by_law: Mapping[Law, float],
    refits: tuple[float, float] | None,
    nodes: int,
) -> Verdict:
    """Whether the points support a prediction at `nodes`:
    what the laws and their refits say there must agree.
    """

    def unsupported(reason: str) -> Verdict:
        return Verdict(value=False, reason=reason)

    if not ranked:
        return unsupported("no law could be fitted")
    if not any(fit.identifiable.value for fit in ranked):
        why = "; ".join(f"{fit.law}: {fit.identifiable.reason}" for fit in ranked)
        return unsupported(f"no law is identifiable ({why})")
    if len(ranked) == 1:
        return unsupported(f"{ranked[0].law} alone could be fitted, so no other law confirms it")
    if len(by_law) < len(ranked) or refits is None:
        return unsupported(
            f"ring gives no prediction: the number of optimiser steps at {nodes} nodes is not known"
        )
    fastest, slowest = min(by_law, key=by_law.__getitem__), max(by_law, key=by_law.__getitem__)
    gap = by_law[slowest] / by_law[fastest] - 1
    if gap > AGREEMENT:
        return unsupported(
            f"at {nodes} nodes {slowest} predicts {gap * 100:.1f} % more time than {fastest}; "
            f"agreement is at most {AGREEMENT * 100:.0f} %"
        )
    spread = max(by_law[slowest], refits[1]) / min(by_law[fastest], refits[0]) - 1
    if spread > AGREEMENT:
        return unsupported(
            f"at {nodes} nodes the prediction moves by {spread * 100:.1f} % when one point is left"
            f" out; allowed is at most {AGREEMENT * 100:.0f} %"
        )
    reason = f"agree within {spread * 100:.1f} % at {nodes} nodes, whichever point is left out"
    if not _same_curve(ranked):
        return Verdict(value=True, reason=f"the fitted laws {reason}")
    who = "amdahl and ring, which" if len(ranked) == len(_LAWS) else "amdahl's refits alone, which"
    same = "usl shows no coherency cost (beta = 0), so it is amdahl's curve and confirms nothing"
    return Verdict(value=True, reason=f"{same}; supported by {who} {reason}")


def _same_curve(ranked: tuple[LawFit, ...]) -> bool:
    """Whether usl is on its bound beta = 0, with an alpha that amdahl's sigma may have:
    then it is amdahl's curve.
    """
    usl = next((fit.parameters for fit in ranked if fit.law == "usl"), None)
    return usl is not None and usl[2].on_bound and usl[1].value <= 1 + _ROUNDING


def _root_mean_square(values: Floats) -> float:
    return round(float(np.sqrt(np.mean(values**2))), _DIGITS)


def _significant(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
