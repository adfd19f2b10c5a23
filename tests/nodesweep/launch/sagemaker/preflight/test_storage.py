from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.storage import (
    EcrImage,
    judge_bucket,
    judge_image,
    parse_ecr_image,
)
from nodesweep.scaling.rules.rule import Files, Findings, Requirements
from tests.nodesweep.launch.sagemaker.preflight.questions import asking, clients, question

Configs = Callable[..., BenchmarkConfig]
ask_bucket, ask_image, ask_repository = (
    asking("the bucket"),
    asking("the image"),
    asking("the repository"),
)
REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
MANIFEST = (
    '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}'
)
DIGEST = "sha256:" + "a" * 64


def test_bucket_of_the_region_passes(aws: Callable[[str], Any], make_config: Configs) -> None:
    s3 = aws("s3")
    s3.create_bucket(Bucket="bench-bucket")
    assert ask_bucket(question(make_config(), clients(s3=s3))).problems == ()


def test_bucket_of_another_region_is_a_problem(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    s3 = aws("s3")
    s3.create_bucket(
        Bucket="bench-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    assert ask_bucket(question(make_config(), clients(s3=s3))).problems == snapshot


@pytest.mark.parametrize(
    ("place", "region"), [({}, "us-east-1"), ({"LocationConstraint": "EU"}, "eu-west-1")]
)
def test_regions_are_known_by_their_old_names(
    make_config: Configs, place: dict[str, Any], region: str
) -> None:
    s3 = boto3.client("s3", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    with Stubber(s3) as stub:
        stub.add_response("get_bucket_location", place)
        problems = ask_bucket(question(make_config(), clients(s3=s3))).problems
    assert problems == judge_bucket(make_config().platform, region).problems


def test_missing_bucket_is_a_problem_unless_it_is_created(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    s3 = aws("s3")
    assert ask_bucket(question(make_config(), clients(s3=s3))).problems == snapshot
    created = make_config()
    created = created.model_copy(
        update={"platform": created.platform.model_copy(update={"create_missing": True})}
    )
    found = ask_bucket(question(created, clients(s3=s3)))
    assert found.problems == ()
    assert found.notices == snapshot


@pytest.mark.parametrize(
    ("uri", "image_id"),
    [
        (f"{REGISTRY}/a/b:1.0@{DIGEST}", {"imageDigest": DIGEST, "imageTag": "1.0"}),
        (f"{REGISTRY}/a/b@{DIGEST}", {"imageDigest": DIGEST}),
        (f"{REGISTRY}/a/b:1.0", {"imageTag": "1.0"}),
        (f"{REGISTRY}/a/b", {"imageTag": "latest"}),
    ],
)
def test_ecr_image_is_read_from_its_uri(uri: str, image_id: dict[str, str]) -> None:
    assert parse_ecr_image(uri) == EcrImage("123456789012", "us-east-1", "a/b", image_id)


def test_ecr_has_other_domains_in_other_partitions() -> None:
    for domain in ("amazonaws.com.cn", "amazonaws.eu", "cloud.adc-e.uk"):
        found = parse_ecr_image(f"123456789012.dkr.ecr.a-b-1.{domain}/x:1")
        assert found == EcrImage("123456789012", "a-b-1", "x", {"imageTag": "1"})


@pytest.mark.parametrize(
    "uri", ["public.ecr.aws/x/y:1", "docker.io/library/python:3.11", "localhost/training:1"]
)
def test_image_of_another_registry_is_none(uri: str) -> None:
    assert parse_ecr_image(uri) is None


def test_image_is_asked_for_where_it_lies(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    ecr, regions = aws("ecr"), []

    def client(service: str, region: str = "elsewhere") -> Any:
        regions.append(region)
        return ecr

    asked = question(make_config(image={"uri": f"{REGISTRY}/mine:1"}), client)
    assert ask_image(asked).problems[0] == snapshot
    ecr.create_repository(repositoryName="mine")
    assert ask_image(asked).problems[0] == snapshot
    ecr.put_image(repositoryName="mine", imageManifest=MANIFEST, imageTag="1")
    assert ask_image(asked).problems == ()
    assert set(regions) == {"us-east-1"}


def test_failure_without_a_reason_is_said_by_its_code(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = make_config(image={"uri": "u"})
    assert judge_image(config.image, [{"failureCode": "ImageNotFound"}]).problems == snapshot


def test_container_that_runs_as_it_is_is_named_by_its_own_field(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    config = make_config(
        image={"context": None, "uri": f"{REGISTRY}/mine:1"}, training={"source_dir": "code"}
    )
    (problem,) = ask_image(question(config, lambda *_: aws("ecr"))).problems
    assert problem == snapshot
    assert problem.endswith("; use another container")


def test_an_image_that_is_built_needs_a_repository(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    ecr = aws("ecr")
    asked = question(make_config(), clients(ecr=ecr))
    assert ask_repository(asked) == snapshot
    ecr.create_repository(repositoryName="nodesweep")
    assert ask_repository(asked) == Findings()


def test_a_layer_without_a_repository_is_a_notice_of_what_becomes_of_the_packages(
    aws: Callable[[str], Any], make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    ecr, given = aws("ecr"), make_config(image={"uri": f"{REGISTRY}/mine:1"})
    layer = Files(
        requirements=Requirements(Path("requirements.txt"), {"requirements.txt": b"timm"}, None)
    )
    asked = question(given, clients(ecr=ecr), files=layer)
    found = ask_repository(asked)
    assert found.problems == ()
    assert found.notices == snapshot
    ecr.create_repository(repositoryName="nodesweep")
    assert ask_repository(asked) == Findings()
    without = question(given, clients())
    assert ask_repository(without) == Findings(), "nothing is built, and nothing is asked"
