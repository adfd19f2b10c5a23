"""Online rules on where things lie: the bucket is there and in the region, and so is an image that is not built."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from configs.models import PlatformConfig
from tasks.errors import error_code
from tasks.preflight.rule import Findings, Question

_ECR_URI = re.compile(
    r"^(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/"
    r"(?P<repository>[a-z0-9._/-]+)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?$"
)


@dataclass(frozen=True)
class EcrImage:
    """An image's place in ECR; `image_id` as ECR's calls take it (imageTag, imageDigest), {} where it isn't known."""

    account: str
    region: str
    repository: str
    image_id: Mapping[str, str] = field(default_factory=dict)


def parse_ecr_image(uri: str) -> EcrImage | None:
    """None for an image of another kind of registry. Without tag and digest it is `latest`, as for Docker."""
    found = _ECR_URI.match(uri)
    if found is None:
        return None
    named = {"imageDigest": found["digest"], "imageTag": found["tag"]}
    image_id = {key: value for key, value in named.items() if value} or {"imageTag": "latest"}
    return EcrImage(found["account"], found["region"], found["repository"], image_id)


def judge_bucket(platform: PlatformConfig, region: str) -> Findings:
    """`region` is where the bucket lies."""
    if region == platform.region:
        return Findings()
    return Findings(
        (f"platform.bucket: {platform.bucket} is in {region}, and SageMaker takes objects of its own region only; "
         f"use a bucket in {platform.region}, or platform.region: {region}",)
    )  # fmt: skip


def judge_image(uri: str, failures: Sequence[Mapping[str, Any]], as_it_is: bool = False) -> Findings:
    """BatchGetImage's failures for the one image that was asked for; `as_it_is`: a container that framework or
    base_image names, which would be built upon with a context."""
    field = "image.framework or base_image" if as_it_is else "image.uri"
    advice = "name another" if as_it_is else "correct it, or leave image.uri out and have the image built"
    return Findings(
        tuple(
            f"{field}: {uri}: {failure.get('failureReason') or failure['failureCode']}; {advice}"
            for failure in failures
        )
    )


def ask_bucket(question: Question) -> Findings:
    """S3: the bucket's region. GetBucketLocation spells us-east-1 as nothing, and may spell eu-west-1 EU."""
    platform = question.config.platform
    try:
        place = question.client("s3").get_bucket_location(Bucket=platform.bucket).get("LocationConstraint")
    except ClientError as error:
        if error_code(error) != "NoSuchBucket":
            raise
        return _missing_bucket(platform)
    return judge_bucket(platform, {None: "us-east-1", "": "us-east-1", "EU": "eu-west-1"}.get(place, place))


def ask_image(question: Question) -> Findings:
    """ECR: the image, in the registry of whichever account and region holds it."""
    uri, as_it_is = str(question.config.image.uri), question.config.image.context is None
    image = parse_ecr_image(uri)
    assert image is not None
    ecr = question.client("ecr", image.region)
    try:
        answer = ecr.batch_get_image(
            registryId=image.account, repositoryName=image.repository, imageIds=[dict(image.image_id)]
        )
    except ClientError as error:
        if error_code(error) != "RepositoryNotFoundException":
            raise
        reason = f"account {image.account} has no ECR repository {image.repository!r} in {image.region}"
        return judge_image(uri, [{"failureReason": reason}], as_it_is)
    return judge_image(uri, answer["failures"], as_it_is)


def has_ecr_image(question: Question) -> bool:
    """Whether the image is given, not built, and lies in ECR."""
    uri = question.config.image.uri
    return uri is not None and parse_ecr_image(uri) is not None


def _missing_bucket(platform: PlatformConfig) -> Findings:
    if platform.create_missing:
        return Findings(notices=(f"platform.bucket: {platform.bucket} does not exist yet; the run creates it",))
    return Findings(
        (f"platform.bucket: {platform.bucket} does not exist; create it, or set platform.create_missing: true",)
    )
