"""The table of prices by region, and the price that applies to a type."""

from __future__ import annotations

import gzip
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from nodesweep.configs import price_list
from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.price_list import (
    PriceTable,
    RegionPrices,
    at_list_price,
    read_table,
    table_bytes,
    table_file,
)
from nodesweep.scaling.analysis.price import price_of

P4D = load_catalogue().get("ml.p4d.24xlarge")  # 25.251 USD in us-east-1 on 2026-09-04
P6 = load_catalogue().get("ml.p6-b200.48xlarge")  # no price


def table(published: str = "2026-11-20", region: str = "us-east-1", **usd: float) -> PriceTable:
    prices = {f"ml.{name.replace('_', '.', 1).replace('_', '-')}": usd[name] for name in usd}
    prices = prices or {"ml.p4d.24xlarge": 20.5, "ml.p6-b200.48xlarge": 113.9}
    day = date.fromisoformat(published)
    return PriceTable(
        regions={region: RegionPrices(source="list", published=day, usd_per_hour=prices)}
    )


@pytest.fixture(autouse=True)
def own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(price_list, "PACKAGED_TABLE", tmp_path / "packaged")
    table_file().parent.mkdir()
    return table_file()


def test_the_newest_price_of_the_region_counts(own_table: Path) -> None:
    assert at_list_price(P4D, "us-east-1") == P4D
    own_table.write_bytes(table_bytes(table()))
    price = price_of(at_list_price(P4D, "us-east-1"), "us-east-1")
    assert (price.usd_per_hour, price.source, price.date) == (20.5, "list", "2026-11-20")
    assert price_of(at_list_price(P6, "us-east-1"), "us-east-1").usd_per_hour == 113.9
    own_table.write_bytes(table_bytes(table("2026-09-03").merged(table(region="eu-west-1"))))
    assert at_list_price(P4D, "us-east-1") == P4D, "the catalogue's is of a later day"
    assert price_of(at_list_price(P4D, "eu-west-1"), "eu-west-1").usd_per_hour == 20.5
    assert at_list_price(P4D, "eu-north-1") == P4D


def test_a_shipped_table_is_replaced_by_a_newer_one_of_the_user(
    own_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    price_list.PACKAGED_TABLE.write_bytes(table_bytes(table("2026-11-10", p4d_24xlarge=19.0)))
    own_table.write_bytes(table_bytes(table("2026-11-01", p4d_24xlarge=18.0)))
    assert at_list_price(P4D, "us-east-1").on_demand_usd_per_hour == 19.0
    own_table.write_bytes(table_bytes(table("2026-11-20", p4d_24xlarge=17.0)))
    assert at_list_price(P4D, "us-east-1").on_demand_usd_per_hour == 17.0


def test_nodes_that_aws_does_not_sell_have_no_list_price(own_table: Path) -> None:
    own_table.write_bytes(table_bytes(table(local_small=1.0)))
    emulated = load_catalogue().get("ml.local.small")
    assert at_list_price(emulated, "us-east-1") == emulated


def test_a_config_has_the_price_of_its_region(own_table: Path, make_config: Any) -> None:
    config = make_config(platform={"region": "eu-west-1"})
    assert price_of(config.node_type("ml.m5.xlarge"), "eu-west-1").usd_per_hour is None
    own_table.write_bytes(table_bytes(table(region="eu-west-1", m5_xlarge=0.257)))
    assert price_of(config.node_type("ml.m5.xlarge"), "eu-west-1").usd_per_hour == 0.257


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip",
        table_bytes(table())[:-20],
        table_bytes(table())[:10] + b"\xff" * 40,
        json.dumps({"schema_version": 1}).encode(),
    ],
    ids=["empty", "text", "cut off", "overwritten", "plain"],
)
def test_a_damaged_table_is_not_used_and_named_once(
    own_table: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    own_table.write_bytes(content)
    for _ in range(2):
        assert at_list_price(P4D, "us-east-1") == P4D
    assert [str(own_table) in message for message in caplog.messages] == [True]


def test_a_table_of_a_later_version_is_not_used(own_table: Path) -> None:
    later = table().model_dump_json().replace('"schema_version":1', '"schema_version":2')
    own_table.write_bytes(gzip.compress(later.encode()))
    assert read_table(own_table) == PriceTable()


def test_merging_keeps_the_later_edition() -> None:
    older, newer, other = table("2026-10-01"), table(p4d_24xlarge=3.0), table(region="eu-west-1")
    assert older.merged(newer) == newer.merged(older) == newer
    assert set(newer.merged(other).regions) == {"us-east-1", "eu-west-1"}
    assert table_bytes(newer) == table_bytes(table(p4d_24xlarge=3.0)), "the same bytes"
