"""Read AWS's bulk Price List of SageMaker into the table of configs/price_list.py.

AWS serves it without credentials, as a region index and a file per region. AWS's billing guide,
"Reading the price list files", describes the format. Not yet tested with the real Price List.
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
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

from nodesweep.configs.price_list import MOST_USD_PER_HOUR, PriceTable, RegionPrices
from nodesweep.errors import PriceListNotFound, PriceListRefused
from nodesweep.polling import intervals
from nodesweep.scaling.analysis.price import OLD_PRICE_DAYS
from nodesweep.tasks.report.pricing import SERVICE, TRAINING, rates_of

PRICE_LIST_URL = "https://pricing.us-east-1.amazonaws.com"
_URLS = ("https://", "http://")
_INDEX = f"/offers/v1.0/aws/{SERVICE}/current/region_index.json"
_FILE_SECONDS = 900
_SILENCE_SECONDS = 60
_TRIES = 3
_PAUSE_SECONDS = 2.0
_LARGEST_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20
_KEPT_SHARE = 0.5
"""A newer list with a smaller share of a region's known types counts as truncated."""


def read_price_list(
    origin: str,
    wanted: tuple[str, ...],
    known: PriceTable,
    today: date,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[PriceTable]:
    """Yield the training prices of each region as soon as its file is read.

    Args:
        origin: URL of the Price List's server, or URL or path of one file of the list.
        wanted: Regions to read, or () for all regions.
        known: The current table; older editions of the list are refused.
        today: Today's date in UTC.
        say: Called with a progress message for each file, since reading all takes minutes.

    Raises:
        PriceListNotFound: The file does not exist, or a region is not in the list.
        PriceListRefused: A file is not the Price List, or is truncated, stale or without prices.
            Problems with the files of regions are raised after all files have been read.
    """
    found: set[str] = set()
    problems: list[str] = []
    for source in _sources(origin, wanted):
        say(f"reading {source}")
        try:
            by_region = _region_prices(source, _read_json(source))
        except PriceListRefused as refused:
            problems.append(str(refused))
            continue
        for region, prices in by_region.items():
            if wanted and region not in wanted:
                continue
            if problem := _edition_problem(region, prices, known.regions.get(region), today):
                problems.append(problem)
            else:
                found.add(region)
                yield PriceTable(regions={region: prices})
    missing = sorted(set(wanted) - found) or ([] if found else ["any region"])
    if missing and not problems:
        problems.append(
            f"{origin} has no on-demand training price in USD for {', '.join(missing)}; check"
            " --region, and that --from is the Price List of Amazon SageMaker"
        )
    if problems:
        raise PriceListRefused("\n".join(problems))


def _sources(origin: str, wanted: tuple[str, ...]) -> Iterator[str]:
    """Yield the URLs of the regions' files, or the one file itself."""
    is_url = origin.startswith(_URLS)
    if not is_url and not Path(origin).exists():
        raise PriceListNotFound(
            f"--from: {origin} is neither an http(s):// URL nor an existing file"
        )
    if not is_url or origin.endswith(".json"):
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
        problem = "it lists no regions; check --from"
        raise PriceListRefused(_not_list(base + _INDEX, problem)) from error
    if unknown := sorted(set(wanted) - set(paths)):
        raise PriceListNotFound(
            f"--region: the Price List has no {', '.join(unknown)}; it has"
            f" {', '.join(sorted(paths)) or 'none'}"
        )
    for region, path in sorted(paths.items()):
        if not path.startswith("/offers/"):
            problem = f"the path of {region} is {path!r}; check --from"
            raise PriceListRefused(_not_list(base + _INDEX, problem))
        if not wanted or region in wanted:
            yield base + path


def _region_prices(source: str, offer: Mapping[str, Any]) -> dict[str, RegionPrices]:
    """Return the training prices in one file of the list, by region."""
    try:
        if offer["offerCode"] != SERVICE:
            problem = f"it is for {offer['offerCode']}; check --from"
            raise PriceListRefused(_not_list(source, problem))
        published = datetime.fromisoformat(offer["publicationDate"]).date()
        on_demand = offer["terms"].get("OnDemand", {})
        by_region: dict[str, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
        for sku, product in offer["products"].items():
            attributes = product["attributes"]
            # Outposts and Local Zones have different prices for the same type.
            if attributes.get("locationType", "AWS Region") == "AWS Region":
                name, rates = rates_of(attributes, on_demand.get(sku, {}), TRAINING)
                if rates:
                    by_region[attributes["regionCode"]][name] |= rates
        return {
            region: RegionPrices(source=source, published=published, usd_per_hour=usd_per_hour)
            for region, types in by_region.items()
            if (usd_per_hour := _certain_prices(types))
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = "its products, terms or date are not as AWS documents them"
        if isinstance(error, KeyError):
            problem = f"it has no {error}"
        raise PriceListRefused(_not_list(source, f"{problem}; check --from")) from error


def _certain_prices(types: Mapping[str, set[float]]) -> dict[str, float]:
    """Return the price of each type that has exactly one rate, if the rate is plausible."""
    return {
        name: min(rates)
        for name, rates in types.items()
        if len(rates) == 1 and 0 < min(rates) <= MOST_USD_PER_HOUR
    }


def _edition_problem(
    region: str, prices: RegionPrices, known: RegionPrices | None, today: date
) -> str | None:
    """Return the reason to refuse an edition that is old, from the future, or incomplete."""
    age = today - prices.published
    edition = f"{prices.source}: the Price List of {region}"
    behind = known is not None and prices.published < known.published
    if behind or age > timedelta(days=OLD_PRICE_DAYS):
        than = f", older than the table's edition of {known.published}" if known and behind else ""
        return (
            f"{edition} was published on {prices.published}, {age.days} days ago{than}; check for a"
            " caching proxy or stale mirror, or download the current list and pass it with --from"
        )
    if age < timedelta(days=-1):  # otherwise, it would block all editions until then
        return (
            f"{edition} was published on {prices.published}, but today is {today}; check this"
            " machine's clock and where the list comes from"
        )
    if known is not None and len(prices.usd_per_hour) < _KEPT_SHARE * len(known.usd_per_hour):
        return (
            f"{edition} has {len(prices.usd_per_hour)} training prices, but the table has"
            f" {len(known.usd_per_hour)}, so it is probably truncated; try again, or delete the"
            " table to start over"
        )
    return None


def _read_json(source: str) -> Mapping[str, Any]:
    body = _read_bytes(source)
    try:
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        content = json.loads(body)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        is_page = body.lstrip()[:1] == b"<"
        problem = (
            "it is an HTML or XML page; look for a proxy or login page"
            if is_page
            else "it is truncated or not JSON; download it again"
        )
        raise PriceListRefused(_not_list(source, problem)) from error
    if not isinstance(content, dict):
        raise PriceListRefused(_not_list(source, "it is not a JSON object; check --from"))
    return content


def _read_bytes(source: str) -> bytes:
    """Return the content of a URL or file, retrying transient errors such as HTTP 503."""
    if not source.startswith(_URLS):
        return Path(source).read_bytes()
    deadline = time.monotonic() + _FILE_SECONDS
    pauses = islice(intervals(_PAUSE_SECONDS, 30.0, factor=4), _TRIES - 1)
    while True:
        try:
            return _download(source, deadline)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code != HTTPStatus.TOO_MANY_REQUESTS and error.code < 500:
                    problem = f"HTTP {error.code}; check the address and this host's access to it"
                    raise PriceListRefused(_not_list(source, problem)) from error
            is_malformed = isinstance(error, ValueError | http.client.InvalidURL)
            pause = None if is_malformed else next(pauses, None)
            if pause is None or time.monotonic() + pause > deadline:
                reason = getattr(error, "reason", None) or error
                raise PriceListRefused(
                    f"{source} can't be read: {reason}; check the network and proxy, or download"
                    " the list elsewhere and pass the file with --from"
                ) from error
            time.sleep(pause)


def _download(source: str, deadline: float) -> bytes:
    body = bytearray()
    with urllib.request.urlopen(source, timeout=_SILENCE_SECONDS) as answer:
        while chunk := answer.read1(_CHUNK_BYTES):  # read() would wait for a whole chunk
            body += chunk
            if len(body) > _LARGEST_BYTES or time.monotonic() > deadline:
                raise PriceListRefused(
                    f"{source} is larger than {_LARGEST_BYTES >> 20} MiB or takes longer than"
                    f" {_FILE_SECONDS} s; check for a slow or rewriting proxy"
                )
        if answer.length:
            raise http.client.IncompleteRead(bytes(body[:0]), answer.length)
    return bytes(body)


def _not_list(source: str, problem: str) -> str:
    return f"{source} is not a Price List of Amazon SageMaker: {problem}"
