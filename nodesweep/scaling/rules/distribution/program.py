"""Requirements of the shipped training program (infra/image) on its container.

They apply only if the shipped program keeps the container's own torch. A user's training script has
different requirements, and `requirements.txt` installs a different torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodesweep.configs.training import Scalar
from nodesweep.scaling.rules.distribution.options import LIBRARIES
from nodesweep.scaling.rules.rule import Facts, advises, refuses

PROGRAM_TORCH = (2, 1)
"""The oldest PyTorch that the shipped program runs on."""
FSDP_TORCH = (2, 6)
"""First PyTorch with FSDP 2, `torch.distributed.fsdp.fully_shard` (its release notes)."""
FSDP_TORCH_ON_CPUS = (2, 7)
"""First PyTorch for FSDP 2 without a GPU; 2.6 fails at step 1 (benchmarks/training_matrix.py)."""

_ARGUMENT_OF_KIND = {
    "smddp": ("backend", "smddp"),
    "smp_v2": ("strategy", "smp"),
    "trainium": ("backend", "xla"),
}


@refuses
def program_has_its_torch(facts: Facts) -> list[str]:
    """Refuse an older torch, on which the program fails with an ImportError.

    infra/image/README.md lists the versions that it was run on.
    """
    image = facts.image
    if not facts.ships_program or image is None or image.extended:
        return []
    if image.version < PROGRAM_TORCH:
        return [
            f"{image.field}: {image.uri} has PyTorch {image.version_text}, but the shipped "
            "program needs 2.1 or later; use a newer container, or your training script "
            "(training.source_dir)"
        ]
    needs = FSDP_TORCH_ON_CPUS if image.device == "cpu" else FSDP_TORCH
    if facts.training.hyperparameters.get("strategy") == "fsdp" and image.version < needs:
        where, first = " on CPUs" if image.device == "cpu" else "", ".".join(map(str, needs))
        return [
            f"training.hyperparameters: strategy fsdp is FSDP 2 (fully_shard), which{where} "
            f"needs PyTorch {first} or later, but {image.uri} has {image.version_text}; use "
            f"strategy ddp, or a container of {first} or later"
        ]
    return []


@advises
def program_uses_the_library(facts: Facts) -> list[str]:
    """Warn if the program's arguments do not select the kind's AWS library.

    By default it uses nccl and DDP under every launcher.
    """
    argument = _ARGUMENT_OF_KIND.get(facts.distribution.kind)
    if not facts.ships_program or argument is None:
        return []
    option, value = argument
    given = facts.training.hyperparameters.get(option)
    if given == value:
        return []
    return [
        f"training.hyperparameters: {option} is {given or 'not set'}, so the shipped program "
        f"does not use the library of kind {facts.distribution.kind}, and the sweep measures "
        f"PyTorch's instead; set {option}: {value}"
    ]


@refuses
def program_has_its_libraries(facts: Facts) -> Iterator[str]:
    """Refuse --backend smddp, --backend xla and --strategy smp without the library they import.

    Only some AWS containers have these libraries.
    """
    image = facts.image
    if not facts.ships_program or image is None or image.extended:
        return
    for option in ("backend", "strategy"):
        value = facts.training.hyperparameters.get(option)
        library = LIBRARIES.get((option, str(value)))
        if library is not None and not library[0](image):
            yield (
                f"training.hyperparameters: {option} {value} needs {library[1]}, but "
                f"{image.field} is {image.uri}; use such an image, or another {option}"
            )


def compression_backend(hyperparameters: Mapping[str, Scalar]) -> str | None:
    """Return the shipped program's backend, or None if --compress does not work with it."""
    backend = str(hyperparameters.get("backend", "auto"))
    is_ddp = hyperparameters.get("strategy", "ddp") == "ddp"
    return backend if is_ddp and backend in ("auto", "gloo", "nccl") else None


@refuses
def program_can_compress(facts: Facts) -> list[str]:
    """Refuse --compress if the program would fail: outside DDP, or with bf16 on CPUs.

    An instance type with unknown accelerators may have GPUs.
    """
    passed = facts.training.hyperparameters
    value = passed.get("compress", "none")
    if not facts.ships_program or value == "none":
        return []
    backend = compression_backend(passed)
    if backend is None:
        return [
            f"training.hyperparameters: compress {value} is for strategy ddp with backend nccl or "
            "gloo; leave it out, or use those"
        ]
    if value == "bf16" and (backend == "gloo" or facts.instance.accelerators == 0):
        return [
            "training.hyperparameters: compress bf16 needs GPUs and backend nccl; use compress "
            "fp16, or leave it out"
        ]
    return []
