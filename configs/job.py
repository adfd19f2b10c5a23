"""What a training job asks of the platform beside its nodes: spot, checkpoints, network,
channels, tags.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from nodesweep.configs.locations import S3Uri
from nodesweep.configs.section import NOT_MEASURED, Section

# Patterns and lengths are those of the CreateTrainingJob API.
InputMode = Literal["File", "FastFile", "Pipe"]
CHANNEL_NAME = r"^[A-Za-z0-9._-]{1,64}$"
ChannelName = Annotated[str, StringConstraints(pattern=CHANNEL_NAME)]
KmsKeyId = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9:/_-]+$", max_length=2048)]
TagKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
TagValue = Annotated[str, StringConstraints(max_length=256)]
_VpcId = Annotated[str, StringConstraints(pattern=r"^[-0-9a-zA-Z]{1,32}$")]
MAX_EXTRA_CHANNELS = 19
"""The service takes 20 channels, and the dataset's is one of them."""
MAX_USER_TAGS = 45
"""The service takes 50 tags, and the sweep sets five of its own."""


class SpotConfig(Section):
    """Managed spot training: cheaper nodes that can be taken away while the job runs."""

    max_wait_seconds: int = Field(
        ge=60,
        le=2_419_200,
        description=(
            "Longest time for waiting and running together; at least max_runtime_seconds. Waiting"
            " is not billed. 60 s – 28 days."
        ),
    )


class CheckpointConfig(Section):
    """A directory that is copied to S3 while the job runs and restored when it starts again
    after an interruption.

    The place in S3 is the job's own, so that no attempt starts from what another one learned.
    """

    local_path: str = Field(
        default="/opt/ml/checkpoints",
        pattern=r"^/\S*[^/\s]$",
        max_length=4096,
        description=(
            "Absolute directory in the container;"
            " what your program writes checkpoints to and resumes from."
        ),
    )


class VpcConfig(Section):
    """The network that the nodes are attached to;
    without it they have AWS's own, with access to the internet.
    """

    subnets: tuple[_VpcId, ...] = Field(
        min_length=1,
        max_length=16,
        description=(
            "Subnet ids, 1–16, with a free address per node. One availability zone keeps nodes"
            " close together."
        ),
    )
    security_group_ids: tuple[_VpcId, ...] = Field(
        min_length=1,
        max_length=5,
        description=(
            "Security group ids, 1–5. They must allow all traffic from themselves,"
            " in and out, or jobs hang."
        ),
    )


class FileSystemConfig(Section):
    """A channel that is mounted from a file system in your VPC."""

    type: Literal["FSxLustre", "EFS"] = Field(description="Kind of the file system.")
    id: str = Field(pattern=r"^fs-[0-9a-f]{8,18}$", description="Id of the file system, fs-….")
    directory_path: str = Field(
        pattern=r"^/\S*$",
        max_length=4096,
        description=(
            "Directory to mount; on FSx for Lustre it begins with the mount name, e.g. /fsx/data."
        ),
    )
    access_mode: Literal["ro", "rw"] = Field(
        default="ro", description="ro: read only; rw: the nodes may write to it."
    )


class S3ChannelConfig(Section):
    """A channel of objects in S3, sent as they are: not validated,
    and no part of the dataset's identity.
    """

    type: Literal["S3"] = Field(description="S3.")
    uri: S3Uri = Field(
        pattern=r"^s3://[^/\s]+/\S*$",
        max_length=1024,
        description="Prefix of the objects, s3://bucket/prefix.",
    )
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = Field(
        default="FullyReplicated",
        description="FullyReplicated: every node gets all objects; ShardedByS3Key: each its share.",
    )
    input_mode: InputMode = Field(
        default="File",
        description="File: copied before training; FastFile: read on demand; Pipe: streamed.",
    )


ExtraChannel = Annotated[FileSystemConfig | S3ChannelConfig, Field(discriminator="type")]


class JobFeatures(Section):
    """The part of a training job's section that names platform features;
    every one is off by default.
    """

    spot: SpotConfig | None = Field(
        default=None,
        description=(
            "Managed spot training; null: on demand. Goes with checkpoints, not with keep-alive."
        ),
    )
    checkpoints: CheckpointConfig | None = Field(
        default=None, description="A directory kept in S3 across interruptions; null: none."
    )
    keep_alive_seconds: int | None = Field(
        default=None,
        ge=0,
        le=21_600,
        description=(
            "Warm pool: nodes stay, billed, this long after a job for the next one"
            " of the same node count."
        ),
    )
    vpc: VpcConfig | None = Field(
        default=None, description="Subnets and security groups of the nodes; null: AWS's."
    )
    encrypt_inter_container_traffic: bool = Field(
        default=False,
        description=(
            "Encrypt what nodes send each other; it slows training, so it is part of the curve."
        ),
    )
    volume_kms_key_id: KmsKeyId | None = Field(
        default=None,
        description=(
            "KMS key id, ARN or alias of the nodes' volumes; null: not encrypted by your key."
        ),
    )
    output_kms_key_id: KmsKeyId | None = Field(
        default=None,
        description="KMS key id, ARN or alias of the output in S3; null: the bucket's default.",
    )
    extra_channels: dict[ChannelName, ExtraChannel] = Field(
        default_factory=dict,
        max_length=MAX_EXTRA_CHANNELS,
        description=(
            "Further input channels by name: a file system"
            " (FSxLustre, EFS) or objects in S3. Not validated."
        ),
    )
    tensorboard: bool = Field(
        default=False,
        description=(
            "Send what the program writes to /opt/ml/output/tensorboard to S3 while the job trains."
        ),
    )
    retry_attempts: int | None = Field(
        default=None,
        ge=1,
        le=30,
        description=(
            "The platform's own retries of a job that ends in an internal error, 1–30; null: "
            "sweep.max_attempts alone."
        ),
    )
    tags: Annotated[dict[TagKey, TagValue], NOT_MEASURED] = Field(
        default_factory=dict,
        max_length=MAX_USER_TAGS,
        description=(
            "Tags of every job, e.g. owner and cost centre; not aws: or nodesweep:, at most 45."
        ),
    )

    @field_validator("tags")
    @classmethod
    def _allowed_tags(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if refused := sorted(
                {character for character in key + text if not _is_tag_character(character)}
            ):
                raise ValueError(
                    f"tag {key!r}: {' '.join(map(repr, refused))} may not stand in a tag; "
                    "use letters, digits, spaces and _.:/=+-@"
                )
            if key.lower().startswith(("aws:", "nodesweep:")):
                raise ValueError(
                    f"tag {key!r}: keys that begin with aws: or nodesweep: are reserved; rename it"
                )
        return value


def _is_tag_character(character: str) -> bool:
    """AWS's pattern for keys and values of tags, [\\p{L}\\p{Z}\\p{N}_.:/=+\\-@];
    Python's re has no \\p.
    """
    return character in "_.:/=+-@" or unicodedata.category(character)[0] in "LZN"
