"""Online rule for training plans: the plan is active and has the instances of the largest job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nodesweep.launch.sagemaker.preflight.rule import RuleContext, reported
from nodesweep.scaling.formats import pluralize
from nodesweep.scaling.rules.rule import Facts, Findings

_FIELD = "training.training_plan_arn"
_NOT_FOUND = frozenset({"ResourceNotFound", "ValidationException"})
"""The modeled error, and what SageMaker's older Describe… actions return for unknown names."""
ENDS_EARLY = timedelta(minutes=30)
"""Time before the end of a reserved capacity at which SageMaker starts to reclaim instances.

Source: developer guide, "Training plans utilization for SageMaker training jobs".
"""


@dataclass(frozen=True)
class PlanResponse:
    """DescribeTrainingPlan's response, and the time of the query."""

    plan: Mapping[str, Any]
    now: datetime

    @property
    def blocks(self) -> list[Mapping[str, Any]]:
        """The plan's reserved capacities."""
        return list(self.plan.get("ReservedCapacitySummaries", ()))

    @property
    def active_blocks(self) -> list[Mapping[str, Any]]:
        """The reserved capacities that have begun and not ended at the time of the query."""
        return [
            block
            for block in self.blocks
            if block.get("StartTime", self.now) <= self.now < _end(block, self.now)
        ]


def query_plan(context: RuleContext) -> PlanResponse:
    """Query SageMaker for the plan.

    Raises:
        ResourceNotFound: There is no such plan.
    """
    arn = context.config.training.training_plan_arn
    assert arn is not None
    problem = (
        f"{_FIELD}: there is no training plan {arn} in {context.config.platform.region}; use one"
        " that `aws sagemaker list-training-plans` shows, or leave it out"
    )
    with reported(problem, *_NOT_FOUND):
        plan = context.client("sagemaker").describe_training_plan(
            TrainingPlanName=arn.rpartition("/")[2]
        )
    return PlanResponse(plan, datetime.now(UTC))


def judge_plan(facts: Facts, response: PlanResponse) -> Findings:
    """Check DescribeTrainingPlan's response against the sweep.

    SageMaker accepts a plan that has not begun, and jobs then wait for up to 2 days, so the sweep
    is refused instead.
    """
    plan, now, name = response.plan, response.now, response.plan["TrainingPlanName"]
    if problem := _unusable(response):
        return Findings((f"{_FIELD}: {problem}",))
    wanted = facts.training.instance_type
    types = sorted({str(block["InstanceType"]) for block in response.blocks})
    if types and wanted not in types:
        return Findings(
            (
                f"{_FIELD}: {name} reserves {' and '.join(types)}, but the jobs run on {wanted};"
                " use a plan of that type, or change training.instance_type",
            )
        )
    usable = [block for block in response.active_blocks if block["InstanceType"] == wanted]
    total = (
        sum(int(block["TotalInstanceCount"]) for block in usable)
        if usable
        else plan.get("TotalInstanceCount")
    )
    most, notices = facts.max_nodes, []
    if total is not None and total < most:
        return Findings(
            (
                f"{_FIELD}: {name} has {pluralize(total, 'instance')}, but the largest job needs"
                f" {most}; drop the larger node counts, or use a larger plan",
            )
        )
    available = plan.get("AvailableInstanceCount")
    if available is not None and available < most:
        notices.append(
            f"{_FIELD}: {name} has {pluralize(available, 'instance')} free now, but the largest job"
            f" needs {most}; jobs wait until other jobs end, for at most 2 days"
        )
    elif total is not None and total < facts.peak_nodes:
        notices.append(
            f"{_FIELD}: {name} has {pluralize(total, 'instance')}, but up to {facts.peak_nodes} are"
            " in use at once; some jobs wait for others"
        )
    ends = max((_end(block, now) for block in usable), default=_end(plan, now))
    runtime = facts.training.max_runtime_seconds
    if ends - ENDS_EARLY < now + timedelta(seconds=runtime):
        notices.append(
            f"{_FIELD}: SageMaker reclaims the instances of {name} from"
            f" {utc_text(ends - ENDS_EARLY)} on, before a job that starts now and runs for"
            f" max_runtime_seconds ({runtime} s) would end; jobs may be cut off"
        )
    return Findings((), tuple(notices))


def _unusable(response: PlanResponse) -> str | None:
    """Return the reason why no job can use the plan now, with a remedy, or None if jobs can."""
    plan, now, name = response.plan, response.now, response.plan["TrainingPlanName"]
    targets = plan.get("TargetResources", ["training-job"])
    if "training-job" not in targets:
        return f"{name} is for {', '.join(targets)}; use a plan for training-job"
    status, ends = plan["Status"], plan.get("EndTime")
    if status == "Expired" or (ends is not None and ends <= now):
        at = "" if ends is None else f" on {utc_text(ends)}"
        return f"{name} expired{at}; use a plan that is active"
    if status in ("Failed", "Pending"):
        why = f" ({plan['StatusMessage']})" if plan.get("StatusMessage") else ""
        return f"{name} is {status}{why}, so its instances are not reserved; use an active plan"
    starts = [
        block["StartTime"]
        for block in (plan, *response.blocks)
        if "StartTime" in block and block["StartTime"] > now
    ]
    if status == "Scheduled" or (starts and not response.active_blocks):
        at = f" until {utc_text(min(starts))}" if starts else " yet"
        return f"{name} has no instances{at}; wait, or use a plan that is active"
    return None


def _end(block: Mapping[str, Any], now: datetime) -> datetime:
    """Return the end of a plan or reserved capacity, or a time in the far future if unknown."""
    end: datetime = block.get("EndTime", now + timedelta(days=3650))
    return end


def utc_text(time: datetime) -> str:
    """Return a time in UTC, to the minute."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
