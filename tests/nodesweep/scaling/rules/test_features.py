"""Spot, warm pools, network, keys and channels: each rule with the input that violates it and its
message."""

from __future__ import annotations

import pytest

from nodesweep.scaling.rules import offline
from nodesweep.scaling.rules.rule import Files
from tests.nodesweep.scaling.rules.facts import facts_of

VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p5-march"
EFS = {"type": "EFS", "id": "fs-01234567", "directory_path": "/data"}
S3 = {"type": "S3", "uri": "s3://other/labels/"}
SHIPPED = {"context": "../infra/image"}


def test_the_small_config_has_neither_problems_nor_hints(check_config):
    plan = check_config()
    assert (plan.problems, plan.hints) == ((), ())


@pytest.mark.parametrize(
    "distribution",
    [
        {"kind": "smp_v1", "partitions": 2, "ddp": True},
        {"kind": "smp_v2", "hybrid_shard_degree": 4, "tensor_parallel_degree": 2},
        {"kind": "smp_v2", "hybrid_shard_degree": 4, "expert_parallel_degree": 8},
    ],
)  # fmt: skip
def test_a_model_split_in_a_way_that_the_shipped_program_has_not(
    distribution, check_config, snapshot
):
    training = {"distribution": distribution, "instance_type": "ml.p4d.24xlarge"}
    (problem,) = check_config(training=training, image=SHIPPED).problems
    assert problem == snapshot
    assert check_config(training=training).problems == ()  # another program
    whole = {"kind": "smp_v2", "hybrid_shard_degree": 8}
    assert check_config(training={**training, "distribution": whole}, image=SHIPPED).problems == ()


@pytest.mark.parametrize("amount", ["baseline_seconds", "steps"])
def test_the_shipped_program_has_one_amount_of_work(check_config, amount):
    training = {amount: 40, "hyperparameters": {"max_steps": 9, "seed": 1}}
    start = "training.hyperparameters: max_steps (9) sets the amount of work"

    def refused(**changes):
        problems = check_config(training=training, **changes).problems
        return [problem for problem in problems if problem.startswith(start)]

    (problem,) = refused(image=SHIPPED)
    assert f"training.{amount} (40)" in problem
    assert refused() == []  # another program
    del training[amount]
    assert refused(image=SHIPPED) == []


def test_spot_with_a_wait_shorter_than_the_run(check_config, snapshot):
    (problem,) = check_config(
        training={"spot": {"max_wait_seconds": 3599}, "checkpoints": {}}
    ).problems
    assert problem == snapshot
    assert (
        check_config(training={"spot": {"max_wait_seconds": 3600}, "checkpoints": {}}).problems
        == ()
    )


def test_spot_with_a_warm_pool(check_config, snapshot):
    spot = {"spot": {"max_wait_seconds": 3600}, "checkpoints": {}}
    (problem,) = check_config(training={**spot, "keep_alive_seconds": 600}).problems
    assert problem == snapshot
    assert check_config(training={**spot, "keep_alive_seconds": 0}).problems == ()


def test_a_training_plan_and_mlflow_of_another_region_and_account(check_config, snapshot):
    elsewhere = "arn:aws:sagemaker:eu-west-1:999999999999"
    training = {
        "training_plan_arn": f"{elsewhere}:training-plan/p5-march",
        "mlflow": {"resource_arn": f"{elsewhere}:mlflow-app/bench"},
    }
    assert check_config(training=training).problems == snapshot


@pytest.mark.parametrize(
    ("instance_type", "nodes", "refused"),
    [
        ("ml.m5.xlarge", 2, True),
        ("ml.p6e-gb200.36xlarge", 19, True),
        ("ml.p6e-gb200.36xlarge", 18, False),
    ],
)
def test_placement_is_on_one_ultra_server(instance_type, nodes, refused, check_config, snapshot):
    found = check_config(
        training={
            "instance_type": instance_type,
            "placement": {"ultra_server_id": "us-0123", "share_ultra_servers": True},
        },
        sweep={"node_counts": [1, nodes]},
    )
    named = [problem for problem in found.problems if problem.startswith("training.placement")]
    assert len(named) == refused
    assert (named, [hint for hint in found.hints if "placement" in hint]) == snapshot


@pytest.mark.parametrize(
    ("fallback", "refused"),
    [("ml.g5.24xlarge", False), ("ml.g5.16xlarge", True), ("ml.m5.xlarge", True)],
)
def test_fallbacks_have_as_many_accelerators(fallback, refused, check_config, snapshot):
    training = {"instance_type": "ml.g5.12xlarge", "instance_fallbacks": [fallback]}
    found = [each for each in check_config(training=training).problems if "instance_fall" in each]
    assert len(found) == refused
    assert found == snapshot


