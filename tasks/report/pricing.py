"""Look up current on-demand prices in the AWS Price List, and cache them for a week.

If the lookup fails, training jobs use the newest price on record, and Processing jobs have none.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from nodesweep.aws.platform import aws_client
from nodesweep.configs.atomic import write_atomic
from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.price_list import cache_folder
from nodesweep.errors import error_code
from nodesweep.launch.registry import Backend
from nodesweep.scaling.analysis.price import price_of

logger = logging.getLogger("nodesweep.pricing")
SOURCE = "AWS Price List Query API"
SERVICE = "AmazonSageMaker"
CACHE_MAX_AGE = timedelta(days=7)
_REGION = "us-east-1"  # this endpoint has the prices of all regions in the partition
_KEEPING = threading.Lock()
_USAGE_TYPE = re.compile(r"(?:[A-Z0-9]+-)?(?P<use>\w+):(?P<instance_type>ml\..+)")


@dataclass(frozen=True)
class Component:
    """A SageMaker component as the Price List names it; `usage` is its name in a usage type."""

    name: str
    usage: str


TRAINING = Component("Training", "Train")
PROCESSING = Component("Processing", "Processing")


class NoPrice(Exception):
    """The Price List has no unambiguous price; the message gives the reason."""


def cache_file() -> Path:
    """Return the path of prices.json, the cache of recently looked-up prices."""
    return cache_folder() / "prices.json"


def rates_of(
    attributes: Mapping[str, str], terms: Mapping[str, Any], component: Component
) -> tuple[str, set[float]]:
    """Return the instance type of a Price List product, and its rates in USD per node-hour.

    Only products with the plain usage type (USE1-Train:ml.m5.large) have rates here, because the
    list has other components of the same instance.

    Args:
        attributes: The product's attributes.
        terms: The product's on-demand terms.
        component: The SageMaker component that uses the instance.
    """
    usage = _USAGE_TYPE.fullmatch(attributes.get("usagetype", ""))
    if usage is None or usage["use"] != component.usage:
        return "", set()
    rates = {
        float(dimension["pricePerUnit"].get("USD", 0))
        for term in terms.values()
        for dimension in term["priceDimensions"].values()
    }
    return usage["instance_type"], rates - {0.0}


def read_price(
    products: Sequence[str], instance_type: str, component: Component = TRAINING
) -> float:
    """Return the component's price in USD per node-hour from the PriceList of GetProducts.

    Args:
        products: the PriceList, each product as JSON.
        instance_type: for example ml.m5.large.
        component: the SageMaker component that uses the instance.

    Raises:
        NoPrice: the list has no price, or several.
    """
    rates = set()
    for product in map(json.loads, products):
        terms = product.get("terms", {}).get("OnDemand", {})
        name, its_rates = rates_of(product["product"]["attributes"], terms, component)
        rates |= its_rates if name == instance_type else set()
    if len(rates) != 1:
        found = (
            f"{len(rates)} prices ({', '.join(map(str, sorted(rates)))})"
            if rates
            else "no price in USD"
        )
        raise NoPrice(
            f"the AWS Price List has {found} for {component.name.lower()} on {instance_type}"
        )
    return rates.pop()


def query_price(
    pricing: Any, instance_type: str, region: str, component: Component = TRAINING
) -> float:
    """Return the Price List's rate in USD per node-hour; errors from boto3 propagate.

    Raises:
        NoPrice: the list has no price, or several.
    """
    wanted = {
        "productFamily": "ML Instance",
        "component": component.name,
        "regionCode": region,
        "instanceName": instance_type,
    }
    answer = pricing.get_products(
        ServiceCode=SERVICE,
        Filters=[
            {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
        ],
    )
    return read_price(answer["PriceList"], instance_type, component)


def with_price(
    instance: InstanceType, region: str, usd_per_hour: float, read_on: date
) -> InstanceType:
    """Return the instance type with a price from the Price List instead of the catalogue's."""
    return instance.at_price(usd_per_hour, region, SOURCE, read_on)


