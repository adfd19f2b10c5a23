"""The config's `dataset` section: the training data, and the checks it must pass."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nodesweep.configs.job import ChannelName, InputMode
from nodesweep.configs.locations import DatasetSource
from nodesweep.configs.section import NOT_MEASURED, Section, Slug, is_finite
from nodesweep.configs.validation import ValidationConfig

SUFFIXES = {"parquet": (".parquet", ".pq"), "csv": (".csv", ".csv.gz")}
"""File name suffixes of each table format; the shipped program reads the same ones."""


class ExpectationConfig(Section):
    """A Great Expectations expectation, spelled as in that library."""

    type: str = Field(
        description=(
            "A built-in expectation, e.g. expect_column_values_to_be_between; unknown names"
            " are rejected."
        )
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the expectation, as in its Great Expectations documentation.",
    )
    severity: Literal["critical", "warning", "info"] = Field(
        default="critical",
        description=(
            "critical: a failure stops the run; warning and info: it is reported and the run"
            " continues."
        ),
    )

    @field_validator("kwargs")
    @classmethod
    def _reject_non_finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not is_finite(value):
            raise ValueError("contains .inf or .nan; omit the argument if there is no bound")
        return value


class DatasetConfig(Section):
    """The training data, and the checks it must pass before anything is spent."""

    name: Slug = Field(
        description=(
            "Short name, part of the S3 prefix, at most 20 characters. Change it when you"
            " change the dataset."
        )
    )
    source: DatasetSource = Field(
        description="Directory with the files, relative to the config file, or an s3://bucket/prefix."
    )
    format: Literal["parquet", "csv", "files"] = Field(
        description=(
            "parquet or csv: tables, that is, every non-hidden *.parquet and *.pq, or *.csv"
            " and *.csv.gz, under source; files: every file, unchecked."
        )
    )
    follow_links_outside: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        # Omitted when false, so that the records of sweeps without it stay unchanged.
        exclude_if=lambda follows: not follows,
        description=(
            "true: follow symbolic links that leave a local source, as git-annex, DVC and the"
            " Hugging Face cache create them; false: reject such a link by name."
        ),
    )
    channel: ChannelName | None = Field(
        default="training",
        description=(
            "SageMaker input channel, which your script sees as SM_CHANNEL_<NAME>. Null, for"
            " format files: each folder directly under source becomes a channel of the same"
            " name."
        ),
    )
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = Field(
        default="FullyReplicated",
        description=(
            "FullyReplicated: every node gets all files; ShardedByS3Key: each node gets its share."
        ),
    )
    input_mode: InputMode = Field(
        default="File",
        description=(
            "File: copied to every node before training; FastFile: read on demand, for"
            " datasets too large to copy; Pipe: streamed, which your script must support."
        ),
    )
    expectations: tuple[ExpectationConfig, ...] = Field(
        default=(),
        description=(
            "Expectations checked on every table. Formats parquet and csv need at least one,"
            " because an empty suite always succeeds; format files takes none."
        ),
    )
    min_rows: int | None = Field(
        default=None, ge=1, description="Minimum number of rows over all files. Null: not checked."
    )
    max_rows: int | None = Field(
        default=None, ge=1, description="Maximum number of rows over all files. Null: not checked."
    )
    unique_columns: tuple[str, ...] = Field(
        default=(),
        description=(
            "Columns whose combined values must be unique over all files. Empty: not checked."
        ),
    )
    max_age_days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description=(
            "Maximum age of the newest file, in days since it was modified, up to 36,500."
            " Null: not checked."
        ),
    )
    validation: Annotated[ValidationConfig | None, NOT_MEASURED] = Field(
        default=None,
        # Omitted when null, so that the records of sweeps without it stay unchanged.
        exclude_if=lambda validation: validation is None,
        description=(
            "Engine that checks the data. Set it to check a large S3 dataset on Spark; null:"
            " always on the machine that runs the flow."
        ),
    )

    @model_validator(mode="after")
    def _check_row_limits(self) -> Self:
        if (
            self.min_rows is not None
            and self.max_rows is not None
            and self.min_rows > self.max_rows
        ):
            raise ValueError(
                f"min_rows is {self.min_rows} and max_rows is {self.max_rows}:"
                " no dataset can satisfy both; lower min_rows or raise max_rows"
            )
        return self

    @model_validator(mode="after")
    def _check_spark_source(self) -> Self:
        if self.validation is None or self.validation.engine != "spark":
            return self
        if not self.is_remote:
            raise ValueError(
                f"validation.engine is spark, but source is {self.source!r}: Spark reads data from"
                " S3; upload it and set its address (source: s3://BUCKET/PREFIX), or use"
                " engine: pandas"
            )
        if not self.is_table:
            raise ValueError(
                f"validation.engine is spark, but with format: {self.format}, nothing is read;"
                " leave out validation, or use format: parquet or csv"
            )
        return self

    def is_data(self, name: str) -> bool:
        """Return True if the name belongs to the dataset, hidden or not."""
        return not self.is_table or name.endswith(self.suffixes)

    @property
    def may_use_spark(self) -> bool:
        """True if a Processing job checks the data, always or above a certain size."""
        return (
            self.validation is not None
            and self.validation.engine != "pandas"
            and self.is_remote
            and self.is_table
        )

    @property
    def is_remote(self) -> bool:
        """True if the source is in S3."""
        return self.source.startswith("s3://")

    @property
    def is_table(self) -> bool:
        """True if the files are tables, which can be read and checked."""
        return self.format != "files"

    @property
    def pattern(self) -> str:
        """The glob patterns of the dataset's files under source, joined by "or"."""
        return " or ".join(f"*{suffix}" for suffix in self.suffixes) or "*"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name suffixes of the dataset's tables; empty for format files."""
        return SUFFIXES.get(self.format, ())

    @model_validator(mode="after")
    def _check_format_supports_checks(self) -> Self:
        if self.is_table:
            if not self.expectations:
                raise ValueError(
                    f"expectations: none given, but tables ({self.format}) must be"
                    " checked; add at least one, or use format: files"
                )
            if self.channel is None:
                raise ValueError(
                    "channel: null, which turns each folder into a channel, requires format: files;"
                    f" format is {self.format}, so give the channel a name"
                )
            return self
        given = [
            name
            for name in ("expectations", "min_rows", "max_rows", "unique_columns")
            if getattr(self, name)
        ]
        if given:
            raise ValueError(
                f"{', '.join(given)}: with format: files, nothing is read, so rows can't be"
                f" checked; leave out {', '.join(given)}, or use format: parquet or csv"
            )
        return self
