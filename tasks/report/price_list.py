"""Read AWS's bulk Price List of SageMaker into the table of configs/price_list.py.

AWS serves it without credentials: a region index, and a file per region. Their format is in
AWS's billing guide, "Reading the price list files". Never run against the real Price List yet.
"""

from __future__ import annotations

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nodesweep.configs.price_list import MOST_USD_PER_HOUR, PriceTable, RegionPrices
from nodesweep.errors import PriceListRefused
from nodesweep.scaling.analysis.price import OLD_PRICE_DAYS
from nodesweep.tasks.report.pricing import SERVICE, TRAINING, rates_of

PRICE_LIST_URL = "https://pricing.us-east-1.amazonaws.com"
_INDEX = f"/offers/v1.0/aws/{SERVICE}/current/region_index.json"
_FILE_SECONDS = 900
_SILENCE_SECONDS = 60
_LARGEST_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20
_KEPT_SHARE = 0.5
"""Share of the types known in a region below which a newer list counts as cut off."""


def read_price_list(
    origin: str,
    wanted: tuple[str, ...],
    known: PriceTable,
    today: date,
    say: Callable[[str], None] = lambda text: None,
) -> PriceTable:
    """Return the training prices of the wanted regions, or of all that have any.

    Args:
        origin: URL of the Price List's server, or URL or path of one file of the list.
        wanted: Regions; none for all.
        known: The table so far; an older edition than its own is refused.
        today: Today's date in UTC.
        say: Called with a line on each file that is read, since all of them take minutes.

    Raises:
        PriceListRefused: Something is not the Price List, or is partial, stale or without prices.
    """
    found: dict[str, RegionPrices] = {}
    for source in _sources(origin, wanted):
        say(f"reading {source}")
        found |= _region_prices(source, _read_json(source))
    if wanted:
        found = {region: prices for region, prices in found.items() if region in wanted}
    missing = sorted(set(wanted) - set(found)) or ([] if found else ["any region"])
    if missing:
        raise PriceListRefused(
            f"{origin} has no on-demand training price in USD for {', '.join(missing)}; check"
            " --region, and that --from is the Price List of Amazon SageMaker"
        )
    for region, prices in found.items():
        _check_edition(region, prices, known.regions.get(region), today)
    return PriceTable(regions=found)


def _sources(origin: str, wanted: tuple[str, ...]) -> Iterator[str]:
    """Yield the URLs of the regions' files, or the one file itself."""
    if "://" not in origin or origin.endswith(".json"):
        yield origin
        return
    base = origin.rstrip("/")
    index = _read_json(base + _INDEX)
    try:
        paths = {
            str(entry["regionCode"]): str(entry["currentVersionUrl"])
            for entry in index["regions"].values()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise PriceListRefused(_not_list(base + _INDEX, "it lists no regions")) from error
    if unknown := sorted(set(wanted) - set(paths)):
        raise PriceListRefused(
            f"--region: the Price List has no {', '.join(unknown)}; it has"
            f" {', '.join(sorted(paths)) or 'none'}"
        )
    for region, path in sorted(paths.items()):
        if not path.startswith("/offers/"):
            raise PriceListRefused(_not_list(base + _INDEX, f"the path of {region} is {path!r}"))
        if not wanted or region in wanted:
            yield base + path


def _region_prices(source: str, offer: Mapping[str, Any]) -> dict[str, RegionPrices]:
    """Return the training prices in one file of the list, by region."""
    try:
        if offer["offerCode"] != SERVICE:
            raise PriceListRefused(_not_list(source, f"it is that of {offer['offerCode']}"))
        published = datetime.fromisoformat(offer["publicationDate"]).date()
        on_demand = offer["terms"]["OnDemand"]
        by_region: dict[str, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
        for sku, product in offer["products"].items():
            attributes = product["attributes"]
            # Outposts and Local Zones have prices of their own for the same type.
            if attributes.get("locationType", "AWS Region") == "AWS Region":
                name, rates = rates_of(attributes, on_demand.get(sku, {}), TRAINING)
                if rates:
                    by_region[attributes["regionCode"]][name] |= rates
        return {
            region: RegionPrices(
                source=source,
                published=published,
                # A type with several rates is left out: it is not known which one is billed.
                usd_per_hour={name: min(rates) for name, rates in types.items() if len(rates) == 1},
            )
            for region, types in by_region.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = "its products, terms or date are not as AWS documents them"
        if isinstance(error, KeyError):
            what = f"it has no {error}"
        elif isinstance(error, ValidationError):
            what = f"a price is not above 0 and at most {MOST_USD_PER_HOUR} USD per hour"
        raise PriceListRefused(_not_list(source, what)) from error


def _check_edition(
    region: str, prices: RegionPrices, known: RegionPrices | None, today: date
) -> None:
    """Raise PriceListRefused for an edition that is old or has lost many types."""
    age = today - prices.published
    behind = known is not None and prices.published < known.published
    if behind or age > timedelta(days=OLD_PRICE_DAYS):
        than = f", older than the table's of {known.published}" if known and behind else ""
        raise PriceListRefused(
            f"{prices.source}: the Price List of {region} was published on {prices.published},"
            f" {age.days} days ago{than}; look for a proxy or mirror that keeps old files, or"
            " download the current list and give it with --from"
        )
    if known is not None and len(prices.usd_per_hour) < _KEPT_SHARE * len(known.usd_per_hour):
        raise PriceListRefused(
            f"{prices.source}: the Price List of {region} has {len(prices.usd_per_hour)} training"
            f" prices, but the table has {len(known.usd_per_hour)}, so it is probably cut off; try"
            " again, or delete the table to begin anew"
        )


def _read_json(source: str) -> Mapping[str, Any]:
    body = _read_bytes(source)
    try:
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        content = json.loads(body)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        is_page = body.lstrip()[:1] == b"<"
        what = "it is an HTML or XML page" if is_page else "it is cut off or not JSON"
        raise PriceListRefused(_not_list(source, what)) from error
    if not isinstance(content, dict):
        raise PriceListRefused(_not_list(source, "it is no JSON object"))
    return content


def _read_bytes(source: str) -> bytes:
    if "://" not in source:
        return Path(source).read_bytes()
    if not source.startswith(("https://", "http://")):
        raise PriceListRefused(f"--from: {source} is neither an https:// URL nor a file")
    deadline = time.monotonic() + _FILE_SECONDS
    body = bytearray()
    try:
        with urllib.request.urlopen(source, timeout=_SILENCE_SECONDS) as answer:
            while chunk := answer.read1(_CHUNK_BYTES):  # read() would wait for a whole chunk
                body += chunk
                if len(body) > _LARGEST_BYTES or time.monotonic() > deadline:
                    raise PriceListRefused(
                        f"{source} is larger than {_LARGEST_BYTES >> 20} MiB or takes longer than"
                        f" {_FILE_SECONDS} s; look for a proxy in between"
                    )
            if answer.length:
                raise http.client.IncompleteRead(bytes(body[:0]), answer.length)
    except urllib.error.HTTPError as error:
        with error:
            raise PriceListRefused(_not_list(source, f"HTTP {error.code}")) from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a malformed URL
        reason = getattr(error, "reason", None) or error
        raise PriceListRefused(
            f"{source} can't be read: {reason}; check the network and proxy, or download the list"
            " elsewhere and give the file with --from"
        ) from error
    return bytes(body)


def _not_list(source: str, what: str) -> str:
    return (
        f"{source} is not a Price List of Amazon SageMaker: {what}; look for a proxy or login page"
    )
