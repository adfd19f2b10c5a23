"""Base images: which ones a Dockerfile builds on, which one a framework version means, and their digests in ECR."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from prefect import task

from configs.catalogue import InstanceType
from configs.models import FrameworkConfig, ImageConfig, PlatformConfig
from tasks.errors import PreflightRefused, is_passing
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.preflight_storage import EcrImage, parse_ecr_image

logger = logging.getLogger("nodesweep.image")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")
# A type per device that sagemaker.core knows: it knows fewer types than the catalogue, and emulated ones not at all.
_SAMPLE_TYPES = {"cpu": "ml.m5.xlarge", "gpu": "ml.g5.xlarge", "neuron": "ml.trn1.2xlarge"}
_NEW_FAMILY = (2, 11)  # `pytorch-amzn2023` from this version on, `pytorch` before


@dataclass(frozen=True)
class Base:
    """An image that a build starts from. `argument` is the build argument that names it, None where none does."""

    reference: str
    argument: str | None


def dockerfile_bases(text: str, build_args: Mapping[str, str]) -> tuple[Base, ...]:
    """Every image that FROM and COPY --from name, in order; neither earlier stages nor `scratch`."""
    arguments: dict[str, str] = {}
    stages: set[str] = set()
    bases: dict[str, Base] = {}
    started = False
    for instruction, words in _instructions(text):
        options = [word for word in words if word.startswith("--")]
        rest = [word for word in words if not word.startswith("--")]
        asked = [option.partition("=")[2] for option in options if option.startswith("--from=")]
        if instruction == "ARG" and not started:
            for word in rest:
                name, _, default = word.partition("=")
                arguments[name] = build_args.get(name, _expand(default.strip("'\""), arguments))
        elif instruction == "FROM" and rest:
            started = True
            asked = rest[:1]
        for spelled in asked:
            reference = _expand(spelled, arguments)
            if reference and reference != "scratch" and not reference.isdigit() and reference.lower() not in stages:
                bases.setdefault(reference, Base(reference, _argument(spelled, arguments)))
        if instruction == "FROM" and len(rest) == 3 and rest[1].upper() == "AS":
            stages.add(rest[2].lower())
    return tuple(bases.values())


def _instructions(text: str) -> Iterator[tuple[str, list[str]]]:
    """(INSTRUCTION, its words), comments left out and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        if words := line.split():
            yield words[0].upper(), words[1:]


def _expand(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(
        lambda found: values.get(found["braced"] or found["plain"]) or _expand(found["default"] or "", values), text
    )


def _argument(spelled: str, arguments: Mapping[str, str]) -> str | None:
    """The argument whose value the reference is, as a whole."""
    found = _VARIABLE.fullmatch(spelled)
    name = found and (found["braced"] or found["plain"])
    return name if name in arguments else None


def device_of(instance: InstanceType) -> str:
    """The kind of container an instance type takes: cpu, gpu or neuron."""
    if instance.accelerator is None:
        return "cpu"
    return "neuron" if instance.accelerator.startswith("Trainium") else "gpu"


def framework_image(framework: FrameworkConfig, region: str, instance: InstanceType) -> str:
    """URI of AWS's training container for a PyTorch version in a region, by sagemaker.core.image_uris.

    Raises PreflightRefused where there is none.
    """
    is_new = tuple(map(int, framework.version.split(".")))[:2] >= _NEW_FAMILY
    if is_new and framework.python is not None:
        raise PreflightRefused(
            (
                f"image.framework.python: the container of PyTorch {framework.version} has one Python only, got "
                f"{framework.python!r}; leave it out",
            )
        )
    try:
        uri = str(
            importlib.import_module("sagemaker.core.image_uris").retrieve(  # seconds, the first time
                "pytorch-amzn2023" if is_new else "pytorch",
                region,
                version=framework.version,
                py_version=framework.python,
                instance_type=_SAMPLE_TYPES[framework.accelerator or device_of(instance)],
                image_scope="training",
            )
        )
        if not uri.rpartition(":")[2].startswith(f"{framework.version}-"):  # the only one there is, whatever was asked
            raise ValueError(f"no container of version {framework.version}, only {uri}.")
    except ValueError as error:
        raise PreflightRefused(
            (f"image.framework: {error} Correct it, or name the container by image.base_image.",)
        ) from error
    return uri


def with_base_image(config: ImageConfig, region: str, instance: InstanceType) -> ImageConfig:
    """The same section with `framework` resolved into `base_image`. Raises PreflightRefused."""
    if config.framework is None or config.uri is not None:
        return config
    base = framework_image(config.framework, region, instance)
    return config.model_copy(update={"base_image": base, "framework": None})


def pinned_base(ecr: Any, reference: str, image: EcrImage) -> str:
    """<repository>@<digest> of a base in ECR, by the right to pull it. Raises ClientError, LookupError."""
    answer = ecr.batch_get_image(
        registryId=image.account, repositoryName=image.repository, imageIds=[dict(image.image_id)]
    )
    if not answer["images"]:
        raise LookupError("; ".join(str(failure.get("failureReason")) for failure in answer["failures"]))
    digest = answer["images"][0]["imageId"]["imageDigest"]
    return f"{reference.split('@')[0].rpartition(':')[0] or reference}@{digest}"


def pin_bases(platform: PlatformConfig, config: ImageConfig, build_args: Mapping[str, str]) -> dict[str, str]:
    """Base images of the context as they are written -> by digest; one without a digest is left out, with a warning.

    Raises the ClientError of a call that may succeed in a while: a tag must not depend on a throttled call.
    """
    dockerfile = Path(config.context) / "Dockerfile"
    text = dockerfile.read_text(errors="replace") if dockerfile.is_file() else ""
    pinned: dict[str, str] = {}
    for base in dockerfile_bases(text, build_args):
        if "@sha256:" in base.reference:
            continue
        image = parse_ecr_image(base.reference)
        try:
            if image is None:
                raise LookupError("it is not in ECR")
            ecr = aws_client("ecr", platform.model_copy(update={"region": image.region}), quick=True)
            pinned[base.reference] = pinned_base(ecr, base.reference, image)
        except (BotoCoreError, ClientError, LookupError) as error:
            if isinstance(error, ClientError) and is_passing(error):
                raise
            logger.warning(
                "base image %s: its digest is unknown (%s); the image is named by the base's name, so a base that "
                "changed under it is not noticed. Pin it: …@sha256:…",
                base.reference,
                error,
            )
    return pinned


@task(name="pin-base-images", **TASK_OPTIONS)
def pin_base_images(platform: PlatformConfig, config: ImageConfig, build_args: dict[str, str]) -> dict[str, str]:
    """ECR: the digests of the images that the training image is built on."""
    return pin_bases(platform, config, build_args)
