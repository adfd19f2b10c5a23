"""The full run that validates the choice of a probe sweep of several arms."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.advice import sentence
from nodesweep.scaling.arms import Cell, arms_of
from nodesweep.scaling.design.base import Check
from nodesweep.scaling.design.probe_checks import rows_by_full_runs
from nodesweep.scaling.formats import join_words
from nodesweep.scaling.instances.arms import outcomes_by_arm
from nodesweep.scaling.instances.compare import JudgedCell, choose_cells, judge_cells
from nodesweep.scaling.instances.model import ArmChoice
from nodesweep.scaling.instances.progress import summarise_arm
from nodesweep.scaling.outcome.outcome import JobOutcome


def confirm_choice(
    config: BenchmarkConfig,
    outcomes: Sequence[JobOutcome],
    choice: ArmChoice,
    check: Check | None,
    repeated: Collection[Cell],
) -> ArmChoice:
    """Return the choice, or an undecided one if the full run contradicts it.

    All cells are evaluated again with the time of the full run. The errors of the other projections
    are unknown, so the cells are evaluated with the other projections unchanged, and then with all
    of them scaled by the error of the validated projection.

    Args:
        config: The benchmark.
        outcomes: The outcomes of all attempts.
        choice: The recommendation from the probes.
        check: The full run of the recommended arm, if there is one.
        repeated: Cells on which every node did all of the work.
    """
    chosen = _cell_of(config, choice)
    if chosen is None or check is None or check.nodes != chosen.nodes:
        return choice
    runs = {
        arm: summarise_arm(config.of_arm(arm.name), own)[1]
        for arm, own in outcomes_by_arm(config, outcomes).items()
    }

    def judge(checks: Sequence[Check], factor: float) -> list[JudgedCell]:
        rows = {
            arm: rows_by_full_runs(
                config.of_arm(arm.name), own, checks if arm == chosen.arm else [], factor
            )
            for arm, own in runs.items()
        }
        return judge_cells(config, rows, repeated)

    before = _cell_of(config, choose_cells(config, judge([], 1.0))[0])
    for factor in (1.0, 1 + check.difference):
        judged = judge([check], factor)
        best = _cell_of(config, choose_cells(config, judged)[0])
        [own] = [each for each in judged if each.cell == chosen]
        if own.answer == "fail":
            problem = f"it may not pass: {join_words(own.judged.problems)}"
        elif best not in (None, chosen, before) and not check.is_within_error:
            problem = f"{best.text} may be the answer"
        else:
            continue
        return choice.model_copy(
            update={
                "instance_type": None,
                "variant": None,
                "nodes": None,
                "reason": sentence(
                    "Undecided, since a full run contradicts the probes, which recommend"
                    f" {chosen.text}: {problem}",
                    check.text_of(chosen.text),
                    "a sweep with sweep.design: full can decide",
                ),
            }
        )
    return choice


def _cell_of(config: BenchmarkConfig, choice: ArmChoice) -> Cell | None:
    found = (arm for arm in arms_of(config) if arm.name == choice.name)
    return next((Cell(arm, choice.nodes) for arm in found if choice.nodes is not None), None)
