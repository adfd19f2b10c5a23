"""Tags of training jobs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import run_job


def tags_of(platform: SimpleNamespace, arn: str) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"] for tag in platform.sagemaker.list_tags(ResourceArn=arn)["Tags"]
    }


def tagged_job(platform: SimpleNamespace, name: str, **tags: str) -> str:
    given = [{"Key": key, "Value": value} for key, value in tags.items()]
    return str(run_job(platform, name, Tags=given)["TrainingJobArn"])


def test_tags_come_and_go(platform: SimpleNamespace) -> None:
    arn = tagged_job(platform, "tagged", team="search", stage="test")
    platform.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["team", "never-there"])
    assert tags_of(platform, arn) == {"stage": "test"}
    with pytest.raises(ClientError, match=r"\(ValidationException\).*Requested resource not found"):
        platform.sagemaker.delete_tags(
            ResourceArn=arn.replace("tagged", "absent"), TagKeys=["team"]
        )


@pytest.mark.parametrize(
    ("keys", "text"), [(["aws:x"], "aws: prefixed"), (["a", "a"], "Duplicate tag keys found: a")]
)
def test_new_tags_that_aws_refuses(platform: SimpleNamespace, keys: list[str], text: str) -> None:
    arn = tagged_job(platform, f"refuses-{len(keys)}")
    with pytest.raises(ClientError, match=rf"\(ValidationException\).*{text}"):
        platform.sagemaker.add_tags(
            ResourceArn=arn, Tags=[{"Key": key, "Value": "v"} for key in keys]
        )
    assert tags_of(platform, arn) == {}


def test_other_resources_of_sagemaker_are_still_motos(platform: SimpleNamespace) -> None:
    arn = platform.sagemaker.create_experiment(ExperimentName="of-moto")["ExperimentArn"]
    platform.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "k", "Value": "v"}])
    assert tags_of(platform, arn) == {"k": "v"}
    platform.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["k"])
    assert tags_of(platform, arn) == {}


@pytest.mark.parametrize(
    "arn",
    [
        *(
            f"arn:aws:sagemaker:us-east-1:000000000000:{kind}/absent"
            for kind in ("model", "endpoint", "experiment", "hub", "hub/absent")
        ),
        "foo",
    ],
)
def test_tags_of_what_is_not_there(platform: SimpleNamespace, arn: str) -> None:
    sagemaker = platform.sagemaker
    for call, asked in (
        (sagemaker.list_tags, {}),
        (sagemaker.add_tags, {"Tags": [{"Key": "k", "Value": "v"}]}),
        (sagemaker.delete_tags, {"TagKeys": ["k"]}),
    ):
        with pytest.raises(ClientError) as caught:
            call(ResourceArn=arn, **asked)
        answer = caught.value.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert answer["Error"]["Code"] == "ValidationException"
        assert "Requested resource not found" in answer["Error"]["Message"]


def test_tags_of_a_resource_that_was_made_without_any(platform: SimpleNamespace) -> None:
    arn = platform.sagemaker.create_model(
        ModelName="untagged", ExecutionRoleArn="arn:aws:iam::000000000000:role/any"
    )["ModelArn"]
    assert tags_of(platform, arn) == {}
    platform.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "k", "Value": "v"}])
    assert tags_of(platform, arn) == {"k": "v"}
