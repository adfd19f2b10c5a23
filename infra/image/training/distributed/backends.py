"""Communication backends: which one a run uses,
and the libraries behind those that torch does not bring itself.

Nothing here is imported for a run of one process or before a backend is asked for: smddp, xla and
smp exist in AWS's containers alone.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from training.errors import UserError

# Module whose import registers the backend, and where it is to be found.
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
    """The process group's backend: nccl where there is a GPU, gloo elsewhere,
    or as asked for where that can be.
    """
    if asked == "auto":
        return "nccl" if has_cuda and platform != "win32" else "gloo"
    if asked in ("nccl", "smddp") and not has_cuda:
        raise UserError(
            f"--backend {asked} needs a GPU, and torch finds none here: use auto or gloo"
        )
    return asked


def xla_model() -> Any:
    """torch_xla's own module of devices and steps."""
    return import_module("torch_xla.core.xla_model")


def load_library(name: str) -> None:
    """Import what `name` (a backend, or smp) needs beside torch;
    raises UserError where it is missing.
    """
    if name not in _LIBRARIES:
        return
    module, source = _LIBRARIES[name]
    try:
        import_module(module)
    except ImportError as error:
        option = "--strategy smp" if name == "smp" else f"--backend {name}"
        raise UserError(
            f"{option} needs the module {module}, which can't be imported ({error}): it is {source}"
        ) from (None)
