"""Look up the base image of a framework version, and the digests of base images in ECR."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nodesweep.aws.platform import aws_client
from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.models import BenchmarkConfig, FrameworkConfig, ImageConfig
from nodesweep.errors import PreflightRefused, is_transient
from nodesweep.launch.sagemaker.preflight.storage import EcrImage, parse_ecr_image
from nodesweep.scaling.rules.dockerfile import dockerfile_bases
from nodesweep.scaling.rules.images import NEW_FAMILY
from nodesweep.tasks.image.find import Images

logger = logging.getLogger("nodesweep.image")
# One instance type per device, because sagemaker.core lacks some types of the catalogue and all
# emulated ones.
_SAMPLE_TYPES = {"cpu": "ml.m5.xlarge", "gpu": "ml.g5.xlarge", "neuron": "ml.trn1.2xlarge"}
_NO_REPOSITORY = "RepositoryNotFoundException"
_SMP_VERSIONS = ("2.0.1", "2.1.2", "2.2.0", "2.3.1", "2.4.1", "2.5.1")
"""PyTorch versions of the SMP v2 containers (AWS developer guide, SMP v2 release notes).

sagemaker-core also lists versions of the library itself (such as 2.5.0), and returns URIs of
containers that don't exist for them.
"""
_SMP_ARGUMENT = {
    "torch_distributed": {"enabled": True},
    "smdistributed": {"modelparallel": {"enabled": True}},
}


def device_of(instance: InstanceType) -> str:
    """Return the kind of container for an instance type: cpu, gpu or neuron.

    Raises:
        PreflightRefused: the catalogue has no entry for the type's accelerators.
    """
    if instance.accelerators == 0:
        return "cpu"
    if instance.accelerator is None:
        raise PreflightRefused(
            f"image.framework.accelerator: the accelerators of {instance.instance_type} are"
            " unknown; set this field"
        )
    return "neuron" if instance.accelerator.startswith("Trainium") else "gpu"


def framework_image(framework: FrameworkConfig, region: str, instance: InstanceType) -> str:
    """Return the URI of AWS's training container for a PyTorch version in a region.

    The URI comes from sagemaker.core.image_uris.

    Raises:
        PreflightRefused: there is no such container.
    """
    is_new = tuple(map(int, framework.version.split(".")))[:2] >= NEW_FAMILY
    if is_new and framework.python is not None:
        raise PreflightRefused(
            f"image.framework.python: got {framework.python!r}, but the container of PyTorch"
            f" {framework.version} has a single Python version; leave it out"
        )
    try:
        # The first import takes seconds.
        image_uris = importlib.import_module("sagemaker.core.image_uris")
        uri = str(
            image_uris.retrieve(
                "pytorch-amzn2023" if is_new else "pytorch",
                region,
                version=framework.version,
                py_version=framework.python,
                instance_type=_SAMPLE_TYPES[framework.accelerator or device_of(instance)],
                image_scope="training",
            )
        )
        if not uri.rpartition(":")[2].startswith(f"{framework.version}-"):
            # For some families, the same version is returned regardless of the requested one.
            raise ValueError(f"no container of version {framework.version}, only {uri}.")
    except ValueError as error:
        raise PreflightRefused(
            f"image.framework: {error} Correct it, or set image.base_image."
        ) from error
    return uri


def smp_image(framework: FrameworkConfig, region: str, instance: InstanceType) -> str:
    """Return the URI of the SMP v2 container for a PyTorch version, as the SDK selects it.

    Raises:
        PreflightRefused: there is no such container.
    """
    if framework.version not in _SMP_VERSIONS:
        raise PreflightRefused(
            f"image.framework.version: no SMP container has PyTorch {framework.version}, but"
            f" training.distribution.kind: smp_v2 requires one; use {', '.join(_SMP_VERSIONS)}, or"
            " set image.base_image"
        )
    if framework.accelerator not in (None, "gpu"):
        raise PreflightRefused(
            f"image.framework.accelerator: got {framework.accelerator!r}, but the SMP container"
            " only supports gpu; leave it out"
        )
    image_uris = importlib.import_module("sagemaker.core.image_uris")
    try:
        return str(
            image_uris.get_training_image_uri(
                region,
                "pytorch",
                framework_version=framework.version,
                py_version=framework.python,
                distribution=_SMP_ARGUMENT,
                # For PyTorch 2.0.1 the two types' containers have different CUDA versions.
                instance_type=(
                    "ml.p5.48xlarge" if instance.family.startswith("p5") else "ml.p4d.24xlarge"
                ),
            )
        )
    except ValueError as error:
        raise PreflightRefused(
            f"image.framework: {error} Correct it, or set image.base_image."
        ) from error


def with_container(config: BenchmarkConfig, instance: InstanceType) -> ImageConfig:
    """Return the config's image section with its container resolved.

    `framework` is replaced by `base_image`. If no image is built, the container's URI becomes
    `uri`.

    Raises:
        PreflightRefused: there is no such container.
    """
    image = config.image
    if image.framework is not None and image.uri is None:
        look_up = smp_image if config.training.distribution.kind == "smp_v2" else framework_image
        base = look_up(image.framework, config.platform.region, instance)
        image = image.model_copy(update={"base_image": base, "framework": None})
    if config.runs_unmodified_container:
        image = image.model_copy(update={"base_image": None, "uri": image.base_image})
    return image


def pinned_base(ecr: Any, reference: str, image: EcrImage) -> str:
    """Return <repository>@<digest> of a base image in ECR; requires only permission to pull.

    Raises:
        ClientError: the call fails.
        LookupError: there is no such image.
    """
    answer = ecr.batch_get_image(
        registryId=image.account, repositoryName=image.repository, imageIds=[dict(image.image_id)]
    )
    if not answer["images"]:
        raise LookupError(
            "; ".join(str(failure.get("failureReason")) for failure in answer["failures"])
        )
    digest = answer["images"][0]["imageId"]["imageDigest"]
    return f"{reference.split('@')[0].rpartition(':')[0] or reference}@{digest}"


def by_digest(images: Images, reference: str) -> str | None:
    """Return the image's reference by digest, or log the reason and return None if it is unknown.

    The digest is unknown outside ECR and without permission.

    Raises:
        ClientError: the error is transient; an image's name must not depend on a throttled call.
    """
    if "@sha256:" in reference:
        return reference
    image = parse_ecr_image(reference)
    try:
        if image is None:
            raise LookupError("it is not in ECR")
        there = images.backend.platform.model_copy(update={"region": image.region})
        ecr = aws_client("ecr", there, quick=True)
        return pinned_base(ecr, reference, image)
    except (BotoCoreError, ClientError, LookupError) as error:
        if isinstance(error, ClientError) and is_transient(error):
            raise
        if isinstance(error, ClientError) and error.response["Error"]["Code"] == _NO_REPOSITORY:
            # A build that needs the base fails with its own error; emulated nodes don't need it.
            logger.info(
                "base image %s is not in a known registry; identifying it by its name",
                reference,
            )
            return None
        logger.warning(
            "base image %s: its digest is unknown (%s); the image's tag is derived from the base's"
            " name, so a changed base goes unnoticed. Pin it: …@sha256:…",
            reference,
            error,
        )
        return None


def pin_base_images(images: Images, build_args: Mapping[str, str]) -> dict[str, str]:
    """Return {base image as written: its reference by digest} for the build context.

    Images whose digest is unknown are left out; by_digest() logs the reason.
    """
    dockerfile = images.section.build_context / "Dockerfile"
    text = dockerfile.read_text(errors="replace") if dockerfile.is_file() else ""
    found = {
        base.reference: by_digest(images, base.reference)
        for base in dockerfile_bases(text, build_args)
        if "@sha256:" not in base.reference
    }
    return {reference: pinned for reference, pinned in found.items() if pinned is not None}


def pin_container(images: Images, uri: str) -> str:
    """Resolve the ECR digest of a container that jobs run unchanged.

    Tags can be moved to other images. Return the URI itself if the digest is unknown.
    """
    return by_digest(images, uri) or uri
