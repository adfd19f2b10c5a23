"""The kind of each job of a sweep: a whole run, or of the probe design a probe or the check."""

from __future__ import annotations

from typing import Literal

from nodesweep.configs.models import BenchmarkConfig

JobKind = Literal["run", "probe", "check"]
"""A whole run; of a probe sweep a part of one, or the whole one that checks the answer."""


def check_repeat(config: BenchmarkConfig) -> int:
    """The repeat that the check is planned as: one more than there are probes of a count."""
    return config.sweep.repeats + 1


def is_check(config: BenchmarkConfig, repeat: int) -> bool:
    """Return True if a job of this repeat is the sweep's check."""
    return config.sweep.design == "probe" and repeat == check_repeat(config)


def kind_of_job(config: BenchmarkConfig, repeat: int) -> JobKind:
    """Return the kind of a job of this repeat."""
    if config.sweep.design != "probe":
        return "run"
    return "check" if is_check(config, repeat) else "probe"
