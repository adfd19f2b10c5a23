"""Node-seconds and prices."""

import pytest

from configs.catalogue import load_catalogue
from scaling.cost import Price, node_seconds, price_of, run_cost_usd, unknown_price


def test_price_carries_region_source_and_date():
    instance = load_catalogue().get("ml.p3.16xlarge")
    price = price_of(instance, instance.price_region)
    assert price.usd_per_hour == instance.on_demand_usd_per_hour
    assert (price.region, price.source, price.date) == (
        instance.price_region,
        instance.price_source,
        instance.price_date.isoformat(),
    )


def test_an_unknown_price_says_why():
    price = price_of(load_catalogue().get("ml.local.small"), "us-east-1")
    assert (price.usd_per_hour, price.reason) == (None, "an emulated node has no price")


def test_another_regions_price_is_no_price():
    price = price_of(load_catalogue().get("ml.p3.16xlarge"), "eu-west-1")
    assert price.usd_per_hour is None
    assert "us-east-1, the nodes ran in eu-west-1" in price.reason


def test_cost_of_one_run_by_hand():
    # 8 nodes x 450 s = 3,600 node-seconds = one node-hour
    assert node_seconds(8, 450) == 3600
    assert run_cost_usd(8, 450, Price(instance_type=None, usd_per_hour=28.152)) == pytest.approx(28.152)


@pytest.mark.parametrize(
    ("billable", "price"),
    [(None, Price(instance_type=None, usd_per_hour=1)), (10, None), (10, unknown_price(None, "not asked"))],
)
def test_unknown_time_or_price_makes_an_unknown_cost(billable, price):
    assert run_cost_usd(2, billable, price) is None
