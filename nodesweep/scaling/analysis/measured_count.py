"""A measured node count in a recommendation, and comparisons of two such counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import format_percent, format_speedup
from nodesweep.scaling.outcome.attainment import LEAST_BOUNDED

_WARM_POOL = "warm pool included"


@dataclass(frozen=True)
class MeasuredCount:
    """A measured node count.

    `efficiency_low` is the lower bound of the efficiency's 95% interval, or the efficiency itself
    without one. `doubling_ratio` is None if half the count was not measured, or measured throughput
    only.
    """

    row: SummaryRow
    nodes: int
    seconds: float
    efficiency: float
    efficiency_low: float
    doubling_ratio: float | None

    @property
    def usd(self) -> float | None:
        """The cost of a run in USD, with the warm pool after it (docs/method.md, "Clocks")."""
        return self.row.costs.total_usd

    @property
    def cost_name(self) -> str:
        """The name of the cost in sentences."""
        return f"run cost ({_WARM_POOL})" if self.row.costs.warm_pool_usd else "run cost"

    @property
    def is_same_model(self) -> bool:
        """True unless the count is flagged throughput_only.

        If it is, its time is not a time-to-train.
        """
        return "throughput_only" not in self.row.flags

    @property
    def is_contended(self) -> bool:
        """True if its nodes were CPU-throttled or contended."""
        return "starved" in self.row.flags

    @property
    def is_bounded(self) -> bool:
        """True if its nodes were contended, but both ends of its time can be judged."""
        return is_bounded(self.row)

    @property
    def is_unknown(self) -> bool:
        """True if its nodes were so contended that its time cannot be judged."""
        return self.is_contended and not self.is_bounded

    @property
    def is_usable(self) -> bool:
        """True if a recommendation may be based on its time."""
        return self.is_same_model and not self.is_contended


def is_bounded(row: SummaryRow) -> bool:
    """Return True if the row's time is contended, but known within bounds that can be judged."""
    share = row.least_time_share
    return "starved" in row.flags and share is not None and share >= LEAST_BOUNDED


def cost_change(row: SummaryRow, base: SummaryRow) -> str | None:
    """Return the cost relative to the baseline's, such as "9% more expensive" or "same cost".

    Both include the warm pool after the run. None if either is unknown or the baseline's is 0.
    """
    usd, base_usd = row.costs.total_usd, base.costs.total_usd
    if usd is None or not base_usd:
        return None
    pools = f", {_WARM_POOL}" if row.costs.warm_pool_usd or base.costs.warm_pool_usd else ""
    share = format_percent(abs(usd / base_usd - 1))
    if share == format_percent(0):
        return f"same cost{pools}"
    return f"{share} {'more expensive' if usd > base_usd else 'cheaper'}{pools}"


def faster_text(speedup: float | None) -> str:
    """Return "3.6x faster than" or, below 1, "0.8x as fast as"."""
    slower = speedup is not None and rounded(speedup) < 1
    return f"{format_speedup(speedup)} {'as fast as' if slower else 'faster than'}"


def rounded(number: float) -> float:
    """Return the number rounded to nine significant digits.

    Otherwise ties and exact limits would depend on rounding errors.
    """
    return float(f"{number:.9g}")


def measured_counts(rows: Sequence[SummaryRow]) -> list[MeasuredCount]:
    """Return the rows with a time, ascending; the first is the baseline."""
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
