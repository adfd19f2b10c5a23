"""A validation's report, and the errors that end a run because of its data.

DatasetRefused (nodesweep/errors.py)
├── InvalidExpectations  the suite is unusable: unknown type, wrong arguments, or empty
├── NoFiles              there is nothing to check
└── ValidationFailed     the data violates an expectation; the message lists every problem
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.errors import DatasetRefused
from nodesweep.scaling.formats import pluralize
from nodesweep.tasks.dataset.validation_messages import MAX_EXAMPLES

PROBLEMS_SHOWN = 100
"""Maximum lines in ValidationFailed's message: one wrong column may affect a thousand files."""


class InvalidExpectations(DatasetRefused):
    """The expectations are unusable; the message lists each one and why."""


class NoFiles(DatasetRefused):
    """There are no files to check."""


class ValidationFailed(DatasetRefused):
    """The data violates at least one critical expectation; `report` has all details."""

    def __init__(self, report: ValidationReport) -> None:
        self.report = report
        shown = [failure.message for failure in report.problems[:PROBLEMS_SHOWN]]
        if hidden := len(report.problems) - len(shown):
            shown.append(f"and {hidden} more, in the Data Docs")
        problems = "\n".join(f"  - {message}" for message in shown)
        super().__init__(
            f"dataset {report.dataset!r} violates {pluralize(len(report.problems), 'expectation')} "
            f"({pluralize(len(report.files), 'file')}, {pluralize(report.rows, 'row')}):\n"
            f"{problems}"
        )


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Failure(_Result):
    """One violated expectation, in one file or over all of them."""

    expectation: str = Field(
        description="Type of the expectation, or the config field of a check over all files."
    )
    index: int | None = Field(
        default=None, description="Position in the suite; null for a check that isn't in it."
    )
    column: str | None = Field(
        description="Column, several joined by a comma, or null for a whole table."
    )
    severity: Literal["critical", "warning", "info"] = Field(
        description="critical blocks the run; warning and info are only shown."
    )
    file: str | None = Field(description="File name; null for a check over all files.")
    unexpected_count: int | None = Field(
        default=None, description="Rows that violate it; null if the check is not per row."
    )
    unexpected_percent: float | None = Field(
        default=None, description="The same as a percentage of the file's rows."
    )
    examples: tuple[bool | int | float | str | None, ...] = Field(
        default=(),
        max_length=MAX_EXAMPLES,
        description="Some of the offending values, without repeats.",
    )
    message: str = Field(description="The failure in a sentence.")


class FileReport(_Result):
    """The findings in one file."""

    file: str
    rows: int | None = Field(description="Rows in the file; null if it could not be read.")
    success: bool = Field(description="No critical failure.")
    expectations: int = Field(description="Expectations evaluated.")
    failures: tuple[Failure, ...]


class ValidationReport(_Result):
    """The findings in the whole dataset."""

    dataset: str
    validated_at: datetime
    suite: tuple[ExpectationConfig, ...] = Field(description="Checked on every file.")
    success: bool = Field(description="No critical failure in any file, nor over all of them.")
    rows: int = Field(description="Rows in the files that could be read.")
    files: tuple[FileReport, ...]
    dataset_failures: tuple[Failure, ...] = Field(
        description="Failures of checks over all files together."
    )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every failure of any severity, starting with those over all files."""
        return self.dataset_failures + tuple(
            failure for file in self.files for failure in file.failures
        )

    @property
    def problems(self) -> tuple[Failure, ...]:
        """The failures that end the run."""
        return tuple(failure for failure in self.failures if failure.severity == "critical")

    @property
    def warnings(self) -> tuple[Failure, ...]:
        """The failures that do not end the run."""
        return tuple(failure for failure in self.failures if failure.severity != "critical")

    def raise_if_failed(self) -> None:
        """Raise ValidationFailed unless the data is valid.

        Raises:
            ValidationFailed: the data violates a critical expectation; the message lists every
                problem.
        """
        if not self.success:
            raise ValidationFailed(self)
