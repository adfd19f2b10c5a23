"""Rules on an AWS container and the instance type that runs it, for every distribution kind.

A rule refuses only if the image's content is known: an unmodified AWS container, or the shipped
program on one. If more is built on the container, the same sentence is a hint. Nothing is reported
for other images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodesweep.scaling.rules.images import NEURON, PYTORCH, SMDDP_BY_PATCH, ImageFacts
from nodesweep.scaling.rules.rule import Facts, Findings, advises, refuses

Version = tuple[int, ...]


@dataclass(frozen=True)
class Gpu:
    """A GPU and the CUDA versions that support it; `last` is None if support was never dropped."""

    capability: str
    first: Version
    first_container: str
    last: Version | None = None
    last_container: str = ""


_AMPERE = ((11, 0), "pytorch-training 1.7.1")
_HOPPER = ((11, 8), "pytorch-training 2.0.0")
_BLACKWELL = ((12, 8), "pytorch-training 2.7.1")
GPUS = {
    "K80": Gpu("3.7", (6, 5), "", (11, 8), "pytorch-training 2.0.1 (CUDA 11.8)"),
    "V100": Gpu("7.0", (9, 0), "", (12, 6), "pytorch-training 2.6.0 (CUDA 12.6)"),
    "T4": Gpu("7.5", (9, 0), ""),
    "A100": Gpu("8.0", *_AMPERE),
    "A10G": Gpu("8.6", *_AMPERE),
    "L4": Gpu("8.9", *_AMPERE),
    "L40S": Gpu("8.9", *_AMPERE),
    "H100": Gpu("9.0", *_HOPPER),
    "H200": Gpu("9.0", *_HOPPER),
    "B200": Gpu("10.0", *_BLACKWELL),
    "GB200": Gpu("10.0", *_BLACKWELL),
    "B300": Gpu("10.3", *_BLACKWELL),
    "RTX PRO Server 6000": Gpu("12.0", *_BLACKWELL),
    "RTX PRO 4500": Gpu("12.0", *_BLACKWELL),
}
"""The catalogue's GPUs by name.

Sources:

