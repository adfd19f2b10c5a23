"""Online rules for storage: the bucket is in the region, and a given image exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodesweep.configs.models import ImageConfig, PlatformConfig
from nodesweep.errors import suppress_codes
from nodesweep.launch.sagemaker.preflight.rule import NO_PERMISSION, RuleContext
from nodesweep.scaling.rules.images import ECR_URI
from nodesweep.scaling.rules.rule import Facts, Findings

_NO_PLACE = "there is no ECR repository {!r} (image.repository) for the layer"


@dataclass(frozen=True)
class EcrImage:
    """An image's location in ECR.

    `image_id` is in the form of ECR's API (imageTag, imageDigest), {} if unknown.
    """

    account: str
    region: str
    repository: str
    image_id: Mapping[str, str] = field(default_factory=dict)


def parse_ecr_image(uri: str) -> EcrImage | None:
    """Return the location of an ECR image, or None for other registries.

    Without a tag or digest, the tag is `latest`, as in Docker.
    """
    found = ECR_URI.fullmatch(uri)
    if found is None:
        return None
    named = {"imageDigest": found["digest"], "imageTag": found["tag"]}
    image_id = {key: value for key, value in named.items() if value} or {"imageTag": "latest"}
    return EcrImage(found["account"], found["region"], found["repository"], image_id)


def judge_bucket(platform: PlatformConfig, region: str | None) -> Findings:
    """Check the bucket's region, which is None if there is no bucket."""
    if region is None and platform.create_missing:
        return Findings(
            notices=(f"platform.bucket: {platform.bucket} does not exist yet; the run creates it",)
        )
    if region is None:
        return Findings(
            (
                (
                    f"platform.bucket: {platform.bucket} does not exist; create it, or set"
                    " platform.create_missing: true"
                ),
            )
        )
    if region == platform.region:
        return Findings()
    problem = (
        f"platform.bucket: {platform.bucket} is in {region}, but SageMaker only reads objects in"
        f" its own region; use a bucket in {platform.region}, or platform.region: {region}"
    )
    return Findings((problem,))


def judge_image(image: ImageConfig, failures: Sequence[Mapping[str, Any]]) -> Findings:
    """Check BatchGetImage's failures for the one image requested.

    The image is image.uri, or the container from framework or base_image if it runs unmodified.
    """
    as_it_is = image.context is None
    field = "image.framework or image.base_image" if as_it_is else "image.uri"
    advice = (
        "use another container"
        if as_it_is
        else "correct it, or omit image.uri to have the image built"
    )
    return Findings(
        tuple(
            f"{field}: {image.uri}:"
            f" {failure.get('failureReason') or failure['failureCode']}; {advice}"
            for failure in failures
        )
    )


def judge_repository(image: ImageConfig, is_there: bool) -> Findings:
    """Check that image.repository exists; with image.uri, a missing one is only a notice."""
    name = image.repository
    if is_there:
        return Findings()
    if image.uri is not None:
        # a slow import, which `plan` does not need otherwise
        from nodesweep.scaling.report.sources import at_start_text

        return Findings(notices=(at_start_text(_NO_PLACE.format(name)),))
    return Findings((no_repository(name),))


def no_repository(name: str) -> str:
    """Return the problem to report for an image without a repository."""
    return (
        f"image.repository: no ECR repository {name!r};"
        " create it, or set platform.create_missing: true"
    )


def query_bucket(context: RuleContext) -> str | None:
    """Query S3 for the bucket's region; return None if there is no bucket.

    GetBucketLocation returns nothing for us-east-1, and may return EU for eu-west-1.
    """
    with suppress_codes("NoSuchBucket"):
        location = context.client("s3").get_bucket_location(Bucket=context.config.platform.bucket)
        region = location.get("LocationConstraint")
        return {None: "us-east-1", "": "us-east-1", "EU": "eu-west-1"}.get(region, region)
    return None


def query_image(context: RuleContext) -> Sequence[Mapping[str, Any]]:
    """Query ECR for the image, in its own account and region; return the failures."""
    image = parse_ecr_image(str(context.config.image.uri))
    assert image is not None
    ecr = context.client("ecr", image.region)
    with suppress_codes("RepositoryNotFoundException"):
        answer = ecr.batch_get_image(
            registryId=image.account,
            repositoryName=image.repository,
            imageIds=[dict(image.image_id)],
        )
        return list(answer["failures"])
    reason = f"account {image.account} has no ECR repository {image.repository!r} in {image.region}"
    return [{"failureReason": reason}]


def has_ecr_image(facts: Facts) -> bool:
    """Return True if the image is given, not built, and in ECR."""
    uri = facts.config.image.uri
    return uri is not None and parse_ecr_image(uri) is not None


def query_repository(context: RuleContext) -> bool:
    """Query ECR for image.repository; return True if it exists."""
    return has_repository(context.client("ecr"), context.config.image.repository)


def has_repository(ecr: Any, name: str) -> bool:
    """Return True if the account's registry in the region has a repository of that name."""
    with suppress_codes("RepositoryNotFoundException"):
        ecr.describe_repositories(repositoryNames=[name])
        return True
    return False


def push_problem(ecr: Any, repository: str) -> str | None:
    """Return the reason why a layer can't be pushed to image.repository, or None if it can."""
    with suppress_codes(*NO_PERMISSION):
        return None if has_repository(ecr, repository) else _NO_PLACE.format(repository)
    return (
        f"these credentials may not check for an ECR repository {repository!r} (image.repository)"
    )
