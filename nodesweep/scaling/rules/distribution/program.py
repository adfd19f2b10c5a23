"""What the shipped training program (infra/image) needs of the container that it runs in.

Said only where the program is the shipped one and the container's own torch is kept: own code
brings its own needs, and `requirements.txt` brings its own torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodesweep.scaling.rules.distribution.options import LIBRARIES
from nodesweep.scaling.rules.rule import Facts, advises, refuses

PROGRAM_TORCH = (2, 1)
"""The oldest PyTorch that the shipped program runs on."""
FSDP_TORCH = (2, 6)
"""`torch.distributed.fsdp.fully_shard`, FSDP 2,
is there from PyTorch 2.6 on (its release notes).
"""
FSDP_TORCH_ON_CPUS = (2, 7)
"""Without a GPU it ends at its first step on 2.6 (benchmarks/training_matrix.py)."""

_ARGUMENT_OF_KIND = {
    "smddp": ("backend", "smddp"),
    "smp_v2": ("strategy", "smp"),
    "trainium": ("backend", "xla"),
}


@refuses
def program_has_its_torch(facts: Facts) -> list[str]:
    """The program ends with an ImportError on an older torch;
    infra/image/README.md says which it was run on.
    """
    image = facts.image
    if not facts.ships_program or image is None or image.extended:
        return []
    if image.version < PROGRAM_TORCH:
        return [
            f"{image.field}: {image.uri} holds PyTorch {image.version_text}, and the shipped"
            " program runs on 2.1 and later; use a newer container, or your own code"
            " (training.source_dir)"
        ]
    needs = FSDP_TORCH_ON_CPUS if image.device == "cpu" else FSDP_TORCH
    if facts.training.hyperparameters.get("strategy") == "fsdp" and image.version < needs:
        where, first = " on CPUs" if image.device == "cpu" else "", ".".join(map(str, needs))
        return [
            "training.hyperparameters: strategy fsdp is FSDP 2 (fully_shard), which PyTorch"
            f" has{where} from {first} on, and {image.uri} holds {image.version_text}; use strategy"
            f" ddp, or a container of {first} or later"
        ]
    return []


@advises
def program_uses_the_library(facts: Facts) -> list[str]:
    """The program takes nccl and DDP unless it is told to use AWS's library,
    whatever launched it.
    """
    argument = _ARGUMENT_OF_KIND.get(facts.distribution.kind)
    if not facts.ships_program or argument is None:
        return []
    option, value = argument
    given = facts.training.hyperparameters.get(option)
    if given == value:
        return []
    return [
        f"training.hyperparameters: {option} is {given or 'not set'}, so the shipped program does"
        f" not use the library of kind {facts.distribution.kind}, and what is measured is PyTorch's"
        f" own; set {option}: {value}"
    ]


@refuses
def program_has_its_libraries(facts: Facts) -> Iterator[str]:
    """--backend smddp, --backend xla and --strategy smp import AWS's libraries,
    which only some containers hold.
    """
    image = facts.image
    if not facts.ships_program or image is None or image.extended:
        return
    for option in ("backend", "strategy"):
        value = facts.training.hyperparameters.get(option)
        library = LIBRARIES.get((option, str(value)))
        if library is not None and not library[0](image):
            yield (
                f"training.hyperparameters: {option} {value} needs {library[1]}; {image.field} is"
                f" {image.uri}; use such an image, or another {option}"
            )
