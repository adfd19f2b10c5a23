"""What an image's name tells of its content: AWS's containers carry framework, version and device in their tag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from configs.models import BenchmarkConfig

Device = Literal["gpu", "cpu", "neuron"]
PYTORCH = frozenset({"pytorch-training", "pytorch"})  # `pytorch` from 2.11 on
NEURON = frozenset({"pytorch-training-neuron", "pytorch-training-neuronx"})
MODEL_PARALLEL = frozenset({"smdistributed-modelparallel"})
_URI = re.compile(
    r"^(?P<account>\d{12})\.dkr\.ecr\.[a-z0-9-]+\.[a-z0-9.]+/(?P<repository>[a-z0-9._/-]+):(?P<tag>[\w.-]+)(@sha256:\w+)?$"
)
_TAG = re.compile(r"^(?P<version>\d+\.\d+(\.\d+)?)-(?P<device>gpu|cpu|cu\d+|neuronx?)\b")


@dataclass(frozen=True)
class ImageFacts:
    """An AWS container. `version` is PyTorch's as numbers; `cuda` is e.g. "124" for 12.4, None where there is none.

    `extended`: the training image is built on this one and may hold more than its name tells.
    """

    uri: str
    repository: str
    version: tuple[int, ...]
    device: Device
    cuda: str | None
    extended: bool = False

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def image_facts(config: BenchmarkConfig) -> ImageFacts | None:
    """The container that the job runs or is built on, None where its name tells nothing."""
    if config.image.uri is not None:
        return parse_image(config.image.uri, config.platform.role_arn.split(":")[4])
    return parse_image(config.image.base_image or "", built_on=True)


def parse_image(uri: str, own_account: str | None = None, built_on: bool = False) -> ImageFacts | None:
    """Facts from the URI of an AWS container, e.g. …/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker.

    One in the account that trains may have been extended. A digest without a tag and any other image give None.
    """
    found = _URI.match(uri)
    if found is None or found["repository"] not in PYTORCH | NEURON | MODEL_PARALLEL:
        return None
    tag = _TAG.match(found["tag"])
    if tag is None:
        return None
    cuda = re.search(r"-cu(\d+)\b", found["tag"])
    device: Device = "neuron" if tag["device"].startswith("neuron") else "cpu" if tag["device"] == "cpu" else "gpu"
    return ImageFacts(
        uri=uri,
        repository=found["repository"],
        version=tuple(map(int, tag["version"].split("."))),
        device=device,
        cuda=cuda[1] if cuda else None,
        extended=built_on or found["account"] == own_account,
    )