- capability: developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus; K80: the comment in AWS's
  Dockerfiles of PyTorch 2.5 and 2.6 ("older archs are not supported on CUDA12.1 like 3.7 for P2
  instance").
- first CUDA: release notes of CUDA 9.0 (Volta), 11.0 (Ampere), 11.8 (Hopper), 12.8 (Blackwell).
  Code for a capability runs on later ones with the same major number (CUDA C++ programming guide,
  "Binary compatibility"): an A10G (8.6) runs code compiled for an A100 (8.0).
- last CUDA: CUDA 12.0 dropped Kepler. CUDA 13.0 dropped Maxwell, Pascal and Volta, but AWS's
  containers of PyTorch 2.7 and 2.8 install PyTorch's own wheels of CUDA 12.8 and 12.9
  (aws/deep-learning-containers, their Dockerfile.gpu), which already have no code for Volta
  (pytorch/pytorch#147607; release notes of 2.8, "Removed support for Maxwell, Pascal, and Volta
  architectures with CUDA 12.8 and 12.9 builds"). A job fails with "no kernel image is available".
- containers: the folders of aws/deep-learning-containers, pytorch/training/docker.
"""


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def gpu_supports_the_cuda(facts: Facts) -> Findings:
    """Refuse a container whose CUDA has no code for the GPU; `GPUS` has the sources.

    It is a hint if the training image is built on the container, because that image may have a
    different PyTorch.
    """
    image, instance = facts.image, facts.instance
    gpu = GPUS.get(instance.accelerator or "")
    if image is None or image.cuda is None or gpu is None:
        return Findings()
    cuda = image.cuda_version
    if gpu.last is not None and cuda > gpu.last:
        remedy = f"{gpu.last_container} is the newest AWS container for it: use that"
    elif cuda < gpu.first:
        remedy = f"it needs CUDA {_text(gpu.first)} or later: use {gpu.first_container} or later"
    else:
        return Findings()
    message = (
        (
            f"{image.field}: {image.uri} has CUDA {_text(cuda)}, which has no code for the "
            f"{instance.accelerator} of {instance.instance_type} (compute capability "
            f"{gpu.capability}); {remedy}, or another instance type"
        ),
    )
    return Findings(hints=message) if image.extended else Findings(message)


@advises
def cuda_is_known(facts: Facts) -> list[str]:
    """Warn about AWS GPU containers that the CUDA rule cannot check."""
    image, instance = facts.image, facts.instance
    if image is None or image.device != "gpu" or instance.accelerators == 0 or instance.emulated:
        return []
    if instance.accelerator is None:
        return [
            f"training.instance_type: the GPUs of {instance.instance_type} are unknown, so "
            f"whether the CUDA of {image.uri} has code for them is not checked"
        ]
    gpu = GPUS.get(instance.accelerator)
    if image.cuda is not None or gpu is None:
        return []
    allowed = f"CUDA {_text(gpu.first)}" + (f" to {_text(gpu.last)}" if gpu.last else " or later")
    return [
        f"{image.field}: the name {image.uri} does not show its CUDA version, but the "
        f"{instance.accelerator} of {instance.instance_type} needs {allowed}; use a tag that "
        "contains it (…-cu124-…)"
    ]


@refuses
def processor_matches_the_container(facts: Facts) -> Iterator[str]:
    """Refuse x86 containers on Arm processors, whatever is built on them.

    AWS's PyTorch containers for SageMaker are x86 (arch_type in aws/deep-learning-containers).
    Those for Arm are in a separate repository, pytorch-training-arm64.
    """
    if facts.image is not None and facts.instance.architecture == "arm64":
        yield (
            f"{facts.image.field}: {facts.image.uri} is for x86 processors, but "
            f"{facts.instance.instance_type} has Arm ones, so it does not start there; use an "
            "image for arm64, or another instance type"
        )


@advises
def smddp_may_be_missing(facts: Facts) -> Iterator[str]:
    """Warn if a tag does not show whether the image has SMDDP (sources: `SMDDP_BY_PATCH`)."""
    image = facts.image
    asked = (
        facts.distribution.kind == "smddp"
        or facts.training.hyperparameters.get("backend") == "smddp"
    )
    if (
        asked
        and image is not None
        and image.repository in PYTORCH
        and image.version in SMDDP_BY_PATCH
    ):
        yield (
            f"{image.field}: the container of PyTorch {image.version_text} was released without "
            "SMDDP, which only later patches include; check that yours has it (pip list, "
            "smdistributed-dataparallel), or use 2.3.0"
        )


@advises
def device_is_used(facts: Facts) -> list[str]:
    """Warn about a container for a different device, which starts but leaves accelerators idle.

    Its PyTorch falls back to the CPU.
    """
    image, instance = facts.image, facts.instance
    if image is None or instance.emulated:
        return []
    made_for = {"gpu": "GPUs", "cpu": "CPUs", "neuron": "NeuronCores"}[image.device]
    has = _device_of(facts, image)
    if has is None or has == image.device:
        return []
    if has == "cpu":
        return [
            f"{image.field}: {image.uri} is made for {made_for}, but {instance.instance_type} has"
            " none; a CPU container is smaller and starts sooner"
        ]
    return [
        f"{image.field}: {image.uri} is made for {made_for}, so the {instance.accelerator} "
        f"accelerators of {instance.instance_type} stay idle but are paid for; use a container "
        "that is made for them"
    ]


def _device_of(facts: Facts, image: ImageFacts) -> str | None:
    """Return gpu, cpu or neuron; None if unknown, or if `image_is` already reports it."""
    instance = facts.instance
    if facts.distribution.kind == "trainium" and image.repository not in NEURON:
        return None
    if instance.accelerators == 0:
        return "cpu"
    if instance.accelerator is None:
        return None
    return "neuron" if instance.accelerator.startswith("Trainium") else "gpu"
