"""Hints on learning rate, batch normalization and larger instances, with numbers worked out by
hand."""

from __future__ import annotations

import pytest

from nodesweep.scaling.rules import offline
from nodesweep.scaling.rules.learning import DATA_PARALLEL_BYTES
from nodesweep.scaling.rules.rule import Files
from tests.nodesweep.scaling.rules.facts import facts_of

GROWING = {"policy": "fixed_per_replica", "size": 32}


def hyperparameters(**own):
    return {"batch": "{per_replica_batch_size}", "lr": "{learning_rate}", **own}


@pytest.mark.parametrize(
    ("name", "optimiser", "rule", "fitting"),
    [
        ("optimizer", "sgd", "sqrt", "linear"),
        ("optimizer", "SGD", "none", "linear"),
        ("optimizer", "adamw", "linear", "sqrt"),
        ("Optim", "Adam", "linear", "sqrt"),
    ],
)
def test_a_rule_that_is_not_the_optimisers(name, optimiser, rule, fitting, check_config, snapshot):
    plan = check_config(
        training={
            "batch": GROWING,
            "learning_rate": {"value": 0.1, "rule": rule},
            "hyperparameters": hyperparameters(**{name: optimiser}),
        }
    )
    assert plan.problems == ()
    assert plan.hints == snapshot


@pytest.mark.parametrize(
    ("batch", "counts", "optimiser", "rule"),
    [
        (GROWING, [1, 2], "sgd", "linear"),
        (GROWING, [1, 2], "adam", "sqrt"),
        (GROWING, [1, 2], "lamb", "linear"),  # nothing is known of it here
        (GROWING, [2], "sgd", "sqrt"),  # one point: nothing grows
        ({"policy": "fixed_global", "size": 64}, [1, 2], "sgd", "sqrt"),
    ],
)
def test_a_rule_that_fits_or_has_no_effect(batch, counts, optimiser, rule, check_config):
    plan = check_config(
        training={
            "batch": batch,
            "learning_rate": {"value": 0.1, "rule": rule},
            "hyperparameters": hyperparameters(optimizer=optimiser),
        },
        sweep={"node_counts": counts},
    )
    assert plan.hints == ()


@pytest.mark.parametrize(
    ("size", "optimiser", "rate"),
    [
        pytest.param(32, "sgd", None, id="no rate"),
        pytest.param(32, "", None, id="no rate, optimizer unknown"),
        pytest.param(8192, "sgd", {"value": 0.1, "rule": "linear"}, id="beyond the linear rule"),
        pytest.param(8192, "adamw", None, id="Adam, no rate"),
    ],
)
def test_a_growing_batch_is_judged_by_what_is_known(size, optimiser, rate, check_config, snapshot):
    own = {"batch": "{per_replica_batch_size}", "optimizer": optimiser}
    plan = check_config(
        training={
            "batch": {"policy": "fixed_per_replica", "size": size},
            "learning_rate": rate,
            "hyperparameters": own if rate is None else {**own, "lr": "{learning_rate}"},
        },
        sweep={"node_counts": [1, 8]},
    )
    assert plan.problems == ()
    assert plan.hints == snapshot


def test_adam_with_a_rate_has_no_limit_in_samples(check_config):
    plan = check_config(
        training={
            "batch": {"policy": "fixed_per_replica", "size": 8192},
            "learning_rate": {"value": 0.1, "rule": "sqrt"},
            "hyperparameters": hyperparameters(optimizer="adam"),
        },
        sweep={"node_counts": [1, 8]},
    )
    assert plan.hints == ()


def test_probes_of_a_growing_batch_recommend_nothing(check_config, snapshot):
    found = check_config(
        training={"batch": GROWING}, sweep={"node_counts": [1, 2], "design": "probe"}
    )
    assert [hint for hint in found.hints if "global batch differs" in hint] == snapshot


