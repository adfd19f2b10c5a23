"""Achieved floating-point operations per second, and model FLOPs utilization (MFU).

infra/image/nodesweep_flops.py counts the operations of a step on rank 0. MFU is the ratio of the
operations per second to the peak of the accelerators for the data type (PaLM, Chowdhery et al.
2022, appendix B).
"""

from __future__ import annotations

from nodesweep.configs.catalogue import UnknownInstanceType, load_catalogue
from nodesweep.scaling.outcome.metrics_values import nested_value
from nodesweep.scaling.outcome.outcome import JobOutcome

_TERA = 1e12


def flops_per_second(outcome: JobOutcome) -> float | None:
    """Return the operations per second of all processes during the program's train time.

    Every process is assumed to compute as much as rank 0. Return None if a number is unknown, and
    for a probe, whose train time is projected.
    """
    per_step = outcome.metric_number("flops", "per_step")
    steps, seconds = outcome.metric_number("steps"), outcome.metric_number("train_seconds")
    if outcome.projection is not None or not (per_step and steps and seconds):
        return None
    return None if outcome.world_size is None else per_step * steps * outcome.world_size / seconds


def mfu(outcome: JobOutcome) -> float | None:
    """Return the ratio of flops_per_second() to the peak of the job's accelerators, 0 to 1.

    Return None if the operations per second are unknown, if the data type is mixed or unknown, or
    if the catalogue has no peak for it. A ratio above 1 is not plausible and counts as unknown.
    """
    rate, dtype = flops_per_second(outcome), nested_value(outcome.metrics, ("flops", "dtype"))
    if rate is None or not isinstance(dtype, str) or outcome.instance_type is None:
        return None
    try:
        instance = load_catalogue().get(outcome.instance_type)
    except UnknownInstanceType:
        return None
    peaks = instance.peak_teraflops
    # GPUs before the A100 don't support TF32, so they compute in float32 even if TF32 is allowed
    peak = peaks.get("float32" if dtype == "tf32" and "tf32" not in peaks else dtype)
    if peak is None or not instance.accelerators:
        return None
    share = rate / (outcome.nodes * instance.accelerators * peak * _TERA)
    return share if share <= 1 else None
