"""What the fitted laws say at twice the largest measured node count, and whether that may be
believed.

docs/fits.md, "When a prediction is refused".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scaling.fits.laws import LAWS, ROUNDING, Sample, left_out_in_turn, significant, solve
from scaling.fits.models import Extrapolation, Law, LawFit, Verdict

EXTRAPOLATION_FACTOR = 2
AGREEMENT = 0.10


def extrapolate(
    ranked: tuple[LawFit, ...], sample: Sample, steps_ratio: Mapping[int, float]
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
    law: Law, sample: Sample, nodes: int, steps_ratio: Mapping[int, float]
) -> tuple[float, float]:
    """(least, most) seconds at `nodes` that the law predicts when one of the points is left out."""
    spec = next(spec for spec in LAWS if spec.law == law)
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
    left_out = left_out_in_turn(len(sample.nodes))
    seconds = [
        significant(terms @ solve(spec, sample.without(index)) / nodes) for index in left_out
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
    who = "amdahl and ring, which" if len(ranked) == len(LAWS) else "amdahl's refits alone, which"
    same = "usl shows no coherency cost (beta = 0), so it is amdahl's curve and confirms nothing"
    return Verdict(value=True, reason=f"{same}; supported by {who} {reason}")


def _same_curve(ranked: tuple[LawFit, ...]) -> bool:
    """Whether usl is on its bound beta = 0, with an alpha that amdahl's sigma may have:
    then it is amdahl's curve.
    """
    usl = next((fit.parameters for fit in ranked if fit.law == "usl"), None)
    return usl is not None and usl[2].on_bound and usl[1].value <= 1 + ROUNDING
