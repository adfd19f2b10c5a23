"""Imports that take seconds: made ahead of their need, and without a look for garbage in between,
of which there is none: looking takes a third of the time.
"""

from __future__ import annotations

import gc
import importlib
import threading
from typing import Any


def begin_imports(*modules: str) -> None:
    """Import them in a thread, one after the other; who needs one meanwhile waits for it,
    as does the process's end.
    """
    threading.Thread(target=import_modules, args=modules, name="imports").start()


def import_modules(*modules: str) -> None:
    """Import them; waits where another thread is at it already."""
    collects = gc.isenabled()
    gc.disable()
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def import_module(module: str) -> Any:
    """The module of that name, imported where it has not been yet."""
    import_modules(module)
    return importlib.import_module(module)
