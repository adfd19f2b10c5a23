"""The cost of a sweep's jobs, and the attempts that its budget and sweep.max_retries still
allow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import parse_config
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.planning.budget import (
    Allowance,
    budget_problem,
    charged_bound,
    cost_bound,
    most_attempts,
    node_hours_bound,
)
from tests.configs.test_slurm import RAW

STARTED = datetime(2026, 1, 2, tzinfo=UTC)
SWEEP = "bench-20260102000000-01234567"
DOLLAR_A_SECOND = 3600.0  # USD per node-hour


def job(nodes, attempt=1, repeat=1):
    return names.job_name(SWEEP, nodes, repeat, attempt, "abcd")


def status(state="completed", nodes=2, name="", **members):
    return JobStatus(name, state, nodes=nodes, **members)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"billable_seconds": 100}, 200),
        # spot
        ({"billable_seconds": 30, "billing_began_at": STARTED, "billing_ended_at": STARTED}, 60),
        ({"billing_began_at": STARTED, "billing_ended_at": STARTED + timedelta(seconds=70)}, 140),
        ({"billing_began_at": STARTED}, None),
        ({"state": "failed"}, 0),  # lack of capacity: it never started
        ({"state": "running", "billable_seconds": 100}, None),
        ({"state": "stopping"}, None),
    ],
)
def test_an_ended_job_counts_what_it_was_billed_on_every_node(members, expected):
    assert status(**members).billed_node_seconds == expected


@pytest.mark.parametrize(
    ("keep_alive", "retention", "retained", "counted"),
    [
        (600, "available", 30, 600),
        (600, "over", 30, 30),
        (600, "over", None, 0),
        (0, "available", 30, 30),  # released just now
        (600, None, None, 600),
    ],
)
def test_kept_nodes_count_in_full_until_their_time_is_final(
    keep_alive, retention, retained, counted
):
    ended = status(
        nodes=4,
        keep_alive_seconds=keep_alive,
        billable_seconds=100,
        retention=retention,
        retained_seconds=retained,
    )
    assert ended.billed_node_seconds == 4 * (100 + counted)


def allowance(make_config, usd_per_hour=DOLLAR_A_SECOND, **sweep):
    """Return the allowance for attempts of 200 s, 80 s of training and 120 s to stop, at a dollar
    per node-second."""
    return Allowance(
        make_config(training={"max_runtime_seconds": 80}, sweep=sweep), {"": usd_per_hour}
    )


def test_the_budget_holds_all_attempts_running_ones_in_full(make_config, snapshot):
    sweep = allowance(make_config, budget_usd=2000.0)
    sweep.count(job(4))  # 800 USD
    sweep.count(job(2))  # 400
    assert sweep.budget_problem(job(4, attempt=2)) is None  # 1200 + 800: exactly the budget
    assert sweep.budget_problem(job(8)) == snapshot
    sweep.settle(status(nodes=4, name=job(4), billable_seconds=10))
    sweep.settle(status("running", name=job(2)))
    assert sweep.node_seconds == {job(4): 40, job(2): 400}
    sweep.settle(status("failed", name=job(2)))
    assert sweep.budget_problem(job(8)) is None  # 40 + 1600
    sweep.count(job(8))
    assert sweep.budget_problem(job(8, attempt=2)) is not None
    sweep.forget(job(8))
    sweep.forget(job(8))
    assert sweep.budget_problem(job(8, attempt=2)) is None


def test_a_kept_pool_is_part_of_what_an_attempt_can_cost(make_config, snapshot):
    config = make_config(
        training={"max_runtime_seconds": 80, "keep_alive_seconds": 50},
        sweep={"budget_usd": 499.0, "repeats": 1},
    )
    assert str(Allowance(config, {"": DOLLAR_A_SECOND}).budget_problem(job(2))) == snapshot


def test_without_a_budget_or_a_price_nothing_is_held_back(make_config):
    for sweep in (
        allowance(make_config),
        allowance(make_config, usd_per_hour=None, budget_usd=1.0),
    ):
        sweep.count(job(8))
        assert sweep.budget_problem(job(8, attempt=2)) is None


def test_further_attempts_are_counted_over_the_whole_sweep(make_config, snapshot):
    sweep = allowance(make_config, max_retries=2)
    for name in (
        job(1),
        job(1, attempt=2),
        job(2),
        job(2, attempt=2),
        f"{SWEEP}-n1-of-somebody-else",
    ):
        sweep.count(name)
    assert sweep.retry_problem(job(4)) is None
    assert sweep.retry_problem(job(1, attempt=3)) == snapshot
    sweep.forget(job(2, attempt=2))
    assert sweep.retry_problem(job(1, attempt=3)) is None
    assert allowance(make_config, max_retries=None).retry_problem(job(1, attempt=9)) is None


def bound_of(config):
    return cost_bound(config, load_catalogue().get(config.training.instance_type))


@pytest.mark.parametrize(
    ("max_retries", "node_hours"),
    [
        # 1, 1, 8, 8 nodes for an hour and 120 s to stop, twice each, is 37.2 node-hours
        (None, 37.2),
        (4, 37.2),
        (3, 35 * 31 / 30),
        (0, 18.6),
    ],
)
def test_the_cost_bound_has_no_more_attempts_than_the_sweep_may_make(
    max_retries, node_hours, make_config, snapshot
):
    config = make_config(
        sweep={"node_counts": [1, 8], "repeats": 2, "max_attempts": 2, "max_retries": max_retries}
    )
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    bound, reason = bound_of(config)
    assert bound == pytest.approx(node_hours * price)
    assert reason == snapshot


def test_a_short_limit_counts_the_time_to_stop_which_is_longer(make_config):
    """A job that ignores SIGTERM at 60 s is killed at 180 s: three times the bill."""
    config = make_config(
        training={"max_runtime_seconds": 60}, sweep={"node_counts": [1], "max_attempts": 1}
    )
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    bound, _ = bound_of(config)
    assert bound == pytest.approx(180 / 3600 * price)


def test_a_budget_of_exactly_the_bound_holds_every_attempt(make_config):
    """Preflight and the run reckon alike: what the one lets pass, the other does not stop."""
    sweep = {"node_counts": [1, 2, 4, 8], "repeats": 3, "max_attempts": 3, "max_retries": 7}
    training = {"max_runtime_seconds": 4321, "keep_alive_seconds": 77}
    bound, reason = bound_of(make_config(sweep=sweep, training=training))
    config = make_config(sweep={**sweep, "budget_usd": bound}, training=training)
    assert budget_problem(bound, bound, reason, "add the price") is None
    full = Allowance(config, {"": load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour})
    points = [(nodes, repeat) for repeat in (1, 2, 3) for nodes in (8, 4, 2, 1)]
    further = [
        (nodes, repeat, attempt) for attempt in (2, 3) for nodes, repeat in points if nodes == 8
    ] + [(4, 1, 2)]
    for nodes, repeat, attempt in [(*point, 1) for point in points] + further:
        name = job(nodes, attempt, repeat)
        assert full.budget_problem(name) is None and full.retry_problem(name) is None, name
        full.count(name)
    assert full.budget_problem(job(1, attempt=3)) is not None


def test_a_clusters_nodes_without_a_price_have_node_hours_and_no_budget(snapshot):
    platform = {**RAW["platform"], "node": {"cores": 1}}
    sweep = {**RAW["sweep"], "budget_usd": 5, "max_attempts": 2}
    config = parse_config({**RAW, "platform": platform, "sweep": sweep}, "the config")
    hours, how = node_hours_bound(config.sweep, config.training)
    assert hours == pytest.approx((1 + 2) * 2 * 720 / 3600)
    assert most_attempts(config.sweep) == 4
    instance = config.node_type("fat-node")
    usd, reason = cost_bound(config, instance)
    assert [how, usd, budget_problem(5.0, usd, reason, instance.price_remedy)] == snapshot


def test_node_hours_are_the_bound_where_they_are_the_cost(make_config):
    config = make_config()
    price = Price(instance_type=None, usd_per_hour=None)
    assert charged_bound(config, price) is None
    charged = price.model_copy(update={"unit": "node-hours"})
    assert charged_bound(config, charged) == node_hours_bound(config.sweep, config.training)
