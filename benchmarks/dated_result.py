"""How a simulation keeps its result: JSON with the day, its settings, the versions that made it and
its cells.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nodesweep.tasks.sweeps.folder import write_atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def store_result(
    output: Path | None, started: float, cells: Iterable[DataclassInstance], **settings: Any
) -> None:
    """Write the result to `output`, whole or not at all; nothing where it is None.

    started: time.perf_counter() at the start, for the seconds it took. The day is that of UTC.
    Raises OSError where the file can't be written.
    """
    if output is None:
        return
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **settings,
        "seconds": round(time.perf_counter() - started, 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cells": [asdict(cell) for cell in cells],
    }
    write_atomic(output, (json.dumps(result, indent=1) + "\n").encode())
