"""The typed form of a benchmark's YAML: what was asked, nothing about how it is done.

Every model is frozen and refuses unknown keys; every field says when to change it, its unit and its bound.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](-?[a-z0-9])*$", min_length=1, max_length=20)]
Scalar = bool | int | float | str
PLACEHOLDERS = frozenset(
    {"global_batch_size", "per_replica_batch_size", "accumulate_grad_batches", "learning_rate", "nodes", "world_size",
     "seed", "repeat"}
)  # fmt: skip
"""What a hyperparameter's value may refer to as {name}; each point fills it with its own number."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ExpectationConfig(Section):
    """One Great Expectations expectation, in its own spelling."""

    type: str = Field(
        description="A built-in expectation, e.g. expect_column_values_to_be_between; an unknown one is refused."
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="The expectation's own arguments.")
    severity: Literal["critical", "warning", "info"] = Field(
        default="critical", description="critical stops the run; warning and info are reported and let it go on."
    )


class DatasetConfig(Section):
    """The training data and what must be true of it before anything is spent."""

    name: Slug = Field(description="Short name, part of the S3 prefix. Change it with the dataset.")
    source: str = Field(
        description="A directory (relative to the config file) or an s3://bucket/prefix that holds the files."
    )
    format: Literal["parquet", "csv"] = Field(description="File format; every *.parquet or *.csv under source is read.")
    channel: str = Field(
        default="training",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="SageMaker input channel, SM_CHANNEL_<NAME> to the program; what your script expects.",
    )
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = Field(
        default="FullyReplicated",
        description="FullyReplicated: every node gets all files; ShardedByS3Key: each its share.",
    )
    expectations: tuple[ExpectationConfig, ...] = Field(
        min_length=1, description="Checked on every file; at least one, since an empty suite always succeeds."
    )
    min_rows: int | None = Field(
        default=None, ge=1, description="Fewest rows over all files together; null: not checked."
    )
    max_rows: int | None = Field(
        default=None, ge=1, description="Most rows over all files together; null: not checked."
    )
    unique_columns: tuple[str, ...] = Field(
        default=(),
        description="Columns whose values, taken together, may occur once over all files. Empty: not checked.",
    )
    max_age_days: float | None = Field(
        default=None, gt=0, description="Oldest allowed modification of the newest file, in days; null: not checked."
    )

    @property
    def is_remote(self) -> bool:
        return self.source.startswith("s3://")


class ImageConfig(Section):
    """The training image: a build context, or one that already exists."""

    repository: str = Field(
        default="nodesweep",
        pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
        max_length=256,
        description="ECR repository the image is pushed to.",
    )
    context: str = Field(default="../infra/image", description="Build context directory, relative to the config file.")
    base_image: str | None = Field(
        default=None,
        description="BASE_IMAGE build argument, e.g. an AWS Deep Learning Container; null: the Dockerfile's.",
    )
    build_args: dict[str, str] = Field(
        default_factory=dict, description="Further build arguments. They enter the image's identity; no secrets here."
    )
    builder: Literal["codebuild"] = Field(
        default="codebuild", description="Who builds: codebuild sends the context to S3 and starts a CodeBuild build."
    )
    codebuild_project: str = Field(
        default="nodesweep-image",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{1,149}$",
        description="CodeBuild project that runs infra/image/buildspec.yml.",
    )
    build_timeout_minutes: int = Field(
        default=60, ge=5, le=480, description="A build that takes longer is stopped. 5–480."
    )
    uri: str | None = Field(
        default=None,
        max_length=255,
        description="Full URI of an image that already exists; set, nothing is built. Pin it by digest (…@sha256:…).",
    )


class DistributionConfig(Section):
    """How the processes of a job are launched."""

    kind: Literal["none", "torch_distributed"] = Field(
        description="none: one plain process per node; torch_distributed: torchrun on every node."
    )
    processes_per_node: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Processes torchrun starts per node; null: one per accelerator, or one on a CPU instance.",
    )

    @model_validator(mode="after")
    def _plain_is_single(self) -> Self:
        if self.kind == "none" and self.processes_per_node not in (None, 1):
            raise ValueError(
                f"processes_per_node is {self.processes_per_node}, but kind 'none' starts one process per node; "
                "use kind 'torch_distributed'"
            )
        return self


