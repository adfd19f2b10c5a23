"""The expected cost and time of a result, which is a completed run with the failures before it.

The attempts at a node count are modeled as independent trials that complete with the same
probability p. A result then takes (1 - p) / p failed attempts on average (geometric distribution),
so

    result = completed run + failures per result x mean failed attempt

for both cost and time, with the observed odds (failed / completed) as failures per result. The
uncertainty of p comes from its Jeffreys posterior, Beta(completed + 1/2, failed + 1/2) (Brown, Cai
and DasGupta, *Statistical Science* 16(2), 2001, section 4.3). JobOutcome.is_failure defines which
attempts are failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from pydantic import Field
from scipy.special import betaincinv

from nodesweep.scaling.analysis.interval import LEVEL, Interval
from nodesweep.scaling.analysis.price import SECONDS_PER_HOUR
from nodesweep.scaling.outcome.outcome import JobOutcome, TrainClock
from nodesweep.scaling.report_part import Part

Quantity = Literal["usd", "train_seconds", "submit_to_end_seconds", "node_hours"]
LEAST_COMPLETED = 0.5
"""Minimum share of attempts that must complete at a recommended node count."""


class Amounts(Part):
    """The cost and the times of an attempt or a result; unknown amounts are null."""

    usd: float | None = Field(description="Cost, including the warm pool.")
    train_seconds: float | None = Field(
        description=(
            "Train time. For a failed attempt, the time in the Training phase or, if that is "
            "unknown, the billed time or the train time."
        )
    )
    submit_to_end_seconds: float | None = Field(description="Time from submission to end.")
    node_hours: float | None = Field(
        default=None,
        exclude_if=lambda hours: hours is None,
        description="Billed node-hours; absent unless costs are in node-hours.",
    )


class PerResult(Part):
    """The attempts at one node count, and the expected cost and times of a result."""

    completed: int = Field(description="Number of on-demand attempts that completed.")
    failed: int = Field(
        description=(
            "Number of on-demand attempts that failed because of the job or the platform, without "
            "attempts that were stopped on request or refused before they started."
        )
    )
    completed_share: Interval = Field(
        description="90% interval of the share of attempts that complete; each bound holds at 95%."
    )
    failed_attempt: Amounts = Field(
        description="Means over the failed attempts; an unknown amount is replaced by the amount "
        "of a completed run."
    )
    result: Amounts = Field(
        description=(
            "Expected amounts of a result: completed run (geometric mean) + failed / completed x "
            "failed_attempt."
        )
    )

    @property
    def text(self) -> str:
        """The attempts in words, such as "3 of 9 attempts completed"."""
        return f"{self.completed} of {self.completed + self.failed} attempts completed"

    def interval(self, low: float, high: float, quantity: Quantity) -> Interval:
        """Return the interval of an amount per result from its bounds for a completed run."""
        share, lost = self.completed_share, getattr(self.failed_attempt, quantity)
        fewest, most = (1 / bound - 1 for bound in (share.high, share.low))
        return Interval(low=low + fewest * lost, high=high + most * lost, level=share.level)


def per_result(
    attempts: Sequence[tuple[JobOutcome, float | None]], run: Amounts, clock: TrainClock | None
) -> PerResult | None:
    """Return the expected amounts of a result at one node count.

    Return None unless some attempts completed and some failed.

    Args:
        attempts: All attempts, each with its cost in USD.
        run: Means of the used runs, with projected values for probes.
        clock: The train clock of the report.
    """
    on_demand = [(outcome, usd) for outcome, usd in attempts if not outcome.spot]
    completed = sum(outcome.completed for outcome, _ in on_demand)
    spent = [_spent(each, usd, clock) for each, usd in on_demand if each.is_failure]
    if not completed or not spent:
        return None
    lost: dict[str, float | None] = dict.fromkeys(Amounts.model_fields)
    result = dict(lost)
    for name in Amounts.model_fields:
        if (instead := getattr(run, name)) is not None:
            known = (getattr(each, name) for each in spent)
            mean = fmean(instead if each is None else each for each in known)
            lost[name], result[name] = mean, instead + len(spent) / completed * mean
    return PerResult(
        completed=completed,
        failed=len(spent),
        completed_share=share_interval(completed, len(spent)),
        failed_attempt=Amounts(**lost),
        result=Amounts(**result),
    )


def spot_usd_per_result(attempts: Sequence[tuple[JobOutcome, float | None]]) -> float | None:
    """Return the expected cost of a completed run on spot, including interruptions and failures.

    It is the total cost of the attempts divided by the number that completed. Return None if no
    attempt completed, or if a cost is unknown.

    Args:
        attempts: All attempts at one node count, each with its cost in USD.
    """
    on_spot = [each for each in attempts if each[0].spot]
    completed = sum(outcome.completed for outcome, _ in on_spot)
    spent = [usd for outcome, usd in on_spot if outcome.completed]
    spent += [_spent(outcome, usd, None).usd for outcome, usd in on_spot if outcome.is_failure]
    known = [usd for usd in spent if usd is not None]
    return sum(known) / completed if completed and len(known) == len(spent) else None


def expected(run: float | None, per: PerResult | None, quantity: Quantity) -> float | None:
    """Return the expected amount of a result from the amount of a completed run; None if unknown.

    It is the amount of the run if no attempt failed, or if an older report does not have the amount
    of the failed attempts.
    """
    lost = None if per is None else getattr(per.failed_attempt, quantity)
    if run is None or per is None or lost is None:
        return run
    return run + per.failed / per.completed * float(lost)


def next_result_bound(
    next_run: float | None, per: PerResult | None, quantity: Quantity, more_runs: int = 0
) -> float | None:
    """Return the upper 95% prediction bound of the next result.

    Args:
        next_run: The bound of the next completed run, or None if unknown.
        per: The attempts, or None if no attempt failed.
        quantity: The name of the amount.
        more_runs: Number of further completed runs to assume, with failures at the observed rate.
    """
    if next_run is None or per is None:
        return next_run
    lost: float = getattr(per.failed_attempt, quantity)
    completed = per.completed + more_runs
    failures = max_failures(completed, per.failed * completed / per.completed)
    return next_run + max(failures, per.failed / per.completed) * lost


def share_interval(completed: float, failed: float) -> Interval:
    """Return the 90% Jeffreys interval of the share of attempts that complete.

    Each bound is a one-sided 95% bound, and a decision only uses one of the two.
    """
    low, high = betaincinv(completed + 0.5, failed + 0.5, [1 - LEVEL, LEVEL])
    return Interval(low=float(low), high=float(high), level=round(2 * LEVEL - 1, 9))


def max_failures(completed: float, failed: float) -> int:
    """Return the number of failures before a result that 19 of 20 results do not exceed.

    With the posterior Beta(a, b) of p, the probability of more than k failures is
    E[(1 - p)^(k + 1)] = product over i = 0 … k of (b + i) / (a + b + i).
    """
    a, b = completed + 0.5, failed + 0.5
    failures, exceeded = 0, b / (a + b)
    while exceeded > 1 - LEVEL:
        failures += 1
        exceeded *= (b + failures) / (a + b + failures)
    return failures


def _spent(outcome: JobOutcome, usd: float | None, clock: TrainClock | None) -> Amounts:
    """Return the amounts of a failed attempt, which cost nothing if it never got its instances.

    The amounts of a full run are unknown for a failed probe. If times are per sample, the train
    time of a failed attempt is unknown.
    """
    waited, phases = outcome.clocks.submit_to_end_seconds, outcome.phases
    trained = phases.get("Training", outcome.clocks.billable_seconds)
    if trained is None and not phases:
        trained = outcome.clocks.train_seconds  # from a table of measured times
    if phases and trained is None:
        return Amounts(usd=0, train_seconds=0, submit_to_end_seconds=waited, node_hours=0)
    if clock == "projected":
        return Amounts(usd=None, train_seconds=None, submit_to_end_seconds=None)
    seconds, billed = None if clock == "throughput" else trained, outcome.clocks.billable_seconds
    return Amounts(
        usd=usd,
        train_seconds=seconds,
        submit_to_end_seconds=waited,
        node_hours=None if billed is None else outcome.nodes * billed / SECONDS_PER_HOUR,
    )
