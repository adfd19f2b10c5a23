"""The kinds of jobs in a sweep: a whole run, or in the probe design a probe or validation run."""

from __future__ import annotations

from typing import Literal

from nodesweep.configs.models import BenchmarkConfig

JobKind = Literal["run", "probe", "check"]
"""A full run; in a probe sweep, a partial run or the full run that validates the projection."""


def check_repeat(config: BenchmarkConfig) -> int:
    """Return the repeat number of the validation run: one more than there are probes per count."""
    return config.sweep.repeats + 1


def is_check(config: BenchmarkConfig, repeat: int) -> bool:
    """Return True if a job with this repeat number is the sweep's validation run."""
    return config.sweep.design == "probe" and repeat == check_repeat(config)


def kind_of_job(config: BenchmarkConfig, repeat: int) -> JobKind:
    """Return the kind of a job with this repeat number."""
    if config.sweep.design != "probe":
        return "run"
    return "check" if is_check(config, repeat) else "probe"
