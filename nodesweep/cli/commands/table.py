"""`nodesweep report --csv`: the report of a table of measured times, without Prefect."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nodesweep.configs.catalogue import UnknownInstanceType, load_catalogue
from nodesweep.configs.models import ParityConfig, ReportConfig
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price, price_of, unknown_price
from nodesweep.scaling.measured.columns import BadCell, text
from nodesweep.scaling.measured.table import MeasuredTableError, read_measured
from nodesweep.scaling.measured.text import HEAD_BYTES, MAX_TABLE_BYTES, refuse_other_files
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.tasks.sweeps.folder import write_files

if TYPE_CHECKING:
    from nodesweep.scaling.report import ScalingReport


def report_table(
    table: Path,
    directory: Path,
    region: str | None = None,
    rules: ReportConfig | None = None,
    goal: Literal["maximize", "minimize"] | None = None,
    units_confirmed: bool = False,
) -> tuple[ScalingReport, Path]:
    """Write the report on a CSV of measured times to a folder named after the file.

    Nodes of a catalogued instance type get a price if the region is known.

    Args:
        table: The CSV file.
        directory: Reports directory.
        region: Region for prices, if the table names none.
        rules: Limits and criteria that the report applies.
        goal: Direction in which the final metric is better; without it, any difference from the
            baseline counts as worse.
        units_confirmed: True if all times are in seconds, however they differ.

    Returns:
        The report and its folder.

    Raises:
        MeasuredTableError: The table cannot be read or is invalid.
    """
    name, region = names.report_folder_name(table.stem), _readable_region(region)
    report = _analyse(name, table, region, rules or ReportConfig(), goal, units_confirmed)
    # imported late, so that invalid tables are rejected quickly
    from nodesweep.scaling.report.render import render_files

    return report, write_files(directory, name, render_files(report))


def _analyse(
    name: str,
    table: Path,
    region: str | None,
    rules: ReportConfig,
    goal: str | None,
    units_confirmed: bool,
) -> ScalingReport:
    from nodesweep.scaling.analysis.sources import choose_train_clock
    from nodesweep.scaling.report import analyse

    outcomes = read_measured_file(table, goal)
    judged = goal is not None or rules.parity != ParityConfig()
    if judged and all(outcome.metrics is None for outcome in outcomes):
        raise MeasuredTableError(
            "final_metric: the table has none, so there is nothing for a goal or tolerance to judge"
        )
    price = _table_price(outcomes, region)
    goals = rules.recommendation
    if choose_train_clock(outcomes) == "throughput" and (
        goals.deadline_seconds is not None or goals.hour_value_usd is not None
    ):
        against = "deadline" if goals.hour_value_usd is None else "value of an hour"
        raise MeasuredTableError(
            f"samples_per_second: a rate cannot be compared with a {against}; give "
            "train_seconds instead"
        )
    source = {"source": _printable(table.name)}
    if units_confirmed:
        source["units"] = "confirmed (--confirm-units)"
    return analyse(
        name,
        None,
        None,
        outcomes,
        price,
        source,
        datetime.now(UTC),
        rules,
        units_confirmed=units_confirmed,
    )


def read_measured_file(table: Path, goal: str | None = None) -> list[JobOutcome]:
    """Read a CSV of measured times; reject other file types by their first bytes.

    Raises:
        MeasuredTableError: The file is unreadable, of a different type, or invalid.
    """
    try:
        with table.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            refuse_other_files(head)
            body = head + stream.read(MAX_TABLE_BYTES + 1 - len(head))
    except OSError as error:
        raise MeasuredTableError(
            f"{_printable(str(table))}: cannot be read: {error.strerror}"
        ) from None
    return read_measured(body, goal, _printable(str(table)))


def _readable_region(region: str | None) -> str | None:
    """Return the region, checked like a cell of the table, since reports show it."""
    try:
        return None if region is None else text(region)
    except BadCell as error:
        raise MeasuredTableError(f"--region: {error}") from None


def _table_price(outcomes: Sequence[JobOutcome], region: str | None) -> Price:
    """Return the catalogue price of the table's nodes, or the reason there is none."""
    instance_type = next(
        (outcome.instance_type for outcome in outcomes if outcome.instance_type), None
    )
    given = next((outcome.region for outcome in outcomes if outcome.region), None)
    if given is not None and region not in (None, given):
        raise MeasuredTableError(
            f"region: the table says {given}, but {region} was requested; give only one of them"
        )
    if instance_type is None:
        return unknown_price(None, "the table has no instance_type")
    region = given or region
    if region is None:
        return unknown_price(instance_type, "the table has no region, and none was given")
    try:
        return price_of(load_catalogue().get(instance_type), region)
    except UnknownInstanceType:
        return unknown_price(instance_type, "it is not in the catalogue")


def _printable(text: str) -> str:
    """Return a file name with a question mark instead of each unprintable character."""
    return "".join(character if character.isprintable() else "?" for character in text)
