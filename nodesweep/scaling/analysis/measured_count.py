"""A measured node count in a recommendation, and comparisons with the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.per_result import LEAST_COMPLETED, Quantity, expected
from nodesweep.scaling.analysis.speedup import SummaryRow
from nodesweep.scaling.formats import format_percent, format_speedup, format_usd
from nodesweep.scaling.outcome.attainment import LEAST_BOUNDED

_WARM_POOL = "warm pool included"
# Bound on the slowdown from the night of this sweep to the night of the next run, in standard
# deviations between nights. 19 of 20 slowdowns are smaller.
_NIGHTS = 1.6449 * math.sqrt(2)


@dataclass(frozen=True)
class MeasuredCount:
    """A measured node count.

    `efficiency_low` is the lower bound of the 95% interval of the efficiency or, without an
    interval, the efficiency. `doubling_ratio` is None if half the node count was not measured, is
    flagged throughput_only, or was too contended.
    """

    row: SummaryRow
    nodes: int
    seconds: float
    efficiency: float
    efficiency_low: float
    doubling_ratio: float | None

    @property
    def usd(self) -> float | None:
        """The expected cost of a result in USD, including the warm pool; None if unknown."""
        return usd_per_result(self.row)

    @property
    def node_hours(self) -> float | None:
        """The expected node-hours of a result, or None unless costs are in node-hours."""
        return node_hours_per_result(self.row)

    @property
    def seconds_per_result(self) -> float:
        """The expected train time of a result in seconds, including failed attempts."""
        return expected(self.seconds, self.row.per_result, "train_seconds") or self.seconds

    @property
    def usd_interval(self) -> Interval | None:
        """The interval of `usd`; None if unknown."""
        return self.per_result_interval(
            self.row.costs.total_usd, self.row.cost_spread.interval, "usd"
        )

    @property
    def seconds_interval(self) -> Interval | None:
        """The interval of `seconds_per_result`; None if unknown."""
        return self.per_result_interval(
            self.seconds, self.row.train.seconds_interval, "train_seconds"
        )

    def per_result_interval(
        self, run: float | None, of_run: Interval | None, quantity: Quantity
    ) -> Interval | None:
        """Return the interval of an amount per result from the interval of a completed run.

        Args:
            run: The amount for a completed run, or None if unknown.
            of_run: The interval of that amount, or None if unknown.
            quantity: The name of the amount.
        """
        per = self.row.per_result
        if per is None or run is None:
            return of_run
        low, high = (run, run) if of_run is None else (of_run.low, of_run.high)
        return per.interval(low, high, quantity)

    @property
    def cost_name(self) -> str:
        """The name of the cost in sentences."""
        return self.named("run cost", "cost per result", _has_pool(self.row))

    def named(self, of_run: str, of_result: str, has_pool: bool = False) -> str:
        """Return the name of an amount, with notes on failed attempts and the warm pool.

        Failed attempts that could rule out the node count are not noted, since completes() reports
        them.
        """
        per = self.row.per_result
        notes = []
        if per is not None and per.completed_share.low >= LEAST_COMPLETED:
            notes.append(per.text)
        notes += [_WARM_POOL] if has_pool else []
        name = of_result if per else of_run
        return f"{name} ({', '.join(notes)})" if notes else name

    @property
    def next_name(self) -> str:
        """The subject of a prediction bound: "next result" if attempts failed, else "next run"."""
        return "next result" if self.row.per_result else "next run"

    @property
    def nights_reach(self) -> float | None:
        """Bound on the slowdown from night to night, on the log scale; None without a history."""
        return None if self.row.night_sigma is None else _NIGHTS * self.row.night_sigma

    def next_run(self, run: float, in_session: float | None) -> float | None:
        """Return the upper 95% prediction bound of the next run's time or cost; None if unknown.

        The bound combines the spread within the session and the spread between nights, if a history
        shows it, as independent. With too few runs, it covers only the spread between nights.

        Args:
            run: The mean time or cost of a completed run.
            in_session: The bound within the session, or None if there are too few runs.
        """
        if self.nights_reach is None:
            return in_session
        within = 0.0 if in_session is None else math.log(in_session / run)
        return run * math.exp(math.hypot(within, self.nights_reach))

    @property
    def is_same_model(self) -> bool:
        """True unless the row is flagged throughput_only, so its time is not a time-to-train."""
        return "throughput_only" not in self.row.flags

    @property
    def is_contended(self) -> bool:
        """True if the nodes were CPU-throttled or contended."""
        return "starved" in self.row.flags

    @property
    def is_bounded(self) -> bool:
        """True if the nodes were contended, but the bounds of the time can be used."""
        return is_bounded(self.row)

    @property
    def is_unknown(self) -> bool:
        """True if the nodes were so contended that the time cannot be used."""
        return is_unknown(self.row)

    @property
    def least_share(self) -> float:
        """Lower bound of the time without contention, as a share of the time; 0 if unknown."""
        return (self.row.least_time_share or 0.0) if self.is_contended else 1.0

    @property
    def is_usable(self) -> bool:
        """True if a recommendation can be based on the time."""
        return self.is_same_model and not self.is_contended


def is_bounded(row: SummaryRow) -> bool:
    """Return True if the nodes were contended, but the bounds of the row's time can be used."""
    share = row.least_time_share
    return "starved" in row.flags and share is not None and share >= LEAST_BOUNDED


