"""The config's `training` section: one job, independent of its node count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

import re2
from pydantic import Field, field_validator, model_validator

from nodesweep.configs.distribution import DistributionConfig
from nodesweep.configs.job import JobFeatures
from nodesweep.configs.locations import LocalDirectory
from nodesweep.configs.section import (
    NOT_COMPARED,
    PLACEHOLDERS,
    Closed,
    Section,
    braced,
    refuse_control_characters,
    refuse_placeholders,
)

Scalar = bool | int | float | str
MAX_SAMPLES = 1 << 53
"""Largest integer up to which floats, used for learning rates and throughput, are exact."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NO_MESSAGES = re2.Options()
_NO_MESSAGES.log_errors = False  # RE2 would also write the errors to stderr
_OF_BATCH = frozenset({"global_batch_size", "per_replica_batch_size", "accumulate_grad_batches"})

_WITHOUT_FALLBACKS = {
    "spot": "spot is set, and a spot job supports only one type",
    "placement": "placement is set, and a placed job supports only one type",
    "training_plan_arn": "training_plan_arn reserves nodes of one type",
    "keep_alive_seconds": "SageMaker may not keep the nodes of a job that lists several types",
}
"""Fields that rule out instance_fallbacks, and why."""


@lru_cache(maxsize=256)
def compile_metric(regex: str) -> Any:
    """Return a metric definition's regular expression, compiled by RE2 to search log lines.

    RE2 searches in time linear in the line's length, whatever the expression
    (https://github.com/google/re2/wiki/WhyRE2). Python's `re` can take years to search a line of
    40 characters.

    Raises:
        re2.error: The expression is not valid RE2 syntax.
    """
    return re2.compile(regex, _NO_MESSAGES)


class BatchConfig(Section):
    """The batch policy: a mandatory choice, because it determines what speedup means."""

    policy: Annotated[Literal["fixed_global", "fixed_per_replica"], NOT_COMPARED] = Field(
        description=(
            "fixed_global: the same total batch at every node count (strong scaling);"
            " fixed_per_replica: the total batch grows with the node count (weak scaling)."
        )
    )
    size: int = Field(
        ge=1,
        le=MAX_SAMPLES,
        description=(
            "Batch size in samples: the global batch under fixed_global, the per-replica"
            " batch under fixed_per_replica."
        ),
    )
    accumulate_grad_batches: int = Field(
        default=1,
        ge=1,
        le=MAX_SAMPLES,
        description=(
            "Micro-batches per optimizer step. Raise it to save memory; it multiplies into"
            " the global batch."
        ),
    )


class LearningRateConfig(Section):
    """The learning rate at the baseline and its scaling rule for the global batch."""

    value: float = Field(gt=0, description="Learning rate at the smallest node count, above 0.")
    rule: Annotated[Literal["none", "linear", "sqrt"], NOT_COMPARED] = Field(
        description=(
            "Scaling with the global batch B: none: constant; linear: x B/B0 (SGD with"
            " warm-up, arXiv 1706.02677); sqrt: x sqrt(B/B0) (Adam-like optimizers)."
        )
    )


