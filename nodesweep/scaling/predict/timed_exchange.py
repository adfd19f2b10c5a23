"""Predict the exposed part of the gradients' exchange from the whole exchange's time.

infra/image/nodesweep_network.py times all-reduces before the training (analysis/exchange.py). In a
step, an exchange takes between _LEAST and _MOST times as long as it does alone, since it competes
with the passes for CPUs and memory bandwidth. For each such factor, the measured exposed part tells
which share of the backward pass hides the exchange.

The transfer grows with the bytes that each process sends in a ring, 2(W − 1)/W of the gradients
(Patarasuk and Yuan, JPDC 69, 2009), and the latency by a power of W − 1, which several node counts
determine. With one node count, a tree's power (about 1/2) and a ring's (1) are equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.predict.solutions import Floats, Span

_LEAST, _MOST = 1 / 1.15, 2.0
"""Bounds of the time of an exchange in a step, as a multiple of its time alone.

If its exposed part takes longer than that, as under a CPU quota, they are multiples of this part.
"""
_MOST_EXPOSED = 10.0
"""If more than this multiple of the time alone is exposed, it is mostly something else."""
_FACTORS = (_LEAST, 1.0, 1.15, 1.32, 1.52, 1.75, _MOST)
_ABOVE_LAST = 1.25
"""An exposed part above this multiple of the last bucket's time has more than the last bucket."""
_ALIKE = 0.1
"""Factors whose shares differ by no more than this from the best one's are equally likely."""
_POWERS, _LEAST_POWER, _LARGEST_POWER = (0.5, 1.0), 0.3, 2.0
_LATENCY_ERROR = 1.25
"""Factor by which the ratio of two timed latencies may be wrong."""


class Passes(NamedTuple):
    """Seconds per step of the backward pass at a predicted place: likely, and for the bounds."""

    likely: float
    bound: float


def span_of_exposed(
    exchanges: Sequence[Exchange],
    sizes: Sequence[int],
    processes: int,
    exposed: Floats,
    backward: Floats,
    there: Passes,
) -> Span | None:
    """Return the span of the exposed seconds per step with `processes` processes.

    Args:
        exchanges: The whole exchange per step at each measured place.
        sizes: Number of processes there, ascending.
        processes: Number of processes at the predicted place.
        exposed: Exposed seconds per step: shape (draws, places).
        backward: Seconds per step of the backward pass at each measured place.
        there: The backward pass at the predicted place.

    Returns:
        None if far more is exposed than the exchange takes, if it takes longer than the backward
        pass and the exposed part together, if no backward pass was measured, between the measured
        places, or if the number of processes does not grow with them.
    """
    alone, last = np.array([sum(each[:2]) for each in exchanges]), exchanges[-1].last_share
    is_known = (exposed[0] / _MOST_EXPOSED <= alone) & (_LEAST * alone <= exposed[0] + backward)
    is_growing = min(sizes) > 1 and list(sizes) == sorted(set(sizes)) and processes >= sizes[-1]
    if not (is_growing and 0 <= last <= 1 and (is_known & (alone > 0) & (backward > 0)).all()):
        return None
    in_step = np.maximum(alone, exposed[0])
    shares = {factor: _hiding(factor * in_step, last, exposed, backward) for factor in _FACTORS}
    apart = {factor: float((low - high)[0]) for factor, (low, high) in shares.items()}
    closest = max(0.0, min(apart.values()))
    agreed = [factor for factor in _FACTORS if apart[factor] <= closest + _ALIKE]
    nearest = min(agreed, key=lambda factor: abs(math.log(factor)))
    powers, bounds = _powers(exchanges, sizes)
    likely, every = [], []
    for factor, power in product(agreed, (*powers, *bounds)):
        took = np.maximum(factor * in_step, exposed)
        for place, exchange in enumerate(exchanges):
            grown = _grown(exchange, sizes[place], processes, power) / alone[place]
            longer = grown * took[:, place]
            for share in shares[factor]:
                every.append(np.maximum(last * longer, longer - share * there.bound))
                if factor == nearest and power in powers and place == len(exchanges) - 1:
                    likely.append(np.maximum(last * longer, longer - share * there.likely))
    found = np.array(every)
    return Span(found.min(axis=0), np.mean(likely, axis=0), found.max(axis=0))


def _hiding(
    whole: Floats, last_share: float, exposed: Floats, backward: Floats
) -> tuple[Floats, Floats]:
    """Return the bounds of the share of the backward pass that hides an exchange, by draw.

    The lower bound is the largest share that a place needs, and the upper bound the smallest one
    that a place allows. If the lower one is above the upper one, no share explains all places.
    """
    took = np.maximum(whole, exposed)
    hidden = np.clip((took - exposed) / backward, 0.0, 1.0)
    # if only the last bucket is exposed, the passes may hide more than was needed
    is_last = exposed <= _ABOVE_LAST * last_share * took
    return hidden.max(axis=1), np.where(is_last, 1.0, hidden).min(axis=1)


def _powers(
    exchanges: Sequence[Exchange], sizes: Sequence[int]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the likely powers of W − 1 by which latency grows, and bounds of the power.

    A latency that grew faster than a ring's is partly competition for CPUs, which further nodes may
    not increase, so a ring's power is likely, too.
    """
    first, last = exchanges[0].latency, exchanges[-1].latency
    if len(sizes) == 1 or min(first, last) <= 0:
        return _POWERS, (_LEAST_POWER,)
    grown = math.log((sizes[-1] - 1) / (sizes[0] - 1))
    power = min(max((math.log(last) - math.log(first)) / grown, 0.0), _LARGEST_POWER)
    likely = (power,) if power <= 1 else (1.0, power)
    error = math.log(_LATENCY_ERROR) / grown
    return likely, (max(0.0, likely[0] - error), power + error)


def _grown(exchange: Exchange, size: int, processes: int, power: float) -> float:
    """Return the seconds of an exchange among more or fewer processes."""
    sent = ((processes - 1) / processes) / ((size - 1) / size)
    return exchange.transfer * sent + exchange.latency * ((processes - 1) / (size - 1)) ** power
