"""The definition of a check: its id, requirements, cost items, and the function that runs it.

The function returns evidence from the platform's response, or raises one of the exceptions below.
Without evidence, a check does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nodesweep.configs.job import SpotConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.sweep import SweepConfig
from nodesweep.scaling.planning.budget import cost_bound, dearest

if TYPE_CHECKING:
    from nodesweep.conformance.trial import Trial

Status = Literal["pass", "fail", "skip", "not run"]
Bound = tuple[float | None, str]
"""A maximum cost in USD (None if the price is unknown) and how it was computed."""


class Unmet(Exception):
    """The check needs something that this account or config lacks; the result is a skip."""


class NoEvidence(Exception):
    """The response proves nothing; the result is a failure, or a skip on a foreign emulator."""


class Contradicted(Exception):
    """The response contradicts what nodesweep expects; the result is a failure."""


class NotYet(Exception):
    """The evidence will only be available later; the check stays open."""


@dataclass(frozen=True)
class Paid:
    """A cost item of a check; several checks can share an item, which is paid only once.

    Attributes:
        name: name of the item in the bill.
        bound: returns the maximum cost of the item for a config.
    """

    name: str
    bound: Callable[[BenchmarkConfig], Bound]


@dataclass(frozen=True)
class Shape:
    """A variation of the config's job; jobs with the same node count need different repeats.

    Attributes:
        name: name of the job in the bill.
        nodes: number of nodes.
        repeat: repeat number in the job's name.
        spot: True for spot capacity.
        keep_alive_seconds: seconds for which the nodes are kept after the job.
        asks_for_any_type: True to keep the config's training.instance_fallbacks.
    """

    name: str
    nodes: int = 1
    repeat: int = 1
    spot: bool = False
    keep_alive_seconds: int | None = None
    asks_for_any_type: bool = False

    def config(self, config: BenchmarkConfig) -> BenchmarkConfig:
        """Return the config of a sweep that consists of this job."""
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
        changed: dict[str, Any] = {"spot": spot, "keep_alive_seconds": self.keep_alive_seconds}
        if not self.asks_for_any_type:
            changed["instance_fallbacks"] = ()
        if spot is not None:  # the instances of a training plan are not spot instances
            changed["training_plan_arn"] = None
        training = training.model_copy(update=changed)
        return config.model_copy(update={"sweep": sweep, "training": training})

    def bound(self, config: BenchmarkConfig) -> Bound:
        """Return the job's maximum cost."""
        asked = self.config(config)
        types = [config.node_type(name) for name in asked.possible_types]
        instance = dearest(types, config.platform.region)
        if instance.emulated:
            return 0.0, "emulated nodes cost nothing"
        return cost_bound(asked, instance)

    @property
    def paid(self) -> Paid:
        """The job as a cost item."""
        return Paid(self.name, self.bound)


_SPOT_WAIT_SECONDS = 3600


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: id in the result file and nodesweep/conformance/claims.py.
        title: statement that the check verifies.
        needs: requirements in words.
        run: runs the check; returns the evidence as JSON values.
        pays: cost items.
        optional: True if the check only runs when it is named, or with --all.
        gates: True if the check always runs, and no other check runs unless it passes.
        by_hand: instructions for a check that only a person can do; it stays open.
    """

    id: str
    title: str
    needs: str
    run: Callable[[Trial], Mapping[str, Any]]
    pays: tuple[Paid, ...] = ()
    optional: bool = False
    gates: bool = False
    by_hand: str | None = None
