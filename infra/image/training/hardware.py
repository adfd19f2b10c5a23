"""The node's hardware: threads, precision, and the device section of metrics.json."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch

from training.cpu_quota import cpu_quota_cores
from training.errors import UserError

MIXED = {"bf16": "bf16-mixed", "16": "16-mixed"}
FULL_PRECISION = "32-true"


def supported_precisions() -> list[str]:
    """Return the GPU's mixed precisions, best first.

    fp16 needs compute capability 7.0 (Volta), bf16 8.0 (Ampere).
    """
    if not torch.cuda.is_available():
        return []
    major, _ = torch.cuda.get_device_capability()
    return (["bf16"] if major >= 8 else []) + (["16"] if major >= 7 else [])


def choose_precision(asked: str) -> str:
    """Return Lightning's name for the requested precision; auto is the best supported one.

    Raises:
        UserError: The hardware does not support the precision.
    """
    supported = supported_precisions()
    if asked == "auto":
        return MIXED[supported[0]] if supported else FULL_PRECISION
    if asked == "32":
        return FULL_PRECISION
    if asked not in supported:
        allowed = ", ".join(["auto", "32", *supported])
        raise UserError(
            f"--precision {asked} is not supported by {device_name() or 'this processor'}:"
            f" use one of {allowed}"
        )
    return MIXED[asked]


def set_thread_count(processes_per_node: int) -> None:
    """Use one thread per whole core of the process, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = float(os.environ.get("SM_NUM_CPUS") or os.cpu_count() or 1)
    quota = cpu_quota_cores()
    cores = cores if quota is None else min(cores, quota)
    torch.set_num_threads(max(1, math.floor(cores / processes_per_node)))


def device_name() -> str | None:
    """Return the accelerator's model name or, without one, the processor's; None if unknown."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None
    )


def describe_device(processes_per_node: int, quota: float | None) -> dict[str, Any]:
    """Return the device section of metrics.json."""
    return {
        "type": "cuda" if torch.cuda.is_available() else "cpu",
        "name": device_name(),
        "count_per_node": processes_per_node,
        "cpu_quota_cores": quota,
        "threads": torch.get_num_threads(),
    }
