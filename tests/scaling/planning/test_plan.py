"""Batch sizes, learning rates, order, cost bound, and every problem of a plan."""

from __future__ import annotations

import pytest

from configs.catalogue import PACKAGED_CATALOGUE, load_catalogue
from configs.load import load_config
from scaling.planning.plan import fill_placeholders, hyperparameter_problems, plan_sweep, scaled_learning_rate


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
    assert plan.problems == ()


def test_fixed_per_replica_grows_the_batch_and_the_learning_rate(make_config):
    config = make_config(
        training={"batch": {"policy": "fixed_per_replica", "size": 8}},
        sweep={"node_counts": [2, 4], "repeats": 1, "order": "ascending"},
    )
    two, four = plan_of(config).points
    assert (two.global_batch_size, four.global_batch_size, four.per_replica_batch_size) == (16, 32, 8)
    assert (two.learning_rate, four.learning_rate) == pytest.approx((0.1, 0.2))


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_learning_rate_rules(rule, expected, make_config):
    rate = make_config(training={"learning_rate": {"value": 0.1, "rule": rule}}).training.learning_rate
    assert scaled_learning_rate(rate, global_batch=256, base_global_batch=64) == pytest.approx(expected)


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
    ("attempts", "node_hours", "text"),
    [(1, 6.2, "x 1 attempt each, x "), (3, 18.6, "x 3 attempts each, x ")],
)
def test_cost_bound_by_hand(attempts, node_hours, text, make_config):
    # (1 + 2) nodes x 2 repeats x (1 h + 120 s to stop) = 6.2 node-hours, once per attempt
    plan = plan_of(make_config(sweep={"node_counts": [1, 2], "repeats": 2, "max_attempts": attempts}))
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    assert plan.cost_bound_usd == pytest.approx(node_hours * price)
    included = "6.2 node-hours, 120 s to stop per job included and the time to download and upload not, "
    assert plan.cost_bound_reason.startswith(included + text)


def test_the_cost_bound_holds_the_warm_pools(make_config):
    # (1 + 2) nodes x 2 repeats x (1 h + 120 s to stop + 0.5 h kept) = 9.2 node-hours, in each of 2 attempts
    plan = plan_of(
        make_config(
            training={"keep_alive_seconds": 1800}, sweep={"node_counts": [1, 2], "repeats": 2, "max_attempts": 2}
        )
    )
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    assert plan.cost_bound_usd == pytest.approx(18.4 * price)
    assert plan.cost_bound_reason.startswith(
        "9.2 node-hours, 120 s to stop and 1800 s of warm pool per job included "
        "and the time to download and upload not, x 2 attempts each, x "
    )


def test_waiting_for_spot_and_the_platforms_retries_cost_nothing_more(make_config):
    on_demand = plan_of(make_config())
    spot = plan_of(make_config(training={"spot": {"max_wait_seconds": 86_400}, "checkpoints": {}, "retry_attempts": 9}))
    assert spot.cost_bound_usd == on_demand.cost_bound_usd
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    assert f"x on-demand {price} USD/h" in spot.cost_bound_reason


def test_a_budget_holds_every_attempt(make_config):
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    once = {"node_counts": [1], "repeats": 1, "max_attempts": 1, "budget_usd": 1.5 * price}
    assert plan_of(make_config(sweep=once)).problems == ()
    (problem,) = plan_of(make_config(sweep={**once, "max_attempts": 2})).problems
    assert "sweep.budget_usd" in problem and "max_attempts" in problem


def test_all_problems_are_named_at_once(make_config):
    config = make_config(
        training={
            "hyperparameters": {"epochs": 3, "long": "x" * 2499},
            "batch": {"policy": "fixed_global", "size": 63, "accumulate_grad_batches": 2},
            "learning_rate": {"value": 0.1, "rule": "sqrt"},
        },
        sweep={"node_counts": [1], "repeats": 1, "budget_usd": 0.01},
    )
    indivisible, batch, accumulation, rate, long, dear = plan_of(config).problems
    assert "training.batch.size: 63 does not divide by 2" in indivisible and "use 62 or 64" in indivisible
    assert "no value holds {per_replica_batch_size} or {global_batch_size}" in batch and "fixed_global" in batch
    assert "no value holds {accumulate_grad_batches}" in accumulation and "2 batches per step" in accumulation
    assert "no value holds {learning_rate}" in rate and "rule sqrt" in rate
    assert "'long' is 2501 characters" in long
    assert "sweep.budget_usd: 0.01 is less than" in dear


@pytest.mark.parametrize("policy", ["fixed_global", "fixed_per_replica"])
@pytest.mark.parametrize(
    ("value", "reached"), [("{per_replica_batch_size}", True), ("b={global_batch_size}", True), (8, False)]
)
def test_the_batch_must_reach_the_program_under_both_policies(policy, value, reached, make_config):
    hyperparameters = {"batch": value, "lr": "{learning_rate}"}
    config = make_config(training={"batch": {"policy": policy, "size": 64}, "hyperparameters": hyperparameters})
    assert (plan_of(config).problems == ()) is reached


