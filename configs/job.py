"""Platform features of a training job: spot capacity, checkpoints, network, channels and tags."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from nodesweep.configs.locations import S3Uri
from nodesweep.configs.section import NOT_COMPARED, NOT_MEASURED, Section

# Patterns and lengths follow the CreateTrainingJob API.
InputMode = Literal["File", "FastFile", "Pipe"]
CHANNEL_NAME = r"^[A-Za-z0-9._-]{1,64}$"
ChannelName = Annotated[str, StringConstraints(pattern=CHANNEL_NAME)]
KmsKeyId = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9:/_-]+$", max_length=2048)]
TrainingPlanArn = Annotated[
    str,
    StringConstraints(
        pattern=(
            r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}"
            r":training-plan/[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}$"
        )
    ),
]
TagKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
TagValue = Annotated[str, StringConstraints(max_length=256)]
_VpcId = Annotated[str, StringConstraints(pattern=r"^[-0-9a-zA-Z]{1,32}$")]
MAX_EXTRA_CHANNELS = 19
"""CreateTrainingJob accepts 20 channels, one of which is the dataset's."""
MAX_USER_TAGS = 45
"""SageMaker accepts 50 tags, five of which the sweep sets."""

MAX_KEEP_ALIVE_SECONDS = 21_600
"""SageMaker's maximum for a warm pool (CreateTrainingJob, KeepAlivePeriodInSeconds)."""


class SpotConfig(Section):
    """Managed spot training: cheaper capacity that AWS can reclaim while the job runs."""

    max_wait_seconds: int = Field(
        ge=60,
        le=2_419_200,
        description=(
            "Maximum total time of waiting for capacity and running, 60 s – 28 days; at least"
            " max_runtime_seconds. Waiting is not billed."
        ),
    )


class CheckpointConfig(Section):
    """A directory that is copied to S3 during the job and restored after an interruption.

    The S3 location is unique per job, so no attempt starts from another attempt's weights.
    """

    local_path: str = Field(
        default="/opt/ml/checkpoints",
        pattern=r"^/\S*[^/\s]$",
        max_length=4096,
        description=(
            "Absolute directory in the container that your script writes checkpoints to and"
            " resumes from."
        ),
    )


class VpcConfig(Section):
    """The VPC that nodes are attached to; without it they use AWS's network and the internet."""

    subnets: tuple[_VpcId, ...] = Field(
        min_length=1,
        max_length=16,
        description=(
            "Subnet ids, 1–16, with a free address per node. Use one availability zone to"
            " keep nodes close together."
        ),
    )
    security_group_ids: tuple[_VpcId, ...] = Field(
        min_length=1,
        max_length=5,
        description=(
            "Security group ids, 1–5. They must allow all traffic to and from themselves, or"
            " jobs hang."
        ),
    )


class PlacementConfig(Section):
    """Placement of the nodes on UltraServers (ml.p6e-gb200), whose nodes share an NVLink domain."""

    ultra_server_id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,255}$",
        description=(
            "Put all nodes of a job on this UltraServer of your training plan. Null: SageMaker"
            " chooses."
        ),
    )
    share_ultra_servers: bool = Field(
        default=False,
        description=(
            "Let several jobs use one UltraServer at once. This uses its nodes better, but jobs"
            " may slow each other down."
        ),
    )


class MlflowConfig(Section):
    """A SageMaker-managed MLflow resource, which the jobs' programs find in their environment."""

    resource_arn: str = Field(
        pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:mlflow-[a-zA-Z-]+/\S+$",
        max_length=2048,
        description="ARN of the tracking server or app, arn:…:mlflow-tracking-server/NAME.",
    )
    experiment_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Experiment of the jobs' runs, at most 256 characters. Null: MLflow's default.",
    )


class FileSystemConfig(Section):
    """An input channel mounted from a file system in your VPC."""

    type: Literal["FSxLustre", "EFS"] = Field(
        description="Type of the file system: FSxLustre or EFS."
    )
    id: str = Field(pattern=r"^fs-[0-9a-f]{8,18}$", description="Id of the file system, fs-….")
    directory_path: str = Field(
        pattern=r"^/\S*$",
        max_length=4096,
        description=(
            "Directory to mount; on FSx for Lustre it starts with the mount name, e.g. /fsx/data."
        ),
    )
    access_mode: Literal["ro", "rw"] = Field(
        default="ro", description="ro: read-only; rw: nodes may write to it."
    )


class S3ChannelConfig(Section):
    """An input channel of S3 objects, not validated and not part of the dataset's identity."""

    type: Literal["S3"] = Field(description="S3: a channel of objects in S3.")
    uri: S3Uri = Field(
        pattern=r"^s3://[^/\s]+/\S*$",
        max_length=1024,
        description="Prefix of the objects, s3://bucket/prefix, at most 1,024 characters.",
    )
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = Field(
        default="FullyReplicated",
        description=(
            "FullyReplicated: every node gets all objects; ShardedByS3Key: each node gets its"
            " share."
        ),
    )
    input_mode: InputMode = Field(
        default="File",
        description=(
            "File: copied to every node before training; FastFile: read on demand; Pipe: streamed."
        ),
    )


