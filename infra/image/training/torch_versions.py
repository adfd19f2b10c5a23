"""PyTorch features that some supported releases lack, and the error if one is missing.

Everything else that the program uses exists in every release from OLDEST on.
tests/infra/image/test_torch_names.py checks this against the sources of the releases, and
`make matrix` runs the program on each release.
"""

from __future__ import annotations

import re

from training.errors import UserError

OLDEST = (2, 1)  # required by pytorch-lightning 2.6
FSDP2 = "torch.distributed.fsdp.fully_shard"
FSDP2_ON_CPUS = "torch.cpu.Stream.record_event"
FUSED_OPTIMIZERS = "torch.optim's fused kernels"
# First release with each feature. Import these names where they are needed, never at module level.
FIRST_RELEASE = {
    FSDP2: (2, 6),  # 2.4 and 2.5 have it in another module, and for GPUs only
    # fully_shard calls it without a GPU: 2.6.0 fails at its first step
    FSDP2_ON_CPUS: (2, 7),
    # For SGD, Adam and AdamW on CPUs and GPUs; SGD accepts the argument from 2.3 on.
    FUSED_OPTIMIZERS: (2, 4),
}


def torch_has(name: str) -> bool:
    """Return True if this PyTorch has `name`, a key of FIRST_RELEASE."""
    return _release() >= FIRST_RELEASE[name]


def require(name: str, asked: str, instead: str) -> None:
    """Raise UserError if this PyTorch lacks `name`.

    Args:
        name: A key of FIRST_RELEASE.
        asked: The program's argument that needs it.
        instead: The remedy, which ends the message.

    Raises:
        UserError: This PyTorch is older than the first release with `name`.
    """
    if not torch_has(name):
        raise UserError(
            f"{asked} needs PyTorch {_spell(FIRST_RELEASE[name])} or later ({name}), but {_here()}:"
            f" {instead}"
        )


def require_oldest() -> None:
    """Raise UserError if this PyTorch is older than the program and Lightning support."""
    if _release() < OLDEST:
        raise UserError(
            f"this program needs PyTorch {_spell(OLDEST)} or later, but {_here()}: use a later"
            " container"
        )


def _release() -> tuple[int, int]:
    """Return torch's major and minor version: (2, 3) for 2.3.0+cu121."""
    major, minor = re.findall(r"\d+", _version())[:2]
    return int(major), int(minor)


def _spell(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def _here() -> str:
    return f"this is {_version()}"


def _version() -> str:
    import torch  # not at module level: tests and the matrix read the tables without torch

    return str(torch.__version__)