def test_what_stays_at_its_default_need_not_reach_the_program(make_config):
    config = make_config(
        training={
            "hyperparameters": {"b": "{global_batch_size}"},
            "learning_rate": {"value": 0.1, "rule": "none"},
            "batch": {"policy": "fixed_global", "size": 64, "accumulate_grad_batches": 1},
        }
    )
    assert plan_of(config).problems == ()


def test_a_hyperparameters_length_is_checked_where_its_placeholders_make_it_longest(make_config):
    # JSON: 2 quotes + 2,497 x + the batch's digits: 2,500 with "8" on 8 nodes, 2,501 with "64" on one
    hyperparameters = {"b": "x" * 2497 + "{per_replica_batch_size}", "lr": "{learning_rate}"}
    for nodes, problems in (([8], 0), ([1, 8], 1)):
        config = make_config(training={"hyperparameters": hyperparameters}, sweep={"node_counts": nodes, "repeats": 1})
        assert len(plan_of(config).problems) == problems


def test_limits_of_the_service():
    within = {f"h{index}": "1" * 2500 for index in range(100)}
    assert hyperparameter_problems(within) == []
    long, many = hyperparameter_problems({**within, "last": "1" * 2501})
    assert hyperparameter_problems({"k" * 256: "1"}) == []
    (name,) = hyperparameter_problems({"k" * 257: "1"})
    assert name == f"training.hyperparameters: the name '{'k' * 37}'… is 257 characters; SageMaker takes 256"
    assert "'last' is 2501 characters as JSON; SageMaker takes 2500" in long
    assert "101 of them with the toolkit's own; SageMaker takes 100" in many


@pytest.mark.parametrize("name", ["local.yaml", "search_mlp_p3.yaml"])
def test_the_shipped_configs_pass(name):
    config = load_config(PACKAGED_CATALOGUE.with_name(name))
    assert plan_of(config).problems == ()


def test_a_budget_without_a_price_is_a_problem(make_config):
    config = make_config(training={"instance_type": "ml.local.small"}, sweep={"node_counts": [1], "budget_usd": 1.0})
    (problem,) = plan_of(config).problems
    assert "sweep.budget_usd: 1.0 can't be checked" in problem


def test_placeholders_keep_a_numbers_type(benchmark_config):
    point = plan_of(benchmark_config).points[0]
    assert fill_placeholders("{global_batch_size}", point) == 64
    assert fill_placeholders("b={global_batch_size}", point) == "b=64"
    assert (fill_placeholders(3, point), fill_placeholders('{"a": 1}', point)) == (3, '{"a": 1}')


OWN = {"batch": None, "learning_rate": None, "hyperparameters": {"epochs": 3, "shards": "{world_size}"}}


def test_a_program_may_bring_its_own_batch_and_learning_rate(make_config):
    plan = plan_of(make_config(training=OWN, sweep={"node_counts": [1, 2], "repeats": 1, "order": "ascending"}))
    assert plan.problems == () and plan.hints == ()
    assert [(p.nodes, p.world_size, p.seed) for p in plan.points] == [(1, 1, 1), (2, 2, 1)]
    for point in plan.points:
        assert (point.global_batch_size, point.per_replica_batch_size, point.accumulate_grad_batches) == (None,) * 3
        assert point.learning_rate is None
        assert fill_placeholders("{world_size}", point) == point.world_size


def test_a_learning_rate_without_a_batch_policy_is_the_same_everywhere(make_config):
    rate = {"value": 0.1, "rule": "none"}
    config = make_config(training={**OWN, "learning_rate": rate, "hyperparameters": {"lr": "{learning_rate}"}})
    assert {point.learning_rate for point in plan_of(config).points} == {0.1}


def test_a_batch_policy_without_a_learning_rate(make_config):
    batch = {"policy": "fixed_per_replica", "size": 8}
    config = make_config(training={**OWN, "batch": batch, "hyperparameters": {"b": "{per_replica_batch_size}"}})
    plan = plan_of(config)
    assert plan.problems == ()
    assert {(p.nodes, p.global_batch_size, p.learning_rate) for p in plan.points} == {(1, 8, None), (2, 16, None)}


def test_microbatches_of_a_batch_that_only_the_program_knows_are_not_judged(make_config):
    distribution = {"kind": "smp_v1", "partitions": 2, "microbatches": 3, "processes_per_node": 2}
    plan = plan_of(make_config(training={**OWN, "distribution": distribution, "instance_type": "ml.p3.16xlarge"}))
    assert not [problem for problem in plan.problems if "microbatches" in problem]
