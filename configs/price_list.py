"""Dated on-demand training prices by region and instance type, from the AWS Price List.

`nodesweep prices refresh` writes the user's table; a table next to this file would be shipped with
the package. A newer price in a table overrides the one in configs/instances.yaml, which has prices
for one region.
"""

from __future__ import annotations

import datetime
import gzip
import logging
import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from nodesweep.configs.catalogue import InstanceType

logger = logging.getLogger("nodesweep.pricing")
NAME = "price_list.json.gz"
PACKAGED_TABLE = Path(__file__).with_name(NAME)
MOST_USD_PER_HOUR = 1000
"""Upper bound of a plausible price, as in the catalogue."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class RegionPrices(_Part):
    """The prices of one region in one edition of the Price List."""

    source: str = Field(min_length=1, description="URL or file of the Price List.")
    published: datetime.date = Field(description="Day on which AWS published that edition.")
    usd_per_hour: dict[str, Annotated[float, Field(gt=0, le=MOST_USD_PER_HOUR)]] = Field(
        min_length=1, description="On-demand training price by instance type, USD per node-hour."
    )


class PriceTable(_Part):
    """The prices by region."""

    schema_version: Literal[1] = 1
    regions: dict[str, RegionPrices] = Field(default_factory=dict)

    def merged(self, other: PriceTable) -> PriceTable:
        """Return a table with the regions of both tables, each in its latest edition."""
        regions = dict(self.regions)
        for region, prices in other.regions.items():
            if region not in regions or regions[region].published <= prices.published:
                regions[region] = prices
        return PriceTable(regions=regions)


def cache_folder() -> Path:
    """Return nodesweep's folder below $XDG_CACHE_HOME, by default ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodesweep"


def table_file() -> Path:
    """Return the path of the table that `nodesweep prices refresh` writes for this user."""
    return cache_folder() / NAME


def read_table(path: Path) -> PriceTable:
    """Return the table in a file, or an empty one if it is missing or (with a warning) damaged."""
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        return PriceTable()
    return _read(path, stamp)


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> PriceTable:
    try:
        return PriceTable.model_validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError, zlib.error):  # gzip raises OSError for other formats
        logger.warning("%s is damaged and was ignored; run `nodesweep prices refresh`", path)
        return PriceTable()


def table_bytes(table: PriceTable) -> bytes:
    """Return the content of a table's file, which is identical for equal tables."""
    return gzip.compress(table.model_dump_json().encode() + b"\n", mtime=0)


def at_list_price(instance: InstanceType, region: str) -> InstanceType:
    """Return the instance type with the table's price in a region, unless its own is newer.

    The type is unchanged if the table has no price for it, or if it is not an AWS instance.
    """
    if not instance.is_aws:
        return instance
    for path in (PACKAGED_TABLE, table_file()):
        prices = read_table(path).regions.get(region)
        usd = None if prices is None else prices.usd_per_hour.get(instance.instance_type)
        known_on = instance.price_date if instance.price_region == region else None
        if prices is None or usd is None or (known_on is not None and known_on > prices.published):
            continue
        instance = instance.at_price(usd, region, prices.source, prices.published)
    return instance
