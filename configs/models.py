"""The typed form of a benchmark's YAML: what was asked, nothing about how it is done.

Every model is frozen and refuses unknown keys; every field says when to change it, its unit and its
bound.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from nodesweep.configs.dataset import DatasetConfig, Slug
from nodesweep.configs.locations import (
    BucketName,
    BuildArguments,
    ImageReference,
    LocalDirectory,
    is_loopback_with_port,
    url_problem,
)
from nodesweep.configs.section import NOT_MEASURED, Section
from nodesweep.configs.sweep import SweepConfig
from nodesweep.configs.training import TrainingConfig

REGION = r"^[a-z]{2,4}(-[a-z]+)+-\d$"
STATE_DIRECTORY = ".nodesweep/platform"
"""State folder of the local platform where none is named, relative to where the command runs."""


class FrameworkConfig(Section):
    """An AWS Deep Learning Container by what is in it:
    for a sweep that moves between regions or device kinds.
    """

    version: str = Field(
        pattern=r"^\d+\.\d+(\.\d+)?$",
        description="PyTorch version, e.g. 2.10 or 2.10.0; from 2.11 on without a third number.",
    )
    python: str | None = Field(
        default=None,
        pattern=r"^py3\d{1,2}$",
        description=(
            "Python of the container, e.g. py311; null: the only one of that version. None may be"
            " given from 2.11 on."
        ),
    )
    accelerator: Literal["cpu", "gpu", "neuron"] | None = Field(
        default=None,
        description="Device the container is made for; null: that of training.instance_type.",
    )


class ImageConfig(Section):
    """The training image: a build context, an AWS container as it is,
    or an image that already exists.
    """

    repository: str = Field(
        default="nodesweep",
        pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
        max_length=256,
        description=(
            "ECR repository the image is pushed to."
            " A repository whose tags can be moved is refused."
        ),
    )
    context: LocalDirectory | None = Field(
        default=None,
        description=(
            "Build context directory, relative to the config file. Null: ../infra/image; but where"
            " training.source_dir brings the code and base_image or framework names a container,"
            " nothing is built and the jobs run in that container as it is."
        ),
    )
    base_image: ImageReference | None = Field(
        default=None,
        description=(
            "BASE_IMAGE build argument, e.g. an AWS Deep Learning Container; null: the"
            " Dockerfile's. One in ECR is built on by its digest. Without a build (see context):"
            " the image itself."
        ),
    )
    framework: FrameworkConfig | None = Field(
        default=None,
        description=(
            "Instead of base_image: the AWS Deep Learning Container of a PyTorch version, looked up"
            " for platform.region; under kind smp_v2 the SMP container."
        ),
    )
    build_args: BuildArguments = Field(
        default_factory=dict,
        repr=False,
        description="Further build arguments. They enter the image's identity; no secrets here.",
    )
    builder: Annotated[Literal["codebuild", "docker"], NOT_MEASURED] = Field(
        default="codebuild",
        description=(
            "Who builds: codebuild sends the context to S3 and starts a CodeBuild build; docker"
            " runs Docker, or else podman, where the flow runs."
        ),
    )
    codebuild_project: Annotated[str, NOT_MEASURED] = Field(
        default="nodesweep-image",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{1,149}$",
        description="CodeBuild project that runs infra/image/buildspec.yml.",
    )
    build_timeout_minutes: Annotated[int, NOT_MEASURED] = Field(
        default=60, ge=5, le=480, description="A build that takes longer is stopped. 5–480."
    )
    uri: ImageReference | None = Field(
        default=None,
        description=(
            "Full URI of an image that already exists; set, nothing is built."
            " Pin it by digest (…@sha256:…)."
        ),
    )

    @model_validator(mode="after")
    def _one_base(self) -> Self:
        if self.base_image is not None and self.framework is not None:
            raise ValueError("base_image and framework both name the base; give one of them")
        return self

    @property
    def build_context(self) -> Path:
        """The directory that an image is built from."""
        return Path(self.context or "../infra/image")


class ParityConfig(Section):
    """When a point's final metric counts as reached, so that its time is a time to train."""

    tolerance: float = Field(
        default=0.02,
        ge=0,
        description=(
            "Largest absolute difference of a point's final metric from the baseline's;"
            " in the metric's unit."
        ),
    )
    target_metric: float | None = Field(
        default=None,
        description=(
            "A final metric that counts as reached, whatever the baseline's; null: only the"
            " baseline counts."
        ),
    )