ExtraChannel = Annotated[FileSystemConfig | S3ChannelConfig, Field(discriminator="type")]


class JobFeatures(Section):
    """The fields of `training` that turn on platform features; each is off by default."""

    spot: SpotConfig | None = Field(
        default=None,
        description=(
            "Managed spot training, cheaper but interruptible; combine it with checkpoints,"
            " not with keep_alive_seconds. Null: on demand."
        ),
    )
    checkpoints: CheckpointConfig | None = Field(
        default=None,
        description="A directory that is kept in S3 across interruptions. Null: no checkpoints.",
    )
    keep_alive_seconds: int | None = Field(
        default=None,
        ge=0,
        le=MAX_KEEP_ALIVE_SECONDS,
        description=(
            "Warm pool: keep nodes, billed, for this many seconds (up to 21,600) for the next"
            " job of the same node count. Set it to save start-up time."
        ),
    )
    training_plan_arn: Annotated[TrainingPlanArn | None, NOT_COMPARED] = Field(
        default=None,
        # Omitted when null, so that sweeps without it keep their ids and reports.
        exclude_if=lambda arn: arn is None,
        description=(
            "ARN of an active SageMaker training plan (arn:…:training-plan/NAME) whose reserved"
            " instances run the jobs. Set it for types that are only sold this way. Null: on"
            " demand or spot."
        ),
    )
    training_plan_arns: Annotated[dict[str, TrainingPlanArn], NOT_COMPARED] = Field(
        default_factory=dict,
        exclude_if=lambda arns: not arns,
        description=(
            "Training plan ARN of each instance type, if sweep.instance_types has several. Types"
            " that are left out run on demand."
        ),
    )
    vpc: VpcConfig | None = Field(
        default=None,
        description=(
            "Subnets and security groups of the nodes; set it to reach data in your VPC."
            " Null: AWS's network."
        ),
    )
    encrypt_inter_container_traffic: bool = Field(
        default=False,
        description=(
            "Encrypt traffic between nodes. It slows training, so it is part of the measured curve."
        ),
    )
    volume_kms_key_id: KmsKeyId | None = Field(
        default=None,
        description=(
            "KMS key id, ARN or alias for the nodes' volumes. Null: not encrypted with your key."
        ),
    )
    output_kms_key_id: KmsKeyId | None = Field(
        default=None,
        description=(
            "KMS key id, ARN or alias for the output in S3. Null: the bucket's default encryption."
        ),
    )
    extra_channels: dict[ChannelName, ExtraChannel] = Field(
        default_factory=dict,
        max_length=MAX_EXTRA_CHANNELS,
        description=(
            "Additional input channels by name, at most 19: a file system (FSxLustre, EFS) or"
            " S3 objects. They are not validated."
        ),
    )
    tensorboard: bool = Field(
        default=False,
        description=(
            "Upload /opt/ml/output/tensorboard to S3 while the job trains. Turn it on to"
            " watch training curves live."
        ),
    )
    retry_attempts: int | None = Field(
        default=None,
        ge=1,
        le=30,
        description=(
            "SageMaker's own retries of a job that ends in an internal error, 1–30. Null:"
            " only sweep.max_attempts applies."
        ),
    )
    infra_check: bool = Field(
        default=False,
        exclude_if=lambda checked: not checked,
        description=(
            "Let SageMaker check the health of a job's instances before training. Recommended for"
            " large GPU nodes; start-up takes longer."
        ),
    )
    placement: PlacementConfig | None = Field(
        default=None,
        exclude_if=lambda placement: placement is None,
        description="Placement on UltraServers (p6e-gb200). Null: SageMaker chooses.",
    )
    mlflow: MlflowConfig | None = Field(
        default=None,
        exclude_if=lambda mlflow: mlflow is None,
        description="SageMaker-managed MLflow that your program logs to. Null: none.",
    )
    tags: Annotated[dict[TagKey, TagValue], NOT_MEASURED] = Field(
        default_factory=dict,
        max_length=MAX_USER_TAGS,
        description=(
            "Tags of every job, e.g. owner or cost center; at most 45, and no key may start"
            " with aws: or nodesweep:."
        ),
    )

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if refused := sorted(
                {character for character in key + text if not _is_tag_character(character)}
            ):
                raise ValueError(
                    f"tag {key!r}: {' '.join(map(repr, refused))} not allowed in a tag; "
                    "use letters, digits, spaces and _.:/=+-@"
                )
            if key.lower().startswith(("aws:", "nodesweep:")):
                raise ValueError(
                    f"tag {key!r}: keys that begin with aws: or nodesweep: are reserved; rename it"
                )
        return value


def _is_tag_character(character: str) -> bool:
    r"""Return True for characters of AWS's tag pattern, [\p{L}\p{Z}\p{N}_.:/=+\-@].

    Python's `re` does not support \p.
    """
    return character in "_.:/=+-@" or unicodedata.category(character)[0] in "LZN"
