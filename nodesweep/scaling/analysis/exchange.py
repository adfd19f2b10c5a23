"""The time that a run's gradient exchanges would take if nothing hid them.

infra/image/nodesweep_network.py times all-reduces of several sizes before the training. An exchange
is one all-reduce per bucket of gradients. The time of the smallest size is each bucket's latency,
and the rest of the time of its size is its transfer. Between the sizes, the time is interpolated;
above the largest, it grows as between the two largest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from nodesweep.scaling.outcome.metrics_values import (
    finite_or_none,
    nested_value,
    whole_number_or_none,
)

_LEAST_SIZES = 3


class Exchange(NamedTuple):
    """Latency and transfer of all buckets, in one unit of time.

    `last_share` is the last bucket's share of the whole time, which no backward pass can hide.
    """

    latency: float
    transfer: float
    last_share: float

    def times(self, factor: float) -> Exchange:
        """Return the exchange with both times multiplied by a factor."""
        return self._replace(latency=self.latency * factor, transfer=self.transfer * factor)


def read_exchange(metrics: Mapping[str, Any] | None) -> Exchange | None:
    """Return the seconds of all exchanges of the steps that were split into parts.

    None if metrics.json doesn't have them.
    """
    written = nested_value(metrics, ("budget",))
    for rank in written if isinstance(written, list) else ():
        if nested_value(rank, ("rank",)) == 0:
            network = nested_value(rank, ("network",))
            found = _read_network(network)
            times = whole_number_or_none(nested_value(network, ("exchanges",)))
            return found.times(times) if found is not None and times else None
    return None


def _read_network(written: Any) -> Exchange | None:
    """Return the seconds of one exchange."""
    buckets = _positive(nested_value(written, ("bucket_bytes",)))
    timed = nested_value(written, ("all_reduce",))
    if not buckets or not isinstance(timed, list) or len(timed) < _LEAST_SIZES:
        return None
    table = [_positive(pair) for pair in timed]
    if any(len(pair) != 2 for pair in table):
        return None
    sizes, timed_seconds = zip(*table, strict=True)
    if list(sizes) != sorted(set(sizes)):
        return None
    # a smaller all-reduce takes no longer: if it did, something else delayed it
    seconds = list(accumulate(reversed(timed_seconds), min))[::-1]
    each = [_interpolated(sizes, seconds, size) for size in buckets]
    latency = sum(min(took, seconds[0]) for took in each)
    return Exchange(latency, sum(each) - latency, each[-1] / sum(each))


def _positive(written: Any) -> list[float]:
    """Return a list of positive numbers; [] if it is something else."""
    values = written if isinstance(written, list) else []
    found = [each for value in values if (each := finite_or_none(value)) is not None and each > 0]
    return found if len(found) == len(values) else []


def _interpolated(sizes: Sequence[float], seconds: Sequence[float], size: float) -> float:
    place = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    slope = (seconds[place] - seconds[place - 1]) / (high - low)
    return max(seconds[0], seconds[place - 1] + slope * (size - low)) if size > low else seconds[0]