class RecommendationConfig(Section):
    """What a node count must hold to be recommended."""

    min_efficiency: float = Field(
        default=0.75, gt=0, le=1, description="Smallest efficiency E of the recommended point; 0–1."
    )
    min_doubling_ratio: float = Field(
        default=1.5,
        ge=1,
        le=2,
        description="Smallest gain D = S(2N)/S(N) that pays for twice the nodes; 1–2.",
    )
    budget_usd_per_run: float | None = Field(
        default=None, gt=0, description="The most one training run may cost, USD; null: no limit."
    )
    deadline_seconds: float | None = Field(
        default=None,
        gt=0,
        description=(
            "Set, the cheapest node count that meets it is recommended: from submission to end"
            " where every run knows that, else by train time; null: no deadline."
        ),
    )


class ReportConfig(Section):
    """Where the report goes, what it is called and by what it judges the points."""

    title: str | None = Field(
        default=None, max_length=120, description="Heading; null: the benchmark's name."
    )
    directory: LocalDirectory = Field(
        default="reports",
        description=(
            "Local directory (relative to where the command runs);"
            " <sweep_id>/ and latest are made in it."
        ),
    )
    parity: ParityConfig = Field(
        default_factory=ParityConfig,
        description="When a point counts as trained as well as the baseline.",
    )
    recommendation: RecommendationConfig = Field(
        default_factory=RecommendationConfig,
        description="What a node count must hold to be recommended.",
    )


class PlatformConfig(Section):
    """Which account, or which machine, the calls go to."""

    region: str = Field(
        pattern=REGION,
        description=(
            "AWS region, e.g. us-east-1; one that botocore knows, or any name beside endpoint_url."
        ),
    )
    bucket: BucketName = Field(
        description="S3 bucket for datasets, code, job output and reports.",
    )
    prefix: str = Field(
        default="nodesweep",
        pattern=r"^[A-Za-z0-9!_.*'()/-]{1,200}$",
        description="Key prefix of everything written to the bucket.",
    )
    role_arn: str = Field(
        pattern=r"^arn:aws[a-z\-]*:iam::\d{12}:role/[\w+=,.@/-]+$",
        description="Execution role that SageMaker assumes.",
    )
    endpoint_url: Annotated[str | None, NOT_MEASURED] = Field(
        default=None,
        pattern=r"^https?://",
        description="Endpoint for every AWS call, http(s)://HOST[:PORT]; null: AWS itself.",
    )
    credentials: Annotated[Literal["chain", "platform"], NOT_MEASURED] = Field(
        default="chain",
        description=(
            "chain: boto3's usual search; platform: the key in state_directory, which the local"
            " platform at endpoint_url must prove to hold."
        ),
    )
    calls_per_second: Annotated[float | None, NOT_MEASURED] = Field(
        default=1.0,
        ge=0.1,
        description=(
            "How often a run asks SageMaker and CloudWatch Logs about its jobs, at most, after a"
            " burst of 20 calls: they share the account's rate with its consoles and pipelines."
            " Null: no limit, for a local platform."
        ),
    )
    create_missing: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        description=(
            "Create the bucket and the ECR repository if missing."
            " Leave off where CloudFormation owns them."
        ),
    )
    autostart: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        description=(
            "Use the platform of state_directory; start it where it does not run, at endpoint_url"
            " or, where that port is another's, at a free one, and stop it afterwards."
        ),
    )
    state_directory: Annotated[LocalDirectory, NOT_MEASURED] = Field(
        default=STATE_DIRECTORY,
        description=(
            "State folder of the local platform, with its key; relative to where the command runs."
        ),
    )

    @field_validator("endpoint_url")
    @classmethod
    def _usable_url(cls, value: str | None) -> str | None:
        if value is not None and (problem := url_problem(value)):
            raise ValueError(
                f"{problem}; expected http(s)://HOST[:PORT], e.g. http://127.0.0.1:4570"
            )
        return value

    @model_validator(mode="after")
    def _local_needs_endpoint(self) -> Self:
        if self.endpoint_url is None and self.credentials == "platform":
            raise ValueError("credentials 'platform' needs an endpoint_url; for AWS use 'chain'")
        if self.autostart and not is_loopback_with_port(self.endpoint_url):
            raise ValueError(
                "autostart needs an endpoint_url on loopback with its port"
                f" (http://127.0.0.1:PORT), got {self.endpoint_url!r}"
            )
        return self


def _none_is_null(value: Any) -> Any:
    return None if value == "none" else value


