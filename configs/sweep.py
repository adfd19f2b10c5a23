"""Which points a sweep measures, how often, in which order, and what bounds it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from nodesweep.configs.section import NOT_MEASURED, Section

MAX_JOBS = 1000
MAX_INSTANCE_TYPES = 8
DEFAULT_REPEATS = 3
DEFAULT_MAX_REPEATS = 5


class ProbeConfig(Section):
    """When a probe of the program may end (docs/probe.md)."""

    precision: float = Field(
        default=0.01,
        ge=0.001,
        le=0.2,
        description=(
            "Share of the mean steady step that the half of its 95 % interval may be: 0.01 is"
            " ±1 %. Half of it takes about four times the steps."
        ),
    )
    max_steps: int = Field(
        default=2000,
        ge=30,
        le=1_000_000,
        description=(
            "Optimiser steps after which a probe ends at the latest, however well its step time"
            " is known."
        ),
    )


class SweepConfig(Section):
    """Which points are measured, how often and in which order."""

    node_counts: tuple[Annotated[int, Field(ge=1, le=512)], ...] = Field(
        min_length=1,
        max_length=512,
        description="Node counts to measure; the smallest is the baseline N0.",
    )
    instance_types: tuple[str, ...] | None = Field(
        default=None,
        min_length=2,
        max_length=MAX_INSTANCE_TYPES,
        # Sweeps of one type keep their ids and their reports.
        exclude_if=lambda types: types is None,
        description=(
            "Instance types to measure, each at every node count, training.instance_type among"
            " them: which one to run on, by time and cost (docs/instance-types.md). Null:"
            " training.instance_type alone."
        ),
    )
    design: Literal["full", "sequential", "probe"] = Field(
        default="full",
        description=(
            "full: `repeats` jobs of every node count; sequential: one of each, then from the"
            " largest count down only the repeats that the limits of report.recommendation still"
            " need, wrong in at most 5 % of sweeps (docs/sequential.md); probe: `repeats` jobs of"
            " every node count that end once their step time is known, their times projected, then"
            " one whole job at the recommended count to check that (docs/probe.md)."
        ),
    )
    repeats: int = Field(
        default=DEFAULT_REPEATS,
        ge=1,
        le=50,
        description=(
            "Jobs per node count, of design full and probe; 3 or more give an interval. A"
            " sequential sweep has max_repeats instead."
        ),
    )
    max_repeats: Annotated[int, NOT_MEASURED] = Field(
        default=DEFAULT_MAX_REPEATS,
        ge=2,
        le=50,
        description=(
            "Of design sequential: the most jobs per node count; what is not decided then is"
            " reported as undecided. Raise it and --resume to go on."
        ),
    )
    probe: ProbeConfig | None = Field(
        default=None,
        # Sweeps of other designs keep their ids and their reports.
        exclude_if=lambda probe: probe is None,
        description="Of design probe: when a probe may end; null: its defaults.",
    )
    order: Literal["shuffled", "ascending", "descending"] = Field(
        default="shuffled",
        description="Order within each repeat; shuffled keeps drift out of the curve.",
    )
    order_seed: int = Field(
        default=1, ge=0, description="Seed of the shuffle; recorded with the report."
    )
    max_parallel_jobs: Annotated[int, NOT_MEASURED] = Field(
        default=1,
        ge=1,
        le=MAX_JOBS,
        description=(
            "Jobs in flight at once; your instance quota must hold their nodes together. `run"
            " --detach` starts all jobs of a sweep at once, and needs as many here."
        ),
    )
    budget_usd: Annotated[float | None, NOT_MEASURED] = Field(
        default=None,
        gt=0,
        description=(
            "USD; refused where nodes x attempts x max_runtime x price over all jobs is more. No"
            " attempt is started that could pass it together"
            " with what the sweep's jobs cost; null: no limit."
        ),
    )
    poll_interval_seconds: Annotated[float, NOT_MEASURED] = Field(
        default=15.0,
        ge=0.2,
        le=300,
        description=(
            "Time between two looks at the jobs; backs off to 4x while nothing changes. "
            "platform.calls_per_second bounds what looks cost."
        ),
    )
    queue_deadline_seconds: Annotated[int, NOT_MEASURED] = Field(
        default=7200,
        ge=60,
        le=2_419_200,
        description="Longest wait before a job trains; then it is stopped and the point fails.",
    )
    max_attempts: Annotated[int, NOT_MEASURED] = Field(
        default=2,
        ge=1,
        le=10,
        description=(
            "Attempts per point; only lack of capacity and internal errors get another one."
        ),
    )
    max_retries: Annotated[int | None, NOT_MEASURED] = Field(
        default=50,
        ge=0,
        le=1000,
        description=(
            "Attempts beyond each point's first that the whole sweep may make, those of resumes and"
            " retried runs included; after them a failed point stays failed."
            " Null: no limit but max_attempts."
        ),
    )
    concurrency_limit: Annotated[str | None, NOT_MEASURED] = Field(
        default=None,
        min_length=1,
        description=(
            "A Prefect global concurrency limit with one slot per instance of your quota; each job"
            " holds one per node, so that several sweeps stay within it together. Null: only"
            " SageMaker's own quota stands."
        ),
    )
    min_points: Annotated[int | None, NOT_MEASURED] = Field(
        default=None,
        ge=1,
        description=(
            "Points (jobs) with a completed run that a sweep needs to count as done;"
            " null: all of them."
        ),
    )
    smoke: Annotated[Literal["auto", "never"], NOT_MEASURED] = Field(
        default="auto",
        description=(
            "auto: where the code never completed a point, jobs run one at a time, the smallest"
            " first, until one has reached its first step (a line of a metric definition, or"
            " step=N) or completed; never: in the planned order at once. Turn it off where a first"
            " job at the smallest count takes very long."
        ),
    )
    on_cancel: Annotated[Literal["stop", "leave"], NOT_MEASURED] = Field(
        default="stop",
        description=(
            "What a cancelled run does to its running jobs: stop: they are stopped; leave: they run"
            " on, and `--resume` or `collect` takes their results."
            " A run that crashes always leaves them."
        ),
    )

    @field_validator("node_counts")
    @classmethod
    def _distinct_and_sorted(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(
                f"node counts {list(value)} repeat a number;"
                " use sweep.repeats to measure one several times"
            )
        return tuple(sorted(value))

    @field_validator("instance_types")
    @classmethod
    def _distinct(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError(f"instance types {list(value)} repeat one; name each once")
        return value

    @model_validator(mode="after")
    def _design_fits(self) -> Self:
        if self.design != "sequential" and self.max_repeats != DEFAULT_MAX_REPEATS:
            raise ValueError(
                f"max_repeats is {self.max_repeats}, and only design: sequential has one; set"
                " repeats, or design: sequential"
            )
        if self.design != "probe" and self.probe is not None:
            raise ValueError(
                f"probe is given, and design is {self.design}; set design: probe, or leave it out"
            )
        if self.design == "sequential" and self.repeats != DEFAULT_REPEATS:
            raise ValueError(
                f"repeats is {self.repeats}, and design: sequential decides that itself; set"
                " max_repeats, or design: full"
            )
        if self.design == "sequential" and len(self.node_counts) < 2:
            raise ValueError(
                f"node_counts is {list(self.node_counts)}, and design: sequential compares node"
                " counts; give two or more, or set design: full"
            )
        if self.design == "sequential" and self.instance_types is not None:
            raise ValueError(
                f"instance_types is {list(self.instance_types)}, and design: sequential decides"
                " between the node counts of one type; set design: probe, which drops what another"
                " type beats, or design: full"
            )
        return self

    @model_validator(mode="after")
    def _points_are_in_bounds(self) -> Self:
        points = self.most_jobs
        repeats = self.repeats if self.design == "probe" else self.most_repeats
        check = " and the check" if self.design == "probe" else ""
        types = "" if self.instance_types is None else f"{len(self.instance_types)} types x "
        jobs = f"{types}{len(self.node_counts)} node counts x {repeats} repeats{check}"
        if points > MAX_JOBS:
            raise ValueError(
                f"{jobs} are {points} jobs; at most {MAX_JOBS} in"
                " one sweep, the most that was tried: leave out node counts or repeats"
            )
        if self.min_points is not None and self.min_points > points:
            raise ValueError(
                f"min_points is {self.min_points}, and {jobs} are"
                f" {points} points; set it to at most {points}, or leave it out for all of them"
            )
        return self

    @property
    def most_repeats(self) -> int:
        """The most jobs per type and node count; retries do not count. Of a probe the last is the
        check.
        """
        if self.design == "sequential":
            return self.max_repeats
        return self.repeats + (self.design == "probe")

    @property
    def most_jobs(self) -> int:
        """The most jobs of the sweep; retries do not count."""
        check = 1 if self.design == "probe" else 0
        arms = len(self.node_counts) * len(self.instance_types or (None,))
        return arms * (self.most_repeats - check) + check

    @property
    def probe_ends(self) -> ProbeConfig:
        """When a probe may end, of a sweep of that design."""
        return self.probe or ProbeConfig()
