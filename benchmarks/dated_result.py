"""Store a benchmark's result as JSON with date, settings, versions and cells."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nodesweep.configs.atomic import write_atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def store_result(
    output: Path | None, started: float, cells: Iterable[DataclassInstance], **settings: Any
) -> None:
    """Write the result to `output` atomically; do nothing if it is None.

    Args:
        output: File to write.
        started: time.perf_counter() at the start, for the duration.
        cells: The results.
        settings: Options of the benchmark.

    Raises:
        OSError: The file cannot be written.
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