def is_unknown(row: SummaryRow) -> bool:
    """Return True if the nodes were so contended that the row's time cannot be used."""
    return "starved" in row.flags and not is_bounded(row)


def cost_change(row: SummaryRow, base: SummaryRow) -> str | None:
    """Compare the cost with the baseline, such as "9% more expensive" or "same cost".

    Both costs include the warm pool after the run. If a cost is unknown or the baseline's is 0,
    compare the node-hours if costs are in node-hours, else return None.
    """
    usd, base_usd = usd_per_result(row), usd_per_result(base)
    if usd is None or not base_usd:
        return _hours_change(row, base)
    per = " per result" if row.per_result or base.per_result else ""
    pools = f", {_WARM_POOL}" if _has_pool(row) or _has_pool(base) else ""
    share = format_percent(abs(usd / base_usd - 1))
    if share == format_percent(0):
        return f"same cost{per}{pools}"
    return f"{share} {'more expensive' if usd > base_usd else 'cheaper'}{per}{pools}"


def _hours_change(row: SummaryRow, base: SummaryRow) -> str | None:
    """Compare the node-hours with the baseline if costs are in node-hours, else return None."""
    hours, base_hours = node_hours_per_result(row), node_hours_per_result(base)
    if hours is None or not base_hours:
        return None
    per = " per result" if row.per_result or base.per_result else ""
    share = format_percent(abs(hours / base_hours - 1))
    if share == format_percent(0):
        return f"same node-hours{per}"
    return f"{share} {'more' if hours > base_hours else 'fewer'} node-hours{per}"


def attempts_text(row: SummaryRow, note: str = "") -> str | None:
    """Return "3 of 9 attempts completed (90%: 14%–60%), $5.32 per result"; None if none failed.

    `note` is inserted after "completed".
    """
    if row.per_result is None:
        return None
    usd, share = usd_per_result(row), row.per_result.completed_share
    level, low, high = map(format_percent, (share.level, share.low, share.high))
    cost = "" if usd is None else f", {format_usd(usd)} per result"
    return f"{row.per_result.text}{note} ({level}: {low}–{high}){cost}"


def usd_per_result(row: SummaryRow) -> float | None:
    """Return the expected cost of a result (a run if no attempt failed) in USD; None if unknown."""
    return expected(row.costs.total_usd, row.per_result, "usd")


def node_hours_per_result(row: SummaryRow) -> float | None:
    """Return the expected node-hours of a result if costs are in node-hours, else None."""
    return expected(row.costs.node_hours, row.per_result, "node_hours")


def _has_pool(row: SummaryRow) -> bool:
    return bool(row.costs.warm_pool_usd)


def faster_text(speedup: float | None) -> str:
    """Return "3.6x faster than" or, below 1, "0.8x as fast as"."""
    slower = speedup is not None and rounded(speedup) < 1
    return f"{format_speedup(speedup)} {'as fast as' if slower else 'faster than'}"


def rounded(number: float) -> float:
    """Round to nine significant digits, so that ties and limits don't depend on rounding errors."""
    return float(f"{number:.9g}")


def measured_counts(rows: Sequence[SummaryRow]) -> list[MeasuredCount]:
    """Return the node counts with a time and an efficiency, ascending, the baseline first."""
    counts = []
    not_comparable = {
        row.nodes for row in rows if "throughput_only" in row.flags or is_unknown(row)
    }
    for row in sorted(rows, key=lambda row: row.nodes):
        seconds, efficiency = row.train.seconds, row.train.efficiency
        if seconds is not None and efficiency is not None:
            efficiencies = row.train.efficiency_interval
            low = efficiency if efficiencies is None else efficiencies.low
            ratio = None if row.nodes / 2 in not_comparable else row.train.doubling_ratio
            counts.append(MeasuredCount(row, row.nodes, seconds, efficiency, low, ratio))
    return counts