class BatchConfig(Section):
    """The batch policy: a mandatory choice, since it decides what the speedup means."""

    policy: Literal["fixed_global", "fixed_per_replica"] = Field(
        description="fixed_global: same total batch at every N (strong scaling); fixed_per_replica: it grows with N."
    )
    size: int = Field(
        ge=1, description="Samples: the global batch under fixed_global, the per-replica batch under fixed_per_replica."
    )
    accumulate_grad_batches: int = Field(
        default=1,
        ge=1,
        description="Micro-batches per optimiser step; more saves memory. Counts into the global batch.",
    )


class LearningRateConfig(Section):
    """The learning rate at the baseline and how it follows the global batch."""

    value: float = Field(gt=0, description="Learning rate at the smallest node count.")
    rule: Literal["none", "linear", "sqrt"] = Field(
        description="none: constant; linear: x B/B0 (SGD with warm-up, arXiv 1706.02677); sqrt: x its root (Adam-like)."
    )


class TrainingConfig(Section):
    """One training job, apart from how many nodes it runs on."""

    entry_point: str = Field(default="train.py", description="Program file, relative to the code directory.")
    source_dir: str | None = Field(
        default=None,
        description="Directory of your own code, relative to the config file; null: the code in the image.",
    )
    hyperparameters: dict[str, Scalar] = Field(
        default_factory=dict,
        max_length=90,
        description="Arguments of the program; may hold placeholders, e.g. {learning_rate}; see docs/config.md.",
    )
    distribution: DistributionConfig = Field(description="Launcher and processes per node.")
    instance_type: str = Field(description="SageMaker training instance type; one of configs/instances.yaml.")
    max_runtime_seconds: int = Field(
        ge=60, le=432_000, description="A job is stopped after this; it also bounds the cost. 60 s – 5 days."
    )
    volume_size_gb: int = Field(default=30, ge=1, le=16_384, description="EBS volume per node, GB.")
    batch: BatchConfig = Field(description="Batch policy and size.")
    learning_rate: LearningRateConfig = Field(description="Learning rate and its rule.")
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Base seed; repeat r trains with seed + r - 1.")
    environment: dict[str, str] = Field(
        default_factory=dict, max_length=90, description="Environment variables of the container. No secrets."
    )
    metric_definitions: dict[str, str] = Field(
        default_factory=dict,
        max_length=40,
        description="Metric name to regular expression with one group, applied to the log.",
    )

    @field_validator("hyperparameters")
    @classmethod
    def _known_placeholders(cls, value: dict[str, Scalar]) -> dict[str, Scalar]:
        for key, scalar in value.items():
            if key.startswith("sagemaker_"):
                raise ValueError(f"hyperparameter {key!r}: names that begin with sagemaker_ are set by nodesweep")
            if isinstance(scalar, str) and (unknown := set(_PLACEHOLDER.findall(scalar)) - PLACEHOLDERS):
                raise ValueError(
                    f"hyperparameter {key!r}: unknown placeholder {sorted(unknown)}; allowed: {sorted(PLACEHOLDERS)}"
                )
        return value

    @field_validator("metric_definitions")
    @classmethod
    def _one_group(cls, value: dict[str, str]) -> dict[str, str]:
        for name, pattern in value.items():
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"metric {name!r}: {pattern!r} is not a regular expression: {error}") from error
            if groups < 1:
                raise ValueError(f"metric {name!r}: {pattern!r} has no group around the number")
        return value


