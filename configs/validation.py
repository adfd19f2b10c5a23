"""The section `dataset.validation` of a config: which engine checks the data, and on what."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from nodesweep.configs.locations import BuildArguments, ImageReference
from nodesweep.configs.section import Section

SPARK_CONTEXT = Path(__file__).resolve().parents[1] / "infra" / "image_spark"
"""Build context of the Spark image, in the repository as in the installed package."""
SPARK_FROM_BYTES = 50_000_000_000
"""From this size on `engine: auto` takes Spark. One machine reads S3 at about 100 MB/s, so that 50
GB take it 8 minutes; a Processing job takes about as long to get its instances, pull its image and
start Spark before it reads a byte. Below, Spark only costs more.
"""


class SparkImageConfig(Section):
    """The image of the Processing job: AWS's Spark image, with Great Expectations added."""

    uri: ImageReference | None = Field(
        default=None,
        description=(
            "Full URI of an image that already exists, made of infra/image_spark; set, nothing is"
            " built. Pin it by digest (…@sha256:…)."
        ),
    )
    base_image: ImageReference | None = Field(
        default=None,
        description=(
            "AWS's Spark image, sagemaker-spark-processing of any region; null: that of the"
            " Dockerfile in infra/image_spark, in us-east-1."
        ),
    )
    build_args: BuildArguments = Field(
        default_factory=dict,
        repr=False,
        description=(
            "Further build arguments. On the local platform REQUIREMENTS:"
            " requirements-emulated.txt, which brings Spark where AWS's image can't be had."
        ),
    )


class ValidationConfig(Section):
    """Where the dataset is checked: on the machine of the flow, or on Spark beside the data."""

    engine: Literal["auto", "pandas", "spark"] = Field(
        default="auto",
        description=(
            "pandas: the machine that runs the flow; spark: one SageMaker Processing job, for an"
            " s3:// source of format parquet or csv; auto: spark for such a source from"
            " spark_from_bytes on, else pandas."
        ),
    )
    spark_from_bytes: int = Field(
        default=SPARK_FROM_BYTES,
        ge=1,
        description=(
            "Size of the dataset from which on auto takes spark. The default is about what one"
            " machine reads while a Processing job starts."
        ),
    )
    instance_type: str = Field(
        default="ml.m5.4xlarge", description="SageMaker instance type of the Processing job."
    )
    instance_count: int = Field(
        default=2, ge=1, le=100, description="Instances of the Processing job."
    )
    max_runtime_seconds: int = Field(
        default=3600,
        ge=60,
        le=777_600,
        description="The Processing job is stopped after this time. 60 s to 9 days.",
    )
    volume_size_gb: int = Field(
        default=100,
        ge=1,
        le=16_384,
        description=(
            "Disk of each instance, GB: for the image and for what Spark sorts; data is read where"
            " it lies."
        ),
    )
    image: SparkImageConfig = Field(
        default_factory=SparkImageConfig,
        description="The image of the Processing job, built as the training image is.",
    )
