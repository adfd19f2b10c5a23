"""The section `platform` of a config: the launcher that runs the jobs, and its account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

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


class PlatformConfig(Section):
    """The AWS account, or the local platform, that every call goes to.

    It is also the base of the sections of other launchers.
    """

    fixed_image: ClassVar[str | None] = None
    """Value of image.uri if the jobs need no image of nodesweep's; None: `image` chooses one."""

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
            " which the local platform at endpoint_url must prove it holds."
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
            " endpoint_url or on a free port if that one is taken; stop it afterwards."
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
        """Return a message per setting that the launcher lacks; SageMaker has them all."""
        return ()

    def own_node_type(self, name: str) -> InstanceType | None:
        """Return the facts of one of the platform's own nodes; None: the catalogue has them."""
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
            raise ValueError("credentials 'platform' needs an endpoint_url; for AWS use 'chain'")
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
    endpoint_url: ClassVar[str | None] = None  # type: ignore[misc]
    credentials: ClassVar[Literal["chain", "platform"]] = "chain"  # type: ignore[misc]
    calls_per_second: ClassVar[float | None] = None  # type: ignore[misc]
    create_missing: ClassVar[bool] = False  # type: ignore[misc]
    autostart: ClassVar[bool] = False  # type: ignore[misc]
    state_directory: ClassVar[str] = STATE_DIRECTORY  # type: ignore[misc]
