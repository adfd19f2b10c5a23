"""Bounds and patterns of the job features; what breaks them is named by field."""

from __future__ import annotations

import pytest

from nodesweep.configs.load import ConfigError

VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
FILE_SYSTEM = {"type": "EFS", "id": "fs-01234567", "directory_path": "/data"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"spot": {}}, "training.spot.max_wait_seconds: Field required"),
        (
            {"spot": {"max_wait_seconds": 59}},
            "training.spot.max_wait_seconds: Input should be greater than or equal",
        ),
        (
            {"checkpoints": {"local_path": "checkpoints"}},
            "training.checkpoints.local_path: String should match",
        ),
        (
            {"keep_alive_seconds": 21_601},
            "training.keep_alive_seconds: Input should be less than or equal to 21600",
        ),
        (
            {"keep_alive_seconds": -1},
            "training.keep_alive_seconds: Input should be greater than or equal to 0",
        ),
        ({"vpc": {**VPC, "subnets": []}}, "training.vpc.subnets: Tuple should have at least 1"),
        (
            {"vpc": {**VPC, "subnets": ["subnet-1"] * 17}},
            "training.vpc.subnets: Tuple should have at most 16",
        ),
        (
            {"vpc": {**VPC, "security_group_ids": []}},
            "training.vpc.security_group_ids: Tuple should have at least 1",
        ),
        (
            {"vpc": {**VPC, "security_group_ids": ["sg"] * 6}},
            "training.vpc.security_group_ids: Tuple should have at m",
        ),
        (
            {"vpc": {**VPC, "subnets": ["subnet_1"]}},
            "training.vpc.subnets.0: String should match pattern",
        ),
        ({"vpc": {"subnets": ["subnet-1"]}}, "training.vpc.security_group_ids: Field required"),
        ({"volume_kms_key_id": "a key"}, "training.volume_kms_key_id: String should match pattern"),
        ({"output_kms_key_id": ""}, "training.output_kms_key_id: String should match pattern"),
        (
            {"extra_channels": {"a b": FILE_SYSTEM}},
            "training.extra_channels.a b.[key]: String should match pattern",
        ),
        ({"extra_channels": {"c" * 65: FILE_SYSTEM}}, "[key]: String should match pattern"),
        (
            {"extra_channels": {f"c{n}": FILE_SYSTEM for n in range(20)}},
            "training.extra_channels: Dictionary should ha",
        ),
        (
            {"extra_channels": {"c": {"type": "NFS"}}},
            "training.extra_channels.c: type is missing or unknown; one of FSxLustre, EFS, S3",
        ),
        (
            {"extra_channels": {"c": {**FILE_SYSTEM, "id": "fs-0123456"}}},
            "training.extra_channels.c.id: String should match pattern",
        ),
        (
            {"extra_channels": {"c": {**FILE_SYSTEM, "directory_path": "x"}}},
            "directory_path: String should match",
        ),
        (
            {"extra_channels": {"c": {**FILE_SYSTEM, "access_mode": "r"}}},
            "access_mode: Input should be 'ro' or",
        ),
        (
            {"extra_channels": {"c": {"type": "S3", "uri": "/local"}}},
            "uri: String should match pattern",
        ),
        (
            {"retry_attempts": 31},
            "training.retry_attempts: Input should be less than or equal to 30",
        ),
        (
            {"retry_attempts": 0},
            "training.retry_attempts: Input should be greater than or equal to 1",
        ),
        ({"tags": {"": "x"}}, "training.tags..[key]: String should have at least 1 character"),
        ({"tags": {"k" * 129: "x"}}, "[key]: String should have at most 128 characters"),
        (
            {"tags": {"owner": "v" * 257}},
            "training.tags.owner: String should have at most 256 characters",
        ),
        (
            {"tags": {"owner": "a;b"}},
            "training.tags: tag 'owner': ';' may not stand in a tag; use letters, digits, spaces",
        ),
        ({"tags": {"a\tb": "x"}}, r"tag 'a\tb': '\t' may not stand in a tag"),
        (
            {"tags": {f"k{n}": "x" for n in range(46)}},
            "training.tags: Dictionary should have at most 45 items",
        ),
        (
            {"tags": {"aws:owner": "x"}},
            "tag 'aws:owner': keys that begin with aws: or nodesweep: are reserved",
        ),
        (
            {"tags": {"Nodesweep:nodes": "2"}},
            "tag 'Nodesweep:nodes': keys that begin with aws: or nodesweep: are reserv",
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_field(section, message, make_config):
    with pytest.raises(ConfigError) as refused:
        make_config(training=section)
    assert message in str(refused.value)


def test_an_unknown_input_mode_is_refused(make_config):
    with pytest.raises(
        ConfigError, match=r"dataset\.input_mode: Input should be 'File', 'FastFile' or 'Pipe'"
    ):
        make_config(dataset={"input_mode": "Stream"})


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
