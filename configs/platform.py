"""The config's `platform` section: the launcher that runs the jobs, and its account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.locations import (
    BucketName,
    LocalDirectory,
    is_loopback_with_port,
    url_problem,
)
from nodesweep.configs.section import NOT_MEASURED, Section

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig

REGION = r"^[a-z]{2,4}(-[a-z]+)+-\d$"
OWN_REGION = "cluster"
"""Price region of platforms that have no AWS regions."""
STATE_DIRECTORY = ".nodesweep/platform"
"""Default state folder of the local platform, relative to the working directory."""


class BatchConfig(Section):
    """An AWS Batch job queue of type SAGEMAKER_TRAINING, in which training jobs wait."""

    queue: str = Field(
        pattern=r"^([A-Za-z0-9_-]{1,128}|arn:aws[a-z-]*:batch:[a-z0-9-]+:\d{12}:job-queue/[\w-]{1,128})$",
        description="Name or ARN of the job queue, in platform.region.",
    )
    share_identifier: Annotated[str | None, NOT_MEASURED] = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]{1,255}$",
        description=(
            "Share that the jobs are charged to. Set it if, and only if, the queue has a fair-share"
            " scheduling policy."
        ),
    )
    scheduling_priority: Annotated[int | None, NOT_MEASURED] = Field(
        default=None,
        ge=0,
        le=9999,
        description="Priority within the share, 0–9999; higher goes first. Null: Batch's default.",
    )
    attempt_timeout_seconds: Annotated[int | None, NOT_MEASURED] = Field(
        default=None,
        ge=60,
        description=(
            "Seconds after which Batch stops a job that has left the queue, start-up included; at"
            " least 60. Null: only training.max_runtime_seconds limits it."
        ),
    )


class PlatformConfig(Section):
    """The AWS account, or the local platform, that every call goes to.

    This class is also the base of the other launchers' sections.
    """

    fixed_image: ClassVar[str | None] = None
    """Value of image.uri if jobs need no image from nodesweep; None if `image` chooses one."""

    launcher: Annotated[Literal["sagemaker"], NOT_MEASURED] = Field(
        default="sagemaker",
        description=(
            "Backend that runs the jobs: sagemaker; or slurm, whose section has other fields"
            " (nodesweep/launch/slurm/README.md)."
        ),
    )
    region: str = Field(
        pattern=REGION,
        description=(
            "AWS region, e.g. us-east-1. Must be a region that botocore knows, or any name if"
            " endpoint_url is set."
        ),
    )
    bucket: BucketName = Field(
        description="S3 bucket for datasets, code, job output and reports; must be in the region.",
    )
    prefix: str = Field(
        default="nodesweep",
        pattern=r"^[A-Za-z0-9!_.*'()/-]{1,200}$",
        description=(
            "Key prefix of everything written to the bucket, 1–200 characters. Change it to"
            " share a bucket."
        ),
    )
    role_arn: str = Field(
        pattern=r"^arn:aws[a-z\-]*:iam::\d{12}:role/[\w+=,.@/-]+$",
        description="ARN of the execution role that SageMaker assumes for your jobs.",
    )
    batch: BatchConfig | None = Field(
        default=None,
        exclude_if=lambda batch: batch is None,
        description=(
            "AWS Batch queue through which training jobs are submitted"
            " (nodesweep/launch/sagemaker/README.md). Null: they go to SageMaker directly."
        ),
    )
    endpoint_url: Annotated[str | None, NOT_MEASURED] = Field(
        default=None,
        pattern=r"^https?://",
        description=(
            "Endpoint for every AWS call, http(s)://HOST[:PORT]; set it to use a local"
            " platform. Null: AWS."
        ),
    )
    credentials: Annotated[Literal["chain", "platform"], NOT_MEASURED] = Field(
        default="chain",
        description=(
            "chain: boto3's default credential chain; platform: the key in state_directory,"
            " which the local platform at endpoint_url must prove that it holds."
        ),
    )
    calls_per_second: Annotated[float | None, NOT_MEASURED] = Field(
        default=1.0,
        ge=0.1,
        description=(
            "Maximum rate of SageMaker and CloudWatch Logs calls per run, after a burst of"
            " 20; at least 0.1. Lower it if consoles or pipelines in the account are"
            " throttled; null (no limit) is for a local platform."
        ),
    )
    create_missing: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        description=(
            "Create the bucket and the ECR repository if they are missing. Leave false if"
            " CloudFormation owns them."
        ),
    )
    autostart: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        description=(
            "Use the local platform of state_directory and start it if it is not running, at"
            " endpoint_url or on a free port if that one is taken. A platform started this way"
            " stops after the last run that uses it."
        ),
    )
    state_directory: Annotated[LocalDirectory, NOT_MEASURED] = Field(
        default=STATE_DIRECTORY,
        description=(
            "State folder of the local platform, which holds its key; relative to the working"
            " directory."
        ),
    )

    def problems(self, config: BenchmarkConfig) -> tuple[str, ...]:
        """Return a message per setting that the launcher does not support.

        A Batch queue supports no warm pool, and no Batch timeout below the maximum runtime.
        """
        found: list[str] = []
        if self.batch is None:
            return ()
        training, seconds = config.training, self.batch.attempt_timeout_seconds
        if training.keep_alive_seconds is not None:
            found.append(
                "training.keep_alive_seconds: a Batch queue decides which job runs next, so kept"
                " nodes could be billed while other jobs run; leave out keep_alive_seconds or"
                " platform.batch"
            )
        if seconds is not None and seconds < training.max_runtime_seconds:
            found.append(
                f"platform.batch.attempt_timeout_seconds: {seconds}, but"
                f" training.max_runtime_seconds lets a job run for {training.max_runtime_seconds},"
                " so Batch could stop a job that is within its limit; leave it out, or set it to"
                " max_runtime_seconds plus the time that a job takes to start"
            )
        return tuple(found)

    @property
    def unattended_problem(self) -> str | None:
        """Reason why a submitted sweep must not run unattended (--detach); None if it may."""
        if self.batch is None:
            return None
        return (
            "platform.batch: jobs may wait in the queue for days, and with --detach nothing would"
            " enforce sweep.queue_deadline_seconds; leave out platform.batch, or run without"
            " --detach"
        )

    def with_jobs_of(self, recorded: Mapping[str, Any]) -> Self:
        """Return this section with what is recorded for a sweep and identifies its jobs.

        That is the Batch queue that they were sent to, even if the config has changed.
        """
        if "batch" not in type(self).model_fields:
            return self
        batch = recorded.get("batch")
        found = None if batch is None else BatchConfig.model_validate(batch)
        return self.model_copy(update={"batch": found})

    def own_node_type(self, name: str) -> InstanceType | None:
        """Return the facts of the platform's own node type; None if the catalogue has them."""
        return None

    @property
    def shared_folder(self) -> str | None:
        """The folder on this machine that holds code and results; None if they are in a bucket."""
        return None

    @property
    def account_id(self) -> str:
        """The ID of the account that the jobs run in."""
        return self.role_arn.split(":")[4]

    @field_validator("endpoint_url", check_fields=False)  # a subclass may have no such field
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and (problem := url_problem(value)):
            raise ValueError(
                f"{problem}; expected http(s)://HOST[:PORT], e.g. http://127.0.0.1:4570"
            )
        return value

    @model_validator(mode="after")
    def _check_local_endpoint(self) -> Self:
        if self.endpoint_url is None and self.credentials == "platform":
            raise ValueError("credentials: 'platform' needs an endpoint_url; for AWS use 'chain'")
        if self.autostart and not is_loopback_with_port(self.endpoint_url):
            raise ValueError(
                "autostart needs an endpoint_url on loopback with its port"
                f" (http://127.0.0.1:PORT), got {self.endpoint_url!r}"
            )
        return self


class PlatformWithoutAws(PlatformConfig):
    """A platform without an AWS account, whose settings are constants instead of fields."""

    region: ClassVar[str] = OWN_REGION  # type: ignore[misc]
    bucket: ClassVar[str] = ""  # type: ignore[misc]
    prefix: ClassVar[str] = "nodesweep"  # type: ignore[misc]
    role_arn: ClassVar[str] = "::::"  # type: ignore[misc]
    batch: ClassVar[None] = None  # type: ignore[misc]
    endpoint_url: ClassVar[str | None] = None  # type: ignore[misc]
    credentials: ClassVar[Literal["chain", "platform"]] = "chain"  # type: ignore[misc]
    calls_per_second: ClassVar[float | None] = None  # type: ignore[misc]
    create_missing: ClassVar[bool] = False  # type: ignore[misc]
    autostart: ClassVar[bool] = False  # type: ignore[misc]
    state_directory: ClassVar[str] = STATE_DIRECTORY  # type: ignore[misc]
