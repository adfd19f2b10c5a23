"""The arms of a sweep of several instance types, each type's outcomes, and memory shortages.

An arm is a type at a node count (docs/instance-types.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.outcome.failure import memory_that_ran_out
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.fail_fast import reason_to_give_up
from nodesweep.scaling.planning.plan import type_of_job


class Arm(NamedTuple):
    """An instance type at a node count."""

    instance_type: str
    nodes: int

    @property
    def text(self) -> str:
        """The arm's name: 4 x ml.g5.xlarge."""
        return f"{self.nodes} x {self.instance_type}"


def arms_of(config: BenchmarkConfig) -> list[Arm]:
    """Return every arm of the sweep, by type in the config's order, counts ascending."""
    return [
        Arm(name, nodes) for name in config.instance_types for nodes in config.sweep.node_counts
    ]


def outcomes_by_type(
    config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
) -> dict[str, list[JobOutcome]]:
    """Return the outcomes of each type that has any, in the config's order.

    The type is read from the job's name; jobs whose names contain none of the types are left out.
    """
    found: dict[str, list[JobOutcome]] = {name: [] for name in config.instance_types}
    for outcome in outcomes:
        if (name := type_of_job(config, outcome.job_name)) is not None:
            found[name].append(outcome)
    return {name: own for name, own in found.items() if own}


def lacks_memory(outcome: JobOutcome) -> bool:
    """Return True if the job failed for lack of memory, according to its reason and log."""
    if outcome.status != "Failed":
        return False
    return (
        memory_that_ran_out(outcome.reason, [*outcome.log_tail, *outcome.other_log_tail])
        is not None
    )


def arms_out_of_memory(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> dict[Arm, str]:
    """Return the arms that memory rules out, with reasons; none in a sweep of one type.

    A job that ran out of memory at N nodes rules out N and every smaller count of its type, where
    each process needs as much or more. A larger count may fit: under a fixed global batch each
    process gets a smaller share of it. An arm with a completed run is never ruled out.
    """
    lost: dict[Arm, str] = {}
    if config.sweep.instance_types is None:
        return lost
    for name, own in outcomes_by_type(config, outcomes).items():
        fits = {outcome.nodes for outcome in own if outcome.completed}
        lacking = [outcome.nodes for outcome in own if lacks_memory(outcome)]
        largest = max((nodes for nodes in lacking if nodes not in fits), default=0)
        for nodes in config.sweep.node_counts:
            if nodes > largest or nodes in fits:
                continue
            lost[Arm(name, nodes)] = (
                "out of memory"
                if nodes in lacking
                else f"not run, since {largest} nodes already ran out of memory"
            )
    return lost


def types_given_up(config: BenchmarkConfig, ended: Sequence[JobOutcome]) -> dict[str, str]:
    """Return the types on which the program cannot run, with reasons.

    A type is abandoned after two consecutive failures on it with the same cause; lack of memory
    does not count. Empty in a sweep of one type, which is abandoned as a whole.

    `ended` has the outcomes in the order in which the jobs ended.
    """
    if config.sweep.instance_types is None:
        return {}
    programs = [outcome for outcome in ended if not lacks_memory(outcome)]
    reasons = {
        name: reason_to_give_up(own) for name, own in outcomes_by_type(config, programs).items()
    }
    return {name: f"on {name} {reason}" for name, reason in reasons.items() if reason}
