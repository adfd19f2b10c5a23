"""Imports Lightning without the parts this program never uses.

Every node of an emulated cluster imports on a shared core. CPU seconds of `import
pytorch_lightning` in addition to `import torch` (1.4), measured on 2 cores of a 2026 x86 server:
5.0 unchanged, 3.4 without scipy.signal, 2.9 with the garbage collector also off.
(`lightning.pytorch`, the larger package: 5.1.)
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType

from training.torch_versions import require_oldest

# torchmetrics imports scipy.signal only to restore `hamming` for old audio packages. The SageMaker
# toolkit needs scipy; this process does not.
_signal = ModuleType("scipy.signal")
_signal.__dict__["hamming"] = None
# tensorboardX tries boto3, to write to S3 itself; this program only writes files.
_STAND_INS: dict[str, ModuleType | None] = {"scipy.signal": _signal, "boto3": None}


def import_lightning() -> None:
    """Import everything the run needs, so that nothing is imported once its clock runs."""
    for name, stand_in in _STAND_INS.items():
        sys.modules.setdefault(name, stand_in)  # type: ignore[arg-type]  # None: not importable
    gc.disable()
    try:
        require_oldest()  # a clear message before Lightning's own ImportError
        for package in ("pytorch_lightning", "pyarrow.dataset", "tensorboardX"):
            import_module(package)
    finally:
        gc.enable()
    # Keeps about 100,000 permanent objects out of later collections.
    gc.freeze()
