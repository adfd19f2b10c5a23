"""The hourly price of a node with its source and date, or the reason why the price is unknown."""

from __future__ import annotations

import datetime
from typing import Literal

from pydantic import Field

from nodesweep.configs.catalogue import InstanceType
from nodesweep.scaling.report_part import Part

SECONDS_PER_HOUR = 3600
OLD_PRICE_DAYS = 90
"""Age above which a price is shown with its age; AWS changes prices a few times a year."""


class Price(Part):
    """The price of one node per hour; if `usd_per_hour` is None, `reason` explains why."""

    instance_type: str | None = Field(description="Priced instance type; null if unknown.")
    usd_per_hour: float | None = Field(
        ge=0, description="USD per node-hour; null if unknown, for the reason in `reason`."
    )
    purchase_option: str = Field(
        default="on-demand", description="Purchase option of the nodes, such as on-demand."
    )
    region: str | None = Field(default=None, description="AWS region of the price.")
    source: str | None = Field(default=None, description="Source of the price.")
    date: str | None = Field(default=None, description="ISO date on which the price was retrieved.")
    reason: str | None = Field(
        default=None, description="Why the price is unknown; null if it is known."
    )
    unit: Literal["USD", "node-hours"] = Field(
        default="USD",
        exclude_if=lambda unit: unit == "USD",
        description="Unit of the costs; node-hours if the nodes have no price in USD but are "
        "charged by the node-hour.",
    )


def price_of(instance: InstanceType, region: str) -> Price:
    """Return the catalogue price of a node in `region`, or an unknown price with the reason."""
    usd = instance.on_demand_usd_per_hour
    if usd is None:
        reason = instance.price_note or "the catalogue has none"
        unknown = unknown_price(instance.instance_type, reason)
        return unknown.model_copy(update={"unit": instance.cost_unit})
    if instance.price_region != region:
        reason = (
            f"the catalogue's price is for {instance.price_region}, but the nodes ran in {region}"
        )
        return unknown_price(instance.instance_type, reason)
    return Price(
        instance_type=instance.instance_type,
        usd_per_hour=usd,
        purchase_option=instance.purchase_option,
        region=instance.price_region,
        source=instance.price_source,
        date=None if instance.price_date is None else instance.price_date.isoformat(),
    )


def unknown_price(instance_type: str | None, reason: str) -> Price:
    """Return an unknown price with its reason."""
    return Price(instance_type=instance_type, usd_per_hour=None, reason=reason)


def old_price_text(price: Price, today: datetime.date) -> str | None:
    """Return a clause such as "is from 2026-01-05 (120 days old)" if the price is old, else None.

    Args:
        price: The price.
        today: The day on which the price is used.
    """
    if price.date is None or price.usd_per_hour is None:
        return None
    age = today - datetime.date.fromisoformat(price.date)
    if age.days <= OLD_PRICE_DAYS:
        return None
    return f"is from {price.date} ({age.days} days old)"


def charged_hours(nodes: int, seconds: float | None, price: Price | None) -> float | None:
    """Return the node-hours of a billed time if the price is in node-hours, else None."""
    if seconds is None or price is None or price.unit != "node-hours":
        return None
    return nodes * seconds / SECONDS_PER_HOUR


def node_cost_usd(nodes: int, seconds: float | None, price: Price | None) -> float | None:
    """Return the cost of nodes for some seconds in USD; None if the time or price is unknown."""
    if seconds is None or price is None or price.usd_per_hour is None:
        return None
    return nodes * seconds * price.usd_per_hour / SECONDS_PER_HOUR