def test_the_batch_of_64_that_becomes_2_on_32_gpus(check_config, snapshot):
    # 4 ml.p3dn.24xlarge of 8 V100: 64 / 32 = 2 per GPU; on one node 64 / 8 = 8
    training = {"instance_type": "ml.p3dn.24xlarge", "distribution": {"kind": "torch_distributed"}}
    training["environment"] = {"FI_PROVIDER": "efa"}
    assert check_config(training=training, sweep={"node_counts": [1, 4]}).hints == snapshot


@pytest.mark.parametrize(
    ("batch", "counts"),
    [
        ({"policy": "fixed_global", "size": 64}, [1, 4]),  # 64 / 4 = 16, the fewest that are enough
        ({"policy": "fixed_global", "size": 8}, [1]),  # the same at every point
        ({"policy": "fixed_per_replica", "size": 8}, [1, 4]),
    ],
)
def test_no_hint_where_samples_suffice_or_stay_the_same(batch, counts, check_config):
    assert check_config(training={"batch": batch}, sweep={"node_counts": counts}).hints == ()


def test_a_batch_that_leaves_nothing_is_a_problem_and_no_hint(check_config):
    plan = check_config(
        training={"batch": {"policy": "fixed_global", "size": 2}}, sweep={"node_counts": [1, 4]}
    )
    assert len(plan.problems) == 1 and plan.hints == ()


@pytest.mark.parametrize(
    ("instance_type", "counts"),
    [
        # 4 x 1 T4 on one g4dn.12xlarge; 8 nodes fit on none, so 4 is the largest point that does
        ("ml.g4dn.xlarge", [1, 2, 4, 8]),
        ("ml.p3.2xlarge", [2, 8]),
        # 12xlarge and 24xlarge both hold 4: the cheaper one is named
        ("ml.g5.2xlarge", [3]),
    ],
)
def test_a_larger_instance_that_holds_the_nodes(instance_type, counts, check_config, snapshot):
    training = {"instance_type": instance_type, "batch": GROWING}
    assert check_config(training=training, sweep={"node_counts": counts}).hints == snapshot


@pytest.mark.parametrize(
    ("instance_type", "counts"),
    [
        ("ml.g4dn.xlarge", [1]),
        ("ml.p3.16xlarge", [1, 2]),
        ("ml.m5.large", [1, 2]),
        ("ml.g4dn.xlarge", [1, 8]),
    ],
)
def test_no_larger_instance_where_none_holds_them(instance_type, counts, check_config):
    training = {"instance_type": instance_type, "batch": GROWING}
    assert check_config(training=training, sweep={"node_counts": counts}).hints == ()


def test_no_larger_instance_where_nobody_knows_how_many_devices_there_are(check_config):
    plan = check_config(
        training={"instance_type": "ml.trn2.48xlarge", "batch": GROWING},
        sweep={"node_counts": [1, 2]},
    )
    assert plan.problems == ()
    assert "larger instance" not in str(plan.hints)


@pytest.mark.parametrize("size", [1, 1_500_000_000])
def test_a_dataset_that_may_be_too_small_for_several_nodes(size, make_config, snapshot):
    found = offline.check(facts_of(make_config(), files=Files(dataset_bytes=size)))
    assert found.problems == ()
    assert found.hints == snapshot


@pytest.mark.parametrize(
    ("size", "sections"),
    [
        (None, {}),
        (DATA_PARALLEL_BYTES, {}),
        (1, {"sweep": {"node_counts": [1]}}),
        (1, {"training": {"instance_type": "ml.local.small"}}),
    ],
    ids=["unknown", "large", "one node", "emulated"],
)
def test_no_word_about_a_dataset_of_enough_or_unknown_size(size, sections, make_config):
    found = offline.check(facts_of(make_config(**sections), files=Files(dataset_bytes=size)))
    assert [hint for hint in found.hints if hint.startswith("dataset.source")] == []
