"""`nodesweep report --csv` and `--runs`: a report of times measured elsewhere, without Prefect."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nodesweep.configs.catalogue import UnknownInstanceType, load_catalogue
from nodesweep.configs.models import ParityConfig, ReportConfig
from nodesweep.configs.price_list import at_list_price
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price, price_of, unknown_price
from nodesweep.scaling.measured.columns import BadCell, text
from nodesweep.scaling.measured.runs import (
    MeasuredRunsError,
    RunFiles,
    nodes_in_name,
    read_runs,
)
from nodesweep.scaling.measured.table import MeasuredTableError, read_measured
from nodesweep.scaling.measured.text import HEAD_BYTES, MAX_TABLE_BYTES, refuse_other_files
from nodesweep.scaling.outcome.metrics_file import (
    BUDGET_FILE,
    MAX_BUDGET_BYTES,
    MAX_BUDGET_FILES,
    MAX_METRICS_BYTES,
)
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.tasks.sweeps.folder import write_files

if TYPE_CHECKING:
    from nodesweep.scaling.report import ScalingReport

_MOST_RUNS, _MOST_FOLDERS, _MOST_DEPTH = 1_000, 100_000, 6
"""Limits for a folder of runs, because its files are held in memory."""
_DIGITS = re.compile(r"\d+")
_REPEAT = re.compile(r"(?<![a-z])r(?:ep(?:eat)?|un)?[-_=]?\d+", re.I)
"""A repeat in a folder's name, such as r2 in n4-r2; folders in it belong to the same run."""


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
    outcomes = read_measured_file(table, goal)
    rules = rules or ReportConfig()
    price = _table_price(outcomes, region)
    source = {"source": _printable(table.name)}
    if units_confirmed:
        source["units"] = "confirmed (--confirm-units)"
    return _write(name, directory, outcomes, price, source, rules, goal, MeasuredTableError)


def report_runs(
    folder: Path,
    directory: Path,
    rules: ReportConfig | None = None,
    goal: Literal["maximize", "minimize"] | None = None,
) -> tuple[ScalingReport, Path]:
    """Write the report on a folder of runs to a folder named after it.

    Args:
        folder: The folder, with one folder per run below it.
        directory: Reports directory.
        rules: Limits and criteria that the report applies.
        goal: Direction in which the final metric is better, for runs whose file does not state it.

    Returns:
        The report and its folder.

    Raises:
        MeasuredRunsError: The runs cannot be read or are invalid.
    """
    outcomes = read_runs(find_runs(folder), goal)
    name = names.report_folder_name(folder.resolve().name)
    price = unknown_price(None, "the runs have no instance type")
    rules, source = rules or ReportConfig(), {"source": _printable(folder.resolve().name)}
    return _write(name, directory, outcomes, price, source, rules, goal, MeasuredRunsError)


def _write(
    name: str,
    directory: Path,
    outcomes: Sequence[JobOutcome],
    price: Price,
    source: dict[str, Any],
    rules: ReportConfig,
    goal: str | None,
    refusal: type[MeasuredTableError],
) -> tuple[ScalingReport, Path]:
    # imported late, so that invalid input is rejected quickly
    from nodesweep.scaling.analysis.sources import choose_train_clock
    from nodesweep.scaling.report import analyse
    from nodesweep.scaling.report.render import render_files

    judged = goal is not None or rules.parity != ParityConfig()
    if judged and all(outcome.final_metric is None for outcome in outcomes):
        raise refusal("final_metric: no run has one, so a goal or tolerance cannot be applied")
    goals = rules.recommendation
    if choose_train_clock(outcomes) == "throughput" and (
        goals.deadline_seconds is not None or goals.hour_value_usd is not None
    ):
        against = "deadline" if goals.hour_value_usd is None else "value of an hour"
        raise refusal(
            f"samples_per_second: a rate cannot be compared with a {against}; give "
            "train_seconds instead"
        )
    limits = goals.model_dump(exclude_defaults=True)  # for predictions from the report
    source = source | ({"limits": limits} if limits else {})
    now = datetime.now(UTC)
    report = analyse(
        name, None, None, outcomes, price, source, now, rules, units_confirmed="units" in source
    )
    return report, write_files(directory, name, render_files(report))


