"""The config's `sweep` section: the points to measure, their repeats, order and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nodesweep.configs.designs import (
    DEFAULT_MAX_REPEATS,
    DEFAULT_REPEATS,
    RULES,
    DesignName,
    DesignRules,
)
from nodesweep.configs.section import NOT_MEASURED, Section, Slug, truncate

MAX_JOBS = 1000
MAX_INSTANCE_TYPES = 8
BASE = "base"
"""Name of the arm that runs the config without any variant."""
_TAKEN = frozenset({BASE, "logs"})
"""Names that a variant must not have, because an arm and a folder of the report use them."""
_TYPE, _NODE = "training.instance_type", "platform.node."
VARYING = (
    _TYPE,
    "training.training_plan_arn",
    "training.distribution",
    "training.batch",
    "training.learning_rate",
    "training.steps",
    "training.hyperparameters",
    "platform.partition",
    "platform.constraint",
    "platform.gres",
    "platform.qos",
    "platform.node",
)
"""Fields and sections that variants may set: those that affect nothing but a job's request.

Those of `platform` choose and describe nodes of a cluster.
"""


class ProbeConfig(Section):
    """Stopping criteria of a probe (docs/probe.md)."""

    precision: float = Field(
        default=0.01,
        ge=0.001,
        le=0.2,
        description=(
            "Half width of the 95% interval at which a probe can stop, as a fraction of the"
            " mean steady step, 0.001–0.2: 0.01 is ±1%. Halving it takes about four times the"
            " steps."
        ),
    )
    max_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        # Omitted when null, so that earlier sweeps keep their ids.
        exclude_if=lambda share: share is None,
        description=(
            "Stop a probe after this share of its steps, above 0 to 1, but not before 20 steady"
            " ones. Null: 0.1 for design predict, where 1 makes jobs run all their steps; no limit"
            " for design probe."
        ),
    )
    max_steps: int = Field(
        default=2000,
        ge=30,
        le=1_000_000,
        description=(
            "Stop a probe after this many optimizer steps, 30–1,000,000, even if its precision"
            " is not reached."
        ),
    )


class Variant(Section):
    """A set of changes to the config that a sweep compares with the unchanged config."""

    name: Slug = Field(
        description=(
            "Name of the variant in the report and its folder, at most 20 characters; not base,"
            " which is the config without variants."
        )
    )
    set: dict[str, Any] = Field(
        description=(
            "Values of this variant's fields, by dotted name as with --set. Allowed fields and"
            f" sections: {', '.join(VARYING)}."
        )
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if value in _TAKEN:
            raise ValueError(f"{value} is a reserved name in reports; choose a different one")
        return value

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.set:
            raise ValueError(
                f"variant {self.name} sets nothing, and the unchanged config is measured anyway, as"
                f" {BASE}; set a field, or remove the variant"
            )
        for key in self.set:
            if not f"{key}.".startswith(tuple(f"{each}." for each in VARYING)):
                raise ValueError(
                    f"variant {self.name} sets {truncate(key)}, which must be the same in all"
                    f" variants; set one of {', '.join(VARYING)}, or use separate sweeps"
                )
        return self

    @property
    def node_settings(self) -> dict[str, Any]:
        """The settings that describe the variant's nodes, if they differ from the config's."""
        return {key: each for key, each in self.set.items() if f"{key}.".startswith(_NODE)}

    def moves_to(self, instance_type: str) -> bool:
        """Return True if the variant runs on nodes of this type, which it describes itself."""
        return bool(self.node_settings) and self.set.get(_TYPE) == instance_type


class SweepConfig(Section):
    """The points to measure, how often and in which order."""

    node_counts: tuple[Annotated[int, Field(ge=1, le=512)], ...] = Field(
        min_length=1,
        max_length=512,
        description="Node counts to measure, each 1–512. The smallest is the baseline N0.",
    )
    instance_types: tuple[str, ...] | None = Field(
        default=None,
        min_length=2,
        max_length=MAX_INSTANCE_TYPES,
        # Omitted when null, so that sweeps of one type keep their ids and reports.
        exclude_if=lambda types: types is None,
        description=(
            "2–8 instance types to compare by time and cost, each at every node count; must"
            " include training.instance_type (docs/instance-types.md). Null:"
            " training.instance_type only."
        ),
    )
    variants: tuple[Variant, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_INSTANCE_TYPES - 1,
        # Omitted when null, so that sweeps without variants keep their ids and reports.
        exclude_if=lambda variants: variants is None,
        description=(
            "1–7 variants of the config to compare with it by time and cost, each at every node"
            " count (docs/instance-types.md). Null: none."
        ),
    )
    design: DesignName = Field(
        default="full",
        description="; ".join(f"{name}: {rules.text}" for name, rules in RULES.items()) + ".",
    )
    repeats: int = Field(
        default=DEFAULT_REPEATS,
        ge=1,
        le=50,
        description=(
            "Jobs per node count for designs full, probe and predict, 1–50; use 3 or more to get"
            " confidence intervals. Design predict runs at least 2, sequential uses max_repeats."
        ),
    )
    max_repeats: Annotated[int, NOT_MEASURED] = Field(
        default=DEFAULT_MAX_REPEATS,
        ge=2,
        le=50,
        description=(
            "Maximum jobs per node count for design sequential, 2–50; beyond it a limit is"
            " reported as undecided. Raise it and use --resume to continue."
        ),
    )
    probe: ProbeConfig | None = Field(
        default=None,
        # Omitted when null, so that sweeps of other designs keep their ids and reports.
        exclude_if=lambda probe: probe is None,
        description="Stopping criteria for designs probe and predict. Null: the defaults.",
    )
    confirm: Annotated[int | None, NOT_MEASURED] = Field(
        default=None,
        # Omitted when null, so that sweeps of other designs keep their reports.
        exclude_if=lambda nodes: nodes is None,
        description=(
            "For design predict, a predicted node count to run as well; `run --confirm` sets it to"
            " the one that matters most for the recommendation. Null: none."
        ),
    )
    confirm_repeats: Annotated[int, NOT_MEASURED] = Field(
        default=1,
        ge=1,
        # Omitted like confirm.
        exclude_if=lambda runs: runs == 1,
        description=(
            "Jobs at the node count of `confirm`, at most as many as at each measured one, which"
            " is what `run --confirm` sets if jobs are short."
        ),
    )
    order: Literal["shuffled", "ascending", "descending"] = Field(
        default="shuffled",
        description=(
            "Order of the jobs within each repeat. Keep shuffled, so that drift over time"
            " does not look like scaling."
        ),
    )
    order_seed: int = Field(
        default=1,
        ge=0,
        description="Seed of the shuffle, recorded in the report. Change it to vary the order.",
    )
    max_parallel_jobs: Annotated[int, NOT_MEASURED] = Field(
        default=1,
        ge=1,
        le=MAX_JOBS,
        description=(
            "Maximum jobs in flight, 1–1,000; your instance quota must cover the sum of their"
            " nodes. `run --detach` starts all jobs at once and needs at least that many."
        ),
    )
    budget_usd: Annotated[float | None, NOT_MEASURED] = Field(
        default=None,
        gt=0,
        description=(
            "Reject the sweep if it could cost more than this many USD (docs/config.md has the"
            " formula); no attempt starts that could exceed it. Null: no limit."
        ),
    )
    poll_interval_seconds: Annotated[float, NOT_MEASURED] = Field(
        default=15.0,
        ge=0.2,
        le=300,
        description=(
            "Seconds between two polls of the jobs, 0.2–300; up to 4x as long while nothing"
            " changes. platform.calls_per_second limits the rate of the calls."
        ),
    )
    queue_deadline_seconds: Annotated[int, NOT_MEASURED] = Field(
        default=7200,
        ge=60,
        le=2_419_200,
        description=(
            "Stop a job that has not started training after this many seconds, 60 s – 28"
            " days, and fail its point. Raise it if capacity is scarce."
        ),
    )
    max_attempts: Annotated[int, NOT_MEASURED] = Field(
        default=2,
        ge=1,
        le=10,
        description=(
            "Maximum attempts per point, 1–10. Only capacity shortages and internal errors"
            " are retried."
        ),
    )
    max_retries: Annotated[int | None, NOT_MEASURED] = Field(
        default=50,
        ge=0,
        le=1000,
        description=(
            "Maximum retries of the whole sweep, 0–1,000, including those of resumed and"
            " retried runs; beyond it a failed point stays failed. Null: only max_attempts"
            " applies."
        ),
    )
    concurrency_limit: Annotated[str | None, NOT_MEASURED] = Field(
        default=None,
        min_length=1,
        description=(
            "Name of a Prefect global concurrency limit with one slot per instance of your"
            " quota, so that parallel sweeps share it; each job takes one slot per node. Null:"
            " only SageMaker's quota applies."
        ),
    )
    min_points: Annotated[int | None, NOT_MEASURED] = Field(
        default=None,
        ge=1,
        description=(
            "Minimum number of points with a completed run for the sweep to count as done."
            " Null: all of them."
        ),
    )
    smoke: Annotated[Literal["auto", "never"], NOT_MEASURED] = Field(
        default="auto",
        description=(
            "auto: until new code has logged its first step (a metric definition's match, or"
            " step=N) or completed a job, run jobs one at a time, smallest first; never: start"
            " in the planned order at once. Choose never if a first job at the smallest node"
            " count takes very long."
        ),
    )
    on_cancel: Annotated[Literal["stop", "leave"], NOT_MEASURED] = Field(
        default="stop",
        description=(
            "stop: cancelling a run stops its jobs; leave: they keep running, and `--resume`"
            " or `collect` picks up their results. A crashed run always leaves its jobs"
            " running."
        ),
    )

    @field_validator("node_counts")
    @classmethod
    def _check_node_counts(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(
                f"node counts {list(value)} repeat a number;"
                " use sweep.repeats to measure one several times"
            )
        return tuple(sorted(value))

    @field_validator("instance_types")
    @classmethod
    def _check_instance_types(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError(f"instance types {list(value)} repeat a type; list each once")
        return value

    @field_validator("variants")
    @classmethod
    def _check_variants(cls, value: tuple[Variant, ...] | None) -> tuple[Variant, ...] | None:
        variants = [variant.name for variant in value or ()]
        if len(set(variants)) != len(variants):
            raise ValueError(f"variants {variants} repeat a name; give each a different one")
        return value

    @model_validator(mode="after")
    def _check_arms(self) -> Self:
        if self.variants is None:
            return self
        if self.instance_types is not None:
            raise ValueError(
                f"instance_types is {list(self.instance_types)}, but variants are set, too; remove"
                " instance_types, and add a variant per type that sets training.instance_type"
            )
        return self

    @model_validator(mode="after")
    def _check_design(self) -> Self:
        others = (rules for rules in RULES.values() if rules is not self.rules)
        problems = [*(rules.misplaced(self) for rules in others), self.rules.sweep_problem(self)]
        if problem := next(filter(None, problems), None):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _check_job_limits(self) -> Self:
        points = self.most_jobs
        checks = {0: "", 1: " and the validation run"}
        check = checks.get(self.max_checks, f" and {self.max_checks} validation runs")
        arms = "types" if self.variants is None else "configurations"
        types = f"{self.arm_count} {arms} x " if self.arm_count > 1 else ""
        counts = len(self.measured_counts)
        confirm = ""
        if self.confirm is not None:
            runs = f"{self.confirm_repeats} runs" if self.confirm_repeats > 1 else "the run"
            confirm = f" and {runs} of sweep.confirm"
        jobs = (
            f"{types}{counts} node count{'s' * (counts > 1)} x {self.arm_repeats}"
            f" repeat{'s' * (self.arm_repeats > 1)}{confirm}{check}"
        )
        if points > MAX_JOBS:
            raise ValueError(
                f"{jobs} make {points:,} jobs; a sweep may have at most {MAX_JOBS:,}, the largest"
                " number tested; use fewer node counts or repeats"
            )
        if self.min_points is not None and self.min_points > points:
            raise ValueError(
                f"min_points is {self.min_points}, but {jobs} make"
                f" {points} point{'s' * (points > 1)}; set it to at most {points}, or remove it to"
                " require all of them"
            )
        return self

    @property
    def rules(self) -> DesignRules:
        """The design's requirements on the config, and the maximum number of jobs that it runs."""
        return RULES[self.design]

    @property
    def arm_repeats(self) -> int:
        """Maximum jobs per arm and node count, excluding retries and validation runs."""
        return self.rules.arm_repeats(self)

    @property
    def most_repeats(self) -> int:
        """Maximum jobs per arm and node count, excluding retries.

        In a probe sweep this includes a validation run. Each node count has at most one.
        """
        return self.arm_repeats + min(1, self.max_checks)

    @property
    def max_checks(self) -> int:
        """Maximum number of validation runs of the sweep."""
        return self.rules.max_checks(self)

    @property
    def most_jobs(self) -> int:
        """Maximum jobs of the sweep, excluding retries."""
        return self.arm_count * len(self.arm_jobs) + self.max_checks

    @property
    def measured_counts(self) -> tuple[int, ...]:
        """The node counts that the design runs, excluding `confirm`; it predicts the others."""
        return self.rules.measured_counts(self)

    @property
    def arm_jobs(self) -> tuple[int, ...]:
        """The node count of each job of an arm, excluding retries and validation runs."""
        confirmed = () if self.confirm is None else (self.confirm,) * self.confirm_repeats
        return (*self.measured_counts * self.arm_repeats, *confirmed)

    @property
    def arm_count(self) -> int:
        """Number of arms: the instance types or variants that the sweep compares, or 1."""
        return len(self.arm_names or (None,))

    @property
    def arm_names(self) -> tuple[str, ...]:
        """The names of the arms if there are several: types, or `base` and the variants."""
        variants = tuple(variant.name for variant in self.variants or ())
        return (BASE, *variants) if variants else self.instance_types or ()

    @property
    def arm_kind(self) -> str:
        """The word for an arm: instance type or variant."""
        return "instance type" if self.variants is None else "variant"

    @property
    def arms_field(self) -> str:
        """The field that lists the arms: instance_types or variants."""
        return f"{self.arm_kind.replace(' ', '_')}s"

    def is_validation_run(self, repeat: int) -> bool:
        """Return True if a job with this repeat number is a validation run of the sweep."""
        return self.arm_repeats < repeat <= self.most_repeats

    def may_run(self, nodes: int, repeat: int = 1) -> bool:
        """Return False if the node count is only predicted, or repeat exceeds confirm_repeats."""
        if nodes == self.confirm:
            return repeat <= self.confirm_repeats
        return nodes in self.measured_counts or nodes not in self.node_counts

    @property
    def probe_ends(self) -> ProbeConfig:
        """Stopping criteria of jobs that finish early; the share defaults to the design's."""
        ends = self.probe or ProbeConfig()
        if ends.max_share is not None:
            return ends
        return ends.model_copy(update={"max_share": self.rules.default_share})