def load_cached_price(path: Path, key: str, today: date) -> tuple[float, date] | None:
    """Return (USD per hour, day it was read) from the cache, if not older than CACHE_MAX_AGE.

    A damaged file counts as empty.
    """
    try:
        row = _rows(path)[key]
        price, read_on = float(row["usd_per_hour"]), date.fromisoformat(row["date"])
    except (KeyError, TypeError, ValueError):
        return None
    return (
        (price, read_on) if price > 0 and timedelta(0) <= today - read_on <= CACHE_MAX_AGE else None
    )


def cache_price(path: Path, key: str, usd_per_hour: float, read_on: date) -> None:
    """Add a price to the cache; if it cannot be written, the next run makes another call."""
    with _KEEPING:
        rows = {**_rows(path), key: {"usd_per_hour": usd_per_hour, "date": read_on.isoformat()}}
        try:
            write_atomic(path, json.dumps(rows, indent=2, sort_keys=True).encode() + b"\n")
        except OSError as error:
            logger.warning("prices can't be cached in %s: %s", path, error)


def price_instance(
    backend: Backend,
    instance: InstanceType,
    path: Path,
    today: date,
    component: Component = TRAINING,
) -> tuple[InstanceType, tuple[str, ...]]:
    """Return the instance type with its current price, or unchanged with a notice why.

    Types that AWS does not sell have no price to look up.
    """
    if not instance.is_aws:
        return instance, ()
    platform = backend.platform
    name, region = instance.instance_type, platform.region
    key = f"{platform.endpoint_url or 'aws'} {region} {name}"
    if component != TRAINING:
        key += f" {component.name}"
    if (cached := load_cached_price(path, key, today)) is not None:
        return with_price(instance, region, *cached), ()
    try:
        pricing = aws_client("pricing", platform.model_copy(update={"region": _REGION}), quick=True)
        usd_per_hour = query_price(pricing, name, region, component)
    except (BotoCoreError, ClientError, ResponseParserError, NoPrice) as error:
        reason = (
            str(error) if isinstance(error, NoPrice) else f"pricing:GetProducts: {_short(error)}"
        )
        if component != TRAINING:
            subject = f"the price of a Processing job on {name}"
            return instance, (f"{subject} is unavailable, so its cost is unknown: {reason}",)
        known = price_of(instance, region)
        used = f"using the price of {known.date}" if known.usd_per_hour else "its cost is unknown"
        return instance, (f"the current price of {name} is unavailable; {used}: {reason}",)
    cache_price(path, key, usd_per_hour, today)
    return with_price(instance, region, usd_per_hour, today), ()


PriceQuery = tuple[InstanceType, Component]
PricedType = tuple[InstanceType, tuple[str, ...]]
"""An instance type with its price, and notices."""


def current_prices(backend: Backend, asked: Sequence[PriceQuery]) -> list[PricedType]:
    """Look up each instance type's price for its use in the AWS Price List, in this order.

    Results are in the order of `asked`; a notice explains each missing price. Requests run in
    parallel, so that an unresponsive Price List causes only one wait. The catalogue only has
    training prices, so without a response, the price of a Processing job is unknown.
    """
    path, today = cache_file(), datetime.now(UTC).date()

    def of_one(one: PriceQuery, context: Context) -> PricedType:
        instance, component = one
        known = instance if component == TRAINING else without_price(instance)
        return context.run(price_instance, backend, known, path, today, component)

    with ThreadPoolExecutor(max(1, len(asked)), thread_name_prefix="prices") as pool:
        return list(pool.map(of_one, asked, [copy_context() for _ in asked]))


def without_price(instance: InstanceType) -> InstanceType:
    """Return the instance type without the catalogue's price, which is for training."""
    if instance.on_demand_usd_per_hour is None:
        return instance
    return instance.model_copy(
        update={
            "on_demand_usd_per_hour": None,
            "price_region": None,
            "price_source": None,
            "price_date": None,
            "price_note": "the catalogue has the price of training, but not of Processing",
        }
    )


def _rows(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        rows = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return rows if isinstance(rows, dict) else {}


def _short(error: BaseException) -> str:
    return error_code(error) or str(error)
