"""Time to a quality target if the batch grows, estimated from the noise of the gradients.

If its learning rate is tuned, a batch of B samples needs S(B) = S_min (1 + B_noise/B) steps to
reach a loss, so the number of samples is proportional to B + B_noise (McCandlish et al. 2018, arXiv
1812.06162, equations 2.7 and 2.11). The squared norm of the batch gradient is on average
|G|^2 (1 + B_noise/B) (appendix A.1). From the norms at two batch sizes, signal_shares() computes
the share of |G|^2 in it, which is S_min/S(B). The mean of this share over a run describes the whole
run, although B_noise grows during the training.

Ranges include the spread between windows and runs, and the error of the model, which
benchmarks/noise_scale.py checks against measured steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any, Literal, NamedTuple

from pydantic import Field

from nodesweep.scaling.analysis.growing_batch import SAME
from nodesweep.scaling.analysis.rows import SummaryRow
from nodesweep.scaling.outcome.metrics_values import nested_value, positive_or_none
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.report_part import Part
from nodesweep.scaling.t_distribution import t_quantile

MODEL_FACTOR = 2.0
"""Factor by which the model can be wrong about the critical batch, in addition to the noise."""
_LEAST_WINDOWS = 4
_LEAST_CROWDING = 1e-12  # below this, the critical batch exceeds any batch in use
_LEAST_SHARE = -1e6  # a share below this is not a measurement
_TWO_SIDED = 0.975  # 95%
Passed = Literal["no", "maybe", "yes"]


class CountToTarget(Part):
    """The estimate for a node count whose global batch is larger than the baseline's."""

    nodes: int = Field(description="N, nodes per job.")
    global_batch_size: int = Field(description="Samples per optimizer step.")
    samples_ratio: float = Field(
        description="Ratio of the samples to the target at N to the samples at N0."
    )
    samples_range: tuple[float, float] = Field(description="Range of `samples_ratio`.")
    speedup: float = Field(description="Ratio of the time to the target at N0 to the time at N.")
    speedup_range: tuple[float, float] = Field(description="Range of `speedup`.")
    passed: Passed = Field(
        description="yes: the global batch is above the range of the critical batch; maybe: it is "
        "within the range; no: it is below."
    )


class QualityTarget(Part):
    """Time to a quality target, if the learning rate is tuned for each batch size."""

    critical_batch: float | None = Field(
        description=(
            "Gradient noise scale: the batch size that needs twice the minimum steps and twice "
            "the minimum samples; null if it is too large to measure."
        )
    )
    critical_batch_range: tuple[float, float | None] = Field(
        description="Range of `critical_batch`; null if unbounded."
    )
    runs: int = Field(description="Number of runs in which the noise was measured.")
    partial: bool = Field(
        description=(
            "True if runs may have ended early. The noise scale grows during training, so it then "
            "has no upper bound."
        )
    )
    nodes: int = Field(description="N0, the node count that all ratios are relative to.")
    counts: tuple[CountToTarget, ...] = Field(
        description="The node counts with a larger global batch than N0, ascending."
    )


class Crowding(NamedTuple):
    """1/B_noise with its range, in 1/samples. 0 is too much noise to measure, infinity no noise."""

    low: float
    middle: float
    high: float


def find_quality_target(
    rows: Sequence[SummaryRow], used: Sequence[JobOutcome], sized: bool = False
) -> QualityTarget | None:
    """Return the estimate, or None if the batch does not grow or the noise was not measured.

    Args:
        rows: The summary rows, ascending.
        used: The runs behind the rows.
        sized: True if the config sets the length of the runs, so they may end before the training
            is finished.
    """
    base = next((row for row in rows if row.train.speedup is not None), None)
    known = [(outcome, crowding(outcome.metrics)) for outcome in used]
    measured = [each for _, each in known if each is not None]
    if base is None or base.global_batch_size is None or not measured:
        return None
    partial = sized or any(each and outcome.projection is not None for outcome, each in known)
    pooled = pool(measured, partial)
    counts = tuple(
        _count(row, row.train.speedup, row.global_batch_size, base.global_batch_size, pooled)
        for row in rows
        if row.train.speedup is not None
        and row.global_batch_size is not None
        and row.global_batch_size > base.global_batch_size * (1 + SAME)
    )
    if not counts:
        return None
    return QualityTarget(
        critical_batch=_batch(pooled.middle),
        critical_batch_range=(_batch(pooled.high) or 0.0, _batch(pooled.low)),
        runs=len(measured),
        partial=partial,
        nodes=base.nodes,
        counts=counts,
    )


