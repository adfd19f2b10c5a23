"""The models of the comparison of instance types or variants in report.json."""

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
    variant: str | None = Field(
        default=None,
        exclude_if=lambda name: name is None,
        description="Name of the variant, base for the unchanged config; absent if instance types "
        "are compared.",
    )


class ArmRow(_Compared):
    """One instance type or variant at one node count."""

    instance_type: str
    nodes: int = Field(description="N, nodes per job.")
    n: int = Field(description="Number of used runs.")
    n_failed: int = Field(description="Number of attempts that failed or were stopped.")
    n_projected: int = Field(
        description="Number of used runs whose time is projected from a probe."
    )
    predicted: bool = Field(
        default=False,
        exclude_if=lambda predicted: not predicted,
        description="True: times, costs and ratios are predicted from smaller node counts, with "
        "90% intervals of the next run; absent: they are measured or unknown.",
    )
    train_seconds: float | None = Field(
        description="Geometric mean of train times; null if unknown."
    )
    train_interval: Interval | None = Field(description="95% interval of `train_seconds`.")
    total_usd: float | None = Field(
        description="Geometric mean of run costs, warm pool included; null if unknown."
    )
    total_usd_interval: Interval | None = Field(description="95% interval of `total_usd`.")
    per_result: PerResult | None = Field(
        default=None,
        exclude_if=lambda per: per is None,
        description="Expected cost and time of a completed run including failed attempts, which "
        "are used in comparisons; absent if no attempt failed.",
    )
    usd_per_hour: float | None = Field(description="Price of a node; null if unknown.")
    speedup: float | None = Field(
        description="Speedup over the smallest measured node count of the same type or variant."
    )
    efficiency: float | None = Field(
        description="Efficiency relative to the same node count as `speedup`."
    )
    world_size: int | None = Field(description="Processes over all nodes, as planned.")
    global_batch_size: int | None = Field(description="Samples per optimizer step, as planned.")
    per_replica_batch_size: int | None = Field(
        description="Samples per process and (micro-)step, as planned."
    )
    learning_rate: float | None = Field(description="Learning rate, as planned.")
    answer: Answer | None = Field(
        description=(
            "Verdict by deadline and budget, from the prediction bounds of the next run. Without a "
            "deadline or budget, the verdict by the limits of the recommendation for the type or "
            "variant. Null if the row has no time."
        )
    )
    reason: str | None = Field(
        description="Why the row does not pass, has no time, or got no further probe; null if it "
        "passes."
    )
    on_front: bool | None = Field(
        description=(
            "True if the time is a valid measurement of training the same model, and no other "
            "valid row is at least as good in both train time and cost, and better in one; null if "
            "time or cost is unknown."
        )
    )
    beaten_for_sure: bool = Field(
        description=(
            "True if the time and cost intervals of another, comparable row that is not predicted "
            "are entirely below those of this row."
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
    def kind(self) -> str:
        """The source of the time if no full run gave it: "predicted" or "projected"; else ""."""
        return "predicted" if self.predicted else "projected" if self.n_projected else ""

    @property
    def seconds(self) -> float | None:
        """The expected train time of a completed run in seconds, failed attempts included."""
        return expected(self.train_seconds, self.per_result, "train_seconds")

    @property
    def usd(self) -> float | None:
        """The expected cost of a completed run in USD, failed attempts included."""
        return expected(self.total_usd, self.per_result, "usd")


class ArmChoice(_Compared):
    """The arm and node count chosen for a question, if any."""

    question: Question = Field(
        description=(
            "cheapest_within_deadline: cheapest combination that meets the deadline (and any"
            " budget); fastest_within_budget: fastest combination within the budget (and any"
            " deadline); cheapest_efficient: cheapest of the node counts recommended for the types"
            " or variants."
        )
    )
    instance_type: str | None = Field(
        description="Instance type of the choice; null if nothing is chosen."
    )
    nodes: int | None
    by: Literal["cost", "time"] = Field(
        description="Quantity that the choice minimizes; time if all costs are unknown."
    )
    reason: str = Field(description="One sentence: why this arm was chosen, or why none was.")

    @property
    def name(self) -> str | None:
        """The name of the chosen arm, or None if nothing is chosen."""
        return self.variant or self.instance_type


class ComparedVariant(Part):
    """A variant of the sweep's config."""

    name: str
    set: Mapping[str, Any] = Field(
        description="Config fields that the variant sets, by dotted name."
    )


class PredictedCount(Part):
    """The predicted and the measured effect of a variant at a node count."""

    variant: str
    remedy: Name = Field(description="The change that the variant makes.")
    nodes: int = Field(description="N, nodes per job.")
    predicted_efficiency: float | None = Field(
        description="E(N) over the smallest node count of the variant; null if the predicted "
        "effect is not above the noise."
    )
    predicted_interval: Interval | None = Field(
        description="Interval of `predicted_efficiency`, as in `remedies`; null at the smallest "
        "node count and for fewer than 3 runs."
    )
    predicted_seconds: float | None = Field(
        description="T(N) of the variant, for the samples it processed; null if the predicted "
        "effect is not above the noise, or for a larger batch whose samples were not counted."
    )
    efficiency: float | None = Field(description="Measured E(N); null if unknown.")
    seconds: float | None = Field(description="Measured T(N); null if unknown.")
    is_inside: bool | None = Field(
        description="True if the interval contains the measured efficiency; null if they cannot "
        "be compared."
    )
    reason: str | None = Field(description="Why `is_inside` is null; null if it is not.")


class InstanceComparison(Part):
    """All arms of the sweep at all node counts, and the choices between them."""

    instance_types: tuple[str, ...] = Field(
        description="Compared instance types, in the config's order; with variants, the instance "
        "type of each variant."
    )
    variants: tuple[ComparedVariant, ...] = Field(
        default=(),
        exclude_if=lambda variants: not variants,
        description="base and the variants, in the config's order; absent if instance types are "
        "compared.",
    )
    predicted: tuple[PredictedCount, ...] = Field(
        default=(),
        exclude_if=lambda counts: not counts,
        description=(
            "The predicted and measured effect by variant and node count, for variants that make a "
            "change of `remedies`; absent if no variant does, or if the breakdown of the train "
            "time of base is unknown."
        ),
    )
    main: str = Field(
        description="The instance type or variant that the rest of this report describes."
    )
    arms: tuple[ArmRow, ...] = Field(
        description="One row per type or variant, in the config's order, and node count, ascending."
    )
    answers: tuple[ArmChoice, ...] = Field(
        description="One choice per question, of which the first is the recommendation."
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
        """Return an arm at a node count in words, such as "4 x ml.g5.xlarge"."""
        return Cell(Arm("", name, bool(self.variants)), nodes).text

    def name_of_job(self, job_name: str) -> str | None:
        """Return the name of the arm that a job's name contains, or None if it contains none."""
        key = names.parse_job_name(job_name)
        by_code = {names.arm_code(place): name for place, name in enumerate(self.names)}
        return None if key is None else by_code.get(key.arm)

    @property
    def chosen(self) -> ArmRow | None:
        """The recommended row, or None if nothing is recommended."""
        name, nodes = self.answers[0].name, self.answers[0].nodes
        return next((arm for arm in self.arms if (arm.name, arm.nodes) == (name, nodes)), None)

    @property
    def front(self) -> list[ArmRow]:
        """The rows on the time-cost front, fastest first."""
        return sorted(
            (arm for arm in self.arms if arm.on_front), key=lambda arm: arm.seconds or 0.0
        )
