"""The full run that validates a probe sweep of several instance types, and what it contradicts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.advice import sentence
from nodesweep.scaling.design.base import Check
from nodesweep.scaling.design.probe_checks import rows_by_full_runs
from nodesweep.scaling.formats import join_words
from nodesweep.scaling.instances.arms import Arm, outcomes_by_type
from nodesweep.scaling.instances.compare import JudgedArm, choose_arms, judge_arms
from nodesweep.scaling.instances.model import ArmChoice
from nodesweep.scaling.instances.progress import summarise_type
from nodesweep.scaling.outcome.outcome import JobOutcome


def confirm_choice(
    config: BenchmarkConfig,
    outcomes: Sequence[JobOutcome],
    choice: ArmChoice,
    check: Check | None,
    repeated: Collection[Arm],
) -> ArmChoice:
    """Return the recommended arm, or none if its full run contradicts it.

    All arms are judged again with that run's time. The errors of the other projections are
    unknown, so these are kept at first, and then scaled by the error of the validated one.

    Args:
        config: The benchmark.
        outcomes: The outcomes of all attempts.
        choice: The recommendation from the probes.
        check: The full run of the recommended type, if there is one.
        repeated: Arms whose nodes each did all of the work.
    """
    chosen = _arm_of(choice)
    if chosen is None or check is None or check.nodes != chosen.nodes:
        return choice
    runs = {
        name: summarise_type(config.of_type(name), own)[1]
        for name, own in outcomes_by_type(config, outcomes).items()
    }

    def judge(checks: Sequence[Check], factor: float) -> list[JudgedArm]:
        rows = {
            name: rows_by_full_runs(
                config.of_type(name), own, checks if name == chosen.instance_type else [], factor
            )
            for name, own in runs.items()
        }
        return judge_arms(config, rows, repeated)

    before = choose_arms(config, judge([], 1.0))[0]
    for factor in (1.0, 1 + check.difference):
        judged = judge([check], factor)
        best = choose_arms(config, judged)[0]
        [own] = [each for each in judged if each.arm == chosen]
        if own.answer == "fail":
            problem = f"it may not pass: {join_words(own.judged.problems)}"
        elif _arm_of(best) not in (None, chosen, _arm_of(before)) and not check.is_within_error:
            problem = f"{best.nodes} x {best.instance_type} may be the answer"
        else:
            continue
        return choice.model_copy(
            update={
                "instance_type": None,
                "nodes": None,
                "reason": sentence(
                    "Undecided, since a full run contradicts the probes, which recommend"
                    f" {chosen.text}: {problem}",
                    check.text_of(chosen.text),
                    "sweep.design: full decides it",
                ),
            }
        )
    return choice


def _arm_of(choice: ArmChoice) -> Arm | None:
    if choice.instance_type is None or choice.nodes is None:
        return None
    return Arm(choice.instance_type, choice.nodes)
