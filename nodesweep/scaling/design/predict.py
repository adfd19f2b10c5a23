"""The predict design: measure the smallest node counts, and predict the others.

Each count is predicted from where the time of the measured ones goes (nodesweep/scaling/predict/).
The recommendation rests on predictions and says so; one further run, at the count that would settle
it, takes the place of that prediction (sweep.confirm, which `run --confirm` sets).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nodesweep.scaling.design.base import Attempt, Design, Progress
from nodesweep.scaling.design.costs import DesignCost, Estimate, full_cost
from nodesweep.scaling.formats import join_words, nodes_text, pluralize

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.analysis.rows import SummaryRow
    from nodesweep.scaling.report.model import ScalingReport
    from nodesweep.scaling.rules.rule import Facts


class Predict(Design):
    """The predict design."""

    name = "predict"
    jobs_text = "{} jobs, from which the other node counts are predicted"

    def progress(
        self, config: BenchmarkConfig, rows: Sequence[SummaryRow], attempts: Sequence[Attempt]
    ) -> Progress:
        """Ask for all runs of the measured counts, then for the one that confirms a prediction."""
        sweep = config.sweep
        ended = {(each.nodes, each.repeat) for each in attempts}
        points = tuple(
            (nodes, repeat)
            for nodes in sweep.measured_counts
            for repeat in range(1, sweep.arm_repeats + 1)
        )
        reason = f"{join_words(_predicted(config))} nodes are predicted from these"
        if sweep.confirm is not None and ended.issuperset(points):
            points += ((sweep.confirm, 1),)
            reason = f"one run on {nodes_text(sweep.confirm)} confirms its prediction"
        left = tuple(point for point in points if point not in ended)
        return Progress(points, left, (), reason if left else "every asked-for run has ended")

    def predict(self, config: BenchmarkConfig, report: ScalingReport) -> ScalingReport:
        """Return the report with the node counts that were not measured.

        Its recommendation moves into the prediction, so that none that rests on predictions looks
        measured. If nothing can be predicted, the report is that of the measured counts.
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
            prediction = predict(report, asked, confirms_counts=True)
        except NotPredictable as error:
            left = join_words(_predicted(config))
            headline = f"{report.headline.rstrip('.')}; no time is predicted for {left} nodes."
            why = f"No predictions: {str(error).rstrip('.')}."
            return report.model_copy(update={"headline": headline, "caveats": (why,)})
        headline = qualified(report.platform.kind, prediction.headline)
        if prediction.next_job is not None:
            command = f"`nodesweep run CONFIG --resume {report.sweep_id} --confirm`"
            headline = f"{headline.rstrip('.')}: {command}."
        return report.model_copy(
            update={
                "headline": headline,
                "prediction": prediction,
                "recommendation": None,
                "hour_values": (),
            }
        )

    def plan_lines(self, config: BenchmarkConfig) -> list[str]:
        """Return a line on the predicted counts, and on the run that may confirm one of them."""
        last = "" if config.sweep.confirm else "; --confirm adds one run at the deciding count"
        return [f"{'':>4} {join_words(_predicted(config))} nodes: predicted, not run{last}"]

    def estimate(self, config: BenchmarkConfig) -> Estimate | None:
        """Return the cost of the measured counts; None for a sweep of another design."""
        sweep = config.sweep
        if sweep.design != self.name:
            return None
        usual = full_cost(sweep.measured_counts, sweep.arm_repeats)
        most = usual + full_cost(sweep.node_counts[-1:], 1)
        label = f"predict, {pluralize(sweep.arm_repeats, 'repeat')}"
        return Estimate(label, DesignCost(usual, usual, most), "predict: at most with --confirm; ")

    def program_hints(self, facts: Facts) -> Iterator[str]:
        """Yield a hint on runs that are longer than predictions need."""
        training = facts.training
        if facts.ships_program and training.baseline_seconds is None and training.steps is None:
            yield (
                "sweep.design: predict: full-length runs are not needed; set "
                "training.baseline_seconds: 60 to shorten the measured and predicted runs"
            )


def _is_timed(row: SummaryRow) -> bool:
    return row.train.seconds is not None and "starved" not in row.flags


def _predicted(config: BenchmarkConfig) -> list[int]:
    """Return the node counts that no job runs on."""
    return [nodes for nodes in config.sweep.node_counts if not config.sweep.may_run(nodes)]