def find_runs(folder: Path) -> list[RunFiles]:
    """Read the files of every run below a folder.

    A run is a folder with a metrics.json. A folder with files that neither contains a run nor is
    inside one is a failed run if its name gives a node count, or if its path differs from a run's
    only in digits, such as n4/r4 next to n4/r1. Outside of runs, links to other places and folders
    that are too deep are errors, because they might hide runs.

    Raises:
        MeasuredRunsError: A file or folder is unreadable or too large, or there is no run.
    """
    problems: list[str] = []
    done: dict[str, RunFiles] = {}
    held: dict[str, Sequence[str]] = {}
    inside = os.path.realpath(folder)

    def refuse(error: OSError) -> None:
        where = _printable(str(error.filename or folder))
        problems.append(f"{where}: cannot be read: {error.strerror}")

    for seen, (root, folders, files) in enumerate(os.walk(folder, onerror=refuse)):
        place = os.path.relpath(root, folder)
        if seen > _MOST_FOLDERS or len(done) > _MOST_RUNS:
            raise MeasuredRunsError(
                f"{_printable(str(folder))}: more than {_MOST_RUNS:,} runs or {_MOST_FOLDERS:,} "
                "folders; give a folder that has only the runs of one program"
            )
        folders.sort()
        is_deep = place.count(os.sep) + 1 >= _MOST_DEPTH
        if names.METRICS_FILE not in files and not _is_in_run(place, done):
            if is_deep and folders:
                problems.append(
                    f"{_printable(place)}: has folders more than {_MOST_DEPTH} levels deep, which "
                    "are not read; give a folder closer to the runs"
                )
            problems += [
                f"{_printable(os.path.normpath(os.path.join(place, name)))}: a link to a folder; "
                "copy it, or give the folder it points to"
                for name in folders
                if os.path.islink(path := os.path.join(root, name))
                and not Path(os.path.realpath(path)).is_relative_to(inside)
            ]
        if is_deep:
            folders.clear()
        if names.METRICS_FILE in files:
            try:
                done[place] = _read_run(root, place, files)
            except OSError as error:
                refuse(error)
            except MeasuredRunsError as error:
                problems += error.problems
        elif files:
            held[place] = files
    try:
        _join_ranks(folder, held, done)
    except OSError as error:
        refuse(error)
    if problems:
        raise MeasuredRunsError(*problems)
    if not done:
        raise MeasuredRunsError(
            f"{_printable(str(folder))}: no folder in it has a {names.METRICS_FILE}; have each run "
            "write its own, such as n4-r1/metrics.json (4 nodes, repeat 1); Ray Train's runs must "
            "call nodesweep_measure.write() (docs/measured-tables.md)"
        )
    for place in sorted(_failed([*held], {*done})):
        done[place] = RunFiles(_printable(place), None)
    return [*done.values()]


def _join_ranks(folder: Path, held: dict[str, Sequence[str]], done: dict[str, RunFiles]) -> None:
    """Move the ranks of folders without a metrics.json to the run that they are a part of.

    A rank that the run already has is one of another run, which failed.
    """
    names_of_ranks: dict[str, set[str]] = {}
    for place, files in [*held.items()]:
        ranks = {name for name in files if BUDGET_FILE.fullmatch(name)}
        runs = [run for run in done if _is_part(place, run)] if ranks else []
        if len(runs) != 1:
            continue
        [run] = runs
        known = names_of_ranks.setdefault(run, {*os.listdir(folder / run)})
        if known.isdisjoint(ranks):
            known |= ranks
            budgets = [*done[run].budgets, *_read_budgets(folder / place, ranks)]
            done[run] = done[run]._replace(budgets=budgets[:MAX_BUDGET_FILES])
            del held[place]


