"""The part of report.json on several instance types or variants: all cells and the choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from nodesweep.scaling import names
from nodesweep.scaling.analysis.interval import Interval
from nodesweep.scaling.analysis.per_result import PerResult, expected
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.remedies import Name
from nodesweep.scaling.analysis.verdicts import Answer
from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.report_part import Part

Question = Literal["cheapest_within_deadline", "fastest_within_budget", "cheapest_efficient"]


class _Compared(Part):
    """A row or an answer about one instance type or variant."""

    variant: str | None = Field(
        default=None,
        exclude_if=lambda name: name is None,
        description="Name of the variant, base for the unchanged config; absent if types are "
        "compared.",
    )


class ArmRow(_Compared):
    """One instance type or variant at one node count."""

    instance_type: str
    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Used runs.")
    n_failed: int = Field(description="Attempts that failed or were stopped.")
    n_projected: int = Field(description="Used runs whose time is projected from a probe.")
    train_seconds: float | None = Field(description="Geometric mean of train times; null: unknown.")
    train_interval: Interval | None = Field(description="95% interval of `train_seconds`.")
    total_usd: float | None = Field(
        description="Geometric mean of a run's costs, warm pool included; null: unknown."
    )
    total_usd_interval: Interval | None = Field(description="95% interval of `total_usd`.")
    per_result: PerResult | None = Field(
        default=None,
        exclude_if=lambda per: per is None,
        description="Expected cost and time of a completed run with its failed attempts, which are "
        "compared instead of the run's own; absent if no attempt failed.",
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
            "Verdict by deadline and budget, from the prediction bounds of the next run; without "
            "a deadline or budget, by the limits of the recommendation for its own type or "
            "variant. Null if the row has no time."
        )
    )
    reason: str | None = Field(
        description="Why the row does not pass, has no time, or got no further probe; null: it "
        "passes."
    )
    on_front: bool | None = Field(
        description=(
            "True if the time is a valid measurement of training the same model, and no other such "
            "row is at least as good in both train time and cost, and better in one; null: either "
            "is unknown."
        )
    )
    beaten_for_sure: bool = Field(
        description=(
            "True if another row's intervals of time and cost lie entirely below this row's."
        )
    )

    @property
    def name(self) -> str:
        """The name of the row's arm."""
        return self.variant or self.instance_type

    @property
    def text(self) -> str:
        """The row in words, such as "4 x ml.g5.xlarge" or "4 nodes with fp16"."""
        return Cell(Arm("", self.name, self.variant is not None), self.nodes).text

    @property
    def seconds(self) -> float | None:
        """The expected train time of a completed run, failed attempts included."""
        return expected(self.train_seconds, self.per_result, "train_seconds")

    @property
    def usd(self) -> float | None:
        """The expected cost of a completed run in USD, failed attempts included."""
        return expected(self.total_usd, self.per_result, "usd")


class ArmChoice(_Compared):
    """The arm and node count chosen for a question, or none."""

    question: Question = Field(
        description=(
            "cheapest_within_deadline: cheapest combination that meets the deadline (and any"
            " budget); fastest_within_budget: fastest combination within the budget (and any"
            " deadline); cheapest_efficient: cheapest of the counts recommended for each type or"
            " variant."
        )
    )
    instance_type: str | None = Field(
        description="Instance type of the choice; null: nothing is chosen."
    )
    nodes: int | None
    by: Literal["cost", "time"] = Field(
        description="Quantity that the choice minimizes; time if no cost is known."
    )
    reason: str = Field(description="One sentence: why this arm was chosen, or why none was.")

    @property
    def name(self) -> str | None:
        """The name of the chosen arm."""
        return self.variant or self.instance_type


class ComparedVariant(Part):
    """A variant of the sweep's config."""

    name: str
    set: Mapping[str, Any] = Field(description="Config fields that it sets, by dotted name.")


class PredictedCount(Part):
    """A variant at a node count, predicted from the runs of base in this sweep, and measured."""

    variant: str
    remedy: Name = Field(description="The change that the variant makes.")
    nodes: int = Field(description="N, nodes per job.")
    predicted_efficiency: float | None = Field(
        description="E(N) over the variant's own smallest count; null: no effect above the noise."
    )
    predicted_interval: Interval | None = Field(
        description="Interval of `predicted_efficiency`, as in `remedies`; null at the smallest "
        "count and for fewer than 3 runs."
    )
    predicted_seconds: float | None = Field(
        description="T(N) of the variant, for the samples it processed; null: no effect above the "
        "noise, or a larger batch whose samples were not counted."
    )
    efficiency: float | None = Field(description="Measured E(N); null: unknown.")
    seconds: float | None = Field(description="Measured T(N); null: unknown.")
    is_inside: bool | None = Field(
        description="True if the interval contains the measured efficiency; null: not judged."
    )
    reason: str | None = Field(description="Why `is_inside` is null; null if it is not.")


class InstanceComparison(Part):
    """All arms of the sweep at all node counts, and the choices between them."""

    instance_types: tuple[str, ...] = Field(
        description="Compared instance types, in the config's order; with variants, the type of "
        "each variant."
    )
    variants: tuple[ComparedVariant, ...] = Field(
        default=(),
        exclude_if=lambda variants: not variants,
        description="base and the variants, in the config's order; absent if types are compared.",
    )
    predicted: tuple[PredictedCount, ...] = Field(
        default=(),
        exclude_if=lambda counts: not counts,
        description=(
            "By variant and node count, the predicted and measured effect of variants that make a "
            "change of `remedies`; absent: no variant does, or the parts of the time of base are "
            "unknown."
        ),
    )
    main: str = Field(description="The type or variant that the rest of this report describes.")
    arms: tuple[ArmRow, ...] = Field(
        description=("Ordered by type as in the config, then by ascending node count.")
    )
    answers: tuple[ArmChoice, ...] = Field(
        description="One choice per question; the first is the recommendation."
    )
    prices: Mapping[str, Price] = Field(description="Price of a node by instance type.")
    points_asked: int = Field(description="Number of points that the design requested.")
    points_done: int = Field(description="Number of those points with a completed run.")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arms, in the config's order."""
        return tuple(each.name for each in self.variants) or self.instance_types

    @property
    def kind(self) -> str:
        """The word for an arm: instance type or variant."""
        return "variant" if self.variants else "instance type"

    @property
    def word(self) -> str:
        """The short word for an arm: type or variant."""
        return self.kind.rpartition(" ")[2]

    def text_of(self, name: str, nodes: int) -> str:
        """Return the arm with this name at a node count in words, such as "4 x ml.g5.xlarge"."""
        return Cell(Arm("", name, bool(self.variants)), nodes).text

    def name_of_job(self, job_name: str) -> str | None:
        """Return the name of the arm whose code is in a job's name; None if there is none."""
        key = names.parse_job_name(job_name)
        by_code = {names.arm_code(place): name for place, name in enumerate(self.names)}
        return None if key is None else by_code.get(key.arm)

    @property
    def front(self) -> list[ArmRow]:
        """The rows on the time-cost front, fastest first."""
        return sorted(
            (arm for arm in self.arms if arm.on_front), key=lambda arm: arm.seconds or 0.0
        )
