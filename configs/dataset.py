"""The section `dataset` of a config: the training data, and what must be true of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from nodesweep.configs.job import ChannelName, InputMode
from nodesweep.configs.locations import DatasetSource
from nodesweep.configs.section import NOT_MEASURED, Section, is_finite
from nodesweep.configs.validation import ValidationConfig

SUFFIXES = {"parquet": (".parquet", ".pq"), "csv": (".csv", ".csv.gz")}
"""How the names of a format's tables end; the shipped program reads the same."""
Slug = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9](-?[a-z0-9])*$", min_length=1, max_length=20)
]


class ExpectationConfig(Section):
    """One Great Expectations expectation, in its own spelling."""

    type: str = Field(
        description=(
            "A built-in expectation, e.g. expect_column_values_to_be_between;"
            " an unknown one is refused."
        )
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="The expectation's own arguments."
    )
    severity: Literal["critical", "warning", "info"] = Field(
        default="critical",
        description="critical stops the run; warning and info are reported and let it go on.",
    )

    @field_validator("kwargs")
    @classmethod
    def _finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not is_finite(value):
            raise ValueError("holds .inf or .nan; leave the argument out where there is no bound")
        return value


class DatasetConfig(Section):
    """The training data and what must be true of it before anything is spent."""

    name: Slug = Field(description="Short name, part of the S3 prefix. Change it with the dataset.")
    source: DatasetSource = Field(
        description=(
            "A directory (relative to the config file) or an s3://bucket/prefix"
            " that holds the files."
        )
    )
    format: Literal["parquet", "csv", "files"] = Field(
        description=(
            "parquet or csv: tables, every *.parquet and *.pq, or *.csv and *.csv.gz, under source"
            " that is not hidden; files: whatever lies there."
        )
    )
    follow_links_outside: Annotated[bool, NOT_MEASURED] = Field(
        default=False,
        # Sweeps without it keep their records as they are.
        exclude_if=lambda follows: not follows,
        description=(
            "true: also follow links that lead out of a local source, as git-annex, DVC and"
            " Hugging Face's cache make them; false: such a link is refused by name."
        ),
    )
    channel: ChannelName | None = Field(
        default="training",
        description=(
            "SageMaker input channel, SM_CHANNEL_<NAME> to the program; what your script expects."
            " null, for format files: each folder directly under source is a channel"
            " of its own name."
        ),
    )
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = Field(
        default="FullyReplicated",
        description="FullyReplicated: every node gets all files; ShardedByS3Key: each its share.",
    )
    input_mode: InputMode = Field(
        default="File",
        description=(
            "File: copied to every node before training; FastFile: files read on demand; Pipe: a"
            " stream, which the program must read as one."
        ),
    )
    expectations: tuple[ExpectationConfig, ...] = Field(
        default=(),
        description=(
            "Checked on every table; at least one, since an empty suite always succeeds."
            " Not for format files."
        ),
    )
    min_rows: int | None = Field(
        default=None, ge=1, description="Fewest rows over all files together; null: not checked."
    )
    max_rows: int | None = Field(
        default=None, ge=1, description="Most rows over all files together; null: not checked."
    )
    unique_columns: tuple[str, ...] = Field(
        default=(),
        description=(
            "Columns whose values, taken together, may occur once over all files."
            " Empty: not checked."
        ),
    )
    max_age_days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description="Oldest allowed modification of the newest file, in days; null: not checked.",
    )
    validation: Annotated[ValidationConfig | None, NOT_MEASURED] = Field(
        default=None,
        # Sweeps without it keep their records as they are.
        exclude_if=lambda validation: validation is None,
        description=(
            "Where the data is checked: null: on the machine that runs the flow, whatever its size."
        ),
    )

    @model_validator(mode="after")
    def _some_count_of_rows_fits(self) -> Self:
        if (
            self.min_rows is not None
            and self.max_rows is not None
            and self.min_rows > self.max_rows
        ):
            raise ValueError(
                f"min_rows is {self.min_rows} and max_rows is {self.max_rows}:"
                " no dataset has such rows"
            )
        return self

    @model_validator(mode="after")
    def _spark_reads_tables_in_s3(self) -> Self:
        if self.validation is None or self.validation.engine != "spark":
            return self
        if not self.is_remote:
            raise ValueError(
                f"validation.engine is spark, and source is {self.source!r}: Spark reads data where"
                " it lies in S3; upload it and name it (source: s3://BUCKET/PREFIX), or use"
                " engine: pandas"
            )
        if not self.is_table:
            raise ValueError(
                f"validation.engine is spark, and format is {self.format}, which is not read; leave"
                " validation out, or use format: parquet or csv"
            )
        return self

    @property
    def may_use_spark(self) -> bool:
        """Whether a Processing job checks the data, or does so where it is large enough."""
        return (
            self.validation is not None
            and self.validation.engine != "pandas"
            and self.is_remote
            and self.is_table
        )

    @property
    def is_remote(self) -> bool:
        return self.source.startswith("s3://")

    @property
    def is_table(self) -> bool:
        """Whether the files are tables, which can be read and checked."""
        return self.format != "files"

    @property
    def pattern(self) -> str:
        """Which names under source are the dataset's, in words."""
        return " or ".join(f"*{suffix}" for suffix in self.suffixes) or "*"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How the names of the dataset's tables end; none where the files are no tables."""
        return SUFFIXES.get(self.format, ())

    @model_validator(mode="after")
    def _checks_fit_the_format(self) -> Self:
        if self.is_table:
            if not self.expectations:
                raise ValueError(
                    f"expectations: there is none, and tables ({self.format}) are not used"
                    " unchecked; add at least one, or use format: files"
                )
            if self.channel is None:
                raise ValueError(
                    "channel: null makes channels of folders, for format files;"
                    f" {self.format} has one"
                )
            return self
        given = [
            name
            for name in ("expectations", "min_rows", "max_rows", "unique_columns")
            if getattr(self, name)
        ]
        if given:
            raise ValueError(
                f"{', '.join(given)}: format files is not read, so its rows can't be checked; leave"
                " them out, or use format: parquet or csv"
            )
        return self
