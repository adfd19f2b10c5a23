"""The part of report.json on several instance types: the arms side by side and the choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.per_result import PerResult, expected
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.verdicts import Answer
from nodesweep.scaling.arms import cell_text
from nodesweep.scaling.report_part import Part

Question = Literal["cheapest_within_deadline", "fastest_within_budget", "cheapest_efficient"]


class ArmRow(Part):
    """One instance type at one node count."""

    instance_type: str
    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Used runs.")
    n_failed: int = Field(description="Attempts that failed or were stopped.")
    n_projected: int = Field(description="Used runs whose time is projected from a probe.")
    train_seconds: float | None = Field(description="Median train time; null: unknown.")
    train_interval: Interval | None = Field(description="95% interval of it.")
    total_usd: float | None = Field(
        description="Median cost of a run, warm pool included; null: unknown."
    )
    total_usd_interval: Interval | None = Field(description="95% interval of it.")
    per_result: PerResult | None = Field(
        default=None,
        exclude_if=lambda per: per is None,
        description="Cost and time of a result, which are compared; absent if no attempt failed.",
    )
    usd_per_hour: float | None = Field(description="Price of a node; null: unknown.")
    speedup: float | None = Field(
        description=("Speedup over the smallest measured count of its own type.")
    )
    efficiency: float | None = Field(description="Efficiency within its own type.")
    world_size: int | None = Field(description="Processes over all nodes, as planned.")
    global_batch_size: int | None = Field(description="Samples per optimizer step, as planned.")
    per_replica_batch_size: int | None = Field(
        description="Samples per process and (micro-)step, as planned."
    )
    learning_rate: float | None = Field(description="Learning rate, as planned.")
    answer: Answer | None = Field(
        description=(
            "Against deadline and budget, by the prediction bounds of the next run; without "
            "either by the limits of its own type's recommendation. Null if it has no time."
        )
    )
    reason: str | None = Field(
        description="Why it does not pass, has no time, or got no further probe."
    )
    on_front: bool | None = Field(
        description=(
            "True if no other arm beats it on both train time and cost; null: either is unknown."
        )
    )
    beaten_for_sure: bool = Field(
        description=(
            "True if another arm's intervals of time and cost lie entirely below this arm's."
        )
    )

    @property
    def text(self) -> str:
        """The row in words: 4 x ml.g5.xlarge."""
        return cell_text(self.instance_type, self.nodes)

    @property
    def seconds(self) -> float | None:
        """The expected train time of a result."""
        return expected(self.train_seconds, self.per_result, "train_seconds")

    @property
    def usd(self) -> float | None:
        """The expected cost of a result in USD."""
        return expected(self.total_usd, self.per_result, "usd")


class ArmChoice(Part):
    """The arm that answers a question, or none."""

    question: Question = Field(
        description=(
            "cheapest_within_deadline: of all arms that meet the deadline (and the budget); "
            "fastest_within_budget: of all within the budget (and the deadline); "
            "cheapest_efficient: of the counts that each type's own recommendation names."
        )
    )
    instance_type: str | None = Field(description="The chosen arm; null: none.")
    nodes: int | None
    by: Literal["cost", "time"] = Field(
        description="The value it minimizes; time if no cost is known."
    )
    reason: str = Field(description="One sentence: why this arm was chosen, or why none was.")


class InstanceComparison(Part):
    """All arms of the sweep, and the answers."""

    instance_types: tuple[str, ...] = Field(description="In the config's order.")
    main: str = Field(description="The type that the rest of this report describes.")
    arms: tuple[ArmRow, ...] = Field(
        description=("Ordered by type as in the config, then by ascending node count.")
    )
    answers: tuple[ArmChoice, ...] = Field(description="The first is the recommendation.")
    prices: Mapping[str, Price] = Field(description="By instance type.")
    points_asked: int = Field(description="Number of points that the design requested.")
    points_done: int = Field(description="Number of those points with a completed run.")

    @property
    def front(self) -> list[ArmRow]:
        """The arms on the time-cost front, fastest first."""
        return sorted(
            (arm for arm in self.arms if arm.on_front), key=lambda arm: arm.seconds or 0.0
        )
