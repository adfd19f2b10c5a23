"""Node-seconds, prices, and the cost of a run, of an epoch and of a target."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.analysis.cost import run_costs, seconds_to_target
from nodesweep.scaling.analysis.price import (
    Price,
    node_cost_usd,
    old_price_text,
    price_of,
    unknown_price,
)
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from tests.nodesweep.scaling.conftest import summarise

# One cent per node-second.
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=36)


def test_price_carries_region_source_and_date():
    instance = load_catalogue().get("ml.p3.16xlarge")
    price = price_of(instance, instance.price_region)
    assert price.usd_per_hour == instance.on_demand_usd_per_hour
    assert (price.region, price.source, price.date) == (
        instance.price_region,
        instance.price_source,
        instance.price_date.isoformat(),
    )


def test_an_unknown_price_says_why(snapshot):
    price = price_of(load_catalogue().get("ml.local.small"), "us-east-1")
    assert price.usd_per_hour is None
    assert price.reason == snapshot


def test_another_regions_price_is_no_price(snapshot):
    price = price_of(load_catalogue().get("ml.p3.16xlarge"), "eu-west-1")
    assert price.usd_per_hour is None
    assert price.reason == snapshot


@pytest.mark.parametrize(
    ("price", "text"),
    [
        ({"date": "2026-08-28"}, "is from 2026-08-28 (91 days old)"),
        ({"date": "2026-08-29"}, None),
        ({"date": "2027-01-01"}, None),
        ({}, None),
        ({"date": "2020-01-01", "usd_per_hour": None}, None),
    ],
    ids=["old", "90 days", "of tomorrow", "undated", "unknown"],
)
def test_a_price_over_90_days_says_its_age(price, text):
    asked = Price(**{"instance_type": "ml.m5.xlarge", "usd_per_hour": 1, **price})
    assert old_price_text(asked, date(2026, 11, 27)) == text


def test_cost_of_node_seconds_by_hand():
    # 8 nodes x 450 s = 3,600 node-seconds = one node-hour
    assert node_cost_usd(8, 450, Price(instance_type=None, usd_per_hour=28.152)) == pytest.approx(
        28.152
    )


@pytest.mark.parametrize(
    ("billable", "price"),
    [
        (None, Price(instance_type=None, usd_per_hour=1)),
        (10, None),
        (10, unknown_price(None, "not asked")),
    ],
)
def test_unknown_time_or_price_makes_an_unknown_cost(billable, price):
    assert node_cost_usd(2, billable, price) is None


@pytest.fixture
def run(make_outcome):
    """Return a run, as in run(nodes, train seconds, billable seconds, epochs=…,
    validations=[(seconds, loss)…], **outcome fields)."""

    def make(nodes, train, billable, epochs=10, validations=(), goal="minimize", **fields):
        metrics = {
            "epochs": epochs,
            "final_metric": {"name": "loss", "value": 0.1, "goal": goal},
            "validations": [{"elapsed_seconds": at, "value": value} for at, value in validations],
        }
        return make_outcome(
            nodes,
            train,
            clocks=Clocks(billable_seconds=billable, train_seconds=train),
            metrics=metrics,
            **fields,
        )

    return make


def costs_of(outcome, to_target=None, price=PRICE):
    return run_costs(outcome, price, outcome.clocks.train_seconds, to_target)


def test_a_run_is_billed_with_its_start_up_and_an_epoch_is_not(run):
    # 4 nodes x 130 s; 4 x 100 s over 10 epochs
    costs = costs_of(run(4, 100, 130))
    assert (costs.run_usd, costs.on_demand_usd, costs.epoch_usd) == pytest.approx(
        (5.20, 5.20, 0.40)
    )
    assert (costs.warm_pool_usd, costs.target_usd) == (None, None)


@pytest.mark.parametrize("epochs", [None, 0, -1])
def test_no_epoch_no_cost_of_one(run, epochs):
    assert costs_of(run(4, 100, 130, epochs=epochs)).epoch_usd is None


def test_without_a_price_every_cost_is_unknown(run):
    outcome = run(
        4, 100, 130, spot=True, training_time_seconds=200.0, retained_billable_seconds=60.0
    )
    assert set(costs_of(outcome, 50, unknown_price(None, "none")).model_dump().values()) == {None}


def test_a_spot_run_costs_its_reduced_time_and_shows_what_on_demand_costs(run):
    costs = costs_of(run(2, 100, 39, spot=True, training_time_seconds=130.0))
    assert (costs.run_usd, costs.on_demand_usd) == pytest.approx((0.78, 2.60))
    assert costs_of(run(2, 100, 39, spot=True)).on_demand_usd is None


def test_a_retained_warm_pool_costs_on_top(run):
    costs = costs_of(run(2, 100, 130, retained_billable_seconds=600.0))
    assert (costs.run_usd, costs.warm_pool_usd, costs.total_usd) == pytest.approx(
        (2.60, 12.00, 14.60)
    )
    assert costs_of(run(2, 100, 130)).total_usd == pytest.approx(2.60)
    assert costs_of(run(2, 100, None, retained_billable_seconds=600.0)).total_usd is None


def test_a_given_cost_beats_the_price_of_the_run_alone(run):
    costs = costs_of(run(2, 100, 130, given_cost_usd=7.5))
    assert (costs.run_usd, costs.epoch_usd) == pytest.approx((7.5, 0.20))
    assert costs_of(run(2, 100, 130, given_cost_usd=7.5), price=None).run_usd == 7.5


def test_cost_to_target_leaves_out_the_training_after_it(run):
    # Billed 130 s, of which the last 40 of 100 s of training came after the target: 90 s on 2 nodes
    assert costs_of(run(2, 100, 130), 60).target_usd == pytest.approx(1.80)
    # Reached at the very end, or in an evaluation after it: the whole run
    assert costs_of(run(2, 100, 130), 100).target_usd == pytest.approx(2.60)
    assert costs_of(run(2, 100, 130), 105).target_usd == pytest.approx(2.60)


def test_cost_to_target_of_a_spot_run_is_a_share_of_the_reduced_time(run):
    # Target at 60 of 100 s, 90 of 130 s with the start-up; billed 39 s in all, 27 s until then
    outcome = run(2, 100, 39, spot=True, training_time_seconds=130.0)
    assert costs_of(outcome, 60).target_usd == pytest.approx(0.54)


def test_cost_to_target_is_never_more_than_the_run_nor_less_than_the_training_up_to_it(run):
    # Billed in whole seconds, or with a shorter billed time than the program's own clock
    assert costs_of(run(1, 100.4, 100), 100.2).target_usd == pytest.approx(1.0)
    assert costs_of(run(1, 100, 70), 60).target_usd == pytest.approx(0.60)


def test_cost_to_target_needs_the_programs_own_clock(run):
    outcome = run(2, 120, 130, train_clock="training_phase")
    assert costs_of(outcome, 60).target_usd is None
    assert costs_of(run(2, 100, None), 60).target_usd is None
    assert costs_of(run(2, 100, 39, spot=True), 60).target_usd is None


def test_the_first_validation_that_reaches_the_target_counts(run):
    validations = [(30, 0.5), (20, 0.6), (40, 0.3), (50, 0.4)]
    assert seconds_to_target(run(1, 60, 60, validations=validations), 0.4) == 40
    assert seconds_to_target(run(1, 60, 60, validations=validations), 0.5) == 30
    assert seconds_to_target(run(1, 60, 60, validations=validations), 0.2) is None
    assert seconds_to_target(run(1, 60, 60, validations=validations, goal="maximize"), 0.6) == 20


def test_without_target_goal_or_metric_nothing_is_reached(run, make_outcome):
    validations = [(30, 0.5)]
    assert seconds_to_target(run(1, 60, 60, validations=validations), None) is None
    assert seconds_to_target(run(1, 60, 60, validations=validations, goal=None), 0.9) is None
    assert seconds_to_target(make_outcome(1, 60), 0.9) is None


node_counts = st.integers(2, 512)
seconds = st.floats(0.1, 1e6)


def completed(nodes: int, train: float, billable: float) -> JobOutcome:
    return JobOutcome(
        nodes=nodes,
        repeat=1,
        attempt=1,
        job_name=f"n{nodes}",
        status="Completed",
        platform_kind="aws",
        clocks=Clocks(train_seconds=train, billable_seconds=billable),
        train_clock="program",
        metrics={"epochs": 3},
    )


@given(node_counts, seconds, seconds, seconds, seconds)
def test_cost_ratios_are_those_of_node_time(nodes, train, base_train, billable, base_billable):
    """C(N)/C(N0) = N/N0 x billable(N)/billable(N0), and per epoch, on the train clock, 1/E(N)."""
    base, row = summarise(
        [completed(1, base_train, base_billable), completed(nodes, train, billable)], PRICE
    )
    assert row.costs.run_usd / base.costs.run_usd == pytest.approx(nodes * billable / base_billable)
    assert row.costs.epoch_usd / base.costs.epoch_usd == pytest.approx(1 / row.train.efficiency)
