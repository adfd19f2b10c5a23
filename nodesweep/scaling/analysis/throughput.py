"""Report samples per second if the global batch grows and no metric shows convergence.

The larger batch may train a worse model, or need more epochs for the same model, so no node count
is recommended without a metric that shows convergence (docs/method.md, "Convergence parity").
"""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.advice import Recommendation, sentence
from nodesweep.scaling.analysis.deadline import recommend_none
from nodesweep.scaling.analysis.measured_count import MeasuredCount
from nodesweep.scaling.analysis.verdicts import unlike_text
from nodesweep.scaling.formats import (
    format_percent,
    format_speedup,
    format_value,
    join_words,
    nodes_text,
)

THROUGHPUT_ONLY = "Throughput only"
_NOTHING_TO_COMPARE = "no larger node count has a time-to-train to compare with"
_MOST_SHOWN = 6
_WHOLE_FROM = 100
"""Rates of at least this many samples per second are shown without decimals."""


def unless_convergence_unknown(
    answer: Recommendation, measured: Sequence[MeasuredCount], goals: RecommendationConfig
) -> Recommendation:
    """Return the answer, or one without a choice if unknown convergence could change it.

    A choice above the baseline is kept, since its metric was compared. An answer without a choice
    is kept if nodes were so contended that the times give no rates.
    """
    unknown = [count for count in measured if count.row.convergence_unknown]
    base = measured[0]
    if not unknown or (answer.chosen is not None and answer.chosen.nodes != base.nodes):
        return answer
    if answer.chosen is None and any(count.is_unknown for count in measured):
        return answer
    return recommend_none(
        measured,
        goals,
        lambda count: (
            unlike_text(count.row) if count.row.convergence_unknown else _NOTHING_TO_COMPARE
        ),
        sentence(
            f"{THROUGHPUT_ONLY}: {_rates(measured)}",
            f"no node count is recommended, since {unknown[-1].row.parity.reason}",
        ),
    )


def _rates(measured: Sequence[MeasuredCount]) -> str:
    """Return a clause on the samples per second and the efficiency at each node count.

    If a rate is unknown, rates are relative to the baseline. If there are more than _MOST_SHOWN
    larger node counts, only the largest is shown.
    """
    base, larger = measured[0], measured[1:]
    if len(larger) > _MOST_SHOWN:
        larger = larger[-1:]
    efficiency = join_words(format_percent(count.efficiency) for count in larger)
    rates = [count.row.samples_per_second for count in (base, *larger)]
    if None not in rates:
        shown = join_words(_rate_text(rate) for rate in rates if rate is not None)
        at = join_words(count.nodes for count in (base, *larger))
        text = f"{shown} samples per second on {at} nodes"
    else:
        shown = join_words(format_speedup(count.row.train.speedup) for count in larger)
        at = join_words(count.nodes for count in larger)
        by_steps = any(count.row.samples_ratio is not None for count in larger)
        same = "for the same number of steps" if by_steps else "on the same number of samples"
        text = (
            f"{shown} the samples per second of {nodes_text(base.nodes)} on {at} nodes, if all "
            f"runs train {same}"
        )
    return f"{text} (efficiency {efficiency})"


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= _WHOLE_FROM else format_value(rate, 3)