@pytest.mark.parametrize(
    ("kind", "first", "fallback", "refused"),
    [
        ("mpi", "ml.g5.12xlarge", "ml.p3.8xlarge", True),  # without an adapter
        ("mpi", "ml.p4d.24xlarge", "ml.g5.48xlarge", True),  # without RDMA
        ("mpi", "ml.g5.12xlarge", "ml.g4dn.12xlarge", False),
        ("smddp", "ml.p4d.24xlarge", "ml.p4de.24xlarge", False),
        ("torch_distributed", "ml.g5.12xlarge", "ml.p3.8xlarge", False),
        ("none", "ml.g5.12xlarge", "ml.p3.8xlarge", False),
    ],
)
def test_fallbacks_are_launched_alike(kind, first, fallback, refused, check_config, snapshot):
    """Only what is sent for the first choice differs; a node's toolkit knows its own type."""
    training = {
        "instance_type": first,
        "instance_fallbacks": [fallback],
        "distribution": {"kind": kind},
    }
    found = [each for each in check_config(training=training).problems if "launch settings" in each]
    assert len(found) == refused
    if refused:
        assert found == snapshot
        training["distribution"]["efa_flags"] = False
        problems = check_config(training=training).problems
        assert not [each for each in problems if "launch settings" in each]


def test_mlflow_permissions_are_not_checked(check_config, snapshot):
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/bench"
    found = check_config(training={"mlflow": {"resource_arn": arn}})
    assert found.problems == ()
    assert found.hints == snapshot


def test_a_training_plan_with_spot(check_config, snapshot):
    spot = {"spot": {"max_wait_seconds": 3600}, "checkpoints": {}}
    (problem,) = check_config(training={**spot, "training_plan_arn": PLAN}).problems
    assert problem == snapshot


def test_a_training_plan_is_paid_otherwise(check_config, snapshot):
    found = check_config(training={"training_plan_arn": PLAN})
    assert found.problems == ()
    assert found.hints == snapshot


def test_a_file_system_without_a_vpc(check_config, snapshot):
    channels = {"extra_channels": {"corpus": EFS, "labels": S3}}
    (problem,) = check_config(training=channels).problems
    assert problem == snapshot
    assert check_config(training={**channels, "vpc": VPC}).problems == ()


def test_a_key_for_a_volume_that_is_the_instances_own(check_config, snapshot):
    key = {"volume_kms_key_id": "alias/volumes"}
    (problem,) = check_config(training={**key, "instance_type": "ml.g4dn.xlarge"}).problems
    assert problem == snapshot
    assert check_config(training={**key, "instance_type": "ml.p3.2xlarge"}).problems == ()


@pytest.mark.parametrize(
    ("instance_type", "refused"),
    [("ml.r5d.large", True), ("ml.p6-b200.48xlarge", True), ("ml.r5.large", False)],
)
def test_whether_a_type_has_disks_is_in_the_catalogue(instance_type, refused, check_config):
    plan = check_config(
        training={"instance_type": instance_type, "volume_kms_key_id": "alias/volumes"}
    )
    assert [problem.startswith("training.volume_kms_key_id") for problem in plan.problems] == [
        True
    ] * refused


def test_a_key_where_nobody_knows_of_the_disks_is_said(check_config, snapshot):
    plan = check_config(
        training={"instance_type": "ml.p2.xlarge", "volume_kms_key_id": "alias/volumes"}
    )
    assert plan.problems == ()
    assert str(plan.hints) == snapshot


def test_two_channels_that_become_one_variable(check_config, snapshot):
    (problem,) = check_config(training={"extra_channels": {"Training": S3, "labels": S3}}).problems
    assert problem == snapshot


def test_pipe_mode_with_the_shipped_program(check_config, snapshot):
    plan = check_config(dataset={"input_mode": "Pipe"}, image=SHIPPED)
    assert plan.problems == snapshot
    assert plan.hints == ()
    assert check_config(dataset={"input_mode": "FastFile"}, image=SHIPPED).problems == ()


@pytest.mark.parametrize(
    "sections",
    [
        {"image": {"context": "image"}},
        {"image": {**SHIPPED, "uri": "example.com/own:1"}},
        {"image": SHIPPED, "training": {"source_dir": "code"}},
    ],
)
def test_pipe_mode_with_a_program_of_ones_own_is_hinted(sections, check_config, snapshot):
    plan = check_config(dataset={"input_mode": "Pipe", "channel": "train"}, **sections)
    assert plan.problems == ()
    assert plan.hints == snapshot


def test_a_further_channel_in_pipe_mode_is_hinted(check_config, snapshot):
    plan = check_config(
        image=SHIPPED,
        training={
            "extra_channels": {"labels": {**S3, "input_mode": "Pipe"}, "more": S3, "corpus": EFS},
            "vpc": VPC,
        },
    )
    (hint,) = plan.hints
    assert hint == snapshot


def test_spot_without_checkpoints_is_hinted(check_config, snapshot):
    spot = {"spot": {"max_wait_seconds": 3600}}
    assert check_config(training=spot).hints == snapshot
    assert check_config(training={**spot, "checkpoints": {}}).hints == ()


@pytest.mark.parametrize(
    "spot",
    [
        {},
        {"spot": {"max_wait_seconds": 3600}, "checkpoints": {}},
    ],
)
def test_the_platforms_retries_are_hinted_with_their_limits(spot, check_config, snapshot):
    (hint,) = check_config(training={"retry_attempts": 3, **spot}).hints
    assert hint == snapshot


