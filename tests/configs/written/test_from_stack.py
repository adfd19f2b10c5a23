from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.load import ConfigError, load_config, parse_config
from nodesweep.configs.strict_yaml import parse_yaml
from nodesweep.configs.written.from_stack import LocalEndpoint, Stack, fill_template

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
TEMPLATE = CONFIGS / "first_sweep.yaml"
OUTPUTS = {
    "BucketName": "my-bucket",
    "Prefix": "sweeps-of-mine",
    "ExecutionRoleArn": "arn:aws-cn:iam::210987654321:role/stack-ExecutionRole-1A",
    "RepositoryName": "team/trainer",
    "CodeBuildProjectName": "trainer-image",
    "BaseImageRegistry": "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn",
    "DataUri": "s3://my-bucket/raw/",
}
VPC = {"SubnetId": "subnet-0a", "SecurityGroupId": "sg-0b"}
FSX = {"FileSystemId": "fs-0123456789abcdef0", "FileSystemPath": "/abcdef12/raw"}


def filled(folder: Path, local: LocalEndpoint | None = None, **more: str) -> str:
    stack = Stack.from_outputs("mine", "cn-north-1", OUTPUTS | more)
    return fill_template(TEMPLATE.read_text(), stack, local, CONFIGS, folder)


def test_outputs_become_the_platform_and_the_image(tmp_path: Path) -> None:
    config = parse_config(parse_yaml(filled(tmp_path)), "test")
    assert config.platform.model_dump(exclude_defaults=True) == {
        "region": "cn-north-1",
        "bucket": "my-bucket",
        "prefix": "sweeps-of-mine",
        "role_arn": "arn:aws-cn:iam::210987654321:role/stack-ExecutionRole-1A",
    }
    assert (config.image.repository, config.image.codebuild_project) == (
        "team/trainer",
        "trainer-image",
    )
    assert (
        config.image.base_image
        == "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch:2.14-cpu-amzn2023-sagemaker"
    )
    assert config.training.vpc is config.training.output_kms_key_id is None


def test_the_rest_is_the_template_with_its_comments(tmp_path: Path) -> None:
    text, template = filled(tmp_path), TEMPLATE.read_text()
    config, original = parse_config(parse_yaml(text), "test"), load_config(TEMPLATE)
    assert (config.sweep, config.training) == (original.sweep, original.training)
    kept = [line for line in template.splitlines() if "#" in line and "source:" not in line]
    assert [line for line in kept if line not in text.splitlines()] == []


@pytest.mark.parametrize("place", ["here", "a b/ü: #x"])
def test_paths_lead_from_the_new_file_to_the_same_places(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "my.yaml").write_text(filled(folder))
    config, original = load_config(folder / "my.yaml"), load_config(TEMPLATE)
    assert (config.dataset.source, config.image.context) == (
        original.dataset.source,
        original.image.context,
    )


def test_what_the_stack_has_beside_is_used(tmp_path: Path) -> None:
    key = "arn:aws:kms:us-east-1:210987654321:key/0123"
    training = parse_config(parse_yaml(filled(tmp_path, KeyArn=key, **VPC, **FSX)), "test").training
    assert training.vpc is not None
    assert (training.vpc.subnets, training.vpc.security_group_ids) == (("subnet-0a",), ("sg-0b",))
    assert training.output_kms_key_id == key
    assert training.extra_channels["fsx"].model_dump() == {
        "type": "FSxLustre", "id": FSX["FileSystemId"], "directory_path": "/abcdef12/raw",
        "access_mode": "ro",
    }  # fmt: skip


def test_endpoint_is_called_with_placeholder_keys(tmp_path: Path) -> None:
    local = LocalEndpoint("http://127.0.0.1:4570", "../its state")
    platform = parse_config(parse_yaml(filled(tmp_path, local)), "test").platform
    assert (platform.endpoint_url, platform.credentials) == (local.url, "platform")
    assert platform.state_directory == "../its state"


def test_stack_of_another_template_is_refused_by_what_it_lacks(snapshot: SnapshotAssertion) -> None:
    outputs = {
        key: value for key, value in OUTPUTS.items() if key not in ("Prefix", "RepositoryName")
    }
    with pytest.raises(ConfigError) as refused:
        Stack.from_outputs("mine", "cn-north-1", outputs)
    assert str(refused.value) == snapshot


def test_template_without_a_line_to_fill_is_a_mistake_of_ours(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    stack = Stack.from_outputs("mine", "cn-north-1", OUTPUTS)
    template = TEMPLATE.read_text().replace("  codebuild_project: nodesweep-image\n", "")
    with pytest.raises(ValueError) as refused:
        fill_template(template, stack, None, CONFIGS, tmp_path)
    assert str(refused.value) == snapshot
