"""Describe the capacity options of a sweep: on demand, managed spot or a training plan.

This is used by `nodesweep plan --online`. Nothing is purchased. A failed query only adds a note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from nodesweep.launch.sagemaker.preflight.quota import read_quotas
from nodesweep.launch.sagemaker.preflight.rule import unavailable_reason
from nodesweep.launch.sagemaker.preflight.training_plan import ENDS_EARLY, utc_text
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.formats import join_words, nodes_text, pluralize
from nodesweep.scaling.planning.budget import billed_hours, most_attempts, node_hours_bound
from nodesweep.scaling.rules.rule import Facts

QUOTAS = "servicequotas:ListServiceQuotas"
SPOT_PRICES = "ec2:DescribeSpotPriceHistory"
OFFERINGS = "sagemaker:SearchTrainingPlanOfferings"
ACTIONS = (QUOTAS, SPOT_PRICES, OFFERINGS)
"""The IAM actions of these queries."""
_PLAN_SIZES = (1, 2, 4, 8, 16, 32, 64)
_LONGEST_PLAN_HOURS = 182 * 24
"""Plan sizes and the maximum duration: developer guide, "Search training plan offerings"."""
_SHOWN_OFFERINGS = 3
_DAY = timedelta(days=1)
_KEPT = timedelta(days=90)
_LOST_HOURS = ENDS_EARLY / timedelta(hours=1)

Client = Callable[..., Any]
Result = TypeVar("Result")


def describe_capacity(facts: Facts, client: Client) -> list[str]:
    """Return lines on each instance type that AWS sells: quotas, prices, plans and costs.

    Args:
        facts: The sweep, at current prices.
        client: Returns a boto3 client for a service.

    Raises boto3's errors if there are no valid credentials.
    """
    by_type: dict[str, list[Facts]] = {}
    for arm in facts.each:
        if arm.instance.is_aws:
            by_type.setdefault(arm.instance.instance_type, []).append(arm)
    if not by_type:
        return []
    with ThreadPoolExecutor(1 + 2 * len(by_type), thread_name_prefix="capacity") as pool:
        quotas = pool.submit(_ask, QUOTAS, lambda: _query_quotas(client, by_type))
        asked = [
            (
                arms,
                pool.submit(_ask, SPOT_PRICES, lambda name=name: _spot_prices(client, name)),
                pool.submit(_ask, OFFERINGS, lambda arms=arms: _offerings(client, arms)),
            )
            for name, arms in by_type.items()
        ]
        return [
            line
            for arms, spot, plans in asked
            for line in _lines(arms, quotas.result(), spot.result(), plans.result())
        ]


def _ask(action: str, query: Callable[[], Result]) -> tuple[Result | None, str]:
    """Return the query's result, or None and the reason why there is none."""
    try:
        return query(), ""
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        reason = unavailable_reason(error, action)
        if reason is None:
            raise
        return None, reason


def _query_quotas(client: Client, types: Sequence[str] | Mapping[str, Any]) -> dict[str, float]:
    pages = client("service-quotas").get_paginator("list_service_quotas")
    return read_quotas(
        pages.paginate(ServiceCode="sagemaker", PaginationConfig={"PageSize": 100}),
        {_quota(name, use) for name in types for use in ("", "spot ")},
    )


def _quota(instance_type: str, use: str) -> str:
    return f"{instance_type} for {use}training job usage"


def _spot_prices(client: Client, instance_type: str) -> list[float]:
    """Return EC2's spot prices of the same hardware in the last day, in USD per hour.

    The first price may date from before that day. EC2 keeps prices for 90 days, so older prices
    come from an emulator (moto's are from 2006) and are ignored.
    """
    now = datetime.now(UTC)
    pages = client("ec2").get_paginator("describe_spot_price_history")
    return [
        float(row["SpotPrice"])
        for page in pages.paginate(
            InstanceTypes=[instance_type.removeprefix("ml.")],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=now - _DAY,
        )
        for row in page.get("SpotPriceHistory", ())
        if row["Timestamp"] > now - _KEPT
    ]


def _offerings(client: Client, arms: Sequence[Facts]) -> list[Mapping[str, Any]] | None:
    """Return the offerings for the sweep, or None if there are no plans of the type or size."""
    sagemaker, name, size = client("sagemaker"), arms[0].instance.instance_type, _plan_size(arms)
    sold = sagemaker.meta.service_model.shape_for("ReservedCapacityInstanceType").enum
    if size is None or name not in sold:
        return None
    found = sagemaker.search_training_plan_offerings(
        InstanceType=name,
        InstanceCount=size,
        StartTimeAfter=datetime.now(UTC),
        DurationHours=min(_searched_hours(arms, size), _LONGEST_PLAN_HOURS),
        TargetResources=["training-job"],
    )
    return list(found["TrainingPlanOfferings"])


def _plan_size(arms: Sequence[Facts]) -> int | None:
    """Return the smallest plan size that fits the largest job, or None if there is none."""
    return next((size for size in _PLAN_SIZES if size >= arms[0].max_nodes), None)