def test_a_warm_pool_with_one_repeat_serves_nothing(check_config, snapshot):
    assert check_config(training={"keep_alive_seconds": 600}).hints == snapshot


@pytest.mark.parametrize(
    ("counts", "order", "jobs"),
    [
        ([1, 2, 4], "ascending", "2 jobs run"),  # 1 2 4 1 2 4: two others between two of one count
        ([1, 2], "descending", "1 job runs"),
        # order_seed 1: 2 4 1 4 1 2; from the first 2 to the next one 4 jobs
        ([1, 2, 4], "shuffled", "4 jobs run"),
    ],
)
def test_a_warm_pool_that_may_end_before_its_count_comes_again(
    counts, order, jobs, check_config, snapshot
):
    sweep = {"node_counts": counts, "repeats": 2, "order": order}
    (hint,) = check_config(training={"keep_alive_seconds": 600}, sweep=sweep).hints
    assert hint == snapshot


@pytest.mark.parametrize(
    ("counts", "keep"),
    # one count; one job of at most 3600 s between; no pool at all
    [([2], 60), ([1, 2], 3600), ([1, 2], 0)],
)
def test_a_warm_pool_that_lasts_is_not_hinted(counts, keep, check_config):
    sweep = {"node_counts": counts, "repeats": 3, "order": "ascending"}
    assert check_config(training={"keep_alive_seconds": keep}, sweep=sweep).hints == ()


def test_encryption_between_nodes_is_hinted(check_config, snapshot):
    encrypted = {"encrypt_inter_container_traffic": True}
    assert check_config(training=encrypted).hints == snapshot
    assert check_config(training=encrypted, sweep={"node_counts": [1]}).hints == ()


def test_every_problem_is_named_at_once(check_config):
    plan = check_config(
        dataset={"input_mode": "Pipe"},
        image=SHIPPED,
        training={
            "instance_type": "ml.g5.xlarge",
            "spot": {"max_wait_seconds": 60},
            "keep_alive_seconds": 60,
            "volume_kms_key_id": "alias/volumes",
            "extra_channels": {"TRAINING": EFS},
            "environment": {"A-B": ""},
        },
    )
    fields = [problem.partition(":")[0] for problem in plan.problems]
    assert fields == [
        "training.spot.max_wait_seconds",
        "training.keep_alive_seconds",
        "training.extra_channels.TRAINING",
        "training.volume_kms_key_id",
        "training.extra_channels",
        "dataset.input_mode",
        "training.environment",
    ]


@pytest.mark.parametrize(
    ("dataset", "got"), [(None, "none"), ({"format": "files", "expectations": []}, "format files")]
)
def test_the_shipped_program_learns_from_tables(dataset, got, check_config, snapshot):
    (problem,) = check_config(dataset=dataset, image=SHIPPED).problems
    assert problem == snapshot
    assert check_config(dataset=dataset).problems == ()  # another program


def test_folders_as_channels_beside_a_stream(check_config, snapshot):
    dataset = {"format": "files", "expectations": [], "channel": None, "input_mode": "Pipe"}
    (hint,) = check_config(dataset=dataset).hints
    assert hint == snapshot


def test_own_code_has_to_ask_whether_a_probe_ends(check_config, snapshot):
    probe = {"design": "probe", "node_counts": [1, 2]}
    (hint,) = check_config(sweep=probe).hints
    assert hint == snapshot
    assert check_config(sweep={**probe, "design": "full"}).hints == ()


@pytest.mark.parametrize("amount", [{"steps": 100}, {"baseline_seconds": 40.0}])
def test_own_code_has_to_do_the_amount_that_it_is_asked_for(check_config, snapshot, amount):
    (hint,) = check_config(training=amount).hints
    assert hint == snapshot


def test_own_code_that_can_not_say_of_how_many_steps_a_probe_made_some_is_named(
    make_config, snapshot
):
    config = make_config(
        sweep={"design": "probe", "node_counts": [1, 2]}, training={"source_dir": "code"}
    )
    said = {
        says: offline.check(facts_of(config, files=Files(mentions_planned_steps=says))).hints
        for says in (False, True, None)
    }
    assert [len(hints) for hints in said.values()] == [2, 1, 1]
    assert said[False][1] == snapshot


@pytest.mark.parametrize("design", ["full", "sequential", "probe"])
def test_a_limit_of_steps_that_may_be_left_from_a_try_is_named(design, check_config, snapshot):
    sweep = {"design": design, "node_counts": [1, 2], "repeats": 3}
    for name, value in (("max-steps", 100), ("max_steps", "100"), ("max_train_steps", 5)):
        hints = check_config(sweep=sweep, training={"hyperparameters": {name: value}}).hints
        assert hints[-1] == snapshot
    for name, value in (("max_steps", -1), ("max_steps", 0), ("steps", 100)):
        hints = check_config(sweep=sweep, training={"hyperparameters": {name: value}}).hints
        assert not any("hyperparameters" in hint for hint in hints)
