"""Recognize a metrics.json that nodesweep wrote for a program without a clock of its own.

infra/image/nodesweep_measure.py, which the training image loads into every script, writes it with a
section `observed`: either the measurement, or only the reason that there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nodesweep.scaling.outcome.metrics_values import nested_value

SWITCH = "NODESWEEP_MEASURE"
"""Environment variable that is set to training.measure, unless the value is `auto`."""
NO_OWN_CLOCK = (
    "the program reports no train time, and training.measure: helper accepts no other; have it "
    "use nodesweep_clock or print train_seconds=…"
)
"""Reason that a job has no train time."""


def is_observed(metrics: Mapping[str, Any] | None) -> bool:
    """Return True if nodesweep, not the program, wrote this metrics.json."""
    return isinstance(nested_value(metrics, ("observed",)), dict)


def not_observed_reason(metrics: Mapping[str, Any] | None) -> str | None:
    """Return why a program without a clock could not be measured; None otherwise."""
    reason = nested_value(metrics, ("observed", "not_measured"))
    return reason if isinstance(reason, str) else None


def lacks_own_clock(environment: Mapping[str, str], clocks: Collection[str]) -> bool:
    """Return True if the job may only be timed by its program, which reports no time.

    Args:
        environment: The job's variables.
        clocks: The clocks on which its train time is known.
    """
    return environment.get(SWITCH) == "helper" and not {"program", "logged", "projected"} & {
        *clocks
    }