class BenchmarkConfig(Section):
    """One benchmark: a dataset, an image, a training job and the node counts to run it on."""

    name: Slug = Field(
        description=(
            "Name of the benchmark; every sweep, job and report carries it. At most 20 characters."
        )
    )
    dataset: Annotated[
        DatasetConfig | None,
        BeforeValidator(
            _none_is_null, json_schema_input_type=DatasetConfig | Literal["none"] | None
        ),
    ] = Field(
        description=(
            "The training data; none: the program brings its own, or reads further channels alone."
        )
    )
    image: ImageConfig = Field(default_factory=ImageConfig)
    training: TrainingConfig
    sweep: SweepConfig
    report: Annotated[ReportConfig, NOT_MEASURED] = Field(default_factory=ReportConfig)
    platform: PlatformConfig

    @property
    def runs_container_as_it_is(self) -> bool:
        """Whether the jobs run the user's code in an existing container, named by framework or
        base_image: no build.
        """
        image = self.image
        named = self.image.base_image is not None or self.image.framework is not None
        return (
            named
            and image.uri is None
            and image.context is None
            and self.training.source_dir is not None
        )

    @model_validator(mode="after")
    def _build_has_a_context(self) -> Self:
        if self.runs_container_as_it_is and self.image.build_args:
            raise ValueError(
                "image.build_args go with a build, and none is made: training.source_dir runs in"
                " the container of image.framework or base_image as it is; leave out build_args, or"
                " set image.context to have one built"
            )
        return self

    @property
    def sequential_problem(self) -> str | None:
        """What of this config does not go with sweep.design: sequential; None: all of it does."""
        goals = self.report.recommendation
        for name in ("deadline_seconds", "budget_usd_per_run"):
            if getattr(goals, name) is not None:
                return (
                    f"report.recommendation.{name} is {getattr(goals, name)}, and sweep.design:"
                    " sequential decides by efficiency and doubling ratio alone; leave it out, or"
                    " set sweep.design: full"
                )
        if self.training.spot is not None:
            return (
                "training.spot is set, and runs on spot capacity never make the headline, so that"
                " sweep.design: sequential would have nothing to decide by; leave it out, or set"
                " sweep.design: full"
            )
        return None

    @property
    def probe_problem(self) -> str | None:
        """What of this config does not go with sweep.design: probe; None: all of it does."""
        if self.training.spot is not None:
            return (
                "training.spot is set, and runs on spot capacity never make the headline, so that"
                " sweep.design: probe would have nothing to project from; leave it out, or set"
                " sweep.design: full"
            )
        if self.report.parity.target_metric is not None:
            return (
                f"report.parity.target_metric is {self.report.parity.target_metric}, and"
                " sweep.design: probe ends jobs long before they reach it; leave it out, or set"
                " sweep.design: full"
            )
        return None

    @model_validator(mode="after")
    def _design_has_what_it_needs(self) -> Self:
        design = self.sweep.design
        problem = {"sequential": self.sequential_problem, "probe": self.probe_problem}.get(design)
        if problem is not None:
            raise ValueError(problem)
        if design == "probe" and self.training.baseline_seconds is not None:
            raise ValueError(
                f"training.baseline_seconds is {self.training.baseline_seconds:g}, by which a"
                " whole run counts its steps, and sweep.design: probe ends jobs long before; leave"
                " it out, or set sweep.design: full"
            )
        return self

    @model_validator(mode="after")
    def _main_type_is_measured(self) -> Self:
        types = self.sweep.instance_types
        if types is not None and self.training.instance_type not in types:
            raise ValueError(
                f"sweep.instance_types is {list(types)} without training.instance_type,"
                f" {self.training.instance_type}, for which the image is chosen; add it, or set"
                " training.instance_type to one of them"
            )
        return self

    @property
    def instance_types(self) -> tuple[str, ...]:
        """Every instance type that the sweep measures, in the config's order."""
        return self.sweep.instance_types or (self.training.instance_type,)

    def of_type(self, instance_type: str | None) -> BenchmarkConfig:
        """The sweep of this one of its types alone; of a sweep of one type the config itself."""
        if self.sweep.instance_types is None or instance_type is None:
            return self
        return self.model_copy(
            update={
                "training": self.training.model_copy(update={"instance_type": instance_type}),
                "sweep": self.sweep.model_copy(update={"instance_types": None}),
            }
        )

    def on_platform(self, platform: PlatformConfig) -> BenchmarkConfig:
        """The same config with its platform at the endpoint where it was found or started."""
        return self.model_copy(update={"platform": platform})

    def with_absolute_paths(self, base: Path) -> BenchmarkConfig:
        """The same config with its local paths resolved against `base`,
        the directory of its file.
        """
        dataset = self.dataset
        if dataset is not None and not dataset.is_remote:
            dataset = dataset.model_copy(update={"source": os.path.realpath(base / dataset.source)})
        source_dir = self.training.source_dir and os.path.realpath(base / self.training.source_dir)
        context = (
            None
            if self.runs_container_as_it_is
            else os.path.realpath(base / self.image.build_context)
        )
        return self.model_copy(
            update={
                "dataset": dataset,
                "image": self.image.model_copy(update={"context": context}),
                "training": self.training.model_copy(update={"source_dir": source_dir}),
            }
        )
