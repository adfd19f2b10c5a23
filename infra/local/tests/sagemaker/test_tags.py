"""Tags of training jobs: SageMaker's own calls and AWS's tagging API see and change the same
ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import client, run_job


@pytest.fixture
def tagging(platform: SimpleNamespace) -> Any:
    return client(platform.endpoint, "resourcegroupstaggingapi")


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


def test_tagging_api(platform: SimpleNamespace, tagging: Any) -> None:
    arn = tagged_job(platform, "found-by-tag", owner="ada")
    ask = {
        "TagFilters": [{"Key": "owner", "Values": ["ada"]}],
        "ResourceTypeFilters": ["sagemaker:training-job"],
    }
    [found] = tagging.get_resources(**ask)["ResourceTagMappingList"]
    assert found == {"ResourceARN": arn, "Tags": [{"Key": "owner", "Value": "ada"}]}
    assert "owner" in tagging.get_tag_keys()["TagKeys"]
    assert tagging.get_tag_values(Key="owner")["TagValues"] == ["ada"]
    tagging.tag_resources(ResourceARNList=[arn], Tags={"cost-centre": "7"})
    assert tags_of(platform, arn) == {"owner": "ada", "cost-centre": "7"}
    tagging.untag_resources(ResourceARNList=[arn], TagKeys=["owner"])
    assert tags_of(platform, arn) == {"cost-centre": "7"}
    assert tagging.get_resources(**ask)["ResourceTagMappingList"] == []


def test_tagging_api_keeps_to_the_same_rules(platform: SimpleNamespace, tagging: Any) -> None:
    arn = tagged_job(platform, "reserved-key")
    failed = tagging.tag_resources(ResourceARNList=[arn], Tags={"aws:c": "7"})
    assert "aws: prefixed" in failed["FailedResourcesMap"][arn]["ErrorMessage"]
    assert tags_of(platform, arn) == {}


def test_tagging_api_tells_of_each_resource(platform: SimpleNamespace, tagging: Any) -> None:
    """One that can't be tagged leaves the others' tags done, as the answer has a place for it."""
    there = tagged_job(platform, "one-of-three")
    absent = [there.replace("one-of-three", "absent"), "arn:aws:s3:::absent"]
    failed = tagging.tag_resources(ResourceARNList=[*absent, there], Tags={"k": "v"})
    failures = failed["FailedResourcesMap"]
    assert sorted(failures) == sorted(absent)
    assert {one["ErrorCode"] for one in failures.values()} == {"InvalidParameterException"}
    assert "Requested resource not found" in failures[absent[0]]["ErrorMessage"]
    assert "NoSuchBucket" in failures[absent[1]]["ErrorMessage"]
    assert tags_of(platform, there) == {"k": "v"}
    failed = tagging.untag_resources(ResourceARNList=[absent[0], there], TagKeys=["k"])
    assert list(failed["FailedResourcesMap"]) == absent[:1]
    assert tags_of(platform, there) == {}


def test_other_resources_of_sagemaker_are_still_motos(
    platform: SimpleNamespace, tagging: Any
) -> None:
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


def test_experiment_that_is_not_there(platform: SimpleNamespace) -> None:
    with pytest.raises(ClientError, match=r"\(ResourceNotFound\).*absent does not exist"):
        platform.sagemaker.describe_experiment(ExperimentName="absent")


def test_other_regions_jobs_are_not_found(platform: SimpleNamespace) -> None:
    tagged_job(platform, "of-us-east-1", place="here")
    elsewhere = client(platform.endpoint, "resourcegroupstaggingapi", region="eu-west-1")
    assert elsewhere.get_resources()["ResourceTagMappingList"] == []
