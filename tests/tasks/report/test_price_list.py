"""The bulk Price List in the format that AWS documents, and files that are not one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.main import main
from nodesweep.configs.price_list import (
    PriceTable,
    RegionPrices,
    read_table,
    table_bytes,
    table_file,
)
from nodesweep.errors import PriceListRefused
from nodesweep.tasks.report import price_list as reading
from nodesweep.tasks.report.price_list import read_price_list
from tests.hostile_server import PAGE, Words, hostile_server
from tests.plain import plain

TODAY = date(2026, 11, 27)
INDEX = "/offers/v1.0/aws/AmazonSageMaker/current/region_index.json"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAUSE_SECONDS", 0.0)


def read_all(*arguments: Any) -> PriceTable:
    return reduce(PriceTable.merged, read_price_list(*arguments), PriceTable())


def product(
    region: str, usage: str, usd: str = "1.5", location: str = "AWS Region", currency: str = "USD"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a product of the list, and its terms."""
    sku = f"{region}.{usage}.{location}.{usd}"
    name = usage.partition(":")[2]
    attributes = {
        "servicecode": "AmazonSageMaker", "regionCode": region, "locationType": location,
        "usagetype": usage, "instanceName": name, "operation": "RunInstance",
    }  # fmt: skip
    rate = {"unit": "Hrs", "pricePerUnit": {currency: usd}, "description": f"{usd} per hour"}
    term = {"sku": sku, "priceDimensions": {f"{sku}.A.B": rate}, "termAttributes": {}}
    return (
        {"sku": sku, "productFamily": "ML Instance", "attributes": attributes},
        {f"{sku}.A": term},
    )