def _duration_hours(arms: Sequence[Facts], instances: int) -> float:
    """Return the hours that all attempts take on a plan's instances at their maximum runtime.

    Return infinity if the largest job does not fit.
    """
    hours = 0.0
    for arm in arms:
        at_once = min(arm.config.sweep.max_parallel_jobs, instances // arm.max_nodes)
        if not at_once:
            return math.inf
        hours += math.ceil(most_attempts(arm.config.sweep) / at_once) * billed_hours(arm.training)
    return hours


def _searched_hours(arms: Sequence[Facts], size: int) -> int:
    return math.ceil(_duration_hours(arms, size) + _LOST_HOURS)


def _lines(
    arms: Sequence[Facts],
    quotas: tuple[Mapping[str, float] | None, str],
    spot: tuple[Sequence[float] | None, str],
    plans: tuple[Sequence[Mapping[str, Any]] | None, str],
) -> list[str]:
    first = arms[0]
    name, region = first.instance.instance_type, first.config.platform.region
    node_hours = sum(node_hours_bound(arm.config.sweep, arm.training)[0] for arm in arms)
    return [
        "",
        (
            f"{name} in {region}: at most {node_hours:.1f} node-hours for the sweep,"
            f" {billed_hours(first.training):.2f} h per run"
        ),
        f"  on demand: {_quota_text(name, '', quotas)}; {_on_demand_text(first, node_hours)}",
        (
            f"  managed spot: {_quota_text(name, 'spot ', quotas)}; costs at most the on-demand"
            " price (SageMaker reports savings only after a job)."
            f" {_spot_text(*spot)}"
        ),
        *(f"  training plan: {text}" for text in _plan_texts(arms, *plans)),
    ]


def _quota_text(name: str, use: str, quotas: tuple[Mapping[str, float] | None, str]) -> str:
    known, reason = quotas
    if known is None:
        return f"quota unknown ({reason})"
    value = known.get(_quota(name, use))
    return "quota not listed" if value is None else f"quota {pluralize(int(value), 'instance')}"


def _on_demand_text(arm: Facts, node_hours: float) -> str:
    price = price_of(arm.instance, arm.config.platform.region)
    usd = price.usd_per_hour
    if usd is None:
        return f"price unknown: {price.reason}"
    runs = join_words(
        f"{nodes * billed_hours(arm.training) * usd:,.2f} on {nodes_text(nodes)}"
        for nodes in arm.node_counts
    )
    return (
        f"{usd} USD per node-hour ({price.date}): at most {node_hours * usd:,.2f} USD for the"
        f" sweep, and for one run {runs}"
    )


def _spot_text(prices: Sequence[float] | None, reason: str) -> str:
    label = "EC2 spot price, last 24 h, for reference only"
    if prices is None:
        return f"{label}: unknown ({reason})"
    if not prices:
        return f"{label}: none, so there may be no spot capacity"
    return f"{label}: {min(prices):g}-{max(prices):g} USD/h"


def _plan_texts(
    arms: Sequence[Facts],
    offerings: Sequence[Mapping[str, Any]] | None,
    reason: str,
) -> list[str]:
    size = _plan_size(arms)
    if offerings is None or size is None:
        why = "not available for this instance type or job size"
        return [f"unknown ({reason})" if reason else why]
    if not offerings:
        return [
            f"no offering for {pluralize(size, 'instance')} for {_searched_hours(arms, size)} h"
            " right now; try another region, or again later"
        ]
    return [_offering_text(each, arms) for each in offerings[:_SHOWN_OFFERINGS]]


def _offering_text(offering: Mapping[str, Any], arms: Sequence[Facts]) -> str:
    blocks = offering.get("ReservedCapacityOfferings", ())
    instances = min((block["InstanceCount"] for block in blocks), default=0)
    instance_hours = sum(block["InstanceCount"] * _hours(block) for block in blocks)
    starts = [block["StartTime"] for block in blocks if "StartTime" in block]
    cut_hours = max(billed_hours(arm.training) for arm in arms)  # of a job that a block's end cuts
    usable_hours = sum(_hours(block) - _LOST_HOURS - cut_hours for block in blocks) + cut_hours
    is_enough = usable_hours >= _duration_hours(arms, instances)
    size = f"{pluralize(instances, 'instance')} for {_hours(offering):g} h"
    return (
        f"{size if instances else 'size and duration unknown'},"
        f" {f'from {utc_text(min(starts))}' if starts else 'start unknown'},"
        f" {_fee_text(offering, instance_hours)};"
        f" {'long enough' if is_enough else 'may be too short'} for the sweep"
        f" ({offering['TrainingPlanOfferingId']})"
    )


def _fee_text(offering: Mapping[str, Any], instance_hours: float) -> str:
    fee, currency = offering.get("UpfrontFee", "unknown"), offering.get("CurrencyCode", "")
    try:
        amount = float(fee)
    except ValueError:  # the API's type is a string
        return f"upfront fee {fee}"
    text = f"{amount:,.2f} {currency} upfront, whether used or not"
    if not instance_hours:
        return text
    return f"{text} ({amount / instance_hours:.2f} per node-hour if all are used)"


def _hours(period: Mapping[str, Any]) -> float:
    return float(period.get("DurationHours", 0)) + period.get("DurationMinutes", 0) / 60
