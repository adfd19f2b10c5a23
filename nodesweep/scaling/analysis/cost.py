"""The costs of runs: node-seconds x price.

BillableTimeInSeconds is the wall time of the job (docs/method.md, "Clocks"), so node-seconds are
billable seconds x nodes. For managed spot training, it is the discounted time, so billable seconds
x nodes x the on-demand price is the amount paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from nodesweep.scaling.analysis.intervals import Interval, mean_interval, next_run_bound
from nodesweep.scaling.analysis.parity import reaches
from nodesweep.scaling.analysis.price import (
    SECONDS_PER_HOUR,
    Price,
    charged_hours,
    node_cost_usd,
)
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.report_part import Part


class RunCosts(Part):
    """The cost of one run in USD, or the mean of several; null if the time or price is unknown."""

    run_usd: float | None = Field(
        description="Billed cost of the run: billable time x nodes x price, or the cost in a table."
    )
    on_demand_usd: float | None = Field(
        description="Cost of the same run on demand: training time x nodes x price."
    )
    warm_pool_usd: float | None = Field(
        description="Cost of the warm pool kept after the run: retained time x nodes x price."
    )
    total_usd: float | None = Field(
        description=(
            "Cost of the run and of the warm pool kept after it, used for the budget, the Pareto "
            "front and comparisons."
        )
    )
    epoch_usd: float | None = Field(
        description="Cost of an epoch on the train clock, without start-up: T x N x price / epochs."
    )
    target_usd: float | None = Field(
        description=(
            "Cost of the run up to the first validation that reached the target metric, including "
            "start-up."
        )
    )
    node_hours: float | None = Field(
        default=None,
        exclude_if=lambda hours: hours is None,
        description="Billed node-hours; absent unless costs are in node-hours.",
    )
    billing_hours: float | None = Field(
        default=None,
        exclude_if=lambda hours: hours is None,
        description=(
            "Billed time in hours x the billing weight that Slurm computed for the job (TRES "
            "billing); absent if unknown."
        ),
    )


class CostSpread(Part):
    """The variation of run costs at one node count, in USD, including the warm pool."""

    interval: Interval | None = Field(
        default=None,
        description="95% interval of the mean cost; null for fewer than 3 known costs.",
    )
    next_run_usd: float | None = Field(
        default=None,
        description=(
            "Upper 95% prediction bound: the next run in this session costs less with a "
            "probability of 95%; null for "
            "fewer than 3 known costs."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_replaced(cls, given: Any) -> Any:
        """Drop usd_per_completed_run of older reports, which `per_result` of the row replaced."""
        if not isinstance(given, Mapping):
            return given
        return {name: given[name] for name in given if name != "usd_per_completed_run"}


def cost_spread(used_usd: Sequence[float | None]) -> CostSpread:
    """Return the spread of the costs of the used runs at one node count."""
    used = [usd for usd in used_usd if usd is not None]
    return CostSpread(interval=mean_interval(used), next_run_usd=next_run_bound(used))


def run_costs(
    outcome: JobOutcome,
    price: Price | None,
    train_seconds: float | None,
    seconds_to_target: float | None,
) -> RunCosts:
    """Return the costs of one attempt; a cost from a table overrides billed time x price.

    `train_seconds` is on the train clock of the report.
    """
    nodes, billable = outcome.nodes, outcome.clocks.billable_seconds
    given = outcome.given_cost_usd
    billed_usd = node_cost_usd(nodes, billable, price)
    run_usd = given if given is not None else billed_usd
    warm_pool_usd = node_cost_usd(nodes, outcome.retained_billable_seconds, price)
    return RunCosts(
        run_usd=run_usd,
        on_demand_usd=(
            node_cost_usd(nodes, outcome.training_time_seconds, price)
            if outcome.spot
            else billed_usd
        ),
        warm_pool_usd=warm_pool_usd,
        total_usd=total_usd(run_usd, warm_pool_usd),
        epoch_usd=_epoch_usd(outcome, train_seconds, price),
        target_usd=node_cost_usd(nodes, _billable_to_target(outcome, seconds_to_target), price),
        node_hours=charged_hours(nodes, billable, price),
        billing_hours=(
            None
            if outcome.billing is None or billable is None
            else outcome.billing * billable / SECONDS_PER_HOUR
        ),
    )


def total_usd(run_usd: float | None, warm_pool_usd: float | None) -> float | None:
    """Return the cost of a run and the warm pool after it, or None if the run cost is unknown.

    An unknown warm pool cost counts as 0.
    """
    return None if run_usd is None else run_usd + (warm_pool_usd or 0.0)


def seconds_to_target(outcome: JobOutcome, target: float | None) -> float | None:
    """Return the train seconds until the first validation that reached the target.

    Return None if no validation reached it, or if the metric has no goal.
    """
    metric = outcome.final_metric
    if metric is None:
        return None
    return next(
        (at for at, value in outcome.validations if reaches(value, target, metric.goal)), None
    )


def _billable_to_target(outcome: JobOutcome, to_target: float | None) -> float | None:
    """Return the billable seconds, excluding the training after the target was reached.

    `to_target` is on the program's clock, so the result is None for any other train clock.
    """
    billable, trained = outcome.clocks.billable_seconds, outcome.clocks.train_seconds
    whole = outcome.training_time_seconds if outcome.spot else billable
    if (
        billable is None
        or whole is None
        or trained is None
        or to_target is None
        or outcome.train_clock != "program"
    ):
        return None
    until = max(to_target, whole - max(0.0, trained - to_target))
    return billable * min(1.0, until / whole)


def _epoch_usd(
    outcome: JobOutcome, train_seconds: float | None, price: Price | None
) -> float | None:
    epochs = outcome.metric_number("epochs")
    usd = node_cost_usd(outcome.nodes, train_seconds, price)
    return usd / epochs if usd is not None and epochs is not None and epochs > 0 else None
