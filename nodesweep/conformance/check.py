"""The definition of a check: its id, requirements, cost items, and the function that runs it.

The function returns the platform's answer as evidence, or raises one of the exceptions below.
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
"""A maximum cost in USD, None if the price is unknown, and its derivation."""


class Unmet(Exception):
    """The check needs something that this account or config lacks; the result is a skip."""


class NoEvidence(Exception):
    """The answer proves nothing; the result is a failure, or a skip on a foreign emulator."""


class Contradicted(Exception):
    """The answer contradicts what nodesweep expects; the result is a failure."""


class NotYet(Exception):
    """The answer is only available later; the check stays open."""


@dataclass(frozen=True)
class Paid:
    """A cost item of a check; items of the same name are paid once.

    Attributes:
        name: its name in the bill.
        bound: returns its maximum cost with a config.
    """

    name: str
    bound: Callable[[BenchmarkConfig], Bound]


@dataclass(frozen=True)
class Shape:
    """A variation of the config's job; jobs on equal node counts differ by their repeat.

    Attributes:
        name: its name in the bill.
        nodes: number of nodes.
        repeat: the repeat in its name.
        spot: True for spot capacity.
        keep_alive_seconds: seconds for which its nodes are kept afterwards.
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
        if spot is not None:  # a plan's instances are no spot instances
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
        id: its id in the result file and nodesweep/conformance/claims.py.
        title: the statement that it verifies.
        needs: its requirements, in words.
        run: runs the check; returns the evidence as JSON values.
        pays: its cost items.
        optional: True if it only runs when it is named, or with --all.
        gates: True if it always runs, and ends the run unless it passes.
        by_hand: instructions, if no program can do it; it stays open.
    """

    id: str
    title: str
    needs: str
    run: Callable[[Trial], Mapping[str, Any]]
    pays: tuple[Paid, ...] = ()
    optional: bool = False
    gates: bool = False
    by_hand: str | None = None
