"""Batch sizes, learning rates, order and maximum cost."""

from __future__ import annotations

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.planning.plan import fill_placeholders, plan_sweep, scaled_learning_rate


def plan_of(config):
    return plan_sweep(config, load_catalogue().get(config.training.instance_type))


def test_fixed_global_divides_the_batch(make_config):
    config = make_config(
        training={
            "batch": {"policy": "fixed_global", "size": 64, "accumulate_grad_batches": 2},
            "hyperparameters": {
                "b": "{per_replica_batch_size}",
                "k": "{accumulate_grad_batches}",
                "lr": "{learning_rate}",
            },
        },
        sweep={"node_counts": [1, 2, 4], "repeats": 1, "order": "ascending"},
    )
    plan = plan_of(config)
    assert [(p.world_size, p.global_batch_size, p.per_replica_batch_size) for p in plan.points] == [
        (1, 64, 32),
        (2, 64, 16),
        (4, 64, 8),
    ]


def test_fixed_per_replica_grows_the_batch_and_the_learning_rate(make_config):
    config = make_config(
        training={"batch": {"policy": "fixed_per_replica", "size": 8}},
        sweep={"node_counts": [2, 4], "repeats": 1, "order": "ascending"},
    )
    two, four = plan_of(config).points
    assert (two.global_batch_size, four.global_batch_size, four.per_replica_batch_size) == (
        16,
        32,
        8,
    )
    assert (two.learning_rate, four.learning_rate) == pytest.approx((0.1, 0.2))


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_learning_rate_rules(rule, expected, make_config):
    rate = make_config(
        training={"learning_rate": {"value": 0.1, "rule": rule}}
    ).training.learning_rate
    assert scaled_learning_rate(rate, global_batch=256, base_global_batch=64) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("instance_type", "kind", "processes"),
    [
        ("ml.m5.xlarge", "torch_distributed", 1),
        ("ml.p3.16xlarge", "torch_distributed", 8),
        ("ml.p3.16xlarge", "none", 1),
        ("ml.trn1.32xlarge", "torch_distributed", 32),
    ],
)
def test_processes_per_node_follow_the_devices(instance_type, kind, processes, make_config):
    config = make_config(training={"instance_type": instance_type, "distribution": {"kind": kind}})
    assert plan_of(config).processes_per_node == processes


def test_order_is_a_reproducible_shuffle_of_each_repeat(make_config):
    sweep = {"node_counts": [1, 2, 4, 8], "repeats": 3, "order": "shuffled", "order_seed": 7}
    plan = plan_of(make_config(sweep=sweep))
    assert plan == plan_of(make_config(sweep=sweep))
    assert [p.repeat for p in plan.points] == [1] * 4 + [2] * 4 + [3] * 4
    assert all(sorted(p.nodes for p in plan.points[i : i + 4]) == [1, 2, 4, 8] for i in (0, 4, 8))
    assert {(p.repeat, p.seed) for p in plan.points} == {(1, 1), (2, 2), (3, 3)}


@pytest.mark.parametrize(
    ("attempts", "node_hours"),
    [(1, 6.2), (3, 18.6)],
)
def test_cost_bound_by_hand(attempts, node_hours, make_config, snapshot):
    # (1 + 2) nodes x 2 repeats x (1 h + 120 s to stop) = 6.2 node-hours, once per attempt
    plan = plan_of(
        make_config(sweep={"node_counts": [1, 2], "repeats": 2, "max_attempts": attempts})
    )
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    assert plan.cost_bound_usd == pytest.approx(node_hours * price)
    assert plan.cost_bound_reason == snapshot


def test_the_cost_bound_holds_the_warm_pools(make_config, snapshot):
    # (1 + 2) nodes x 2 repeats x (1 h + 120 s to stop + 0.5 h kept) = 9.2 node-hours, in each of 2
    # attempts
    plan = plan_of(
        make_config(
            training={"keep_alive_seconds": 1800},
            sweep={"node_counts": [1, 2], "repeats": 2, "max_attempts": 2},
        )
    )
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    assert plan.cost_bound_usd == pytest.approx(18.4 * price)
    assert plan.cost_bound_reason == snapshot


def test_waiting_for_spot_and_the_platforms_retries_cost_nothing_more(make_config):
    on_demand = plan_of(make_config())
    spot = plan_of(
        make_config(
            training={"spot": {"max_wait_seconds": 86_400}, "checkpoints": {}, "retry_attempts": 9}
        )
    )
    assert spot.cost_bound_usd == on_demand.cost_bound_usd
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    assert f" {price} USD/h" in spot.cost_bound_reason


def test_placeholders_keep_a_numbers_type(benchmark_config):
    point = plan_of(benchmark_config).points[0]
    assert fill_placeholders("{global_batch_size}", point) == 64
    assert fill_placeholders("b={global_batch_size}", point) == "b=64"
    assert (fill_placeholders(3, point), fill_placeholders('{"a": 1}', point)) == (3, '{"a": 1}')


OWN = {
    "batch": None,
    "learning_rate": None,
    "hyperparameters": {"epochs": 3, "shards": "{world_size}"},
}


def test_a_program_may_bring_its_own_batch_and_learning_rate(make_config):
    plan = plan_of(
        make_config(training=OWN, sweep={"node_counts": [1, 2], "repeats": 1, "order": "ascending"})
    )
    assert [(p.nodes, p.world_size, p.seed) for p in plan.points] == [(1, 1, 1), (2, 2, 1)]
    for point in plan.points:
        assert (
            point.global_batch_size,
            point.per_replica_batch_size,
            point.accumulate_grad_batches,
        ) == (None,) * 3
        assert point.learning_rate is None
        assert fill_placeholders("{world_size}", point) == point.world_size


def test_a_learning_rate_without_a_batch_policy_is_the_same_everywhere(make_config):
    rate = {"value": 0.1, "rule": "none"}
    config = make_config(
        training={**OWN, "learning_rate": rate, "hyperparameters": {"lr": "{learning_rate}"}}
    )
    assert {point.learning_rate for point in plan_of(config).points} == {0.1}


def test_a_batch_policy_without_a_learning_rate(make_config):
    batch = {"policy": "fixed_per_replica", "size": 8}
    config = make_config(
        training={**OWN, "batch": batch, "hyperparameters": {"b": "{per_replica_batch_size}"}}
    )
    plan = plan_of(config)
    assert {(p.nodes, p.global_batch_size, p.learning_rate) for p in plan.points} == {
        (1, 8, None),
        (2, 16, None),
    }
