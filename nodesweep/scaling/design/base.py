"""The interface of a design: which runs come next, how they are evaluated, and what they may cost.

nodesweep/scaling/design/registry.py lists the designs, each of which has its own file. No other
code checks a sweep's design. Rules that depend on the config alone are in configs/designs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field

from nodesweep.configs.designs import RULES, DesignName, DesignRules
from nodesweep.scaling.formats import format_percent, format_ratio, format_seconds, nodes_text
from nodesweep.scaling.report_part import Part

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig, RecommendationConfig
    from nodesweep.scaling.analysis.advice import Recommendation
    from nodesweep.scaling.analysis.rows import SummaryRow
    from nodesweep.scaling.analysis.speedup import Run
    from nodesweep.scaling.analysis.verdicts import JudgedCount
    from nodesweep.scaling.design.costs import Estimate
    from nodesweep.scaling.instances.progress import SweepProgress
    from nodesweep.scaling.outcome.outcome import JobOutcome
    from nodesweep.scaling.report.model import ScalingReport
    from nodesweep.scaling.rules.rule import Facts

Point = tuple[int, int]
"""A point of the sweep as (nodes, repeat)."""
JobKind = Literal["run", "probe", "check"]
"""Kind of a job: a full run, a partial run, or a full run that validates projected times."""
Answer = Literal["pass", "fail", "on_the_limit", "undecided"]
RatioCriterion = Literal["efficiency", "doubling_ratio", "faster"]


def validates(kind: JobKind) -> bool:
    """Return True for a full run that validates projected times."""
    return kind == "check"


def may_end_early(kind: JobKind) -> bool:
    """Return True if a job can finish early, before it has run all of its steps."""
    return kind == "probe"


class Attempt(NamedTuple):
    """A run that has ended; `train_seconds` is None if the time is unknown or not used."""

    nodes: int
    repeat: int
    train_seconds: float | None
    contended: bool


@dataclass(frozen=True)
class Judged:
    """The verdict on one limit at one node count: the ratio `value` with its one-sided bounds.

    `than` is the smaller node count whose time is compared with the time at this count.
    """

    criterion: RatioCriterion
    than: int
    answer: Answer
    value: float
    low: float
    high: float
    limit: float
    error: float
    """The error probability of both bounds together."""

    @property
    def text(self) -> str:
        """The value and its limit in words: "efficiency 92% (80%–105%, limit 75%)"."""
        return f"{self.value_text.removesuffix(')')}, limit {self.limit_text})"

    @property
    def limit_text(self) -> str:
        """The limit in words."""
        return self._write(self.limit)

    @property
    def value_text(self) -> str:
        """The value in words: "efficiency 92% (80%–105%)"."""
        what = (
            f"speedup over {nodes_text(self.than)}"
            if self.criterion == "faster"
            else self.criterion.replace("_", " ")
        )
        span = f"{self._write(self.low)}–{self._write(self.high)}"
        return f"{what} {self._write(self.value)} ({span})"

    def _write(self, number: float) -> str:
        return format_percent(number) if self.criterion == "efficiency" else format_ratio(number)


@dataclass(frozen=True)
class CountAnswer:
    """The verdict on one node count over all its limits, after `looks` evaluations of its runs."""

    nodes: int
    answer: Answer
    limits: tuple[Judged, ...]
    looks: int

    @property
    def text(self) -> str:
        """The answer with its reasons: "8 nodes undecided: efficiency 76% (…, limit 75%)"."""
        why = [each.text for each in self.limits if each.answer == self.answer]
        return f"{self.brief}: {', '.join(why)}" if why else self.brief

    @property
    def brief(self) -> str:
        """The node count and its verdict in a few words: "8 nodes undecided"."""
        words = {"pass": "pass", "fail": "fail", "on_the_limit": "on the limit"}
        return f"{nodes_text(self.nodes)} {words.get(self.answer, 'undecided')}"


@dataclass(frozen=True)
class Progress:
    """The progress of a sweep whose next runs depend on the previous ones.

    `points` are all points that the design has requested so far. `next_points` are the requested
    points that have not ended, or () if the design is done. `answers` are the verdicts on the node
    counts evaluated so far, largest first. `reason` explains the next points, or why there are
    none. `deciding` is the node count whose rejection a full run validates, if there is one.
    """

    points: tuple[Point, ...]
    next_points: tuple[Point, ...]
    answers: tuple[CountAnswer, ...]
    reason: str
    deciding: int | None = None


class Check(Part):
    """A full run compared with the projection at its node count."""

    nodes: int = Field(description="N, nodes of the full run.")
    job_name: str = Field(description="Training job of the full run.")
    projected_seconds: float = Field(description="Mean of the projected times at this node count.")
    error_seconds: float | None = Field(
        description=(
            "Error of the projection for a full run, half of a 95% interval: the largest error "
            "of a single projection or, with three or more projections, the prediction interval "
            "from their spread if that is wider; null: unknown."
        )
    )
    probes: int = Field(description="Number of projected times behind `projected_seconds`.")
    measured_seconds: float = Field(description="Time of the full run.")
    difference: float = Field(description="Measured over projected time, minus 1.")
    is_within_error: bool | None = Field(
        description="True if the two times differ by at most `error_seconds`; null: unknown."
    )
    decides: bool = Field(
        default=False,
        exclude_if=lambda decides: not decides,
        description=(
            "True: the full run was at the node count whose rejection decides the recommendation; "
            "absent: it was at another one."
        ),
    )

    @property
    def text(self) -> str:
        """The comparison in words.

        For example, "8 nodes took 13.6 s, 1.5% more than the 13.4 s ± 0.3 s projected, within this
        error".
        """
        return self.text_of(nodes_text(self.nodes))

    def text_of(self, place: str) -> str:
        """Return the comparison in words for a `place` such as "8 x ml.g5.xlarge"."""
        error = "" if self.error_seconds is None else f" ± {format_seconds(self.error_seconds)}"
        share = f"{abs(self.difference) * 100:.1f}%"
        than = f"{share} {'more' if self.difference >= 0 else 'less'} than"
        where = {True: ", within this error", False: ", outside this error", None: ""}
        return (
            f"{place} took {format_seconds(self.measured_seconds)}, {than} the"
            f" {format_seconds(self.projected_seconds)}{error} projected"
            f"{where[self.is_within_error]}"
        )


@dataclass(frozen=True)
class Measured:
    """The measurements of one instance type's sweep, for a design's caveats.

    `check` is the validation run at the recommended count, if any; `other_checks` are the
    validation runs at other node counts.
    """

    config: BenchmarkConfig
    rows: Sequence[SummaryRow]
    outcomes: Sequence[JobOutcome]
    progress: Progress
    check: Check | None
    other_checks: Sequence[Check]


class Design:
    """Base of all designs: requests all runs at the start and decides by the general rules."""

    name: ClassVar[DesignName]
    jobs_text: ClassVar[str] = "{} jobs"
    """The number of jobs in words, with {} for the largest possible number."""
    promise: ClassVar[str] = ""
    """The guarantee of the design's own bounds, in words; "" if it has none."""
    bounds_text: ClassVar[str] = ""
    """The design's own bounds in words; "" if the intervals and point estimates decide.

    A design with its own bounds uses its name as the basis of its recommendations.
    """

    @property
    def rules(self) -> DesignRules:
        """The rules of configs/designs.py for a config with this design."""
        return RULES[self.name]

    def progress(
        self, config: BenchmarkConfig, rows: Sequence[SummaryRow], attempts: Sequence[Attempt]
    ) -> Progress | None:
        """Return the progress for one instance type; None if all runs are requested at the start.

        The progress depends only on the attempts that have ended and on the report's rows for them.
        """
        return None

    def progress_of_arms(
        self, config: BenchmarkConfig, outcomes: Sequence[JobOutcome]
    ) -> SweepProgress | None:
        """Return the progress of a sweep of several arms, or None as progress() does."""
        return None

    def recommend(
        self,
        rows: Sequence[SummaryRow],
        goals: RecommendationConfig,
        progress: Progress,
    ) -> Recommendation | None:
        """Return the recommendation based on the rows, or None for fewer than two node counts."""
        # imported here so that a plan loads quickly
        from nodesweep.scaling.analysis.recommend import recommend

        return recommend(rows, goals)

    def limit_notes(self, judged: Sequence[JudgedCount]) -> list[str]:
        """Return notes on the node counts that are on a limit by the design's own bounds."""
        return []

    def find_checks(
        self, config: BenchmarkConfig, runs: Sequence[Run], progress: Progress
    ) -> tuple[Check | None, tuple[Check, ...]]:
        """Return the validation run at the recommended node count, and any at other node counts."""
        return None, ()

    def confirm(
        self,
        config: BenchmarkConfig,
        runs: Sequence[Run],
        recommendation: Recommendation | None,
        checks: Sequence[Check],
    ) -> Recommendation | None:
        """Return the recommendation, without a choice if the validation runs contradict it."""
        return recommendation

    def predict(self, config: BenchmarkConfig, report: ScalingReport) -> ScalingReport:
        """Return the report with the design's predictions, or with a caveat on why it has none."""
        return report

    def caveats(self, measured: Measured, general: Sequence[str]) -> Sequence[str]:
        """Return the caveats on the runs: the general ones and the design's own, in order."""
        return general

    def plan_lines(self, config: BenchmarkConfig) -> list[str]:
        """Return the lines of a plan about jobs whose node count is decided later."""
        return []

    def estimate(self, config: BenchmarkConfig) -> Estimate | None:
        """Return the cost on the reference curve; None if the design does not suit the config."""
        return None

    def program_hints(self, facts: Facts) -> Iterable[str]:
        """Return hints about this design's requirements for the training script."""
        return ()
