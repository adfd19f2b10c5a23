"""The predict design: measure the smallest node counts in short runs, and predict the others.

A run of the shipped program ends after a share of its steps, as a probe does (probe.py), and its
time is projected. Other programs run all their steps. The other node counts are predicted from the
parts of the measured train times (nodesweep/scaling/predict/), and the report says that the
recommendation is based on predictions. Runs at the node count that would settle the recommendation
(sweep.confirm, set by `run --confirm`) replace the prediction there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nodesweep.scaling import names
from nodesweep.scaling.arms import Key, arms_of
from nodesweep.scaling.design.base import Attempt, Design, Measured, Progress
from nodesweep.scaling.design.costs import DesignCost, Estimate, full_cost
from nodesweep.scaling.design.probe import LEAST_PROBE_STEPS, REFERENCE_STEPS, projected_notes
from nodesweep.scaling.formats import format_percent, join_words, nodes_text, one_or_more, pluralize

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.analysis.rows import SummaryRow
    from nodesweep.scaling.instances.progress import SweepProgress
    from nodesweep.scaling.outcome.outcome import JobOutcome
    from nodesweep.scaling.report.model import ScalingReport
    from nodesweep.scaling.rules.rule import Facts


class Predict(Design):
    """The design that measures the smallest node counts and predicts the others."""

    name = "predict"
    jobs_text = "{} jobs, from which the other node counts are predicted"

    def progress(
        self, config: BenchmarkConfig, rows: Sequence[SummaryRow], attempts: Sequence[Attempt]
    ) -> Progress:
        """Request all runs at the measured node counts, then those that confirm a prediction."""
        sweep = config.sweep
        ended = {(each.nodes, each.repeat) for each in attempts}
        points = tuple(
            (nodes, repeat)
            for nodes in sweep.measured_counts
            for repeat in range(1, sweep.arm_repeats + 1)
        )
        reason = f"{join_words(_predicted(config))} nodes are predicted from these"
        if sweep.confirm is not None:
            runs = one_or_more(sweep.confirm_repeats, "run")
            confirm = f"{runs} on {nodes_text(sweep.confirm)} to confirm its prediction"
            reason += f"; then {confirm}"
            if ended.issuperset(points):
                points += tuple((sweep.confirm, 1 + each) for each in range(sweep.confirm_repeats))
                reason = confirm
        left = tuple(point for point in points if point not in ended)
        return Progress(points, left, (), reason if left else "all requested runs have ended")

    def progress_of_arms(
        self, config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
    ) -> SweepProgress:
        """Request the runs of each instance type, as progress() does for a single one."""
        # late imports: both use this module
        from nodesweep.scaling.instances.arms import outcomes_by_arm
        from nodesweep.scaling.instances.progress import SweepProgress

        ended = outcomes_by_arm(config, outcomes)
        asked: list[Key] = []
        left: list[Key] = []
        for arm in arms_of(config):
            attempts = [Attempt(one.nodes, one.repeat, None, False) for one in ended.get(arm, ())]
            own = self.progress(config.of_arm(arm.name), (), attempts)
            asked += [Key(arm, *point) for point in own.points]
            left += [Key(arm, *point) for point in own.next_points]
        reason = f"{join_words(_predicted(config))} nodes of each type are predicted from these"
        ended_text = "all requested runs have ended"
        return SweepProgress(tuple(asked), tuple(left), reason if left else ended_text)

    def predict(self, config: BenchmarkConfig, report: ScalingReport) -> ScalingReport:
        """Return the report with predictions for the node counts that were not measured.

        The recommendation moves into the prediction, so that it does not look measured. If nothing
        can be predicted, the headline and a caveat say so, and the rest stays as measured.
        """
        # late imports: a plan has no report
        from nodesweep.scaling.report.headline import qualified
        from nodesweep.scaling.report.predictions.inputs import NotPredictable, read_measurements
        from nodesweep.scaling.report.predictions.predict import predict

        try:
            known = {each.place.nodes for each in read_measurements(report)}
            # measured, though without a step budget to predict from
            known |= {row.nodes for row in report.summary if _is_timed(row)}
            asked = [nodes for nodes in config.sweep.node_counts if nodes not in known]
            prediction = predict(report, asked, confirming=confirming_runs(config))
        except NotPredictable as error:
            left = join_words(_predicted(config))
            headline = f"{report.headline.rstrip('.')}; no time is predicted for {left} nodes."
            why = f"No predictions: {str(error).rstrip('.')}."
            return report.model_copy(update={"headline": headline, "caveats": (why,)})
        headline = qualified(report.platform.kind, prediction.headline)
        if prediction.next_job is not None:
            headline = f"{headline.rstrip('.')}: `{confirm_command(report)}`."
        return report.model_copy(
            update={
                "headline": headline,
                "prediction": prediction,
                "recommendation": None,
                "hour_values": (),
            }
        )

    def caveats(self, measured: Measured, general: Sequence[str]) -> Sequence[str]:
        """Return the general caveats, then the caveats on projected times."""
        return (*general, *projected_notes(measured))

    def plan_lines(self, config: BenchmarkConfig) -> list[str]:
        """Return lines on the predicted node counts and on what limits or lengthens the jobs."""
        runs = one_or_more(confirming_runs(config), "run")
        last = f"; --confirm adds {runs} at the deciding node count"
        if config.sweep.confirm or config.sweep.arm_count > 1:
            last = ""
        lines = [f"{'':>4} {join_words(_predicted(config))} nodes: predicted, not run{last}"]
        if config.ends_early(1):
            share = format_percent(config.sweep.probe_ends.max_share or 1.0)
            lines.append(
                f"{'':>4} each job ends after {share} of its steps (sweep.probe.max_share), or "
                "after 20 steady ones if that is later, and the time of the rest is projected"
            )
        if batches := config.sweep.rules.batches_to_time(config):
            # LEAST_LIMIT_SECONDS and LIMIT_SHARE in infra/image/training/measuring/passes.py
            lines.append(
                f"{'':>4} jobs on 1 node then time passes on {join_words(batches[1:])} samples for "
                "up to 15 s, or 10% of their train time if that is longer, which is billed and "
                "which training.max_runtime_seconds includes"
            )
        if not config.ships_program:  # DEADLINE_SECONDS in infra/image/nodesweep_exchange.py
            lines.append(
                f"{'':>4} jobs on several nodes without GPUs first time all-reduces for up to 60 s,"
                " which training.max_runtime_seconds includes"
            )
        return lines

    def estimate(self, config: BenchmarkConfig) -> Estimate | None:
        """Return the cost of the measured node counts, or None if the design is a different one."""
        sweep = config.sweep
        if sweep.design != self.name:
            return None
        least = share = 1.0
        last = 0.0
        notes: list[str] = []
        if sweep.arm_count == 1:
            last = full_cost([sweep.confirm or sweep.node_counts[-1]], confirming_runs(config))
            notes = ["the most includes --confirm"]
        if config.ends_early(1):
            of_share = math.ceil((sweep.probe_ends.max_share or 1.0) * REFERENCE_STEPS)
            most = max(LEAST_PROBE_STEPS, min(sweep.probe_ends.max_steps, of_share))
            least, share = (each / REFERENCE_STEPS for each in (LEAST_PROBE_STEPS, most))
            notes.append(f"jobs of {most:,} of {REFERENCE_STEPS:,} steps")
        usual = full_cost(sweep.measured_counts, sweep.arm_repeats) * sweep.arm_count
        cost = DesignCost(usual * least, usual * share, (usual + last) * share)
        label = f"predict, {pluralize(sweep.arm_repeats, 'repeat')}"
        return Estimate(label, cost, f"predict: {', '.join(notes)}; " if notes else "")

    def program_hints(self, facts: Facts) -> Iterator[str]:
        """Yield a hint on the setting that keeps the shipped program's jobs from ending early."""
        config = facts.config
        amount, ends = config.training.amount, config.sweep.probe
        if not facts.ships_program or config.ends_early(1):
            return
        if amount is not None:
            yield (
                f"sweep.design: predict: training.{amount[0]} is {amount[1]}, so each job runs "
                f"that whole amount; remove it (--set training.{amount[0]}=null) to run "
                f"{format_percent(config.sweep.rules.default_share or 1.0)} of a full run's steps"
            )
        elif ends is None:
            yield (
                "sweep.design: predict: each job runs all its steps, since only full runs show "
                "whether a larger global batch trains the model as well; set "
                "sweep.probe.max_share: 0.1 if times are enough, without a recommendation"
            )


def confirming_runs(config: BenchmarkConfig) -> int:
    """Return the number of runs that confirm a prediction.

    That is one full run or, if jobs finish early, as many runs as at each measured node count.
    """
    return config.sweep.arm_repeats if config.ends_early(1) else 1


def confirm_command(report: ScalingReport) -> str:
    """Return the command that confirms a prediction of a report.

    For one of several instance types, it starts a sweep of that type alone.
    """
    key = names.parse_job_name(report.points[0].job_name)
    if key is None or not key.arm:
        return f"nodesweep run CONFIG --resume {report.sweep_id} --confirm"
    return (
        "nodesweep run CONFIG --set sweep.instance_types=null --set"
        f" training.instance_type={report.platform.instance_type} --confirm"
    )


def _is_timed(row: SummaryRow) -> bool:
    return row.train.seconds is not None and "starved" not in row.flags


def _predicted(config: BenchmarkConfig) -> list[int]:
    """Return the node counts that are predicted, since no job runs on them."""
    return [nodes for nodes in config.sweep.node_counts if not config.sweep.may_run(nodes)]
