"""Bounds and patterns of the job features; an error names the field that violates them."""

from __future__ import annotations

import pytest

from nodesweep.configs.load import ConfigError

VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p5-march"
MLFLOW = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/bench"
FILE_SYSTEM = {"type": "EFS", "id": "fs-01234567", "directory_path": "/data"}


@pytest.mark.parametrize(
    "section",
    [
        {"spot": {}},
        {"spot": {"max_wait_seconds": 59}},
        {"checkpoints": {"local_path": "checkpoints"}},
        {"keep_alive_seconds": 21_601},
        {"keep_alive_seconds": -1},
        {"vpc": {**VPC, "subnets": []}},
        {"vpc": {**VPC, "subnets": ["subnet-1"] * 17}},
        {"vpc": {**VPC, "security_group_ids": []}},
        {"vpc": {**VPC, "security_group_ids": ["sg"] * 6}},
        {"vpc": {**VPC, "subnets": ["subnet_1"]}},
        {"vpc": {"subnets": ["subnet-1"]}},
        {"volume_kms_key_id": "a key"},
        {"output_kms_key_id": ""},
        {"extra_channels": {"a b": FILE_SYSTEM}},
        {"extra_channels": {"c" * 65: FILE_SYSTEM}},
        {"extra_channels": {f"c{n}": FILE_SYSTEM for n in range(20)}},
        {"extra_channels": {"c": {"type": "NFS"}}},
        {"extra_channels": {"c": {**FILE_SYSTEM, "id": "fs-0123456"}}},
        {"extra_channels": {"c": {**FILE_SYSTEM, "directory_path": "x"}}},
        {"extra_channels": {"c": {**FILE_SYSTEM, "access_mode": "r"}}},
        {"extra_channels": {"c": {"type": "S3", "uri": "/local"}}},
        {"training_plan_arn": "my-plan"},
        {"training_plan_arn": PLAN.replace("training-plan", "training-job")},
        {"training_plan_arn": f"{PLAN}/x"},
        {"training_plan_arns": {"ml.m5.xlarge": PLAN}},
        {"placement": {"ultra_server_id": "a b"}},
        {"mlflow": {}},
        {"mlflow": {"resource_arn": PLAN}},
        {"mlflow": {"resource_arn": MLFLOW, "experiment_name": ""}},
        {"mlflow": {"resource_arn": MLFLOW, "experiment_name": "x" * 257}},
        {"retry_attempts": 31},
        {"retry_attempts": 0},
        {"tags": {"": "x"}},
        {"tags": {"k" * 129: "x"}},
        {"tags": {"owner": "v" * 257}},
        {"tags": {"owner": "a;b"}},
        {"tags": {"a\tb": "x"}},
        {"tags": {f"k{n}": "x" for n in range(46)}},
        {"tags": {"aws:owner": "x"}},
        {"tags": {"Nodesweep:nodes": "2"}},
    ],
)
def test_what_is_out_of_bounds_is_refused_by_field(section, make_config, snapshot):
    with pytest.raises(ConfigError) as refused:
        make_config(training=section)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "training",
    [{"training_plan_arn": PLAN}, {"training_plan_arns": {"ml.p5.48xlarge": PLAN}}],
)
def test_a_plan_is_of_one_of_several_types(training, make_config, snapshot):
    types = {"instance_types": ["ml.m5.xlarge", "ml.m5.2xlarge"]}
    with pytest.raises(ConfigError) as refused:
        make_config(training=training, sweep=types)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"spot": {"max_wait_seconds": 7200}}},
        {"training": {"placement": {}}},
        {"training": {"training_plan_arn": PLAN}},
        {"training": {"keep_alive_seconds": 60}},
        {"training": {"instance_fallbacks": ["ml.m5.2xlarge", "ml.m5.xlarge"]}},
        {"training": {"instance_fallbacks": [f"ml.m5.{size}xlarge" for size in range(2, 7)]}},
        {"sweep": {"instance_types": ["ml.m5.xlarge", "ml.m5.4xlarge"]}},
        {"sweep": {"design": "sequential", "repeats": 3, "max_repeats": 4}},
    ],
)
def test_fallbacks_are_of_one_curve_on_demand(sections, make_config, snapshot):
    training = {"instance_fallbacks": ["ml.m5.2xlarge"], **sections.get("training", {})}
    with pytest.raises(ConfigError) as refused:
        make_config(**{**sections, "training": training})
    assert str(refused.value) == snapshot


def test_a_config_is_put_on_one_of_its_types(make_config):
    config = make_config(training={"instance_fallbacks": ["ml.m5.2xlarge"]})
    assert config.possible_types == ("ml.m5.xlarge", "ml.m5.2xlarge")
    assert config.on_type("ml.m5.2xlarge").possible_types == ("ml.m5.2xlarge",)


def test_each_type_has_its_own_plan_or_none(make_config):
    config = make_config(
        training={"training_plan_arns": {"ml.m5.2xlarge": PLAN}},
        sweep={"instance_types": ["ml.m5.xlarge", "ml.m5.2xlarge"]},
    )
    plans = [config.of_arm(name).training for name in config.arm_names]
    assert [training.training_plan_arn for training in plans] == [None, PLAN]
    assert [training.training_plan_arns for training in plans] == [{}, {}]


def test_a_config_without_the_newest_fields_keeps_its_sweep_id(benchmark_config):
    dumped = benchmark_config.model_dump(mode="json")["training"]
    newest = {"training_plan_arn", "training_plan_arns", "infra_check", "placement", "mlflow"}
    newest |= {"instance_fallbacks"}
    assert newest & set(dumped) == set()
    assert newest <= set(type(benchmark_config.training).model_fields)


def test_an_unknown_input_mode_is_refused(make_config, snapshot):
    with pytest.raises(ConfigError) as refused:
        make_config(dataset={"input_mode": "Stream"})
    assert str(refused.value) == snapshot


def test_the_bounds_themselves_are_allowed(make_config):
    training = make_config(
        training={
            "spot": {"max_wait_seconds": 2_419_200},
            "keep_alive_seconds": 21_600,
            "vpc": {
                "subnets": [f"subnet-{n}" for n in range(16)],
                "security_group_ids": [f"sg-{n}" for n in range(5)],
            },
            "volume_kms_key_id": (
                "arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
            ),
            "extra_channels": {f"c{n}": FILE_SYSTEM for n in range(19)},
            "retry_attempts": 30,
            "tags": {
                "k" * 128: "v" * 256,
                "Kostenstelle/Büro": "",
                **{f"k{n}": "x" for n in range(43)},
            },
        }
    ).training
    assert training.checkpoints is None and training.tensorboard is False
    assert training.extra_channels["c0"].access_mode == "ro"


def test_every_feature_is_off_by_default(benchmark_config):
    training = benchmark_config.training
    assert benchmark_config.dataset.input_mode == "File"
    assert (training.spot, training.checkpoints, training.keep_alive_seconds, training.vpc) == (
        None,
        None,
        None,
        None,
    )
    assert (training.encrypt_inter_container_traffic, training.tensorboard) == (False, False)
    assert (training.extra_channels, training.tags, training.retry_attempts) == ({}, {}, None)
    assert (training.volume_kms_key_id, training.output_kms_key_id) == (None, None)
