"""The row of the summary for a node count, and the baseline of its ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from nodesweep.scaling.analysis.clocks import ClockStatistics, RowClocks
from nodesweep.scaling.analysis.cost import CostSpread, RunCosts
from nodesweep.scaling.analysis.parity import FinalMetric, Parity
from nodesweep.scaling.analysis.per_result import PerResult
from nodesweep.scaling.report_part import Part

Flag = Literal["superlinear", "retrograde", "throughput_only", "world_size_unconfirmed", "starved"]


class SummaryRow(Part):
    """One node count; an unknown statistic is null, never 0."""

    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Number of used runs, on which the statistics are based.")
    n_failed: int = Field(
        description=(
            "Number of attempts that failed or were stopped, which the statistics exclude."
        )
    )
    n_spot: int = Field(
        description="Number of completed runs on spot capacity, which the statistics exclude."
    )
    n_projected: int = Field(
        default=0,
        exclude_if=lambda number: number == 0,
        description="Number of used runs that ended early and whose time is projected; absent if "
        "none.",
    )
    projection_error_seconds: float | None = Field(
        default=None,
        exclude_if=lambda error: error is None,
        description=(
            "Largest error of a projected time, as half the width of a 95% interval; absent if no "
            "time is projected or an error is unknown."
        ),
    )
    world_size: int | None = Field(
        description="Number of processes on all nodes; null if no run confirmed it."
    )
    global_batch_size: int | None = Field(
        description="Samples per optimizer step over all processes."
    )
    per_replica_batch_size: int | None = Field(description="Samples per process and (micro-)step.")
    learning_rate: float | None = Field(description="Learning rate at this node count.")
    clocks: RowClocks = Field(
        description="Times, speedup and efficiency on each of the four clocks."
    )
    accelerator_efficiency: float | None = Field(
        description=(
            "T of one process on one node / (world size x T(N)), times `samples_ratio` if present; "
            "null if either time is unknown."
        )
    )
    steady_step_seconds: float | None = Field(description="Median step time in the steady window.")
    startup_seconds: float | None = Field(description="Median of Starting + Pending + Downloading.")
    data_wait_share: float | None = Field(
        description="Median share of train time spent waiting for data, 0 to 1."
    )
    flops_per_second: float | None = Field(
        default=None,
        exclude_if=lambda rate: rate is None,
        description=(
            "Median floating-point operations per second of all processes during the program's "
            "train time, counted in one step of rank 0; absent if unknown."
        ),
    )
    mfu: float | None = Field(
        default=None,
        exclude_if=lambda share: share is None,
        description=(
            "Model FLOPs utilization: median ratio of flops_per_second to the peak of the "
            "accelerators for the data type, 0 to 1; absent if unknown."
        ),
    )
    phases: Mapping[str, float] = Field(description="Median seconds in each secondary status.")
    epochs: float | None = Field(description="Median number of trained epochs.")
    seconds_to_target: float | None = Field(
        description="Median train time until the target metric was reached."
    )
    costs: RunCosts
    cost_spread: CostSpread = CostSpread()
    per_result: PerResult | None = Field(
        default=None,
        exclude_if=lambda per: per is None,
        description=(
            "Completed and failed attempts, and the expected cost and times of a result, which "
            "are used in comparisons; absent if no attempt failed."
        ),
    )
    spot_usd_per_result: float | None = Field(
        default=None,
        exclude_if=lambda usd: usd is None,
        description=(
            "Expected cost of a completed run on spot, including interruptions and failed "
            "attempts; absent if no spot run completed or a cost is unknown."
        ),
    )
    final_metric: FinalMetric | None = Field(
        description="Median final metric; null if a run reported no metric or a different one."
    )
    parity: Parity
    samples_per_second: float | None = Field(
        default=None,
        exclude_if=lambda rate: rate is None,
        description=(
            "Samples per second of all nodes: processed samples divided by train time or, if "
            "samples were not counted, the rate in the steady window; absent if unknown."
        ),
    )
    samples_ratio: float | None = Field(
        default=None,
        exclude_if=lambda ratio: ratio is None,
        description=(
            "Ratio of the samples of a run to the samples of a run at N0, if S, E and D compare "
            "samples per second; absent if they compare times."
        ),
    )
    least_time_share: float | None = Field(
        default=None,
        exclude_if=lambda share: share is None,
        description=(
            "Shortest T(N) that is possible without contention, as a share of the measured time; "
            "absent if unknown, or if the node count is not flagged starved."
        ),
    )
    night_sigma: float | None = Field(
        default=None,
        exclude_if=lambda sigma: sigma is None,
        description=(
            "Standard deviation of log T between earlier sweeps of this benchmark, which widens "
            "the bounds for deadlines and budgets, since the next run takes place on a different "
            "day; absent if there are too few earlier sweeps."
        ),
    )
    flags: tuple[Flag, ...] = Field(
        description=(
            "superlinear: E > 1; retrograde: slower than some smaller node count; "
            "throughput_only: the final metric is not shown to match the baseline, or the global "
            "batch grows and no metric shows convergence, so T is not a time-to-train; "
            "world_size_unconfirmed: nothing in a used run shows how many processes worked "
            "together; starved: an emulated node got less CPU than it requested, so T is too long."
        )
    )

    @property
    def train(self) -> ClockStatistics:
        """The statistics on the train clock."""
        return self.clocks.train

    @property
    def convergence_unknown(self) -> bool:
        """True if the global batch is larger than the baseline's and no metric was compared."""
        return "throughput_only" in self.flags and self.parity.verdict == "unknown"

    @property
    def superlinear_by_noise(self) -> bool:
        """True if flagged superlinear although the interval of the efficiency contains 1."""
        interval = self.clocks.train.efficiency_interval
        return "superlinear" in self.flags and interval is not None and interval.low <= 1


class Baseline(Part):
    """The node count that speedups are relative to."""

    nodes: int = Field(description="N0, the smallest node count with a used run.")
    train_seconds: float = Field(description="T(N0).")
    relative: bool = Field(
        description="True if N0 is not 1 or not the smallest planned node count."
    )
