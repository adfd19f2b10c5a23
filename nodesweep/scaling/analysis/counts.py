"""A measured node count as a recommendation judges it, and how two of them compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import format_percent, format_speedup
from nodesweep.scaling.outcome.attainment import LEAST_BOUNDED

_WARM_POOL = "warm pool included"


@dataclass(frozen=True)
class MeasuredCount:
    """A measured count. Its bounds are those of the 95 % intervals,
    or the values themselves where there is none.

    `doubling_ratio` is None where half the count was not measured, or measured throughput only.
    """

    row: SummaryRow
    nodes: int
    seconds: float
    efficiency: float
    efficiency_low: float
    doubling_ratio: float | None

    @property
    def usd(self) -> float | None:
        """A run with the warm pool that it keeps (docs/method.md, "Clocks")."""
        return self.row.costs.total_usd

    @property
    def cost_name(self) -> str:
        return f"run cost ({_WARM_POOL})" if self.row.costs.warm_pool_usd else "run cost"

    @property
    def is_same_model(self) -> bool:
        """Whether the final metric shows that it trained the baseline's model:
        its time is a time to train.
        """
        return "throughput_only" not in self.row.flags

    @property
    def starved(self) -> bool:
        return "starved" in self.row.flags

    @property
    def is_bounded(self) -> bool:
        """True if both ends of its time may be judged, since its nodes were contended."""
        return is_bounded(self.row)

    @property
    def is_unknown(self) -> bool:
        """True if its nodes were contended so much that nothing is known of its time."""
        return self.starved and not self.is_bounded

    @property
    def counts(self) -> bool:
        """Whether a recommendation may rest on its time."""
        return self.is_same_model and not self.starved


def is_bounded(row: SummaryRow) -> bool:
    """Return whether the row's time is contended, and known between two ends that may be judged."""
    share = row.least_time_share
    return "starved" in row.flags and share is not None and share >= LEAST_BOUNDED


def cost_change(row: SummaryRow, base: SummaryRow) -> str | None:
    """Cost against the baseline's, both with the warm pool kept after the run: 9 % dearer, 3 %
    cheaper, same cost.

    None where one is unknown or the baseline's is 0.
    """
    usd, base_usd = row.costs.total_usd, base.costs.total_usd
    if usd is None or not base_usd:
        return None
    pools = f", {_WARM_POOL}" if row.costs.warm_pool_usd or base.costs.warm_pool_usd else ""
    share = format_percent(abs(usd / base_usd - 1))
    if share == format_percent(0):
        return f"same cost{pools}"
    return f"{share} {'dearer' if usd > base_usd else 'cheaper'}{pools}"


def faster_text(speedup: float | None) -> str:
    """3.6x faster than; below 1, 0.8x as fast as."""
    slower = speedup is not None and rounded(speedup) < 1
    return f"{format_speedup(speedup)} {'as fast as' if slower else 'faster than'}"


def rounded(number: float) -> float:
    """To nine digits, so that a tie or a limit met exactly is not decided
    by floating-point rounding.
    """
    return float(f"{number:.9g}")


def measured_counts(rows: Sequence[SummaryRow]) -> list[MeasuredCount]:
    """The rows with a time, ascending; the first is the baseline."""
    counts = []
    not_comparable = {
        row.nodes
        for row in rows
        if "throughput_only" in row.flags or ("starved" in row.flags and not is_bounded(row))
    }
    for row in sorted(rows, key=lambda row: row.nodes):
        seconds, efficiency = row.train.seconds, row.train.efficiency
        if seconds is not None and efficiency is not None:
            efficiencies = row.train.efficiency_interval
            low = efficiency if efficiencies is None else efficiencies.low
            ratio = None if row.nodes / 2 in not_comparable else row.train.doubling_ratio
            counts.append(MeasuredCount(row, row.nodes, seconds, efficiency, low, ratio))
    return counts
