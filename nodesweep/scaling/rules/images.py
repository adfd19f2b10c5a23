"""Facts from an image's name: tags of AWS containers contain framework, version and device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from nodesweep.configs.models import BenchmarkConfig

Device = Literal["gpu", "cpu", "neuron"]
PYTORCH = frozenset({"pytorch-training", "pytorch"})  # `pytorch` from 2.11 on
NEURON = frozenset({"pytorch-training-neuron", "pytorch-training-neuronx"})
MODEL_PARALLEL = frozenset({"smdistributed-modelparallel"})
SMDDP_BY_PATCH = frozenset({(2, 4, 0), (2, 5, 1)})
"""PyTorch versions whose containers got SMDDP only in a later patch of the same tag.

2.4.0 (aws/deep-learning-containers#4395 and #4403) and 2.5.1 (its Dockerfile.gpu installs SMDDP
2.6.0 of March 2025). AWS's table of containers with SMDDP lists neither.
"""
_LAST_PATCH = {
    (1, 3): 1, (1, 7): 1, (1, 8): 1, (1, 9): 1, (1, 10): 2, (1, 12): 1, (1, 13): 1, (2, 0): 1,
    (2, 5): 1, (2, 7): 1,
}  # fmt: skip
"""Patch number that a two-part tag such as `2.5-gpu-py311` stands for, if not 0.

Source: sagemaker-core, version_aliases in image_uri_config/pytorch.json.
"""
_ON_DLC = "requirements-on-dlc"
NEW_FAMILY = (2, 11)
"""First PyTorch in the repository `pytorch`, which replaces `pytorch-training`.

Each of its containers has only one Python version.
"""
ECR_URI = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.[a-z0-9.-]+/"
    r"(?P<repository>[a-z0-9._/-]+)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""An image in ECR; the domain depends on AWS's partition (amazonaws.com, amazonaws.eu)."""
# CUDA of AWS PyTorch containers whose tag lacks it, such as the SageMaker SDK's `2.6.0-gpu-py312`.
# Source: the folders of aws/deep-learning-containers, pytorch/training/docker. Older PyTorch
# versions come with several versions of CUDA, and later tags contain it.
_CUDA_OF_VERSION: dict[tuple[int, ...], str] = {
    (2, 2): "121", (2, 3): "121", (2, 4): "124", (2, 5): "124", (2, 6): "126", (2, 7): "128",
    (2, 8): "129", (2, 9): "130", (2, 10): "130", (2, 11): "130", (2, 12): "130", (2, 13): "133",
    (2, 14): "133",
}  # fmt: skip
_TAG = re.compile(r"^(?P<version>\d+\.\d+(\.\d+)?)-(?P<device>gpu|cpu|cu\d+|neuronx?)\b")


@dataclass(frozen=True)
class ImageFacts:
    """An AWS container, as its name describes it.

    `version` is PyTorch's version as numbers. `cuda` is, for example, "124" for 12.4, and None if
    there is none or it is unknown. `extended` is True if the training image is built on this one
    and may contain more than its name says. `field` is the config field that names it.
    """

    uri: str
    repository: str
    version: tuple[int, ...]
    device: Device
    cuda: str | None
    extended: bool = False
    field: str = "image.uri"

    @property
    def version_text(self) -> str:
        """The PyTorch version with dots."""
        return ".".join(map(str, self.version))

    @property
    def cuda_version(self) -> tuple[int, int]:
        """(12, 4) for "124": the last digit is the minor version; requires `cuda` to be known."""
        assert self.cuda is not None
        return int(self.cuda[:-1]), int(self.cuda[-1])


def keeps_base_torch(config: BenchmarkConfig) -> bool:
    """Return True if only the shipped program and pure Python are added to the base image.

    Torch, CUDA and AWS's libraries then come from the base image. requirements-on-dlc, as .txt or
    .lock, is made for that (infra/image/README.md).
    """
    return (
        config.ships_program
        and PurePath(config.image.build_args.get("REQUIREMENTS", "")).stem == _ON_DLC
    )


def image_facts(config: BenchmarkConfig) -> ImageFacts | None:
    """Return the facts in the name of the job's container, or of the one that its image extends.

    None if the name contains none. `image.framework` is resolved before the rules run
    (nodesweep.tasks.image.bases.with_container).
    """
    if config.image.uri is not None:
        return parse_image(config.image.uri, config.platform.account_id)
    base = config.image.base_image or ""
    return parse_image(base, built_on=not keeps_base_torch(config), field="image.base_image")


def parse_image(
    uri: str, own_account: str | None = None, built_on: bool = False, field: str = "image.uri"
) -> ImageFacts | None:
    """Return the facts in the URI of an AWS container.

    For example …/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker. The result is None
    for a digest without a tag and for any other image.

    Args:
        uri: The image's URI.
        own_account: The account that runs the training; an image in it may have been extended.
        built_on: True if the training image is built on this one.
        field: The config field that names the image.
    """
    found = ECR_URI.fullmatch(uri)
    if found is None or found["repository"] not in PYTORCH | NEURON | MODEL_PARALLEL:
        return None
    tag = _TAG.match(found["tag"] or "")
    if tag is None:
        return None
    version = _whole_version(tag["version"])
    device: Device = (
        "neuron"
        if tag["device"].startswith("neuron")
        else "cpu"
        if tag["device"] == "cpu"
        else "gpu"
    )
    return ImageFacts(
        uri=uri,
        repository=found["repository"],
        version=version,
        device=device,
        cuda=_cuda(found["tag"], found["repository"], version) if device == "gpu" else None,
        extended=built_on or found["account"] == own_account,
        field=field,
    )


def _cuda(tag: str, repository: str, version: tuple[int, ...]) -> str | None:
    """Return the CUDA version in the tag, such as "124", or the one AWS builds with by default."""
    if found := re.search(r"-cu(\d+)\b", tag):
        return found[1]
    return _CUDA_OF_VERSION.get(version[:2]) if repository in PYTORCH else None


def _whole_version(text: str) -> tuple[int, ...]:
    """Return the version as numbers, with the patch that a two-part tag below 2.11 stands for."""
    major, minor, *patch = map(int, text.split("."))
    if patch or (major, minor) >= NEW_FAMILY:
        return (major, minor, *patch)
    return major, minor, _LAST_PATCH.get((major, minor), 0)
