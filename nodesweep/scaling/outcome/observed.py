"""Recognize a metrics.json that nodesweep wrote for a program that reports no time.

The training image loads infra/image/nodesweep_measure.py into every script. It writes a
metrics.json with a section `observed`, which holds either the measurement or the reason why there
is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nodesweep.scaling.outcome.metrics_values import nested_value

SWITCH = "NODESWEEP_MEASURE"
"""Environment variable with the value of training.measure; not set for `auto`."""
TIME_ALL_REDUCES = "NODESWEEP_TIME_ALL_REDUCES"
"""Environment variable that has all-reduces timed before a job's own program starts."""
ALL_REDUCES = "NODESWEEP_ALL_REDUCES"
"""Environment variable with the times, for the program's processes."""
NO_OWN_CLOCK = (
    "the program reports no train time, and training.measure: helper allows no other source; have "
    "the program use nodesweep_clock or print train_seconds=…"
)
"""The reason why a job with training.measure: helper has no train time."""


def is_observed(metrics: Mapping[str, Any] | None) -> bool:
    """Return True if nodesweep wrote this metrics.json instead of the program."""
    return isinstance(nested_value(metrics, ("observed",)), dict)


def not_observed_reason(metrics: Mapping[str, Any] | None) -> str | None:
    """Return why nodesweep could not measure the program; None if it could or did not try."""
    reason = nested_value(metrics, ("observed", "not_measured"))
    return reason if isinstance(reason, str) else None


def lacks_own_clock(environment: Mapping[str, str], clocks: Collection[str]) -> bool:
    """Return True if the program had to report its time (training.measure: helper) but did not.

    Args:
        environment: The environment variables of the job.
        clocks: The clocks on which its train time is known.
    """
    return environment.get(SWITCH) == "helper" and not {"program", "logged", "projected"} & {
        *clocks
    }