class TrainingConfig(JobFeatures):
    """One training job, independent of its node count."""

    entry_point: str = Field(
        default="train.py",
        min_length=1,
        max_length=1024,
        description=(
            "Your training script, relative to source_dir or to the code directory in the image."
        ),
    )
    source_dir: Annotated[LocalDirectory | None, NOT_COMPARED] = Field(
        default=None,
        description=(
            "Directory of your training code, relative to the config file. Null: the code in"
            " the image."
        ),
    )
    hyperparameters: dict[str, Scalar] = Field(
        default_factory=dict,
        max_length=90,
        description=(
            "Arguments passed to your script, at most 90; values may contain placeholders"
            " such as {learning_rate} (see docs/config.md)."
        ),
    )
    distribution: DistributionConfig = Field(
        description=(
            "Launcher and processes per node; choose the kind your script expects (see"
            " docs/distribution.md)."
        )
    )
    instance_type: Annotated[str, NOT_COMPARED] = Field(
        description=(
            "SageMaker training instance type, e.g. ml.g5.12xlarge; must be in the catalogue"
            " (configs/instance_types.json)."
        )
    )
    instance_fallbacks: Annotated[tuple[str, ...], NOT_COMPARED] = Field(
        default=(),
        max_length=4,
        # Omitted when empty, so that sweeps without it keep their ids and reports.
        exclude_if=lambda types: not types,
        description=(
            "Up to 4 types to use instead of instance_type, in order, if it has no capacity. The"
            " first job takes the first type with capacity, and all other jobs run on it."
        ),
    )
    max_runtime_seconds: Annotated[int, NOT_COMPARED] = Field(
        ge=60,
        le=432_000,
        description=(
            "Stop a job after this many seconds, 60 s – 5 days. It also bounds the cost, so"
            " keep it close to the longest run you expect."
        ),
    )
    volume_size_gb: int = Field(
        default=30,
        ge=1,
        le=16_384,
        description=(
            "EBS volume per node, GB, 1–16,384. Raise it if the dataset and checkpoints do not fit."
        ),
    )
    batch: BatchConfig | None = Field(
        default=None,
        description=(
            "Batch policy and size passed to your script. Null: the script sets its own, and"
            " the report claims no policy."
        ),
    )
    learning_rate: LearningRateConfig | None = Field(
        default=None,
        description=(
            "Learning rate and scaling rule passed to your script. Null: the script sets its own."
        ),
    )
    baseline_seconds: float | None = Field(
        default=None,
        ge=5,
        le=86_400,
        # Omitted when null, so that sweeps without it keep their ids and reports.
        exclude_if=lambda seconds: seconds is None,
        description=(
            "Approximate training time of the first run at the smallest node count, 5–86,400"
            " s. That run derives a step count from its first steps, and all other jobs run that"
            " many (docs/config.md). Null: your script sets the number of steps."
        ),
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        # Omitted when null, so that sweeps without it keep their ids and reports.
        exclude_if=lambda steps: steps is None,
        description=(
            "Steps that every job runs, e.g. the count that an earlier sweep derived from"
            " baseline_seconds. Your script must stop after NODESWEEP_RUN_STEPS"
            " (docs/config.md). Null: set by your script or baseline_seconds."
        ),
    )
    measure: Literal["auto", "helper", "off"] = Field(
        default="auto",
        # Omitted when auto, so that sweeps without it keep their ids and requests.
        exclude_if=lambda measure: measure == "auto",
        description=(
            "Source of the train time if your script reports none. auto: nodesweep observes its"
            " optimizer steps, in images built from infra/image; helper: none, so only reported"
            " times count; off: the platform's Training phase, which gives no speedup."
        ),
    )
    seed: Annotated[int, NOT_COMPARED] = Field(
        default=1,
        ge=0,
        le=2**31 - 1,
        description="Base seed; repeat r trains with seed + r - 1. Change it to draw new repeats.",
    )
    environment: Closed[dict[str, str]] = Field(
        default_factory=dict,
        max_length=90,
        repr=False,
        description=(
            "Environment variables of the container, visible to anyone who can describe the"
            " job. A value ${NAME} is read from the process that runs the flow; records keep"
            " only the name."
        ),
    )
    metric_definitions: Annotated[dict[str, str], NOT_COMPARED] = Field(
        default_factory=dict,
        max_length=40,
        description=(
            "Metric names and RE2 regular expressions (no lookaround, no backreferences),"
            " each with one group around the number, applied to each log line. At most 40."
        ),
    )

    @field_validator("entry_point")
    @classmethod
    def _normalize_path(cls, value: str) -> str:
        """Normalize ./train.py and a//b.py, which the toolkit rejects, to train.py and a/b.py."""
        return PurePosixPath(value).as_posix()

    @field_validator("hyperparameters")
    @classmethod
    def _check_placeholders(cls, value: dict[str, Scalar]) -> dict[str, Scalar]:
        for key, scalar in value.items():
            refuse_control_characters(key)
            refuse_placeholders(f"hyperparameter {key!r}", key)
            if key.startswith("sagemaker_"):
                raise ValueError(
                    f"hyperparameter {key!r}: names that begin with sagemaker_ are reserved;"
                    " rename it"
                )
            if isinstance(scalar, str) and (
                unknown := set(_PLACEHOLDER.findall(scalar)) - PLACEHOLDERS
            ):
                raise ValueError(
                    f"hyperparameter {key!r}: unknown placeholder {braced(unknown)}; allowed:"
                    f" {braced(PLACEHOLDERS)}"
                )
        return value

    @model_validator(mode="after")
    def _check_required_sections(self) -> Self:
        """Require the section that fills a placeholder or that a learning-rate rule scales with."""
        for key, scalar in self.hyperparameters.items():
            named = set(_PLACEHOLDER.findall(scalar)) if isinstance(scalar, str) else set()
            if self.batch is None and named & _OF_BATCH:
                raise ValueError(
                    f"hyperparameter {key!r}: {scalar!r} is filled from training.batch, which is"
                    " not set; set training.batch, or write the number that the script should get"
                )
            if self.learning_rate is None and "learning_rate" in named:
                raise ValueError(
                    f"hyperparameter {key!r}: {scalar!r} is filled from training.learning_rate,"
                    " which is not set; set training.learning_rate, or write the number that the"
                    " script should get"
                )
        if (
            self.batch is None
            and self.learning_rate is not None
            and self.learning_rate.rule != "none"
        ):
            raise ValueError(
                f"learning_rate.rule: {self.learning_rate.rule} follows the global batch, but"
                " training.batch is not set; set training.batch, or use rule: none"
            )
        return self

    @model_validator(mode="after")
    def _check_fallbacks(self) -> Self:
        """Refuse repeated fallbacks, and fallbacks together with features that rule them out."""
        types = (self.instance_type, *self.instance_fallbacks)
        if len(set(types)) < len(types):
            raise ValueError(
                f"instance_fallbacks: {list(self.instance_fallbacks)} repeats a type, or contains"
                f" instance_type, {self.instance_type}; list each other type once"
            )
        for name, why in _WITHOUT_FALLBACKS.items():
            if self.instance_fallbacks and getattr(self, name):
                raise ValueError(
                    f"instance_fallbacks is {list(self.instance_fallbacks)}, but {why}; leave out"
                    f" {name} or instance_fallbacks"
                )
        return self

    def on_type(self, name: str) -> Self:
        """Return the section for jobs on one of its instance types."""
        return self.model_copy(update={"instance_type": name, "instance_fallbacks": ()})

    @property
    def longest_seconds(self) -> int:
        """Seconds after which the platform stops a job, including the waiting time of spot jobs."""
        return self.max_runtime_seconds if self.spot is None else self.spot.max_wait_seconds

    @property
    def amount(self) -> tuple[str, str] | None:
        """The field that sets the number of steps and its value; None if the script sets it."""
        if self.steps is not None:
            return "steps", f"{self.steps}"
        if self.baseline_seconds is not None:
            return "baseline_seconds", f"{self.baseline_seconds:g}"
        return None

    @model_validator(mode="after")
    def _check_sized_runs(self) -> Self:
        """Reject features that can restart a run midway, because it would recount its steps."""
        if self.amount is None:
            return self
        field, value = self.amount
        if self.steps is not None and self.baseline_seconds is not None:
            raise ValueError(
                f"steps is {self.steps}, but baseline_seconds is {self.baseline_seconds:g} and"
                " also sets the steps of a job; remove either"
            )
        for name in ("spot", "checkpoints"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{field} is {value}, but with {name} a run may restart in the middle; remove"
                    f" {name}, or pass the script its number of steps as a hyperparameter instead"
                    f" of {field}"
                )
        return self

    @field_validator("environment")
    @classmethod
    def _reject_nul(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if "\0" in name + text:
                raise ValueError(
                    f"variable {name!r} contains a NUL, which no process accepts; remove it"
                )
            refuse_placeholders(f"variable {name!r}", name + text)
        return value

    @field_validator("metric_definitions")
    @classmethod
    def _check_single_group(cls, value: dict[str, str]) -> dict[str, str]:
        for name, pattern in value.items():
            refuse_control_characters(name)
            shown = repr(pattern if len(pattern) <= 80 else pattern[:77] + "…")
            try:
                groups = re.compile(pattern).groups
            except (re.error, OverflowError) as error:
                raise ValueError(
                    f"metric {name!r}: {shown} is not a regular expression: {error}"
                ) from error
            except RecursionError:
                raise ValueError(
                    f"metric {name!r}: {shown} is nested too deeply for a regular expression"
                ) from None
            if groups < 1:
                raise ValueError(
                    f"metric {name!r}: {shown} has no group; put the number in parentheses"
                )
            try:
                compile_metric(pattern)
            except re2.error as error:
                raise ValueError(
                    f"metric {name!r}: {shown} cannot be searched by RE2: {_words_of(error)};"
                    " write it without lookaround, backreferences and counts above 1,000"
                    " (https://github.com/google/re2/wiki/Syntax)"
                ) from error
        return value


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the names whose value is a ${VARIABLE} reference, each with its VARIABLE."""
    found = {name: _REFERENCE.fullmatch(value) for name, value in environment.items()}
    return {name: reference[1] for name, reference in found.items() if reference}


def _words_of(error: re2.error) -> str:
    """Return the error's message as text; RE2 reports it as bytes."""
    [words] = error.args
    return words.decode(errors="replace") if isinstance(words, bytes) else str(words)
