"""Communication backends, and the libraries behind those that torch does not include.

smddp, xla, and smp exist only in AWS's containers, so no library is imported before its backend is
requested, and none for a run of one process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from training.errors import UserError

# Module whose import registers the backend, and its source for the error message.
_LIBRARIES = {
    "smddp": (
        "smdistributed.dataparallel.torch.torch_smddp",
        (
            "the SageMaker data-parallel library: use an AWS container that has it, see"
            " docs/distribution.md"
        ),
    ),
    "xla": (
        "torch_xla.distributed.xla_backend",
        "torch_xla: use a Neuron container (…/pytorch-training-neuronx:…)",
    ),
    "smp": (
        "torch.sagemaker",
        (
            "the SageMaker model-parallel library 2.x: use its container"
            " (…/smdistributed-modelparallel:…)"
        ),
    ),
}


def choose_backend(asked: str, *, has_cuda: bool, platform: str = sys.platform) -> str:
    """Return the requested backend; auto is nccl with a GPU and gloo without.

    Raises:
        UserError: The backend needs a GPU, and there is none.
    """
    if asked == "auto":
        return "nccl" if has_cuda and platform != "win32" else "gloo"
    if asked in ("nccl", "smddp") and not has_cuda:
        raise UserError(
            f"--backend {asked} needs a GPU, but torch finds none here: use auto or gloo"
        )
    return asked


def xla_model() -> Any:
    """Import and return torch_xla.core.xla_model, which provides the device and mark_step()."""
    return import_module("torch_xla.core.xla_model")


def load_library(name: str) -> None:
    """Import the library that `name` (a backend, or smp) needs in addition to torch.

    Raises:
        UserError: The library is missing.
    """
    if name not in _LIBRARIES:
        return
    module, source = _LIBRARIES[name]
    try:
        import_module(module)
    except ImportError as error:
        option = "--strategy smp" if name == "smp" else f"--backend {name}"
        raise UserError(
            f"{option} needs the module {module}, which can't be imported ({error})."
            f" It belongs to {source}"
        ) from (None)