def _is_part(place: str, run: str) -> bool:
    """Return True if a folder is within a run's or next to it, as one pod's is to another's.

    n2-r1/pod-1 is a part of n2-r1 or n2-r1/pod-0, and pod-1/n2-r1 of pod-0/n2-r1.
    """
    if _is_in_run(place, [run]):
        return True
    own, other = Path(place).parts, Path(run).parts
    differ = [at for at, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]]
    if len(own) != len(other) or len(differ) != 1:
        return False
    [at] = differ
    is_named = any(nodes_in_name(name) or _REPEAT.search(name) for name in (own[at], other[at]))
    return not is_named or _names_run(own[:at])


def _names_run(parts: Sequence[str]) -> bool:
    """Return True if a path has a node count and, in the same or a later folder, a repeat."""
    counts = [at for at, name in enumerate(parts) if nodes_in_name(name)]
    return bool(counts) and any(map(_REPEAT.search, parts[counts[0] :]))


def _failed(held: Sequence[str], done: Collection[str]) -> set[str]:
    """Return the topmost folders of failed runs, among the folders that hold files."""
    with_runs = {each for place in done for each in _down_to(place)}
    alike = {_DIGITS.sub("#", place) for place in with_runs}
    failed = set()
    for place in held:
        if _is_in_run(place, done):
            continue
        for each in _down_to(place):
            if each in with_runs and _names_run(Path(each).parts):
                break
            named = nodes_in_name(os.path.basename(each))
            if each not in with_runs and (
                named or (nodes_in_name(each) and _DIGITS.sub("#", each) in alike)
            ):
                failed.add(each)
                break
    return failed


def _down_to(place: str) -> list[str]:
    """Return a path's parents and the path itself, topmost first: a, a/b, a/b/c."""
    parts = Path(place).parts
    return [os.path.join(*parts[:end]) for end in range(1, len(parts) + 1)]


def _is_in_run(place: str, runs: Collection[str]) -> bool:
    return "." in runs or any(each in runs for each in _down_to(place))


def _read_run(root: str, place: str, files: Sequence[str]) -> RunFiles:
    file, shown = Path(root, names.METRICS_FILE), f"{_printable(place)}/{names.METRICS_FILE}"
    if not file.is_file():  # reading a pipe would block forever
        raise MeasuredRunsError(f"{shown}: not a regular file, or a broken link")
    with file.open("rb") as stream:
        metrics = stream.read(MAX_METRICS_BYTES + 1)
    if len(metrics) > MAX_METRICS_BYTES:
        raise MeasuredRunsError(
            f"{shown}: more than {MAX_METRICS_BYTES // 2**20} MiB; nodesweep_clock.py writes "
            "kilobytes"
        )
    return RunFiles(_printable(place), metrics, _read_budgets(Path(root), files))


def _read_budgets(folder: Path, files: Iterable[str]) -> list[bytes]:
    paths = (folder / name for name in sorted(files) if BUDGET_FILE.fullmatch(name))
    return [
        path.read_bytes()
        for path in paths
        if path.is_file() and path.stat().st_size <= MAX_BUDGET_BYTES
    ][:MAX_BUDGET_FILES]


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
    """Return the newest known price of the table's nodes, or the reason there is none."""
    instance_type = next(
        (outcome.instance_type for outcome in outcomes if outcome.instance_type), None
    )
    own_region = next((outcome.region for outcome in outcomes if outcome.region), None)
    if own_region is not None and region not in (None, own_region):
        raise MeasuredTableError(
            f"region: the table has {own_region}, but --region is {region}; give only one of them"
        )
    if instance_type is None:
        return unknown_price(None, "the table has no instance_type")
    region = own_region or region
    if region is None:
        return unknown_price(instance_type, "the table has no region, and none was given")
    try:
        return price_of(at_list_price(load_catalogue().get(instance_type), region), region)
    except UnknownInstanceType:
        return unknown_price(instance_type, "it is not in the catalogue")


def _printable(text: str) -> str:
    """Return a file name with a question mark instead of each unprintable character."""
    return "".join(character if character.isprintable() else "?" for character in text)
