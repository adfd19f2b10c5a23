"""Every problem that a plan finds is reported in one message."""

from __future__ import annotations

import pytest

from nodesweep.configs.catalogue import PACKAGED_CATALOGUE, load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.scaling.rules import offline
from nodesweep.scaling.rules.plan import hyperparameter_problems
from tests.nodesweep.scaling.rules.facts import facts_of

OWN = {
    "batch": None,
    "learning_rate": None,
    "hyperparameters": {"epochs": 3, "shards": "{world_size}"},
}


def check_all(config):
    return offline.check(facts_of(config))


def test_a_budget_holds_every_attempt(make_config):
    price = load_catalogue().get("ml.m5.xlarge").on_demand_usd_per_hour
    once = {"node_counts": [1], "repeats": 1, "max_attempts": 1, "budget_usd": 1.5 * price}
    assert check_all(make_config(sweep=once)).problems == ()
    (problem,) = check_all(make_config(sweep={**once, "max_attempts": 2})).problems
    assert "sweep.budget_usd" in problem and "max_attempts" in problem


def test_all_problems_are_named_at_once(make_config, snapshot):
    config = make_config(
        training={
            "hyperparameters": {"epochs": 3, "long": "x" * 2499},
            "batch": {"policy": "fixed_global", "size": 63, "accumulate_grad_batches": 2},
            "learning_rate": {"value": 0.1, "rule": "sqrt"},
        },
        sweep={"node_counts": [1], "repeats": 1, "budget_usd": 0.01},
    )
    indivisible, batch, accumulation, rate, long, dear = check_all(config).problems
    assert indivisible == snapshot
    assert batch == snapshot
    assert "fixed_global" in batch
    assert accumulation == snapshot
    assert rate == snapshot
    assert "rule sqrt" in rate
    assert long == snapshot
    assert dear == snapshot


@pytest.mark.parametrize("policy", ["fixed_global", "fixed_per_replica"])
@pytest.mark.parametrize(
    ("value", "reached"),
    [("{per_replica_batch_size}", True), ("b={global_batch_size}", True), (8, False)],
)
def test_the_batch_must_reach_the_program_under_both_policies(policy, value, reached, make_config):
    hyperparameters = {"batch": value, "lr": "{learning_rate}"}
    config = make_config(
        training={"batch": {"policy": policy, "size": 64}, "hyperparameters": hyperparameters}
    )
    assert (check_all(config).problems == ()) is reached


def test_what_stays_at_its_default_need_not_reach_the_program(make_config):
    config = make_config(
        training={
            "hyperparameters": {"b": "{global_batch_size}"},
            "learning_rate": {"value": 0.1, "rule": "none"},
            "batch": {"policy": "fixed_global", "size": 64, "accumulate_grad_batches": 1},
        }
    )
    assert check_all(config).problems == ()


def test_a_hyperparameters_length_is_checked_where_its_placeholders_make_it_longest(make_config):
    # JSON: 2 quotes + 2,497 x + the batch's digits: 2,500 with "8" on 8 nodes, 2,501 with "64" on
    # one
    hyperparameters = {"b": "x" * 2497 + "{per_replica_batch_size}", "lr": "{learning_rate}"}
    for nodes, problems in (([8], 0), ([1, 8], 1)):
        config = make_config(
            training={"hyperparameters": hyperparameters},
            sweep={"node_counts": nodes, "repeats": 1},
        )
        assert len(check_all(config).problems) == problems


def test_limits_of_the_service(snapshot):
    within = {f"h{index}": "1" * 2500 for index in range(100)}
    assert hyperparameter_problems(within) == []
    long, many = hyperparameter_problems({**within, "last": "1" * 2501})
    assert hyperparameter_problems({"k" * 256: "1"}) == []
    (name,) = hyperparameter_problems({"k" * 257: "1"})
    assert name == snapshot
    assert long == snapshot
    assert many == snapshot


@pytest.mark.parametrize("name", ["local.yaml", "search_mlp_p3.yaml"])
def test_the_shipped_configs_pass(name):
    config = load_config(PACKAGED_CATALOGUE.with_name(name))
    assert check_all(config).problems == ()


def test_a_budget_without_a_price_is_a_problem(make_config, snapshot):
    config = make_config(
        training={"instance_type": "ml.local.small"}, sweep={"node_counts": [1], "budget_usd": 1.0}
    )
    (problem,) = check_all(config).problems
    assert problem == snapshot


def test_microbatches_of_a_batch_that_only_the_program_knows_are_not_judged(make_config):
    distribution = {"kind": "smp_v1", "partitions": 2, "microbatches": 3, "processes_per_node": 2}
    found = check_all(
        make_config(
            training={**OWN, "distribution": distribution, "instance_type": "ml.p3.16xlarge"}
        )
    )
    assert not [problem for problem in found.problems if "microbatches" in problem]


def test_a_program_may_bring_its_own_batch_and_learning_rate(make_config):
    found = check_all(make_config(training=OWN, sweep={"node_counts": [1, 2], "repeats": 1}))
    assert (found.problems, found.hints) == ((), ())
    batch = {"policy": "fixed_per_replica", "size": 8}
    own_rate = {**OWN, "batch": batch, "hyperparameters": {"b": "{per_replica_batch_size}"}}
    assert check_all(make_config(training=own_rate)).problems == ()


def test_what_the_built_requests_show_is_a_problem_of_the_request(make_config, snapshot):
    facts = facts_of(make_config(), request_problems=("CreateTrainingJob request: tags: too many",))
    assert offline.check(facts).problems == snapshot
