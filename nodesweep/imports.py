"""Imports slow modules ahead of time, with garbage collection paused.

Imports leave no garbage to collect, but looking for it takes a third of their time.
"""

from __future__ import annotations

import gc
import importlib
import threading
from typing import Any


def begin_imports(*modules: str) -> None:
    """Import the modules in a thread, one after the other.

    Other code that imports one of them waits for it, and the process does not exit before the
    thread is done.
    """
    threading.Thread(target=import_modules, args=modules, name="imports").start()


def import_modules(*modules: str) -> None:
    """Import the modules; wait for any that another thread is importing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def import_module(module: str) -> Any:
    """Return the module, imported if necessary."""
    import_modules(module)
    return importlib.import_module(module)
