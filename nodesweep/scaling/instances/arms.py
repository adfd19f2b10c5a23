"""The cells of a sweep of several arms, the outcomes by arm, and memory shortages.

A cell is an arm at a node count (docs/instance-types.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.arms import Arm, Cell, arm_of_job, arms_of
from nodesweep.scaling.outcome.failure import memory_that_ran_out
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.fail_fast import reason_to_give_up


def cells_of(config: BenchmarkConfig) -> list[Cell]:
    """Return all cells of the sweep, ordered by arm (as in the config) and node count."""
    return [Cell(arm, nodes) for arm in arms_of(config) for nodes in config.sweep.node_counts]


def outcomes_by_arm(
    config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
) -> dict[Arm, list[JobOutcome]]:
    """Group the outcomes by arm, in the config's order; arms without outcomes are left out.

    The arm is read from the job's name. Jobs whose names don't contain an arm are left out.
    """
    found: dict[Arm, list[JobOutcome]] = {arm: [] for arm in arms_of(config)}
    for outcome in outcomes:
        if (arm := arm_of_job(config, outcome.job_name)) is not None:
            found[arm].append(outcome)
    return {arm: own for arm, own in found.items() if own}


def lacks_memory(outcome: JobOutcome) -> bool:
    """Return True if the job ran out of memory, according to its failure reason and log."""
    if outcome.status != "Failed":
        return False
    return (
        memory_that_ran_out(outcome.reason, [*outcome.log_tail, *outcome.other_log_tail])
        is not None
    )


def cells_out_of_memory(config: BenchmarkConfig, outcomes: Sequence[JobOutcome]) -> dict[Cell, str]:
    """Return the cells that memory rules out, with reasons, or an empty dict for a single arm.

    A job that ran out of memory on N nodes rules out N and all smaller node counts of its arm, on
    which each process needs at least as much memory. A larger node count can still fit, since under
    a fixed global batch each process gets a smaller part of the batch. A cell with a completed run
    is never ruled out.
    """
    lost: dict[Cell, str] = {}
    if config.sweep.arm_count == 1:
        return lost
    for arm, own in outcomes_by_arm(config, outcomes).items():
        fits = {outcome.nodes for outcome in own if outcome.completed}
        lacking = [outcome.nodes for outcome in own if lacks_memory(outcome)]
        largest = max((nodes for nodes in lacking if nodes not in fits), default=0)
        for nodes in config.sweep.node_counts:
            if nodes > largest or nodes in fits:
                continue
            lost[Cell(arm, nodes)] = (
                "out of memory"
                if nodes in lacking
                else f"not run, since {largest} nodes already ran out of memory"
            )
    return lost


def arms_given_up(config: BenchmarkConfig, ended: Sequence[JobOutcome]) -> dict[Arm, str]:
    """Return the arms on which the program cannot run, and why.

    An arm is abandoned after two consecutive failures with the same cause. Jobs that ran out of
    memory are ignored. The result is empty for a sweep of one arm, which is abandoned as a whole.

    `ended` lists the outcomes in the order in which the jobs ended.
    """
    if config.sweep.arm_count == 1:
        return {}
    programs = [outcome for outcome in ended if not lacks_memory(outcome)]
    reasons = {
        arm: reason_to_give_up(own) for arm, own in outcomes_by_arm(config, programs).items()
    }
    return {
        arm: f"{'with' if arm.is_variant else 'on'} {arm.name} {reason}"
        for arm, reason in reasons.items()
        if reason
    }
