"""Whether the nodes of an emulated job got the CPU that they asked for
(docs/method.md, "Attainment").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Protocol

from nodesweep.scaling.formats import format_percent

ATTAINED = "attained_percent"
"""In a run's utilisation: of the CPU it asked for,
what the node got that got least. AWS has none.
"""
MOST_REPEATS = 2
"""Times that a planned run is run again because its nodes were contended."""
SAME_SHARE = 0.04
"""Within this, two runs attained the same share, as each is reported within two points of the true
one (benchmarks/results/emulation_told-2026-11-26.json).
"""
LEAST_BOUNDED = 0.70
"""Below this share the undisturbed time is too uncertain to be judged by its bounds."""
CONNECTED = "connected_percent"
"""In a run's utilisation: of the samples of its nodes, those in which the node's program had a
connection to another node. Jobs of one node have none, nor has AWS.
"""
MOST_EFFICIENCY_ERROR = 0.05
"""How far a run's lack of CPU may carry an efficiency from the true one. More carries it over a
limit that it misses.
"""
LEAST_ATTAINED = 1 / (1 + MOST_EFFICIENCY_ERROR)
"""Below this share, 95.2 %, the efficiency may be off by more than MOST_EFFICIENCY_ERROR.

Nodes that attained the share a would have taken no less than a·T in place of T. So with the E of
full shares

    measured E = E · a(N) / a(1)

So E is too low by at most E · (1 - a(N)), and too high by at most E · (1 / a(1) - 1); where both
lack CPU, one makes up for the other. The second is the larger one, and largest at E = 1. It is as
large as the error allowed at a = 1 / (1 + error).
"""


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


def is_steady(runs: Iterable[Metered]) -> bool:
    """Return True if two of these runs attained the same share though they were contended: what
    held them back is still there, as is the load of a job that needs nearly the whole machine
    itself, and another run would be held back as much.
    """
    shares = sorted(attained_share(run) or 0.0 for run in runs if is_starved(run))
    return any(round(more - less, 6) <= SAME_SHARE for less, more in pairwise(shares))


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
    """A share in per cent, rounded down to whole ones; to a decimal where those do not tell it from
    LEAST_ATTAINED: 95.1 % misses that.
    """
    if share is None:
        return format_percent(None)
    tenths = math.floor(round(share * 1000, 6))
    if tenths // 10 == math.floor(LEAST_ATTAINED * 100):
        return f"{tenths / 10:.1f} %"
    return format_percent(tenths // 10 / 100)


def format_least_attained() -> str:
    """LEAST_ATTAINED, rounded up to a decimal: that much is enough."""
    return f"{math.ceil(LEAST_ATTAINED * 1000) / 10:.1f} %"