def crowding(metrics: Any) -> Crowding | None:
    """Return 1/B_noise of a run with a 95% interval; None if metrics.json has no valid data."""
    section = nested_value(metrics, ("gradient_noise",))
    sizes = [positive_or_none(nested_value(section, (f"{each}_batch_size",))) for each in _SIZES]
    squares = [_squares(nested_value(section, (f"{each}_squares",))) for each in _SIZES]
    (small, large), (of_small, of_large) = sizes, squares
    if small is None or large is None or small >= large:
        return None
    if len(of_small) != len(of_large) or len(of_small) < _LEAST_WINDOWS:
        return None
    shares = signal_shares(small, of_small, large, of_large)
    if min(shares) < _LEAST_SHARE:
        return None
    reach = t_quantile(len(shares) - 1, _TWO_SIDED) * stdev(shares) / math.sqrt(len(shares))
    mean = fmean(shares)
    return Crowding(*(_crowding(mean + each, large) for each in (-reach, 0.0, reach)))


def signal_shares(
    small: float, of_small: Sequence[float], large: float, of_large: Sequence[float]
) -> list[float]:
    """Return the share of |G|^2 in each squared norm of the larger batch.

    Since E[q] = |G|^2 + tr(S)/b and E[Q] = |G|^2 + tr(S)/B, the share |G|^2/Q is
    (B - b q/Q) / (B - b). It can be below 0 by chance.

    Args:
        small: Samples of the smaller batch, b.
        of_small: Mean squared norms of its gradients, q, in consecutive windows of a run.
        large: Samples of the larger batch, B.
        of_large: Mean squared norms of its gradients, Q, in the same windows.
    """
    pairs = zip(of_small, of_large, strict=True)
    return [(large - small * own / averaged) / (large - small) for own, averaged in pairs]


def pool(runs: Sequence[Crowding], partial: bool = False) -> Crowding:
    """Return the medians over the runs, and a range that allows for the error of the model.

    Args:
        runs: The values of one or more runs.
        partial: True if a run may have ended early, so B_noise has no upper bound.
    """
    low, middle, high = (median(each) for each in zip(*runs, strict=True))
    return Crowding(0.0 if partial else low / MODEL_FACTOR, middle, high * MODEL_FACTOR)


def samples_ratio(crowded: float, batch: float, base: float) -> float:
    """Return the ratio of samples that two batches need, (B + B_noise)/(B0 + B_noise).

    Args:
        crowded: 1/B_noise.
        batch: Samples of the larger batch, B.
        base: Samples of the smaller batch, B0.
    """
    return batch / base if math.isinf(crowded) else (1 + crowded * batch) / (1 + crowded * base)


_SIZES = ("small", "large")


def _squares(values: Any) -> list[float]:
    read = [positive_or_none(value) for value in values] if isinstance(values, list) else []
    known = [value for value in read if value is not None]
    return known if len(known) == len(read) else []


def _crowding(share: float, batch: float) -> float:
    """Return 1/B_noise from the share of |G|^2 at batch B, which is 1/(1 + B_noise/B)."""
    if share >= 1:
        return math.inf
    return max(0.0, share) / (batch * (1 - share))


def _batch(crowded: float) -> float | None:
    return None if crowded < _LEAST_CROWDING else 1 / crowded


def _count(
    row: SummaryRow, speedup: float, batch: int, base: int, pooled: Crowding
) -> CountToTarget:
    least, middle, most = (samples_ratio(each, batch, base) for each in pooled)
    interval = row.train.speedup_interval
    slow, fast = (speedup, speedup) if interval is None else (interval.low, interval.high)
    below, above = batch * pooled.high <= 1, batch * pooled.low > 1
    return CountToTarget(
        nodes=row.nodes,
        global_batch_size=batch,
        samples_ratio=middle,
        samples_range=(least, most),
        speedup=speedup / middle,
        speedup_range=(slow / most, fast / least),
        passed="no" if below else "yes" if above else "maybe",
    )
