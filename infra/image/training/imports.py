"""Imports Lightning without what this program never uses.

Every node of an emulated cluster pays for its imports on a shared core. Measured on 2 cores of a
2026 x86 server, CPU seconds of `import pytorch_lightning` beside `import torch` (1.4): as it comes
5.0; without scipy.signal 3.4; with the garbage collector held back as well 2.9.
(`lightning.pytorch`, the bigger package, 5.1.)
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType

from training.torch_versions import require_oldest

# torchmetrics imports scipy.signal only to give it back a function, `hamming`, that old audio
# packages ask for. scipy is in the image because the SageMaker toolkit needs it; this process does
# not.
_signal = ModuleType("scipy.signal")
_signal.__dict__["hamming"] = None
# tensorboardX tries boto3, to write to S3 itself. This program speaks only the container contract.
_STAND_INS: dict[str, ModuleType | None] = {"scipy.signal": _signal, "boto3": None}


def import_lightning() -> None:
    """Import everything the run needs, so that nothing is imported once its clock runs."""
    for name, stand_in in _STAND_INS.items():
        sys.modules.setdefault(name, stand_in)  # type: ignore[arg-type]  # None is how Python spells "not importable"
    gc.disable()
    try:
        require_oldest()  # in one sentence, before Lightning's own ImportError
        for package in ("pytorch_lightning", "pyarrow.dataset", "tensorboardX"):
            import_module(package)
    finally:
        gc.enable()
    # a hundred thousand objects that live to the end: later collections need not look at them
    gc.freeze()
