"""The typed config of a benchmark: the requested measurement, independent of how it is run.

Every model is frozen and rejects unknown keys. Every field description says when to change it, its
unit and its bound.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from nodesweep.configs.catalogue import InstanceType, load_catalogue
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.locations import BuildArguments, ImageReference, LocalDirectory
from nodesweep.configs.overrides import override
from nodesweep.configs.platform import PlatformConfig
from nodesweep.configs.price_list import at_list_price
from nodesweep.configs.section import (
    HIDDEN,
    NOT_MEASURED,
    WITH_SECRETS,
    FieldProblems,
    Section,
    Slug,
)
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.configs.sweep import SweepConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.configs.validation import ValidationConfig


class FrameworkConfig(Section):
    """An AWS Deep Learning Container, selected by its contents instead of by URI.

    Use it for a sweep that moves between regions or device kinds.
    """

    version: str = Field(
        pattern=r"^\d+\.\d+(\.\d+)?$",
        description=(
            "PyTorch version of your training script, e.g. 2.10 or 2.10.0. From 2.11 on, omit"
            " the patch number."
        ),
    )
    python: str | None = Field(
        default=None,
        pattern=r"^py3\d{1,2}$",
        description=(
            "Python version of the container, e.g. py311. Null selects the only one"
            " available; must be null from PyTorch 2.11 on."
        ),
    )
    accelerator: Literal["cpu", "gpu", "neuron"] | None = Field(
        default=None,
        description=(
            "Device type the container is built for. Set it only to override the one derived"
            " from training.instance_type (null)."
        ),
    )


class ImageConfig(Section):
    """The training image: a build context, an unmodified AWS container, or an existing image."""

    repository: str = Field(
        default="nodesweep",
        pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
        max_length=256,
        description=(
            "ECR repository that the image is pushed to; change it to match your stack. Its"
            " tags must be immutable."
        ),
    )
    context: LocalDirectory | None = Field(
        default=None,
        description=(
            "Build context directory, relative to the config file; set it to build your own"
            " Dockerfile. Null: ../infra/image, or no build if training.source_dir is set and"
            " base_image or framework names the container to run unmodified."
        ),
    )
    base_image: ImageReference | None = Field(
        default=None,
        description=(
            "Image passed as the BASE_IMAGE build argument, e.g. an AWS Deep Learning"
            " Container; an ECR image is pinned by digest. Null: the Dockerfile's default."
            " Without a build (see context), the jobs run this image."
        ),
    )
    framework: FrameworkConfig | None = Field(
        default=None,
        description=(
            "Set instead of base_image to look up the AWS Deep Learning Container of a"
            " PyTorch version in platform.region (the SMP container for kind smp_v2)."
        ),
    )
    build_args: BuildArguments = Field(
        default_factory=dict,
        repr=False,
        description=(
            "Additional Docker build arguments. They are part of the image's identity and"
            " readable in it, so never put secrets here."
        ),
    )
    builder: Annotated[Literal["codebuild", "docker"], NOT_MEASURED] = Field(
        default="codebuild",
        description=(
            "codebuild uploads the context to S3 and builds in AWS CodeBuild; docker builds"
            " with Docker, or podman if there is no Docker, on the machine that runs the flow."
        ),
    )
    codebuild_project: Annotated[str, NOT_MEASURED] = Field(
        default="nodesweep-image",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{1,149}$",
        description=(
            "CodeBuild project that runs infra/image/buildspec.yml; change it to match your stack."
        ),
    )
    build_timeout_minutes: Annotated[int, NOT_MEASURED] = Field(
        default=60,
        ge=5,
        le=480,
        description=(
            "Stop an image build after this many minutes, 5–480. Raise it for a large base image."
        ),
    )
    uri: ImageReference | None = Field(
        default=None,
        description=(
            "Full URI of an existing image to run; skips the build. Pin it by digest (…@sha256:…)."
        ),
    )

    @model_validator(mode="after")
    def _check_single_base(self) -> Self:
        if self.base_image is not None and self.framework is not None:
            raise ValueError("base_image and framework both name the base; give only one of them")
        return self

    @property
    def build_context(self) -> Path:
        """The directory that the image is built from."""
        return Path(self.context or "../infra/image")

    @property
    def all_build_args(self) -> dict[str, str]:
        """The build arguments, with the base image, if any, as BASE_IMAGE."""
        base = {} if self.base_image is None else {"BASE_IMAGE": self.base_image}
        return {**self.build_args, **base}


class ParityConfig(Section):
    """Criteria for a point that trained as well as the baseline; its time is a time to train."""

    tolerance: float = Field(
        default=0.02,
        ge=0,
        description=(
            "Largest allowed absolute difference between a point's final metric and the"
            " baseline's, in the metric's unit, at least 0. Raise it if the metric varies more"
            " between identical runs."
        ),
    )
    target_metric: float | None = Field(
        default=None,
        description=(
            "Final metric that counts as trained regardless of the baseline, in the metric's"
            " unit. Null: compare with the baseline only."
        ),
    )


class RecommendationConfig(Section):
    """Limits that a node count must meet to be recommended."""

    min_efficiency: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description=(
            "Minimum efficiency E of the recommended node count, above 0 and up to 1. Lower"
            " it if finishing sooner is worth more to you than cost."
        ),
    )
    min_doubling_ratio: float = Field(
        default=1.5,
        ge=1,
        le=2,
        description=(
            "Minimum gain D = S(2N)/S(N) that justifies doubling the nodes, 1–2 (2 is linear"
            " scaling)."
        ),
    )
    budget_usd_per_run: float | None = Field(
        default=None,
        gt=0,
        description=(
            "Maximum cost of one training run at the recommended node count, USD. Null: no limit."
        ),
    )
    deadline_seconds: float | None = Field(
        default=None,
        gt=0,
        description=(
            "Recommend the cheapest node count that finishes within this many seconds, from"
            " submission to end if every run reports both, otherwise by train time. Null: no"
            " deadline."
        ),
    )
    hour_value_usd: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description=(
            "What an hour of waiting is worth to you, USD: recommend the node count with the least"
            " cost plus waiting, and ignore the limits of E and D. Null: unknown."
        ),
    )

    @field_validator("hour_value_usd")
    @classmethod
    def _check_single_rule(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("deadline_seconds") is not None:
            raise ValueError(
                "deadline_seconds selects the cheapest node count in time, and hour_value_usd the"
                " least cost plus waiting; set only one of them"
            )
        return value


class ReportConfig(Section):
    """Title and output directory of the report, and its criteria for points."""

    title: str | None = Field(
        default=None,
        max_length=120,
        description="Heading of the report, at most 120 characters. Null: the benchmark's name.",
    )
    directory: LocalDirectory = Field(
        default="reports",
        description=(
            "Local output directory, relative to the working directory; each sweep writes to"
            " <sweep_id>/ and updates latest."
        ),
    )
    parity: ParityConfig = Field(
        default_factory=ParityConfig,
        description="Criteria for whether a point trained as well as the baseline.",
    )
    recommendation: RecommendationConfig = Field(
        default_factory=RecommendationConfig,
        description="Limits that a node count must meet to be recommended.",
    )


def _located(error: ValidationError, place: tuple[str, ...]) -> ValidationError:
    """Return the error with `place` prepended to the location of each problem."""
    problems = [
        InitErrorDetails(
            type=each["type"],
            loc=(*place, *each["loc"]),
            input=each["input"],
            ctx=each.get("ctx", {}),
        )
        for each in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, problems)


def _none_to_null(value: Any) -> Any:
    return None if value == "none" else value


def launcher(platform: Any) -> Any:
    """Return the launcher of a platform section, validated or not."""
    if isinstance(platform, Mapping):
        return platform.get("launcher", "sagemaker")
    return getattr(platform, "launcher", "sagemaker")


def launcher_section(platform: Any) -> type[PlatformConfig]:
    """Return the class of a platform section, validated or not."""
    return SlurmPlatform if launcher(platform) == "slurm" else PlatformConfig


class BenchmarkConfig(Section):
    """One benchmark: a dataset, an image, a training job and the node counts to run it on."""

    name: Slug = Field(
        description=(
            "Name of the benchmark, part of every sweep id, job name and report. At most 20"
            " characters."
        )
    )
    dataset: Annotated[
        DatasetConfig | None,
        BeforeValidator(
            _none_to_null, json_schema_input_type=DatasetConfig | Literal["none"] | None
        ),
    ] = Field(
        description=(
            "The training data, or none if the program brings its own or reads only extra channels."
        )
    )
    image: ImageConfig = Field(default_factory=ImageConfig)
    training: TrainingConfig
    sweep: SweepConfig
    report: Annotated[ReportConfig, NOT_MEASURED] = Field(default_factory=ReportConfig)
    platform: Annotated[
        Annotated[PlatformConfig, Tag("sagemaker")] | Annotated[SlurmPlatform, Tag("slurm")],
        Discriminator(launcher),
    ] = Field(description="Where jobs run: SageMaker, or with launcher: slurm a Slurm cluster.")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_image(cls, raw: Any) -> Any:
        """Fill in the fixed image of a launcher that does not use nodesweep's images."""
        if not isinstance(raw, dict) or "image" in raw:
            return raw
        image = launcher_section(raw.get("platform")).fixed_image
        return raw if image is None else {**raw, "image": {"uri": image}}

    @model_validator(mode="after")
    def _check_launcher(self) -> Self:
        if problems := self.platform.problems(self):
            raise FieldProblems(problems)
        return self

    @property
    def runs_unmodified_container(self) -> bool:
        """True if the jobs run the user's code in an existing container, without a build.

        The container is named by image.framework or image.base_image.
        """
        image = self.image
        named = self.image.base_image is not None or self.image.framework is not None
        return (
            named
            and image.uri is None
            and image.context is None
            and self.training.source_dir is not None
        )

    @property
    def own_folders(self) -> tuple[Path, Path]:
        """The folders that nodesweep writes to, which may be in a build context."""
        return Path(self.report.directory), Path(self.platform.state_directory)

    @property
    def ships_program(self) -> bool:
        """True if the jobs run the program of infra/image, built from its own Dockerfile."""
        ours = self.image.build_context.parts[-2:] == ("infra", "image")
        return ours and self.image.uri is None and self.training.source_dir is None

    def ends_early(self, repeat: int) -> bool:
        """Return True if a job with this repeat number should finish early."""
        return self.sweep.rules.ends_early(self) and not self.sweep.is_validation_run(repeat)

    def kind_of_job(self, repeat: int) -> Literal["run", "probe", "check"]:
        """Return the kind of a job with this repeat number."""
        if self.sweep.is_validation_run(repeat):
            return "check"
        return "probe" if self.ends_early(repeat) else "run"

    @model_validator(mode="after")
    def _check_build_context(self) -> Self:
        if self.runs_unmodified_container and self.image.build_args:
            raise ValueError(
                "image.build_args only apply to a build, but no image is built: training.source_dir"
                " runs in the unmodified container of image.framework or base_image; remove"
                " build_args, or set image.context to build an image"
            )
        return self

    @model_validator(mode="after")
    def _check_design_requirements(self) -> Self:
        if problem := self.sweep.rules.problem(self):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _check_main_type(self) -> Self:
        types = self.sweep.instance_types
        if types is not None and self.training.instance_type not in types:
            raise ValueError(
                f"sweep.instance_types is {list(types)} and lacks training.instance_type,"
                f" {self.training.instance_type}, for which the image is chosen; add it, or set"
                " training.instance_type to one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_arms(self) -> Self:
        """Refuse settings that several arms cannot share, and arms without a valid config."""
        if self.sweep.arm_count == 1:
            return self
        if self.report.recommendation.hour_value_usd is not None:
            raise ValueError(
                "report.recommendation.hour_value_usd compares the node counts of one"
                f" configuration, but sweep.{self.sweep.arms_field} is {list(self.arm_names)};"
                " remove either"
            )
        if self.sweep.variants is not None and self.training.baseline_seconds is not None:
            raise ValueError(
                f"training.baseline_seconds is {self.training.baseline_seconds:g}, but the first"
                " run cannot size the steps of other variants; set training.steps instead, or"
                " pass the script its number of steps as a hyperparameter"
            )
        known: dict[str, str] = {}
        for name in self.arm_names if self.sweep.variants is not None else ():
            own = self._of_variant(name).model_dump_json(context=WITH_SECRETS)
            if HIDDEN in own:  # read from a record, where hidden values look alike
                continue
            if (twin := known.setdefault(own, name)) != name:
                raise ValueError(
                    f"sweep.variants: {name} is the same configuration as {twin}; set a different"
                    " value, or remove it"
                )
        return self

    def _of_variant(self, name: str) -> BenchmarkConfig:
        """Return the config of a variant, without the other variants.

        Raises:
            ValidationError: The variant's config is invalid; the errors are located at the variant.
        """
        # without defaults, since a different distribution kind would reject this one's fields
        raw = self.model_dump(exclude_defaults=True)
        variants = raw["sweep"].pop("variants")
        raw["sweep"].pop("min_points", None)  # includes the points of all arms
        settings: dict[str, Any] = {each["name"]: each["set"] for each in variants}
        try:
            override(raw, settings.get(name, {}).items())
        except ValueError as error:
            raise ValueError(f"sweep.variants: {name}: {error}") from None
        try:
            return BenchmarkConfig.model_validate(raw)
        except ValidationError as error:
            raise _located(error, ("sweep", "variants", name, "set")) from None

    @model_validator(mode="after")
    def _check_fallbacks(self) -> Self:
        """Refuse fallbacks with several arms, or with a design that uses earlier results."""
        if not self.training.instance_fallbacks:
            return self
        if self.sweep.arm_count > 1:
            raise ValueError(
                f"training.instance_fallbacks is {list(self.training.instance_fallbacks)}, but"
                f" sweep.{self.sweep.arms_field} already compares {list(self.arm_names)}; remove"
                " either"
            )
        if self.sweep.rules.decides_as_it_goes:
            raise ValueError(
                f"training.instance_fallbacks is {list(self.training.instance_fallbacks)}, but"
                f" sweep.design is {self.sweep.design}; use sweep.design: full, or remove the"
                " fallbacks"
            )
        return self

    @model_validator(mode="after")
    def _check_training_plans(self) -> Self:
        """Refuse training plans of an ambiguous instance type, because a plan reserves one type."""
        types, plans = self.sweep.instance_types, self.training.training_plan_arns
        if types is not None and self.training.training_plan_arn is not None:
            raise ValueError(
                "training.training_plan_arn names the plan of one type, but sweep.instance_types"
                f" is {list(types)}; give training.training_plan_arns, one ARN per type"
            )
        if plans and types is None:
            raise ValueError(
                "training.training_plan_arns gives plans by instance type, but sweep.instance_types"
                " is not set; give training.training_plan_arn"
            )
        if unknown := sorted(set(plans) - set(types or ())):
            raise ValueError(
                f"training.training_plan_arns: {unknown} not in sweep.instance_types,"
                f" {list(types or ())}; use only types listed there"
            )
        return self

    @property
    def arm_names(self) -> tuple[str, ...]:
        """The names of the sweep's arms, in order: instance types, or `base` and its variants."""
        return self.sweep.arm_names or (self.training.instance_type,)

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The instance type of each arm, in the same order."""
        return tuple(self.of_arm(name).training.instance_type for name in self.arm_names)

    @property
    def possible_types(self) -> tuple[str, ...]:
        """The instance types of the arms, plus the fallbacks if there is only one arm."""
        return (*self.instance_types, *self.training.instance_fallbacks)

    def on_type(self, name: str) -> BenchmarkConfig:
        """Return the config with its only arm on one of the possible types."""
        return self.model_copy(update={"training": self.training.on_type(name)})

    def node_type(self, name: str) -> InstanceType:
        """Return the facts about a node type from the platform or, if it knows none, the catalogue.

        The price is the newest available one in the platform's region.

        Raises:
            UnknownInstanceType: Neither the platform nor the catalogue knows the type.
        """
        platform = self.platform
        for variant in self.sweep.variants or ():
            if variant.moves_to(name):
                platform = self._of_variant(variant.name).platform
        own = platform.own_node_type(name)
        return own or at_list_price(load_catalogue().get(name), platform.region)

    def of_arm(self, name: str) -> BenchmarkConfig:
        """Return the config restricted to the arm of this name.

        A config with a single arm is returned unchanged.
        """
        if self.sweep.variants is not None:
            return self._of_variant(name)
        if self.sweep.instance_types is None:
            return self
        training = self.training.model_copy(
            update={
                "instance_type": name,
                "training_plan_arn": self.training.training_plan_arns.get(name),
                "training_plan_arns": {},
            }
        )
        return self.model_copy(
            update={
                "training": training,
                "sweep": self.sweep.model_copy(update={"instance_types": None}),
            }
        )

    def without_budget(self) -> BenchmarkConfig:
        """Return the config without its budget, which covers all arms together."""
        return self.model_copy(update={"sweep": self.sweep.model_copy(update={"budget_usd": None})})

    @property
    def validation(self) -> ValidationConfig:
        """The dataset.validation section of a config that has one."""
        assert self.dataset is not None and self.dataset.validation is not None
        return self.dataset.validation

    def on_platform(self, platform: PlatformConfig) -> BenchmarkConfig:
        """Return a copy of the config with `platform`, e.g. at the port where it was started."""
        return self.model_copy(update={"platform": platform})

    def with_absolute_paths(self, base: Path) -> BenchmarkConfig:
        """Return a copy with local paths resolved against `base`, the config file's directory."""
        dataset = self.dataset
        if dataset is not None and not dataset.is_remote:
            dataset = dataset.model_copy(update={"source": os.path.realpath(base / dataset.source)})
        source_dir = self.training.source_dir and os.path.realpath(base / self.training.source_dir)
        context = (
            None
            if self.runs_unmodified_container
            else os.path.realpath(base / self.image.build_context)
        )
        return self.model_copy(
            update={
                "dataset": dataset,
                "image": self.image.model_copy(update={"context": context}),
                "training": self.training.model_copy(update={"source_dir": source_dir}),
            }
        )
