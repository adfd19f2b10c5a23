"""Fit scaling laws to the mean train times by node count (docs/fits.md).

nodesweep/scaling/fits/laws.py defines the laws, and nodesweep/scaling/fits/extrapolation.py
predicts times beyond the measured node counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from nodesweep.scaling.analysis.intervals import LEVEL, Interval
from nodesweep.scaling.fits.extrapolation import extrapolate
from nodesweep.scaling.fits.laws import (
    LAWS,
    ROUNDING,
    Floats,
    LawSpec,
    Sample,
    left_out_in_turn,
    relative_columns,
    root_mean_square,
    significant,
    solve,
)
from nodesweep.scaling.fits.models import Fits, Law, LawFit, Parameter, Verdict
from nodesweep.scaling.formats import counts_text, format_interval, format_value, pluralize

EXTRA_POINTS = 2  # node counts that a law needs beyond its number of parameters


def fit_laws(
    points: Sequence[tuple[int, float]],
    steps_ratio: Mapping[int, float] | None,
    *,
    per_sample: bool = False,
    runs: Mapping[int, Sequence[float]] | None = None,
) -> Fits:
    """Fit every law that the points allow, and rank the fits by leave-one-out error.

    Args:
        points: (nodes, geometric mean of the train seconds), one per node count, in any order. The
            smallest node count, N0, need not be 1.
        steps_ratio: r(N) at each measured N and at twice the largest N, for which the prediction is
            made. It is 1 under a fixed global batch, N0/N under a fixed per-replica batch, and None
            if unknown.
        per_sample: True if the seconds are per sample (1/rate) instead of per run. Predictions and
            parameters in seconds are then per sample, too.
        runs: The seconds of the runs behind each point's mean, by node count. A prediction requires
            at least 3 runs of each node count.

    Raises:
        ValueError: A node count, time or ratio is invalid.
    """
    _check(points, steps_ratio)
    ordered = sorted(points)
    sample = Sample(
        nodes=np.array([nodes for nodes, _ in ordered], dtype=np.float64),
        node_seconds=np.array([nodes * seconds for nodes, seconds in ordered], dtype=np.float64),
        steps_ratio=np.ones(len(ordered)),
        per_sample=per_sample,
    )
    fits: list[LawFit] = []
    left_out: dict[Law, str] = {}
    for spec in LAWS:
        fit = _fit_or_reason(spec, sample, steps_ratio)
        if isinstance(fit, str):
            left_out[spec.law] = fit
        else:
            fits.append(fit)
    ranked = tuple(sorted(fits, key=_rank))
    return Fits(
        laws=ranked,
        left_out=left_out,
        extrapolation=extrapolate(
            ranked, sample, steps_ratio or {}, [(runs or {}).get(nodes, ()) for nodes, _ in ordered]
        ),
    )


def _check(points: Sequence[tuple[int, float]], steps_ratio: Mapping[int, float] | None) -> None:
    seen: set[int] = set()
    for nodes, seconds in points:
        if nodes < 1:
            raise ValueError(f"points: nodes is {nodes}; allowed: whole numbers from 1 up")
        if nodes in seen:
            raise ValueError(
                f"points: the node count {nodes} appears twice; give one point per node count, the "
                "mean of its runs"
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
    spec: LawSpec, sample: Sample, steps_ratio: Mapping[int, float] | None
) -> LawFit | str:
    points, parameters = len(sample.nodes), len(spec.symbols)
    if points < parameters:
        return f"{pluralize(points, 'point')} for {parameters} parameters"
    if spec.law == "ring":
        ratios = _measured_ratios(sample, steps_ratio)
        if isinstance(ratios, str):
            return ratios
        sample = replace(sample, steps_ratio=ratios)
    coefficients = solve(spec, sample)
    if spec.law != "amdahl" and coefficients[0] == 0:
        return "the time on one node is fitted as 0 s, since node-time grows too fast for the law"
    return _law_fit(spec, sample, coefficients)


def _measured_ratios(sample: Sample, steps_ratio: Mapping[int, float] | None) -> Floats | str:
    """Return r(N) at the measured N, or the reason why the ring law cannot be fitted."""
    if steps_ratio is None:
        return "the number of optimizer steps is unknown"
    missing = [int(nodes) for nodes in sample.nodes if int(nodes) not in steps_ratio]
    if missing:
        return f"the number of optimizer steps is unknown at {counts_text(missing)}"
    ratios = np.array([steps_ratio[int(nodes)] for nodes in sample.nodes], dtype=np.float64)
    if np.ptp(ratios) <= ROUNDING * ratios.max():
        return (
            "the number of optimizer steps is the same at every N, so this law is the same as"
            " amdahl (sigma = c·r/t1)"
        )
    return ratios


def _law_fit(spec: LawSpec, sample: Sample, coefficients: Floats) -> LawFit:
    residuals = relative_columns(spec, sample) @ coefficients - 1
    parameters = _parameters(spec, sample, coefficients, residuals)
    by_name = {parameter.name: parameter for parameter in parameters}
    return LawFit(
        law=spec.law,
        equation=spec.equation,
        parameters=parameters,
        leave_one_out_error=_leave_one_out_error(spec, sample),
        relative_residual_rms=root_mean_square(residuals),
        identifiable=_identifiable(spec, len(sample.nodes), parameters),
        peak_nodes=(
            _peak_nodes(by_name["alpha"].value, by_name["beta"]) if spec.law == "usl" else None
        ),
    )


def _parameters(
    spec: LawSpec, sample: Sample, coefficients: Floats, residuals: Floats
) -> tuple[Parameter, ...]:
    values = spec.to_parameters(coefficients)
    freedom = len(sample.nodes) - len(values)
    half_widths = (
        _half_widths(spec, sample, coefficients, residuals, freedom) if freedom > 0 else None
    )
    parameters = []
    for index, symbol in enumerate(spec.symbols):
        value = significant(values[index])
        on_bound = value in (0.0, symbol.upper)
        interval = no_interval = None
        if on_bound:
            no_interval = f"it lies on its bound {value:g}, where the covariance is not valid"
        elif half_widths is None:
            no_interval = (
                f"{pluralize(len(sample.nodes), 'point')} for {len(values)} parameters leave no"
                " residual spread to compute it from"
            )
        else:
            half = float(half_widths[index])
            low, high = max(value - half, 0.0), min(value + half, symbol.upper)
            interval = Interval(low=significant(low), high=significant(high))
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
    spec: LawSpec, sample: Sample, coefficients: Floats, residuals: Floats, freedom: int
) -> Floats:
    """Return half the width of each parameter's interval: t quantile x standard error.

    Coefficients at their bound are held fixed.
    """
    free = coefficients > 0
    # Scaled by the coefficients, the matrix is well conditioned, whatever the size of the seconds.
    inverse = np.linalg.pinv(relative_columns(spec, sample)[:, free] * coefficients[free])
    gradient = spec.gradient(coefficients)[:, free] * coefficients[free]
    variance = float(residuals @ residuals) / freedom
    errors: Floats = np.sqrt(variance) * np.linalg.norm(gradient @ inverse, axis=1)
    return float(stdtrit(freedom, (1 + LEVEL) / 2)) * errors


def _leave_one_out_error(spec: LawSpec, sample: Sample) -> float | None:
    points = len(sample.nodes)
    if points - 1 < len(spec.symbols):
        return None
    relative = relative_columns(spec, sample)
    errors = [
        float(relative[index] @ solve(spec, sample.without(index))) - 1
        for index in left_out_in_turn(points)
    ]
    return root_mean_square(np.array(errors))


def _identifiable(spec: LawSpec, points: int, parameters: tuple[Parameter, ...]) -> Verdict:
    """Decide if the points determine the parameters.

    They do if there are EXTRA_POINTS more points than parameters, no parameter is at its bound, and
    no interval contains both 0 and values above the parameter's `negligible`.
    """
    needed = len(parameters) + EXTRA_POINTS
    few = f"{pluralize(points, 'node count')}, {needed} needed for {len(parameters)} parameters"
    problems = [few] if points < needed else []
    problems += [
        f"{each.name} lies on its bound {each.value:g}" for each in parameters if each.on_bound
    ]
    problems = problems or [
        f"{each.name}'s interval {format_interval(each.interval, _three_digits)} includes 0"
        + (f" and more than {symbol.negligible:g}" if symbol.negligible else "")
        for symbol, each in zip(spec.symbols, parameters, strict=True)
        if each.interval is not None
        and each.interval.low == 0
        and each.interval.high > symbol.negligible
    ]
    if problems:
        return Verdict(value=False, reason=" and ".join(problems))
    return Verdict(
        value=True,
        reason=f"{points} node counts for {len(parameters)} parameters, none on its bound",
    )


def _three_digits(value: float) -> str:
    return format_value(value, 3)


def _peak_nodes(alpha: float, beta: Parameter) -> float | None:
    """Return N*, the node count with the largest throughput (Gunther), or None if beta can be 0.

    N* is 1 if the first additional node already reduces the throughput.
    """
    if beta.interval is None or beta.interval.low == 0:
        return None
    return max(math.sqrt(max(1 - alpha, 0) / beta.value), 1.0)


def _rank(fit: LawFit) -> tuple[bool, float, int]:
    """Return the sort key: leave-one-out error (unknown last), then number of parameters."""
    error = fit.leave_one_out_error
    return error is None, round(error or 0.0, 9), len(fit.parameters)
