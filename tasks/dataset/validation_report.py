"""The report of a validation, and the errors raised for an invalid dataset.

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
"""Maximum problems in ValidationFailed's message; one wrong column can affect a thousand files."""


class InvalidExpectations(DatasetRefused):
    """One or more expectations are unusable; the message lists each with the reason."""


class NoFiles(DatasetRefused):
    """There are no files to check."""


class ValidationFailed(DatasetRefused):
    """The data violates at least one critical expectation; `report` holds all details."""

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
    """A violated expectation, in one file or across all files."""

    expectation: str = Field(
        description="Type of the expectation, or the config field of a check over all files."
    )
    index: int | None = Field(
        default=None, description="Position in the suite; null for a check that isn't in it."
    )
    column: str | None = Field(
        description="Column, or several separated by commas; null for the whole table."
    )
    severity: Literal["critical", "warning", "info"] = Field(
        description="critical blocks the run; warning and info are only shown."
    )
    file: str | None = Field(description="File name; null for a check over all files.")
    unexpected_count: int | None = Field(
        default=None, description="Rows that violate it; null if it isn't checked per row."
    )
    unexpected_percent: float | None = Field(
        default=None, description="The same as a percentage of the file's rows."
    )
    examples: tuple[bool | int | float | str | None, ...] = Field(
        default=(),
        max_length=MAX_EXAMPLES,
        description="Some of the offending values, without duplicates.",
    )
    message: str = Field(description="The failure in a sentence.")


class FileReport(_Result):
    """The findings in one file."""

    file: str
    rows: int | None = Field(description="Rows in the file; null if it could not be read.")
    success: bool = Field(description="True if nothing critical failed.")
    expectations: int = Field(description="Expectations evaluated.")
    failures: tuple[Failure, ...]


class ValidationReport(_Result):
    """The findings in the whole dataset."""

    dataset: str
    validated_at: datetime
    suite: tuple[ExpectationConfig, ...] = Field(description="Expectations checked on every file.")
    success: bool = Field(description="True if nothing critical failed in or across files.")
    rows: int = Field(description="Rows in the files that could be read.")
    files: tuple[FileReport, ...]
    dataset_failures: tuple[Failure, ...] = Field(
        description="Failures of checks over all files together."
    )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All failures, starting with those of checks across files."""
        return self.dataset_failures + tuple(
            failure for file in self.files for failure in file.failures
        )

    @property
    def problems(self) -> tuple[Failure, ...]:
        """The critical failures, which stop the run."""
        return tuple(failure for failure in self.failures if failure.severity == "critical")

    @property
    def warnings(self) -> tuple[Failure, ...]:
        """The failures that don't stop the run."""
        return tuple(failure for failure in self.failures if failure.severity != "critical")

    def raise_if_failed(self) -> None:
        """Raise ValidationFailed unless the data is valid.

        Raises:
            ValidationFailed: the data violates a critical expectation; the message lists every
                problem.
        """
        if not self.success:
            raise ValidationFailed(self)
