"""A check: an id, what it needs, what it pays for, and how it asks the platform.

A check returns the platform's answer, which is its evidence, or raises one of the reasons below.
Evidence alone is a pass: a platform that says nothing about a question has not passed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nodesweep.configs.job import SpotConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.sweep import SweepConfig
from nodesweep.scaling.planning.budget import cost_bound

if TYPE_CHECKING:
    from nodesweep.conformance.trial import Trial

Status = Literal["pass", "fail", "skip", "not run"]
Bound = tuple[float | None, str]
"""The most that something can cost in USD, None if its price is unknown; and the derivation."""


class Unmet(Exception):
    """The check needs something that this account or config does not have: a skip."""


class NoEvidence(Exception):
    """The answer does not show what was asked: a failure, but a skip on a foreign emulator."""


class Contradicted(Exception):
    """The answer shows the opposite of what nodesweep expects: a failure."""


class NotYet(Exception):
    """The answer can only be had later; the check stays open."""


@dataclass(frozen=True)
class Paid:
    """Something that a check pays for; checks that name the same share it.

    Attributes:
        name: its name in the bill.
        bound: returns the most it can cost with a config.
    """

    name: str
    bound: Callable[[BenchmarkConfig], Bound]


@dataclass(frozen=True)
class Shape:
    """A job to run: the config's own, on a node count, and the repeat that tells it from others.

    Attributes:
        name: its name in the bill.
        nodes: number of nodes.
        repeat: the repeat in its name.
        spot: True for spot capacity.
        keep_alive_seconds: seconds for which its nodes are kept afterwards.
    """

    name: str
    nodes: int = 1
    repeat: int = 1
    spot: bool = False
    keep_alive_seconds: int | None = None

    def config(self, config: BenchmarkConfig) -> BenchmarkConfig:
        """Return the config of a sweep of this one job."""
        asked, training = config.sweep, config.training
        sweep = SweepConfig(
            node_counts=(self.nodes,),
            repeats=1,
            max_attempts=1,
            poll_interval_seconds=asked.poll_interval_seconds,
            queue_deadline_seconds=asked.queue_deadline_seconds,
        )
        spot = None
        if self.spot:
            spot = SpotConfig(max_wait_seconds=training.max_runtime_seconds + _SPOT_WAIT_SECONDS)
        changed = {"spot": spot, "keep_alive_seconds": self.keep_alive_seconds}
        training = training.model_copy(update=changed)
        return config.model_copy(update={"sweep": sweep, "training": training})

    def bound(self, config: BenchmarkConfig) -> Bound:
        """Return the most that the job can cost."""
        instance = config.node_type(config.training.instance_type)
        if instance.emulated:
            return 0.0, "emulated nodes cost nothing"
        return cost_bound(self.config(config), instance)

    @property
    def paid(self) -> Paid:
        """The job as an item of the bill."""
        return Paid(self.name, self.bound)


_SPOT_WAIT_SECONDS = 3600


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: its id, which the result file and nodesweep/conformance/claims.py name.
        title: what it shows, in a few words.
        needs: what it needs, in words.
        run: asks the platform; returns the evidence as JSON values.
        pays: what it pays for.
        optional: True if it only runs when it is named, or with --all.
        gates: True if nothing else makes sense without it.
        by_hand: how to do it by hand, if no program can; it then stays open.
    """

    id: str
    title: str
    needs: str
    run: Callable[[Trial], Mapping[str, Any]]
    pays: tuple[Paid, ...] = ()
    optional: bool = False
    gates: bool = False
    by_hand: str | None = None
