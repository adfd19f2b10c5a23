"""What this program uses of PyTorch that not every release from the oldest on has, and the refusal
where it is missing.

All else that it uses is in every release from OLDEST on: tests/infra/image/test_torch_names.py
holds it against their sources, and `make matrix` runs it on each.
"""

from __future__ import annotations

import re

from training.errors import UserError

OLDEST = (2, 1)  # pytorch-lightning 2.6 asks for it
FSDP2 = "torch.distributed.fsdp.fully_shard"
FSDP2_ON_CPUS = "torch.cpu.Stream.record_event"
FUSED_OPTIMIZERS = "torch.optim's fused kernels"
# The first release that has it; a name of torch is imported where it is needed,
# never at the top of a module.
FIRST_RELEASE = {
    FSDP2: (2, 6),  # 2.4 and 2.5 have it elsewhere, and for GPUs alone
    # which fully_shard calls where there is no GPU: 2.6.0 ends at its first step
    FSDP2_ON_CPUS: (2, 7),
    # of SGD, Adam and AdamW, on CPUs and GPUs alike; SGD's argument is there from 2.3 on
    FUSED_OPTIMIZERS: (2, 4),
}


def torch_has(name: str) -> bool:
    """Whether the PyTorch of this container has `name`, a key of FIRST_RELEASE."""
    return _release() >= FIRST_RELEASE[name]


def require(name: str, asked: str, instead: str) -> None:
    """Raise UserError where this PyTorch lacks what `asked`, an argument of the program, needs."""
    if not torch_has(name):
        raise UserError(
            f"{asked} needs PyTorch {_spell(FIRST_RELEASE[name])} or later ({name}),"
            f" {_here()}: {instead}"
        )


def require_oldest() -> None:
    """Raise UserError on a PyTorch that the program, with its Lightning, can't run on."""
    if _release() < OLDEST:
        raise UserError(
            f"this program needs PyTorch {_spell(OLDEST)} or later, {_here()}:"
            " use a later container"
        )


def _release() -> tuple[int, int]:
    """Major and minor version of torch: (2, 3) of 2.3.0+cu121."""
    major, minor = re.findall(r"\d+", _version())[:2]
    return int(major), int(minor)


def _spell(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def _here() -> str:
    return f"this is {_version()}"


def _version() -> str:
    import torch  # not above: tests and the matrix read the tables where there is no torch

    return str(torch.__version__)
