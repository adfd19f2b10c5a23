from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.price_list import table_file
from nodesweep.launch.registry import backend_of
from nodesweep.scaling.analysis.price import price_of
from nodesweep.tasks.report.pricing import (
    PROCESSING,
    SOURCE,
    TRAINING,
    NoPrice,
    cache_file,
    cache_price,
    current_prices,
    load_cached_price,
    price_instance,
    read_price,
    without_price,
)
from tests.plain import plain

TODAY = date(2026, 11, 20)
KEY = "aws us-east-1 ml.m5.xlarge"
FILTERS = [
    {"Type": "TERM_MATCH", "Field": "productFamily", "Value": "ML Instance"},
    {"Type": "TERM_MATCH", "Field": "component", "Value": "Training"},
    {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"},
    {"Type": "TERM_MATCH", "Field": "instanceName", "Value": "ml.m5.xlarge"},
]


def product(usage_type: str, usd: str = "0.2500000000", currency: str = "USD") -> str:
    term = {"priceDimensions": {"a.b": {"unit": "Hrs", "pricePerUnit": {currency: usd}}}}
    return json.dumps(
        {"product": {"attributes": {"usagetype": usage_type}}, "terms": {"OnDemand": {"a": term}}}
    )


@pytest.fixture
def instance() -> InstanceType:
    return load_catalogue().get("ml.m5.xlarge")


@pytest.fixture
def price_list(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """A Price List for the query of price_instance, with only the products that a test adds."""
    client = boto3.client("pricing", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")

    def client_of(service: str, platform: PlatformConfig, quick: bool = False) -> Any:
        assert (service, platform.region, quick) == ("pricing", "us-east-1", True)
        return client

    monkeypatch.setattr("nodesweep.tasks.report.pricing.aws_client", client_of)
    with Stubber(client) as stub:
        yield stub


@pytest.mark.parametrize(
    "usage_type", ["USE1-Train:ml.m5.xlarge", "Train:ml.m5.xlarge", "EUW1-Train:ml.m5.xlarge"]
)
def test_training_rate_is_read(usage_type: str) -> None:
    others = [product("USE1-Host:ml.m5.xlarge", "9"), product("USE1-Train:ml.m5.xlarge2", "8"),
              product("USE1-TrainSpot:ml.m5.xlarge", "7")]  # fmt: skip
    assert read_price([*others, product(usage_type)], "ml.m5.xlarge") == 0.25


@pytest.mark.parametrize(
    "products",
    [
        [],
        [product("USE1-Train:ml.m5.xlarge", "0.0000")],
        [product("CNN1-Train:ml.m5.xlarge", "2.1", currency="CNY")],
        [product("Train:ml.m5.xlarge", "1"), product("USE1-Train:ml.m5.xlarge", "2")],
    ],
)
def test_price_that_is_not_one_is_none(products: list[str], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(NoPrice) as refused:
        read_price(products, "ml.m5.xlarge")
    assert str(refused.value) == snapshot


def test_price_is_asked_once_and_kept(
    price_list: Stubber, platform: PlatformConfig, instance: InstanceType, tmp_path: Path
) -> None:
    answer = {"FormatVersion": "aws_v1", "PriceList": [product("USE1-Train:ml.m5.xlarge")]}
    price_list.add_response(
        "get_products", answer, {"ServiceCode": "AmazonSageMaker", "Filters": FILTERS}
    )
    path = tmp_path / "cache" / "prices.json"
    priced, notices = price_instance(backend_of(platform), instance, path, TODAY)
    assert notices == ()
    # 7 days later: a second call would fail
    again, _ = price_instance(backend_of(platform), instance, path, date(2026, 11, 27))
    price = price_of(again, "us-east-1")
    assert again == priced
    assert (price.usd_per_hour, price.source, price.date) == (0.25, SOURCE, "2026-11-20")
    assert json.loads(path.read_text()) == {KEY: {"date": "2026-11-20", "usd_per_hour": 0.25}}


@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException"])
def test_catalogue_is_used_where_the_price_list_does_not_answer(
    price_list: Stubber,
    platform: PlatformConfig,
    instance: InstanceType,
    tmp_path: Path,
    code: str,
    snapshot: SnapshotAssertion,
) -> None:
    price_list.add_client_error("get_products", code)
    priced, notices = price_instance(
        backend_of(platform), instance, tmp_path / "prices.json", TODAY
    )
    assert priced == instance
    assert notices == snapshot
    assert not (tmp_path / "prices.json").exists()


def test_catalogue_is_used_where_the_price_list_has_none(
    price_list: Stubber,
    platform: PlatformConfig,
    instance: InstanceType,
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    price_list.add_response("get_products", {"PriceList": []})
    priced, notices = price_instance(
        backend_of(platform), instance, tmp_path / "prices.json", TODAY
    )
    assert priced == instance
    assert notices[0] == snapshot


def test_a_processing_job_has_a_price_of_its_own_or_none(
    price_list: Stubber,
    platform: PlatformConfig,
    instance: InstanceType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_price(cache_file(), KEY, 0.5, datetime.now(UTC).date())  # of training
    price_list.add_response("get_products", {"PriceList": []})
    [(unknown, notices)] = current_prices(backend_of(platform), [(instance, PROCESSING)])
    assert price_of(unknown, "us-east-1").usd_per_hour is None
    assert notices[0] == snapshot
    filters = [{**one} for one in FILTERS]
    filters[1]["Value"] = "Processing"
    found = [product("USE1-Processing:ml.m5.xlarge"), product("USE1-Train:ml.m5.xlarge", "9")]
    price_list.add_response(
        "get_products",
        {"PriceList": found},
        {"ServiceCode": "AmazonSageMaker", "Filters": filters},
    )
    for _ in range(2):  # the second time it is kept
        [(priced, notices)] = current_prices(backend_of(platform), [(instance, PROCESSING)])
        assert (price_of(priced, "us-east-1").usd_per_hour, notices) == (0.25, ())
    unpriced = instance.model_copy(update={"on_demand_usd_per_hour": None})
    assert without_price(unpriced) == unpriced


def test_prices_are_asked_for_at_once(
    platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Price List that does not respond is awaited once, whatever the number of types."""
    types = ["ml.m5.xlarge", "ml.g5.2xlarge", "ml.p3.2xlarge"]
    asked = [(load_catalogue().get(name), TRAINING) for name in types]
    asked.append((asked[0][0], PROCESSING))
    together = threading.Barrier(len(asked), timeout=300)

    class PriceList:
        def get_products(self, Filters: list[dict[str, str]], **_: Any) -> Any:
            together.wait()  # raises where they are asked for one after the other
            component, name = Filters[1]["Value"], Filters[3]["Value"]
            usage = {"Training": "Train", "Processing": "Processing"}[component]
            return {"PriceList": [product(f"USE1-{usage}:{name}", f"{len(name)}.0")]}

    monkeypatch.setattr("nodesweep.tasks.report.pricing.aws_client", lambda *_, **__: PriceList())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    priced = current_prices(backend_of(platform), asked)
    assert [one.instance_type for one, _ in priced] == [*types, types[0]]
    assert all(one.on_demand_usd_per_hour == len(one.instance_type) for one, _ in priced)
    assert len(json.loads(cache_file().read_text())) == len(asked), "each is kept"


def test_emulated_node_is_never_asked_for(
    price_list: Stubber, platform: PlatformConfig, tmp_path: Path
) -> None:
    emulated = load_catalogue().get("ml.local.small")
    assert price_instance(backend_of(platform), emulated, tmp_path / "prices.json", TODAY) == (
        emulated,
        (),
    )


@pytest.mark.parametrize(
    ("read_on", "known"),
    [("2026-11-13", True), ("2026-11-12", False), ("2026-11-21", False), ("soon", False)],
)
def test_kept_price_holds_for_seven_days(tmp_path: Path, read_on: str, known: bool) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({KEY: {"usd_per_hour": 0.25, "date": read_on}}))
    assert (load_cached_price(path, KEY, TODAY) is not None) == known


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", f'{{"{KEY}": 3}}', f'{{"{KEY}": {{"usd_per_hour": 0, "date": "2026-11-20"}}}}'],
)
def test_damaged_file_holds_no_price(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    assert load_cached_price(path, KEY, TODAY) is None
    cache_price(path, "other", 1.5, TODAY)
    assert load_cached_price(path, "other", TODAY) == (1.5, TODAY)


def test_prices_are_kept_beside_each_other(tmp_path: Path) -> None:
    cache_price(tmp_path / "prices.json", "a", 1.0, TODAY)
    cache_price(tmp_path / "prices.json", "b", 2.0, TODAY)
    assert load_cached_price(tmp_path / "prices.json", "a", TODAY) == (1.0, TODAY)


def test_folder_that_takes_no_file_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "file").write_text("")
    cache_price(tmp_path / "file" / "prices.json", "a", 1.0, TODAY)
    assert [plain(each, folder=tmp_path) for each in caplog.messages] == snapshot


def test_the_prices_of_this_user_change_no_test() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    assert cache / "nodesweep" not in {cache_file().parent, table_file().parent}


def test_cache_lies_where_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file() == tmp_path / "nodesweep" / "prices.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert cache_file() == tmp_path / "home" / ".cache" / "nodesweep" / "prices.json"
