"""A sweep's cost bound, and the attempts that sweep.budget_usd and sweep.max_retries still allow.

Both limits count every job that the sweep has ever had, across resumes and retried flow runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.models import BenchmarkConfig, SweepConfig, TrainingConfig
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import SECONDS_PER_HOUR, Price, price_of
from nodesweep.scaling.formats import nodes_text
from nodesweep.scaling.job import JobStatus

STOPPING_SECONDS = 120
"""Seconds from SIGTERM to SIGKILL for a job past its max runtime.

Source: StoppingCondition in the SageMaker API reference.
"""
_ROUNDING = 1e-9  # relative: a budget equal to the bound is enough


def cost_bound(config: BenchmarkConfig, instance: InstanceType) -> tuple[float | None, str]:
    """Return the maximum cost in USD of one run of the sweep, and its derivation.

    Σ nodes x repeats x attempts x (max runtime + 120 s + keep-alive) x price: every attempt may run
    to its limit, take 120 s to stop, and leave a warm pool that nothing reuses (docs/method.md,
    "Cost and recommendation"). Billed time without a limit is not included, as the derivation says:
    downloading the data and the image beforehand, and uploading the output afterwards. If
    sweep.max_retries allows fewer further attempts, the largest jobs are assumed to use them.
    Waiting for spot capacity is not billed, and the spot discount is not known in advance;
    retry_attempts share one max runtime.

    Returns:
        (USD, or None if the price is unknown; derivation or the reason for None).
    """
    price = price_of(instance, config.platform.region)
    if price.usd_per_hour is None:
        return None, f"no price for {instance.instance_type}: {price.reason}"
    hours, text = node_hours_bound(config.sweep, config.training)
    text += (
        f", x {'on-demand ' if config.training.spot else ''}{price.usd_per_hour} USD/h"
        f"{f' of {instance.instance_type}' if config.training.instance_fallbacks else ''} ("
        f"{', '.join(filter(None, (price.region, price.date)))})"
    )
    return hours * price.usd_per_hour, text


def dearest(instances: Sequence[InstanceType], region: str) -> InstanceType:
    """Return the most expensive type; a type without a known price ranks above all others."""

    def usd(instance: InstanceType) -> float:
        price = price_of(instance, region).usd_per_hour
        return math.inf if price is None else price

    return max(instances, key=usd)


def node_hours_bound(sweep: SweepConfig, training: TrainingConfig) -> tuple[float, str]:
    """Return the maximum billed node-hours of one run of the sweep, and their derivation."""
    jobs, further = _attempts(sweep)
    if len(further) == len(jobs) * (sweep.max_attempts - 1):
        attempts = (
            "1 attempt each" if sweep.max_attempts == 1 else f"{sweep.max_attempts} attempts each"
        )
    elif not further:
        attempts = "1 attempt each"
    else:
        retries = "1 retry" if len(further) == 1 else f"{len(further)} retries"
        attempts = f"1 attempt each and {retries} on {nodes_text(sum(further))} in total"
    pools = (
        f" and {training.keep_alive_seconds} s of warm pool" if training.keep_alive_seconds else ""
    )
    text = (
        f"{sum(jobs) * billed_hours(training):.1f} node-hours, including {STOPPING_SECONDS} s to "
        f"stop{pools} per job, excluding download and upload time, x {attempts}"
    )
    return (sum(jobs) + sum(further)) * billed_hours(training), text


def charged_bound(config: BenchmarkConfig, price: Price) -> tuple[float, str] | None:
    """Return node_hours_bound() if costs are in node-hours, otherwise None."""
    if price.unit != "node-hours":
        return None
    return node_hours_bound(config.sweep, config.training)


def billed_hours(training: TrainingConfig) -> float:
    """Return the maximum billed hours of one attempt per node, as in cost_bound()."""
    return _billed_seconds(training) / SECONDS_PER_HOUR


def most_attempts(sweep: SweepConfig) -> int:
    """Return the maximum number of attempts in one run of the sweep, as in cost_bound()."""
    jobs, further = _attempts(sweep)
    return len(jobs) + len(further)


def _attempts(sweep: SweepConfig) -> tuple[list[int], list[int]]:
    """Return the node counts of all first attempts, and of the retries, largest jobs first."""
    checks = sorted(sweep.node_counts, reverse=True)[: sweep.max_checks]
    jobs = [*sweep.arm_jobs, *checks]
    return jobs, sorted(jobs * (sweep.max_attempts - 1), reverse=True)[: sweep.max_retries]


def cost_bound_of_arms(
    config: BenchmarkConfig, instances: Sequence[InstanceType]
) -> tuple[float | None, str]:
    """Return cost_bound() for a sweep of several arms, each at its own price.

    The retries that sweep.max_retries allows are assumed to be of the most expensive jobs, and so
    is the validation run of a probe sweep.

    Returns:
        (USD, or None if any price is unknown; derivation or the reason for None).
    """
    sweep, seconds = config.sweep, _billed_seconds(config.training)
    prices = [price_of(instance, config.platform.region) for instance in instances]
    unknown = [price for price in prices if price.usd_per_hour is None]
    if unknown:
        reasons = (f"no price for {one.instance_type}: {one.reason}" for one in unknown)
        return None, "; ".join(dict.fromkeys(reasons))
    job_usd = [
        nodes * (price.usd_per_hour or 0.0) * seconds / SECONDS_PER_HOUR
        for price in prices
        for nodes in sweep.measured_counts
    ]
    jobs = job_usd * sweep.arm_repeats + sorted(job_usd, reverse=True)[: sweep.max_checks]
    further = sorted(jobs * (sweep.max_attempts - 1), reverse=True)[: sweep.max_retries]
    many = f"{len(further)} most expensive retries" if len(further) > 1 else "most expensive retry"
    retries = f", and the {many}" if further else ""
    rates = dict.fromkeys(f"{one.instance_type} {one.usd_per_hour} USD/h" for one in prices)
    text = (
        f"{len(jobs)} jobs of at most {seconds} s, excluding download and upload "
        f"time{retries}, at {', '.join(rates)}"
    )
    return sum(jobs) + sum(further), text


def budget_problem(
    budget: float | None, bound_usd: float | None, reason: str, remedy: str
) -> str | None:
    """Return why sweep.budget_usd refuses a sweep with this cost bound, or None.

    `remedy` is that for an unknown price.
    """
    if budget is None:
        return None
    if bound_usd is None:
        return f"sweep.budget_usd: {budget} can't be checked: {reason}; {remedy}"
    if bound_usd > budget:
        return (
            f"sweep.budget_usd: {budget} is less than the {bound_usd:.2f} USD this sweep can cost"
            f" ({reason}); raise it, or lower max_runtime_seconds, keep_alive_seconds,"
            " max_attempts, max_retries, repeats or node_counts"
        )
    return None


@dataclass
class Allowance:
    """The budget and retries that a sweep has left, given the jobs that it has started.

    `node_seconds` maps each of its jobs to the node-seconds that were, or can still be, billed;
    `spent_usd` is the cost before those jobs. Preflight refuses a budget without a price, so that
    case is not handled here.
    """

    config: BenchmarkConfig
    usd_per_hour: Mapping[str, float | None]
    """Price by the code of the arm in job names."""
    spent_usd: float = 0.0
    node_seconds: dict[str, float] = field(default_factory=dict)

    def count(self, job_name: str) -> None:
        """Charge a job's maximum node-seconds until its billed time is known."""
        self.node_seconds[job_name] = self._most_node_seconds(job_name)

    def settle(self, job: JobStatus) -> None:
        """Charge the billed node-seconds of an ended job, if they are known."""
        billed = job.billed_node_seconds
        if billed is not None:
            self.node_seconds[job.name] = billed

    def forget(self, job_name: str) -> None:
        """Remove a job that the platform refused."""
        self.node_seconds.pop(job_name, None)

    def retry_problem(self, job_name: str) -> str | None:
        """Return why sweep.max_retries prevents this attempt, or None."""
        most = self.config.sweep.max_retries
        if most is None or _key_of(job_name).attempt == 1:
            return None
        made = sum(_key_of(name).attempt > 1 for name in self.node_seconds)
        if made < most:
            return None
        return (
            f"sweep.max_retries: {most} for the whole sweep, {made} already made; raise "
            "it and continue with --resume"
        )

    def bound_problem(self, job_name: str) -> str | None:
        """Return why a repeat of a contended run could exceed its point's share of the cost bound.

        That share is max_attempts full runs. None if the repeat fits, or if there is no bound
        because the price is unknown.
        """
        key = _key_of(job_name)
        if self.usd_per_hour.get(key.arm) is None:
            return None
        spent = sum(
            each for name, each in self.node_seconds.items() if _key_of(name).point == key.point
        )
        most = self._most_node_seconds(job_name)
        if spent + most <= self.config.sweep.max_attempts * most * (1 + _ROUNDING):
            return None
        return "the cost bound of the sweep has no room for another run of this point"

    def budget_problem(self, job_name: str) -> str | None:
        """Return why sweep.budget_usd prevents this attempt, or None."""
        budget = self.config.sweep.budget_usd
        if budget is None or None in self.usd_per_hour.values():
            return None
        spent = self.spent_usd + self._usd(self.node_seconds)
        bound = self._usd({job_name: self._most_node_seconds(job_name)})
        if spent + bound <= budget * (1 + _ROUNDING):
            return None
        return (
            f"sweep.budget_usd: {budget:.2f} USD; the sweep's jobs so far cost up to {spent:.2f}, "
            f"and this attempt can cost {bound:.2f} more; raise it and continue with --resume"
        )

    def _usd(self, node_seconds: Mapping[str, float]) -> float:
        """Return the cost in USD, after summing the node-seconds of each arm."""
        by_arm: dict[str, float] = {}
        for name, seconds in node_seconds.items():
            arm = _key_of(name).arm
            by_arm[arm] = by_arm.get(arm, 0.0) + seconds
        return sum(
            seconds * ((self.usd_per_hour.get(arm) or 0.0) / SECONDS_PER_HOUR)
            for arm, seconds in by_arm.items()
        )

    def _most_node_seconds(self, job_name: str) -> float:
        return _key_of(job_name).nodes * _billed_seconds(self.config.training)


def _billed_seconds(training: TrainingConfig) -> int:
    """Return the maximum billed seconds per node and attempt, excluding downloads and uploads."""
    return training.max_runtime_seconds + STOPPING_SECONDS + (training.keep_alive_seconds or 0)


def _key_of(job_name: str) -> names.JobKey:
    """Return a job's place in its sweep, or a placeholder with 0 nodes if the name has none."""
    return names.parse_job_name(job_name) or names.JobKey("", 0, 0, 1)