def offer(*products: tuple[dict[str, Any], dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "formatVersion": "v1.0",
        "offerCode": "AmazonSageMaker",
        "version": "20261120000313",
        "publicationDate": "2026-11-20T00:03:13Z",
        "products": {one["sku"]: one for one, _ in products},
        "terms": {"OnDemand": {one["sku"]: terms for one, terms in products}},
        **changes,
    }


def of_region(region: str = "us-east-1", **changes: Any) -> dict[str, Any]:
    return offer(
        product(region, "USE1-Train:ml.p4d.24xlarge", "25.251"),
        product(region, "USE1-Train:ml.p5en.48xlarge", "63.296"),
        product(region, "USE1-Host:ml.p4d.24xlarge", "9"),
        product(region, "USE1-TrainSpot:ml.p4d.24xlarge", "8"),
        product(region, "USE1-Train:ml.p4d.24xlarge", "7", location="AWS Outposts"),
        product(region, "USE1-Train:ml.m5.large", "0.0000000000"),
        product(region, "USE1-Train:ml.m5.xlarge", "2", currency="CNY"),
        product(region, "USE1-Train:ml.g5.xlarge", "1"),
        product(region, "Train:ml.g5.xlarge", "2"),
        **changes,
    )


@contextmanager
def price_list(
    files: dict[str, Any], change: Callable[[str], Words | None] = lambda path: None
) -> Iterator[str]:
    """Serve the files of regions; `change` may replace the response to a path."""
    paths = {region: f"/offers/v1.0/aws/AmazonSageMaker/1/{region}/index.json" for region in files}
    bodies = {paths[region]: json.dumps(content).encode() for region, content in files.items()}
    entries = {
        region: {"regionCode": region, "currentVersionUrl": path} for region, path in paths.items()
    }
    bodies[INDEX] = json.dumps({"formatVersion": "v1.0", "regions": entries}).encode()

    def answer(path: str) -> Words:
        body = bodies.get(path)
        return change(path) or (Words(404, PAGE) if body is None else Words(body=body))

    with hostile_server(answer) as url:
        yield url


def usd_of(found: PriceTable) -> dict[str, dict[str, float]]:
    return {region: prices.usd_per_hour for region, prices in found.regions.items()}


EACH = {"ml.p4d.24xlarge": 25.251, "ml.p5en.48xlarge": 63.296}


def test_every_training_price_of_every_region_is_read() -> None:
    """Not other uses, places and currencies; nor a type with two prices."""
    files = {"us-east-1": of_region(), "eu-west-1": of_region("eu-west-1"), "xx-1": offer()}
    seen: list[str] = []
    with price_list(files) as url:
        found = read_all(url, (), PriceTable(), TODAY, seen.append)
        assert usd_of(found) == {"us-east-1": EACH, "eu-west-1": EACH}
        only = read_all(f"{url}/", ("eu-west-1",), PriceTable(), TODAY)
    assert usd_of(only) == {"eu-west-1": EACH}
    assert len(seen) == 3
    prices = found.regions["us-east-1"]
    assert prices.published == date(2026, 11, 20)
    assert prices.source.startswith(url) and "/us-east-1/" in prices.source


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_downloaded_file_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "index.json"
    path.write_bytes(pack(json.dumps(of_region()).encode()))
    assert usd_of(read_all(str(path), (), PriceTable(), TODAY)) == {"us-east-1": EACH}


WHOLE = json.dumps(of_region()).encode()


@pytest.mark.parametrize(
    "words",
    [
        Words(200, PAGE, {"Content-Type": "text/html"}),
        Words(403, PAGE),
        Words(200, WHOLE[:-100]),
        Words(200, WHOLE[:-100], announced_bytes=len(WHOLE)),
        Words(200, gzip.compress(WHOLE)[:-30]),
        Words(200, b"[]"),
        Words(200, b"{}"),
        Words(200, json.dumps(of_region(offerCode="AmazonEC2")).encode()),
        Words(200, json.dumps(of_region(publicationDate="soon")).encode()),
        Words(200, json.dumps(of_region(terms={})).encode()),
        Words(200, json.dumps(of_region(terms={"OnDemand": {}})).encode()),
        Words(200, json.dumps(of_region(products=[])).encode()),
        Words(200, json.dumps(offer(product("us-east-1", "Train:ml.x.y", "1e9"))).encode()),
        Words(200, json.dumps(of_region(publicationDate="2026-08-01T00:00:00Z")).encode()),
        Words(200, json.dumps(of_region(publicationDate="2026-11-29T00:00:00Z")).encode()),
        Words(200, b"[" * 100_000),
    ],
    ids=[
        "page", "403", "cut off", "connection lost", "half gzip", "array", "nothing", "EC2",
        "undated", "no terms", "no prices", "no products", "absurd", "stale", "future", "deep",
    ],
)  # fmt: skip
def test_what_is_not_the_list_is_refused(words: Words, snapshot: SnapshotAssertion) -> None:
    with price_list({"us-east-1": {}}, lambda path: None if path == INDEX else words) as url:
        with pytest.raises(PriceListRefused) as refused:
            read_all(url, (), PriceTable(), TODAY)
        assert plain(refused.value, server=url) == snapshot


@pytest.mark.parametrize(
    ("status", "failures", "tries"), [(503, 2, 3), (429, 1, 2), (503, 9, 3), (403, 9, 1)]
)
def test_what_may_pass_is_tried_three_times(status: int, failures: int, tries: int) -> None:
    asked: list[str] = []

    def change(path: str) -> Words | None:
        if path == INDEX:
            return None
        asked.append(path)
        return Words(status, PAGE) if len(asked) <= failures else None

    with price_list({"us-east-1": of_region()}, change) as url:
        if tries > failures:
            assert usd_of(read_all(url, (), PriceTable(), TODAY)) == {"us-east-1": EACH}
        else:
            with pytest.raises(PriceListRefused):
                read_all(url, (), PriceTable(), TODAY)
    assert len(asked) == tries


def test_a_region_or_type_without_a_certain_price_costs_no_other() -> None:
    several = (
        product("eu-west-1", "Train:ml.x.y", "1"),
        product("eu-west-1", "EU-Train:ml.x.y", "2"),
    )
    absurd = product("us-east-1", "Train:ml.x.y", "1e9")
    files = {
        "af-south-1": of_region("af-south-1", terms={}),
        "eu-west-1": offer(*several),
        "us-east-1": offer(absurd, product("us-east-1", "Train:ml.p4d.24xlarge", "25.251")),
    }
    with price_list(files) as url:
        found = read_all(url, (), PriceTable(), TODAY)
    assert usd_of(found) == {"us-east-1": {"ml.p4d.24xlarge": 25.251}}


@pytest.mark.parametrize(
    "index",
    [PAGE, b"{}", b'{"regions": []}', b'{"regions": {"a": {"regionCode": "a"}}}',
     b'{"regions": {"a": {"regionCode": "a", "currentVersionUrl": "@elsewhere/x"}}}'],
    ids=["page", "empty", "list", "no path", "elsewhere"],
)  # fmt: skip
def test_an_index_that_is_not_one_is_refused(index: bytes, snapshot: SnapshotAssertion) -> None:
    with hostile_server(lambda path: Words(body=index)) as url:
        with pytest.raises(PriceListRefused) as refused:
            read_all(url, (), PriceTable(), TODAY)
        assert plain(refused.value, server=url) == snapshot


def known(published: str, types: int) -> PriceTable:
    prices = RegionPrices(
        source="before",
        published=date.fromisoformat(published),
        usd_per_hour={f"ml.x{number}.large": 1.0 for number in range(types)},
    )
    return PriceTable(regions={"us-east-1": prices})


@pytest.mark.parametrize(
    ("wanted", "table"),
    [
        (("mars-1",), PriceTable()),
        (("xx-1",), PriceTable()),
        ((), known("2026-11-21", 1)),
        ((), known("2026-11-01", 5)),
    ],
    ids=["unknown region", "region without training", "older than the table", "types lost"],
)
def test_a_list_that_is_not_better_than_the_table_is_refused(
    wanted: tuple[str, ...], table: PriceTable, snapshot: SnapshotAssertion
) -> None:
    with price_list({"us-east-1": of_region(), "xx-1": offer()}) as url:
        assert read_all(url, (), known("2026-11-20", 4), TODAY).regions
        with pytest.raises(PriceListRefused) as refused:
            read_all(url, wanted, table, TODAY)
        assert plain(refused.value, server=url) == snapshot


@pytest.mark.parametrize("origin", ["ftp://host", "http://127.0.0.1:9", "http://[", "http://a b/"])
def test_an_address_that_cannot_be_read_is_refused(origin: str) -> None:
    with pytest.raises(PriceListRefused, match=origin.replace("[", r"\[")):
        read_all(origin, (), PriceTable(), TODAY)


def refresh(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["prices", "refresh", *map(str, arguments)])


def test_refresh_writes_the_table_that_plans_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    today = date.today().isoformat() + "T00:00:00Z"
    files = {each: of_region(each, publicationDate=today) for each in ("us-east-1", "eu-west-1")}
    with price_list(files) as url:
        done = refresh("--from", url)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "us-east-1: 2 instance types" in done.output and str(table_file()) in done.output
    assert set(read_table(table_file()).regions) == {"us-east-1", "eu-west-1"}

    def refuse(path: str) -> Words | None:
        return Words(body=PAGE) if "us-east-1" in path or "af-south-1" in path else None

    with price_list({**files, "af-south-1": {}}, refuse) as url:
        failed = refresh("--from", url)
        assert failed.exit_code == 1
        assert "Traceback" not in failed.output and failed.output.count("HTML") == 2
        assert url in read_table(table_file()).regions["eu-west-1"].source
        assert refresh("--from", url, "--region", "eu-west-1").exit_code == 0
    renewed = read_table(table_file()).regions
    assert set(renewed) == {"us-east-1", "eu-west-1"}, "the refused region stays as it was"
    assert url in renewed["eu-west-1"].source and url not in renewed["us-east-1"].source
    assert [path.name for path in table_file().parent.iterdir()] == [table_file().name]


def test_refresh_refuses_a_folder_it_cannot_write_before_it_reads(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = refresh("--output", tmp_path / "file" / "table", "--from", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert "is a file, not a folder" in done.output
    missing = refresh("--output", tmp_path / "table", "--from", tmp_path / "nothing.json")
    assert (missing.exit_code, (tmp_path / "table").exists()) == (2, False)
    with price_list({"us-east-1": of_region()}) as url:
        assert refresh("--from", url, "--region", "mars-1").exit_code == 2


def test_refresh_keeps_what_another_process_has_written_meanwhile(tmp_path: Path) -> None:
    path, today = tmp_path / "table", date.today().isoformat() + "T00:00:00Z"

    def write(asked: str) -> None:
        if asked != INDEX:
            path.write_bytes(table_bytes(known("2026-11-20", 1)))

    files = {"eu-west-1": of_region("eu-west-1", publicationDate=today)}
    with price_list(files, write) as url:
        assert refresh("--from", url, "--output", path).exit_code == 0
    assert set(read_table(path).regions) == {"us-east-1", "eu-west-1"}
