"""Whether the nodes of an emulated job got the CPU that they asked for
(docs/method.md, "Attainment").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from scaling.formats import format_percent

ATTAINED = "attained_percent"
"""In a run's utilisation: of the CPU it asked for,
what the node got that got least. AWS has none.
"""
MOST_REPEATS = 2
"""Times that a planned run is run again because its nodes were contended."""
LEAST_BOUNDED = 0.70
"""Below this share the undisturbed time is too uncertain to be judged by its bounds."""
CONNECTED = "connected_percent"
"""In a run's utilisation: of the samples of its nodes, those in which the node's program had a
connection to another node. Jobs of one node have none, nor has AWS.
"""
LEAST_ATTAINED = 0.95
"""Below this share a time is no measurement: 5 % can carry an efficiency over a limit it misses."""


class Metered(Protocol):
    """A run: an outcome, or a point of a report."""

    @property
    def utilisation(self) -> Mapping[str, float]:
        """In per cent, by name."""


def attained_share(run: Metered) -> float | None:
    """What the node that got least used of the CPU it asked for, 0 to 1; None where not known."""
    percent = run.utilisation.get(ATTAINED)
    return None if percent is None else percent / 100


def is_starved(run: Metered) -> bool:
    """Whether a node got less than LEAST_ATTAINED; what is not known is not held against a run."""
    share = attained_share(run)
    return share is not None and share < LEAST_ATTAINED


def is_disturbed(run: Metered) -> bool:
    """Return True if something outside the job is known to have lengthened the run's time."""
    return is_starved(run)


def soundness(run: Metered) -> tuple[bool, float]:
    """Sort runs by this, the least contended last; all that were not disturbed are equal."""
    return (True, 1.0) if not is_disturbed(run) else (False, attained_share(run) or 0.0)


def least_time_share(runs: Iterable[Metered]) -> float | None:
    """Return which share of a time of these runs they would have taken at the least had nothing
    disturbed them; None where one was disturbed by an unknown amount.
    """
    shares = [attained_share(run) if is_disturbed(run) else 1.0 for run in runs]
    known = [share for share in shares if share is not None]
    return min(known, default=None) if len(known) == len(shares) else None


def least_attained(runs: Iterable[Metered]) -> float | None:
    """The least share of several runs; None where not one knows it."""
    known = [share for run in runs if (share := attained_share(run)) is not None]
    return min(known, default=None)


def format_attained(share: float | None) -> str:
    """A share in whole per cents, rounded down: 94.6 % misses LEAST_ATTAINED and must not read as
    95 %.
    """
    return format_percent(None if share is None else math.floor(round(share * 100, 6)) / 100)
