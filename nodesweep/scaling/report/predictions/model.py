"""The typed form of a prediction, for report.json and `nodesweep predict --json`."""

from __future__ import annotations

from statistics import fmean

from pydantic import Field

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.verdicts import JudgedCount
from nodesweep.scaling.formats import (
    format_seconds,
    format_usd,
    format_value,
    join_words,
    nodes_text,
    one_or_more,
)
from nodesweep.scaling.predict.physics import Term
from nodesweep.scaling.report_part import Part


def cost_text(usd: float | None, node_hours: float | None) -> str | None:
    """Return a cost in USD or node-hours; None if it is unknown."""
    if node_hours is not None:
        return f"{format_value(node_hours, 3)} node-hours"
    return None if usd is None else format_usd(usd)


class CheckedPrediction(Part):
    """A prediction of T at a node count from smaller ones, and the runs that then measured it."""

    platform: str = Field(description="Kind of platform.")
    instance_type: str | None = Field(description="Type of the nodes; null: unknown.")
    nodes: int = Field(gt=0, description="The node count.")
    seconds: float = Field(gt=0, description="Predicted T.")
    interval: Interval | None = Field(
        description="90% prediction interval of a run; null: no smaller node count ran twice."
    )
    measured: tuple[float, ...] = Field(min_length=1, description="T of each run.")
    projected: bool = Field(
        default=False,
        exclude_if=lambda is_projected: not is_projected,
        description="True: `measured` is projected from short runs; absent: they were full runs.",
    )

    @property
    def error(self) -> float:
        """The relative error of the prediction; negative if the predicted time was too short."""
        return self.seconds / fmean(self.measured) - 1

    @property
    def text(self) -> str:
        """The comparison: "8 nodes: predicted 13.4 s (12.1 s–14.9 s), measured 13.6 s, inside …".

        For a short run, "measured" is replaced by "a short run projects to".
        """
        seconds = join_words(map(format_seconds, self.measured))
        found = f"measured {seconds}"
        if self.projected:
            is_one = len(self.measured) == 1
            found = f"{'a short run projects' if is_one else 'short runs project'} to {seconds}"
        text = f"{nodes_text(self.nodes)}: predicted {format_seconds(self.seconds)}"
        within = self.interval
        if within is None:
            return f"{text}, {found}"
        low, high = map(format_seconds, within.bounds)
        is_inside = all(within.low <= seconds <= within.high for seconds in self.measured)
        where = "inside" if is_inside else "outside"
        return f"{text} ({low}–{high}), {found}, {where} the 90% interval"


class PredictedTerm(Part):
    """A term of T(N)."""

    name: Term = Field(description="The term.")
    seconds: float | None = Field(
        description="Its seconds in T(N); null: the measurements give only bounds, see `source`."
    )
    low: float = Field(
        description="Lowest value that the measurements allow, ignoring their noise."
    )
    high: float = Field(description="Highest value that they allow.")
    source: str = Field(description="Source of the value, or why `seconds` is null.")


class CountPrediction(Part):
    """The prediction for a node count that was not measured."""

    nodes: int = Field(description="N, nodes per job.")
    seconds: float = Field(
        description="T(N), assuming that the backward pass hides as much communication as "
        "measured; terms with bounds only have their likely values."
    )
    interval: Interval | None = Field(
        description="90% prediction interval of T(N); null: no node count ran twice."
    )
    speedup: float = Field(description="S(N) of the means, over the report's baseline.")
    efficiency: float = Field(description="E(N) of the means.")
    efficiency_interval: Interval | None = Field(description="90% interval of E(N).")
    doubling_ratio: float | None = Field(
        description="S(N)/S(N/2); null: N/2 was neither measured nor predicted."
    )
    doubling_ratio_interval: Interval | None = Field(description="90% interval of S(N)/S(N/2).")
    usd: float | None = Field(
        description="Cost of a run, assuming the start-up time of the largest measured count; "
        "null: price or billed time is unknown."
    )
    usd_interval: Interval | None = Field(description="90% prediction interval of the cost.")
    node_hours: float | None = Field(
        default=None,
        exclude_if=lambda hours: hours is None,
        description="Billed node-hours; only if costs are in node-hours.",
    )
    terms: tuple[PredictedTerm, ...] = Field(description="The terms of T(N), which sum to it.")


class NextJob(Part):
    """The next job to run, which matters most for the recommendation."""

    nodes: int = Field(description="Its node count.")
    global_batch_size: int = Field(description="Samples per optimizer step over all processes.")
    seconds: float = Field(description="Approximate train time, seconds.")
    usd: float | None = Field(description="Approximate cost, USD; null: unknown.")
    node_hours: float | None = Field(
        default=None,
        exclude_if=lambda hours: hours is None,
        description="Billed node-hours; only if costs are in node-hours.",
    )
    reason: str = Field(description="What it would measure.")
    runs: int = Field(
        default=1,
        exclude_if=lambda runs: runs == 1,
        description="Number of equal jobs; absent: 1.",
    )
    share: float = Field(
        default=1.0,
        exclude_if=lambda share: share == 1,
        description="Share of T that a short job runs; absent: all of it.",
    )

    @property
    def runs_text(self) -> str:
        """The jobs in words: "one run", "3 short runs"."""
        return one_or_more(self.runs, "short run" if self.share < 1 else "run")


class Predictions(Part):
    """The predictions from a report."""

    sweep_id: str = Field(description="Sweep whose report they are based on.")
    headline: str = Field(
        description="The recommendation, with a note that it is based on predictions."
    )
    chosen: int | None = Field(
        description="Recommended node count, measured or predicted; null: none."
    )
    measured_nodes: tuple[int, ...] = Field(description="Node counts with a known step budget.")
    counts: tuple[CountPrediction, ...] = Field(description="Predicted node counts, ascending.")
    judged: tuple[JudgedCount, ...] = Field(
        description="Measured and predicted node counts, compared with every limit; empty without "
        "intervals."
    )
    next_job: NextJob | None = Field(
        description="The job that matters most for the recommendation; null: none would change it."
    )
    checked: tuple[CheckedPrediction, ...] = Field(
        description="Predictions of measured node counts from smaller ones, to assess `counts`."
    )
    assumes: tuple[str, ...] = Field(description="Assumptions of the predictions.")