class SweepConfig(Section):
    """Which points are measured, how often and in which order."""

    node_counts: tuple[Annotated[int, Field(ge=1, le=512)], ...] = Field(
        min_length=1, description="Node counts to measure; the smallest is the baseline N0."
    )
    repeats: int = Field(default=3, ge=1, le=50, description="Jobs per node count; 3 or more give an interval.")
    order: Literal["shuffled", "ascending", "descending"] = Field(
        default="shuffled", description="Order within each repeat; shuffled keeps drift out of the curve."
    )
    order_seed: int = Field(default=1, ge=0, description="Seed of the shuffle; recorded with the report.")
    max_parallel_jobs: int = Field(
        default=1,
        ge=1,
        le=20,
        description="Jobs in flight at once; your instance quota must hold their nodes together.",
    )
    budget_usd: float | None = Field(
        default=None,
        gt=0,
        description="The sweep is refused if nodes x max_runtime x price over all jobs exceeds it; null: no limit.",
    )
    poll_interval_seconds: float = Field(
        default=15.0,
        ge=0.2,
        le=300,
        description="Time between two looks at a job's status; backs off to 4x while nothing changes.",
    )
    queue_deadline_seconds: int = Field(
        default=7200,
        ge=60,
        le=2_419_200,
        description="Longest wait before a job trains; then it is stopped and the point fails.",
    )
    max_attempts: int = Field(
        default=2,
        ge=1,
        le=10,
        description="Attempts per point; only lack of capacity and internal errors get another one.",
    )

    @field_validator("node_counts")
    @classmethod
    def _distinct_and_sorted(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError(
                f"node counts {list(value)} repeat a number; use sweep.repeats to measure one several times"
            )
        return tuple(sorted(value))


class ReportConfig(Section):
    """Where the report goes and what it is called."""

    title: str | None = Field(default=None, max_length=120, description="Heading; null: the benchmark's name.")
    directory: str = Field(
        default="reports",
        description="Local directory (relative to where the command runs); <sweep_id>/ and latest are made in it.",
    )


class PlatformConfig(Section):
    """Which account, or which machine, the calls go to."""

    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$", description="AWS region, e.g. us-east-1.")
    bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        description="S3 bucket for datasets, code, job output and reports.",
    )
    prefix: str = Field(
        default="nodesweep",
        pattern=r"^[A-Za-z0-9!_.*'()/-]{1,200}$",
        description="Key prefix of everything written to the bucket.",
    )
    role_arn: str = Field(
        pattern=r"^arn:aws[a-z\-]*:iam::\d{12}:role/[\w+=,.@/-]+$", description="Execution role that SageMaker assumes."
    )
    endpoint_url: str | None = Field(
        default=None, pattern=r"^https?://", description="Endpoint for every AWS call; null: AWS itself."
    )
    credentials: Literal["chain", "placeholder"] = Field(
        default="chain",
        description="chain: boto3's usual search; placeholder: fixed meaningless keys, only with an endpoint_url.",
    )
    create_missing: bool = Field(
        default=False,
        description="Create the bucket and the ECR repository if missing. Leave off where CloudFormation owns them.",
    )
    autostart: bool = Field(
        default=False,
        description="Start the platform of infra/local at endpoint_url when nothing answers there; stop it afterwards.",
    )
    state_directory: str = Field(
        default=".nodesweep/platform",
        description="State of the autostarted platform, relative to where the command runs.",
    )

    @model_validator(mode="after")
    def _local_needs_endpoint(self) -> Self:
        if self.endpoint_url is None and self.credentials == "placeholder":
            raise ValueError("credentials 'placeholder' needs an endpoint_url; for AWS use 'chain'")
        if self.autostart and not (self.endpoint_url or "").startswith(("http://127.", "http://localhost")):
            raise ValueError(
                f"autostart needs an endpoint_url on loopback (http://127.0.0.1:PORT), got {self.endpoint_url!r}"
            )
        return self


class BenchmarkConfig(Section):
    """One benchmark: a dataset, an image, a training job and the node counts to run it on."""

    name: Slug = Field(
        description="Name of the benchmark; every sweep, job and report carries it. At most 20 characters."
    )
    dataset: DatasetConfig
    image: ImageConfig = Field(default_factory=ImageConfig)
    training: TrainingConfig
    sweep: SweepConfig
    report: ReportConfig = Field(default_factory=ReportConfig)
    platform: PlatformConfig

    def with_absolute_paths(self, base: Path) -> BenchmarkConfig:
        """The same config with its local paths resolved against `base`, the directory of its file."""
        source = self.dataset.source if self.dataset.is_remote else str((base / self.dataset.source).resolve())
        source_dir = self.training.source_dir and str((base / self.training.source_dir).resolve())
        return self.model_copy(
            update={
                "dataset": self.dataset.model_copy(update={"source": source}),
                "image": self.image.model_copy(update={"context": str((base / self.image.context).resolve())}),
                "training": self.training.model_copy(update={"source_dir": source_dir}),
            }
        )
