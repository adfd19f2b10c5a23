"""What a sweep can cost, and which attempts it may still start: sweep.budget_usd and
sweep.max_retries.

Both are counted over every job that the sweep ever had, so over resumes and retried flow runs too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import price_of

STOPPING_SECONDS = 120
"""Between SIGTERM and SIGKILL of a job past its max runtime
(StoppingCondition in SageMaker's API reference).
"""
_SECONDS_PER_HOUR = 3600
# WarmPoolStatus.Status once the retained time is final
_POOL_OVER = frozenset({"Reused", "Terminated"})
_ROUNDING = 1e-9  # relative: a budget of exactly the bound holds it


def cost_bound(config: BenchmarkConfig, instance: InstanceType) -> tuple[float | None, str]:
    """(most one run of the sweep can cost in USD, how that was worked out);
    None where the price is unknown.

    Σ nodes x repeats x attempts x (max runtime + 120 s + keep-alive) x price: every attempt may run
    to its limit, be given 120 s to end, and leave a warm pool that nothing reuses (docs/method.md,
    "Cost and recommendation"). AWS also bills the download of the
    data and the image before and the upload of the output after that, which have no limit, and the
    text says so. Where sweep.max_retries allows fewer further attempts than that, those are of the
    largest jobs. Waiting for spot capacity is not billed, and spot's discount is not known
    beforehand; retry_attempts share one max runtime.
    """
    sweep, training = config.sweep, config.training
    price = price_of(instance, config.platform.region)
    if price.usd_per_hour is None:
        return None, f"no price for {instance.instance_type}: {price.reason}"
    jobs = list(sweep.node_counts) * sweep.most_repeats
    if sweep.design == "probe":  # of the last repeat one job alone: the check
        jobs = [*sweep.node_counts] * sweep.repeats + [max(sweep.node_counts)]
    further = sorted(jobs * (sweep.max_attempts - 1), reverse=True)
    if sweep.max_retries is None or sweep.max_retries >= len(further):
        attempts = (
            "1 attempt each" if sweep.max_attempts == 1 else f"{sweep.max_attempts} attempts each"
        )
    else:
        further = further[: sweep.max_retries]
        attempts = (
            f"1 attempt each and {sweep.max_retries} further ones of {sum(further)} nodes together"
        )
    billed_hours = _billed_seconds(config) / _SECONDS_PER_HOUR
    pools = (
        f" and {training.keep_alive_seconds} s of warm pool" if training.keep_alive_seconds else ""
    )
    text = (
        f"{sum(jobs) * billed_hours:.1f} node-hours, {STOPPING_SECONDS} s to stop{pools} per job"
        f" included and the time to download and upload not, x {attempts}, x"
        f" {'on-demand ' if training.spot else ''}{price.usd_per_hour} USD/h"
        f" ({price.region}, {price.date})"
    )
    return (sum(jobs) + sum(further)) * billed_hours * price.usd_per_hour, text


def cost_bound_of_types(
    config: BenchmarkConfig, instances: Sequence[InstanceType]
) -> tuple[float | None, str]:
    """cost_bound() of a sweep of several types, each at its own price; None where one is unknown.

    The further attempts that sweep.max_retries allows are the dearest ones, and a probe sweep's
    one check is the dearest job.
    """
    sweep = config.sweep
    prices = [price_of(instance, config.platform.region) for instance in instances]
    unknown = [price for price in prices if price.usd_per_hour is None]
    if unknown:
        return None, "; ".join(f"no price for {one.instance_type}: {one.reason}" for one in unknown)
    job_usd = [
        nodes * (price.usd_per_hour or 0.0) * _billed_seconds(config) / _SECONDS_PER_HOUR
        for price in prices
        for nodes in sweep.node_counts
    ]
    jobs = job_usd * (sweep.repeats)
    if sweep.design == "probe":
        jobs.append(max(job_usd))
    further = sorted(jobs * (sweep.max_attempts - 1), reverse=True)[: sweep.max_retries]
    text = (
        f"{len(jobs)} jobs of at most {_billed_seconds(config)} s, the time to download and upload"
        f" not included, and {len(further)} further attempts, the dearest, at "
        + ", ".join(f"{one.instance_type} {one.usd_per_hour} USD/h" for one in prices)
    )
    return sum(jobs) + sum(further), text


def budget_problem(config: BenchmarkConfig, bound_usd: float | None, reason: str) -> str | None:
    """Why sweep.budget_usd refuses a sweep that can cost that much, or None."""
    budget = config.sweep.budget_usd
    if budget is None:
        return None
    if bound_usd is None:
        return (
            f"sweep.budget_usd: {budget} can't be checked, {reason}; add the price to"
            " configs/instances.yaml"
        )
    if bound_usd > budget:
        return (
            f"sweep.budget_usd: {budget} is less than the {bound_usd:.2f} USD this sweep can cost"
            f" ({reason}); raise it, or lower max_runtime_seconds, keep_alive_seconds,"
            " max_attempts, max_retries, repeats or node_counts"
        )
    return None


@dataclass
class Allowance:
    """What a sweep may still start. `node_seconds` has each of its jobs by name: what it was, or
    can still be, billed; `spent_usd` what the sweep has cost before them.

    A budget without a price is preflight's to refuse, and is not looked at here.
    """

    config: BenchmarkConfig
    usd_per_hour: Mapping[str, float | None]
    """By the letter of the instance type in a job's name, "" in a sweep of one type."""
    spent_usd: float = 0.0
    node_seconds: dict[str, float] = field(default_factory=dict)

    def count(self, job_name: str) -> None:
        """A job that is about to start, runs, or ended in a way not known yet:
        it counts in full.
        """
        self.node_seconds[job_name] = self._most_node_seconds(job_name)

    def settle(self, description: Mapping[str, Any]) -> None:
        """A job that ended counts what it was billed, where its description says that."""
        billed = billed_node_seconds(description)
        if billed is not None:
            self.node_seconds[description["TrainingJobName"]] = billed

    def forget(self, job_name: str) -> None:
        """A job that was refused, so never was."""
        self.node_seconds.pop(job_name, None)

    def retry_problem(self, job_name: str) -> str | None:
        """Why sweep.max_retries keeps this attempt from starting, or None."""
        most = self.config.sweep.max_retries
        if most is None or _nodes_and_attempt(job_name)[1] == 1:
            return None
        made = sum(_nodes_and_attempt(name)[1] > 1 for name in self.node_seconds)
        if made < most:
            return None
        return (
            f"sweep.max_retries: the whole sweep may make {most} further attempts, and {made} were"
            " made; raise it and go on with --resume"
        )

    def bound_problem(self, job_name: str) -> str | None:
        """Return why a repeat of a contended run could pass what the cost bound holds for its
        point, max_attempts full runs; None where it can't, or no price makes a bound.
        """
        if self.usd_per_hour.get(names.letter_of_job(job_name)) is None:
            return None
        point = _point_of(job_name)
        spent = sum(each for name, each in self.node_seconds.items() if _point_of(name) == point)
        most = self._most_node_seconds(job_name)
        if spent + most <= self.config.sweep.max_attempts * most * (1 + _ROUNDING):
            return None
        return "the cost bound of the sweep has no room for another run of this point"

    def budget_problem(self, job_name: str) -> str | None:
        """Why sweep.budget_usd keeps this attempt from starting, or None."""
        budget = self.config.sweep.budget_usd
        if budget is None or None in self.usd_per_hour.values():
            return None
        spent = self.spent_usd + self._usd(self.node_seconds)
        bound = self._usd({job_name: self._most_node_seconds(job_name)})
        if spent + bound <= budget * (1 + _ROUNDING):
            return None
        return (
            f"sweep.budget_usd: {budget:.2f} USD; the sweep's {len(self.node_seconds)} jobs cost"
            f" {spent:.2f} so far, and this attempt can cost {bound:.2f} more;"
            " raise it and go on with --resume"
        )

    def _usd(self, node_seconds: Mapping[str, float]) -> float:
        """At the price of each letter; the jobs of one price are added up first."""
        by_letter: dict[str, float] = {}
        for name, seconds in node_seconds.items():
            letter = names.letter_of_job(name)
            by_letter[letter] = by_letter.get(letter, 0.0) + seconds
        return sum(
            seconds * ((self.usd_per_hour.get(letter) or 0.0) / _SECONDS_PER_HOUR)
            for letter, seconds in by_letter.items()
        )

    def _most_node_seconds(self, job_name: str) -> float:
        nodes, _ = _nodes_and_attempt(job_name)
        return nodes * _billed_seconds(self.config)


def billed_node_seconds(description: Mapping[str, Any]) -> float | None:
    """Nodes x (billed + kept warm) of a job that ended;
    None where it runs or its times are missing.

    A job is billed from TrainingStartTime to TrainingEndTime (API reference of
    DescribeTrainingJob), less on spot: BillableTimeInSeconds. One that failed or was stopped before
    its start has none of them and costs nothing. A warm pool counts its whole period until its
    retained time is final.
    """
    from nodesweep.scaling.outcome.outcome import TERMINAL  # slow to import, and nothing of a plan

    if description["TrainingJobStatus"] not in TERMINAL:
        return None
    billed = description.get("BillableTimeInSeconds")
    started, ended = description.get("TrainingStartTime"), description.get("TrainingEndTime")
    if billed is None and started is not None:
        if ended is None:
            return None
        billed = (ended - started).total_seconds()
    resources, pool = description["ResourceConfig"], description.get("WarmPoolStatus") or {}
    retained = pool.get("ResourceRetainedBillableTimeInSeconds") or 0
    period = (
        0 if pool.get("Status") in _POOL_OVER else resources.get("KeepAlivePeriodInSeconds") or 0
    )
    return float(resources["InstanceCount"] * ((billed or 0) + max(retained, period)))


def _billed_seconds(config: BenchmarkConfig) -> int:
    """The most that one attempt is billed per node, less its downloads and uploads."""
    return (
        config.training.max_runtime_seconds
        + STOPPING_SECONDS
        + (config.training.keep_alive_seconds or 0)
    )


def _point_of(job_name: str) -> tuple[str, tuple[int, ...] | None]:
    """The instance type's letter, nodes and repeat of a sweep's job."""
    parsed = names.parse_job_name(job_name)
    return names.letter_of_job(job_name), None if parsed is None else parsed[:2]


def _nodes_and_attempt(job_name: str) -> tuple[int, int]:
    """(nodes, attempt) of a sweep's job; any other name counts as nothing."""
    parsed = names.parse_job_name(job_name)
    return (0, 1) if parsed is None else (parsed[0], parsed[2])
