"""The config's `dataset.validation` section: the engine that checks the data, and its size."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodesweep.configs.locations import BuildArguments, ImageReference
from nodesweep.configs.section import Section

SPARK_CONTEXT = Path(__file__).resolve().parents[1] / "infra" / "image_spark"
"""Build context of the Spark image, in the repository and in the installed package."""
SPARK_FROM_BYTES = 50_000_000_000
"""Dataset size from which `engine: auto` selects Spark.

One machine reads S3 at about 100 MB/s, so 50 GB take it 8 minutes. A Processing job takes about as
long to get its instances, pull its image and start Spark before it reads a byte. Below that size
Spark only costs more.
"""


class SparkImageConfig(Section):
    """The image of the Processing job: AWS's Spark image plus Great Expectations."""

    uri: ImageReference | None = Field(
        default=None,
        description=(
            "Full URI of an existing image built from infra/image_spark; skips the build. Pin"
            " it by digest (…@sha256:…)."
        ),
    )
    base_image: ImageReference | None = Field(
        default=None,
        description=(
            "AWS's Spark image (sagemaker-spark-processing) in your region. Null: the default"
            " of infra/image_spark/Dockerfile, in us-east-1."
        ),
    )
    build_args: BuildArguments = Field(
        default_factory=dict,
        repr=False,
        description=(
            "Additional Docker build arguments. On the local platform, set REQUIREMENTS:"
            " requirements-emulated.txt to install Spark if AWS's image is unavailable."
        ),
    )


class ValidationConfig(Section):
    """The engine that checks the dataset: the flow's machine, or Spark next to the data."""

    engine: Literal["auto", "pandas", "spark"] = Field(
        default="auto",
        description=(
            "pandas: the machine that runs the flow; spark: one SageMaker Processing job, for"
            " an s3:// source of format parquet or csv; auto: spark for such a source from"
            " spark_from_bytes on, otherwise pandas."
        ),
    )
    spark_from_bytes: int = Field(
        default=SPARK_FROM_BYTES,
        ge=1,
        description=(
            "Dataset size in bytes from which auto selects spark. The default is about what"
            " one machine reads while a Processing job starts."
        ),
    )
    instance_type: str = Field(
        default="ml.m5.4xlarge",
        description=(
            "SageMaker instance type of the Processing job. Choose one with more memory if Spark"
            " runs out of it."
        ),
    )
    instance_count: int = Field(
        default=2,
        ge=1,
        le=100,
        description=(
            "Instances of the Processing job, 1–100. Raise it to check large datasets faster."
        ),
    )
    max_runtime_seconds: int = Field(
        default=3600,
        ge=60,
        le=777_600,
        description=(
            "Stop the Processing job after this many seconds, 60 s – 9 days. It also bounds"
            " the cost."
        ),
    )
    volume_size_gb: int = Field(
        default=100,
        ge=1,
        le=16_384,
        description=(
            "Disk per instance, GB, 1–16,384, for the image and Spark's sort spill; the data"
            " is read from S3."
        ),
    )
    image: SparkImageConfig = Field(
        default_factory=SparkImageConfig,
        description="The image of the Processing job, built in the same way as the training image.",
    )
