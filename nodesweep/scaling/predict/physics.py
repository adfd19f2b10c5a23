"""The physical model of T(N), with a law for each part of the time.

    T(N) = compute + communication + waiting + data + fixed

- **compute** per optimizer step depends on the samples per process. An exchange slows passes
  down, so a batch whose passes were timed without one may take longer by the factor that the runs
  show. If it was timed after the training, the bounds from the batches of the runs also apply.
  Between known batches it is interpolated. Below the smallest batch, it is at most the time of
  that batch. Since the time is convex in the batch, it is at least on the line through the two
  smallest batches, which gives the likely time (Qiao et al., Pollux, OSDI 2021, section 3.2:
  T_grad = alpha + beta·m). The lower bound is proportional to the batch if only one batch was
  measured, or if that is less and one of the two was only measured on a single node. Above the
  largest batch, compute takes at least as long as for that batch and at most proportionally
  longer.
- **communication** per step is the exposed part of a ring all-reduce among W processes,
  c = beta·2(W − 1)/W + alpha·2(W − 1) (Thakur, Rabenseifner and Gropp, IJHPCA 19, 2005;
  Patarasuk and Yuan, JPDC 69, 2009). beta is the gradients' bytes over the bandwidth, alpha the
  latency of a message. The exposed part is max(f·c, c − h·backward): the last bucket's share f, or
  the part of c that the share h of the backward pass does not hide (Li et al., VLDB 13, 2020). All
  h from 0 to 1 that explain the measurements are equally likely. If only one measurement is on
  several nodes, it does not determine h, and h = 0 is the likely value. If the whole exchange was
  timed before the training, timed_exchange.py replaces these bounds.
- **waiting** per step is the mean excess of the slowest of W processes. It grows like the expected
  maximum of normal or exponential values, or is the excess of one slow node (Harter, Biometrika 48,
  1961; Petrini, Kerbyson and Pakin, SC'03).
- **data** per step is the wait for samples. Nodes load them independently or from a shared source,
  or the wait is the same at every node count.
- **fixed** is the time of the first step, evaluation, checkpoints and the rest, once per run. It is
  the same at every node count, divided among the nodes, added with two or more nodes, or
  proportional to the number of additional nodes.

If several of these laws explain the measurements, the prediction is the range over them
(solutions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np

from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.predict.solutions import (
    Corners,
    Floats,
    Span,
    between,
    corners,
    exactly,
    joined,
    span_of,
)
from nodesweep.scaling.predict.timed_exchange import Passes, span_of_exposed

Part = Literal["gradients", "backward", "optimizer", "communication", "waiting", "data", "fixed"]
PARTS: tuple[Part, ...] = (
    "gradients", "backward", "optimizer", "communication", "waiting", "data", "fixed",
)  # fmt: skip
"""`gradients` is the forward and backward pass together, so it includes `backward`."""
ADDED = tuple(part for part in PARTS if part != "backward")
"""The parts that sum to T."""
Term = Literal["compute", "communication", "waiting", "data", "fixed"]
PART_OF: Mapping[Term, Part] = {
    "compute": "gradients",
    "communication": "communication",
    "waiting": "waiting",
    "data": "data",
    "fixed": "fixed",
}
"""The part that dominates each term."""


class Place(NamedTuple):
    """A node count with the processes, batch and steps of a run.

    `batch` is the number of samples per process and optimizer step. `steps` is the number of
    optimizer steps, in any unit that all places share.
    """

    nodes: int
    processes: int
    batch: float
    steps: float


class Known(NamedTuple):
    """The measurements; `values` holds the seconds of each part per run, shape (draws, places).

    For batches that were measured separately, `passes` maps the samples per process to the seconds
    of the forward and backward pass per optimizer step on one node.
    `exchanges` holds the seconds per run of the whole exchange at each place; None if unknown.
    `timed` holds the batches of `passes` that were only timed after the training.
    """

    places: Sequence[Place]
    values: Mapping[Part, Floats]
    passes: Mapping[float, Span]
    exchanges: Sequence[Exchange | None] = ()
    timed: Set[float] = frozenset()

    def per_step(self, part: Part, chosen: Sequence[int]) -> Floats:
        """Return the seconds of a part per optimizer step at some places: (draws, places)."""
        steps = np.array([self.places[index].steps for index in chosen])
        found: Floats = self.values[part][:, list(chosen)] / steps
        return found


def terms_at(known: Known, place: Place) -> dict[Term, Span]:
    """Return the span of each term in seconds at a node count and batch size.

    At least one known place must have several nodes.
    """
    several = [index for index, each in enumerate(known.places) if each.nodes > 1]
    # an overlapping exchange slows down the backward pass, so compute is taken from places with
    # several nodes
    like = several if len(several) > 1 else list(range(len(known.places)))
    gradients = _by_batch(known, like, place.batch)
    optimizer = _alike(known.per_step("optimizer", like))
    # communication and waiting are bounded as if compute were halfway between its own bounds
    likely, halfway = float(gradients.middle[0]), float(gradients.low[0] + gradients.high[0]) / 2
    return {
        "compute": gradients.plus(optimizer).times(place.steps),
        "communication": _exchange(known, several, place, likely, halfway).times(place.steps),
        "waiting": _waiting(known, several, place, halfway).times(place.steps),
        "data": _data(known, place).times(place.steps),
        "fixed": _fixed(known, place),
    }


def slowest_of(processes: int) -> float:
    """Return the expected maximum of `processes` standard normal values."""
    x = np.linspace(-9.0, 9.0, 4001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    step = x[1] - x[0]
    below = (np.cumsum(density) - density / 2) * step
    return float((x * processes * density * below ** (processes - 1)).sum() * step)


def _alike(values: Floats) -> Span:
    """Return the span of a time that should be the same at every place.

    It begins at the smallest value. To allow for drift, its upper bound is above the largest value
    by the difference of the two.
    """
    low, high = values.min(axis=1), values.max(axis=1)
    return between(low, high + (high - low))


def _by_batch(known: Known, like: Sequence[int], batch: float) -> Span:
    """Return the span of the seconds of a forward and backward pass for a batch size."""
    measured = known.per_step("gradients", like)
    batches = np.array([known.places[index].batch for index in like])
    trained = {each: _alike(measured[:, batches == each]) for each in np.unique(batches).tolist()}
    slower = _slower_in_exchange(known)
    passes = {each: between(alone.low, alone.high * slower) for each, alone in known.passes.items()}
    found = _interpolated(known, passes | trained, batch)
    trained |= {each: passes[each] for each in passes.keys() - known.timed - trained.keys()}
    if batch >= min(trained) or not known.timed:
        return found
    # bounds from batches that were trained with are often closer on one side than the timing, and
    # the likely value needs no ratios where passes are linear in the batch
    bounds = _interpolated(known, trained, batch)
    low = np.maximum(found.low, np.minimum(bounds.low, found.high))
    high = np.minimum(found.high, np.maximum(bounds.high, low))
    return Span(low, np.clip(bounds.middle, low, high), high)


def _interpolated(known: Known, spans: Mapping[float, Span], batch: float) -> Span:
    """Return the span of the seconds of a forward and backward pass from those of other batches."""
    sizes = sorted(spans)
    for each in sizes:
        if abs(each - batch) <= 1e-9 * batch:
            return spans[each]
    above = [each for each in sizes if each > batch]
    below = [each for each in sizes if each < batch]
    if above and below:
        weight = (batch - below[-1]) / (above[0] - below[-1])
        return spans[below[-1]].times(1 - weight).plus(spans[above[0]].times(weight))
    if below:  # not faster than for the largest batch, and not slower per sample
        return between(spans[below[-1]].low, spans[below[-1]].high * (batch / below[-1]))
    least, high = spans[above[0]].middle, spans[above[0]].high
    in_proportion = least * (batch / above[0])
    if len(above) == 1:
        return between(in_proportion, high)
    slope = (spans[above[1]].middle - least) / (above[1] - above[0])
    low = line = np.clip(least - slope * (above[0] - batch), 0.0, least)
    exchanging = {each.batch for each in known.places if each.nodes > 1}
    if not exchanging.issuperset(above[:2]):
        # on one node, no exchange competes with the passes for the CPU, so they are faster and the
        # line is too flat
        low = np.minimum(low, in_proportion)
    return Span(low, line, high)


def _slower_in_exchange(known: Known) -> float:
    """Return the factor (at least 1) by which an exchange slows down the passes.

    The time of a pass without an exchange is interpolated between batches on one node. This
    overestimates it, since the time is convex in the batch.
    """
    alone = {batch: float(seconds.middle[0]) for batch, seconds in known.passes.items()}
    step = known.per_step("gradients", range(len(known.places)))[0].tolist()
    places = list(zip(known.places, step, strict=True))
    alone |= {each.batch: seconds for each, seconds in places if each.nodes == 1}
    batches = sorted(alone)
    return max(
        [1.0]
        + [
            seconds / float(np.interp(each.batch, batches, [alone[size] for size in batches]))
            for each, seconds in places
            if each.nodes > 1 and len(alone) > 1 and batches[0] <= each.batch <= batches[-1]
        ]
    )


def _exchange(
    known: Known, several: Sequence[int], place: Place, passes: float, halfway: float
) -> Span:
    """Return the span of the seconds per step of the exposed exchange.

    The likely value assumes that a pass takes `passes` seconds, and the bounds that it takes
    `halfway`.
    """
    exposed = known.per_step("communication", several)
    backward = known.per_step("backward", several)
    if not exposed.any():
        return exactly(exposed[:, 0])
    hidden = backward[0]
    share = hidden[-1] / known.per_step("gradients", several)[0, -1]
    timed = _timed(known, several, place, share, passes, halfway)
    if timed is not None:
        return timed
    ring = np.array([_ring(known.places[index].processes) for index in several])
    at = np.array(_ring(place.processes))

    def overlapped(there: float) -> list[Corners]:
        """Return the exchanges that a backward pass of `there` seconds hides partly or fully."""
        partly = corners(
            np.column_stack([ring, -hidden]),
            np.append(at, -there),
            exposed,
            most=np.array([np.inf, np.inf, 1.0]),
        )
        wholly = corners(ring, at, exposed + hidden, sizes=exposed[0])
        return [partly, wholly._replace(predicted=wholly.predicted - there)]

    likely = overlapped(share * passes)
    every = overlapped(share * halfway)
    # If only the last bucket is exposed, the whole exchange takes at most 1 + hidden/exposed times
    # as long as the bucket.
    last = corners(ring, at, exposed)
    least = 1e-9 * exposed[0].max()
    longest = 1 + (hidden / np.maximum(last.fitted, least)).min(axis=2)
    last = last._replace(
        predicted=np.maximum(last.predicted, last.predicted * longest - share * halfway)
    )
    span = span_of(joined(*likely[: len(several)]), *every, last)
    smaller = [each for each, own in enumerate(ring) if own[1] < at[1]][-1:]
    larger = [each for each, own in enumerate(ring) if own[1] > at[1]][:1]
    if not smaller or not larger:
        return span
    # Between two measured node counts, the exchange can become longer than the backward pass that
    # hides it. The exposed part is at least that of the smaller node count and at most that of the
    # larger one, both scaled by the time of the ring.
    least, most = (
        span_of(corners(ring[near], at, exposed[:, near]))
        if exposed[:, near].any()
        else exactly(exposed[:, near[0]])
        for near in (smaller, larger)
    )
    return Span(np.minimum(span.low, least.low), span.middle, np.maximum(span.high, most.high))


def _timed(
    known: Known, several: Sequence[int], place: Place, share: float, passes: float, halfway: float
) -> Span | None:
    """Return the span of the exposed exchange from the whole exchange, or None if it is unknown.

    `share` is the backward pass's share of the passes.
    """
    exchanges = [known.exchanges[index] for index in several if index < len(known.exchanges)]
    timed = [
        each.times(1 / known.places[index].steps)
        for each, index in zip(exchanges, several, strict=False)
        if each is not None
    ]
    if len(timed) < len(several):
        return None
    return span_of_exposed(
        timed,
        [known.places[index].processes for index in several],
        place.processes,
        known.per_step("communication", several),
        known.per_step("backward", several)[0],
        Passes(share * passes, share * halfway),
    )


def _ring(processes: int) -> list[float]:
    return [2 * (processes - 1) / processes, 2.0 * (processes - 1)]


def _waiting(known: Known, several: Sequence[int], place: Place, there: float) -> Span:
    waited = known.per_step("waiting", several)
    if not waited.any():
        return exactly(waited[:, 0])
    passes = known.per_step("gradients", several)[0]
    growth = np.array([_growth(known.places[index].processes) for index in several])
    at = _growth(place.processes)
    columns = np.column_stack([growth, growth * passes[:, np.newaxis]])
    return span_of(corners(columns, np.append(at, at * there), waited))


def _growth(processes: int) -> Floats:
    """Return the excess of the slowest process over the mean, up to a factor, in three models.

    The models are one slow node, normal values and exponential values.
    """
    harmonic = float((1 / np.arange(2, processes + 1)).sum())
    return np.array([1.0, slowest_of(processes), harmonic])


def _data(known: Known, place: Place) -> Span:
    waited = known.per_step("data", range(len(known.places)))
    if not waited.any():
        return exactly(waited[:, 0])
    columns = np.array([_data_terms(each) for each in known.places])
    return span_of(corners(columns, np.array(_data_terms(place)), waited))


def _data_terms(place: Place) -> list[float]:
    return [place.batch, place.batch * place.nodes, place.batch * (place.nodes - 1), 1.0]


def _fixed(known: Known, place: Place) -> Span:
    fixed = known.values["fixed"]
    if not fixed.any():
        return exactly(fixed[:, 0])
    columns = np.array([_fixed_terms(each.nodes) for each in known.places])
    at = np.array(_fixed_terms(place.nodes))
    return span_of(corners(columns[:, :3], at[:3], fixed), corners(columns, at, fixed))


def _fixed_terms(nodes: int) -> list[float]:
    return [1.0, 1 / nodes, float(nodes > 1), nodes - 1.0]
