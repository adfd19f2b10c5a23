"""A table of measured times (CSV) -> JobOutcomes, so that the analysis serves anyone's numbers.

docs/measured-tables.md describes the columns and rules. Comma, semicolon or tab separated; in a semicolon table a comma
is the decimal mark, as spreadsheets with that separator write it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from operator import itemgetter
from typing import Any

from scaling.measured_columns import (
    COLUMNS,
    TEXT_COLUMNS,
    TIME_COLUMNS,
    BadCell,
    Reader,
    Readings,
    header_problems,
    shown,
    with_decimal_comma,
)
from scaling.measured_text import Grid, MeasuredTableError, read_grid
from scaling.outcome import Clocks, JobOutcome, TrainClock

__all__ = ["MeasuredTableError", "read_measured"]
MAX_NODE_COUNTS = 1_000
"""Node counts in one table; each has a row, an interval and a place in every plot of the report."""
_SHOWN = 4
# Columns that JobOutcome has under another name.
_FIELDS = {"cost_usd": "given_cost_usd", "final_metric": "metrics"}
_REASONS = {status: f"given as {status.lower()}" for status in ("Failed", "Stopped")}
# What one curve must share; where a row leaves it empty there is nothing to refuse.
_MUST_AGREE = {"instance_type": "instance types", "region": "regions", "batch_policy": "batch policies"}


def read_measured(table: str | bytes, goal: str | None = None) -> list[JobOutcome]:
    """Read the table; raises MeasuredTableError with every bad row's line number and reason.

    `goal` is that of the final metric, maximize or minimize; None: not known. A rate becomes seconds per sample
    (train_clock `throughput`), so that the median of times and their ratios are right for it too.
    """
    grid = read_grid(table.encode("utf-8", "surrogatepass") if isinstance(table, str) else table)
    problems = [f"line {grid.header_line}: {problem}" for problem in header_problems(grid.header)]
    if not problems:
        outcomes = _outcomes(grid, goal, problems)
    if not problems:
        problems += _table_problems(outcomes)
    if problems:
        raise MeasuredTableError(*problems)
    return outcomes


def _outcomes(grid: Grid, goal: str | None, problems: list[str]) -> list[JobOutcome]:
    """The good rows, read column by column; what is wrong with the others goes to `problems`."""
    readers = _readers(grid, goal)
    rows = list(grid.rows())
    found: list[tuple[int, str]] = []
    try:
        columns = _columns(rows, readers)
    except ValueError:
        found = [(line, problem) for line, cells in rows for problem in _cell_problems(cells, readers)]
        bad_lines = {line for line, _ in found}
        rows = [row for row in rows if row[0] not in bad_lines]
        columns = _columns(rows, readers)
    lines = [line for line, _ in rows]
    if "repeat" not in columns:
        columns["repeat"] = _numbered(columns["nodes"])
    outcomes = _make_outcomes(columns, lines)
    (time_column,) = (name for name in TIME_COLUMNS if name in columns)
    found += _row_problems(outcomes, lines, time_column)
    problems += [f"line {line}: {problem}" for line, problem in sorted(found, key=itemgetter(0))]
    return outcomes


def _columns(rows: Sequence[tuple[int, Sequence[str]]], readers: Sequence[tuple[str, Reader]]) -> dict[str, list[Any]]:
    """The values of each column by its name. Raises ValueError where a row is too long or short, or a cell is bad."""
    if not rows:
        return {name: [] for name, _ in readers}
    cells_of = zip(*(cells for _, cells in rows), strict=True)
    return {
        name: list(map(Readings(read).__getitem__, cells))
        for (name, read), cells in zip(readers, cells_of, strict=True)
    }


def _numbered(node_counts: Iterable[int]) -> list[int]:
    """Each row's number among those of its node count, from 1."""
    rows_at: defaultdict[int, Iterator[int]] = defaultdict(lambda: count(1))
    return [next(rows_at[nodes]) for nodes in node_counts]


def _readers(grid: Grid, goal: str | None) -> list[tuple[str, Reader]]:
    """Each column's reader, in the header's order; where a number has a decimal comma, all numbers are read so."""
    comma_line = _first_decimal_comma(grid) if grid.separator == ";" else None
    readers = [
        (name, COLUMNS[name])
        if comma_line is None or name in TEXT_COLUMNS
        else (name, with_decimal_comma(COLUMNS[name], comma_line))
        for name in grid.header
    ]
    return [(name, _as_metrics(read, goal) if name == "final_metric" else read) for name, read in readers]


def _as_metrics(read: Reader, goal: str | None) -> Reader:
    """The cell as a program's metrics, which rows of the same final metric share."""

    def read_metrics(cell: str) -> dict[str, Any] | None:
        value = read(cell)
        return None if value is None else {"final_metric": {"value": value, "goal": goal}}

    return read_metrics


def _first_decimal_comma(grid: Grid) -> int | None:
    """The line of the first number with a comma, or None."""
    are_numbers = [name not in TEXT_COLUMNS for name in grid.header]
    for line, cells in grid.rows():
        if any("," in cell for cell, is_number in zip(cells, are_numbers, strict=False) if is_number):
            return line
    return None


def _cell_problems(cells: Sequence[str], readers: Sequence[tuple[str, Reader]]) -> list[str]:
    """Why a row can't be read: its number of cells, or each bad one of them."""
    if len(cells) != len(readers):
        return [f"{len(cells)} fields, but the header has {len(readers)}"]
    problems = []
    for (name, read), cell in zip(readers, cells, strict=True):
        try:
            read(cell)
        except BadCell as error:
            problems.append(f"{name} is {shown(cell)}; {error}")
    return problems


def _row_problems(outcomes: Sequence[JobOutcome], lines: Sequence[int], time_column: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of rows whose cells are good each by itself."""
    first_lines: dict[tuple[int, int], int] = {}
    for line, outcome in zip(lines, outcomes, strict=True):
        nodes, repeat, world_size = outcome.nodes, outcome.repeat, outcome.world_size
        first_line = first_lines.setdefault((nodes, repeat), line)
        if first_line != line:
            numbered = "number the repeats, or leave the column out"
            yield line, f"nodes {nodes}, repeat {repeat} stands in line {first_line} already; {numbered}"
        if world_size is not None and world_size < nodes:
            yield line, f"world_size is {world_size}; expected at least one process on each of the {nodes} nodes"
        if outcome.train_clock is None and outcome.completed:
            yield line, f"{time_column} is empty; give the measured value, or a status other than Completed"


def _make_outcomes(columns: Mapping[str, list[Any]], lines: Sequence[int]) -> list[JobOutcome]:
    """One outcome a row, by the columns of the table and what all rows of all tables have in common."""
    rates = columns.get("samples_per_second")
    clock: TrainClock = "measured" if rates is None else "throughput"
    seconds = columns["train_seconds"] if rates is None else [rate and 1 / rate for rate in rates]
    clocks = zip(repeat(None), columns.get("billable_seconds", repeat(None)), seconds, repeat(None))
    fields: dict[str, Iterable[Any]] = {name: repeat(value) for name, value in JobOutcome._field_defaults.items()}
    fields |= {"attempt": repeat(1), "platform_kind": repeat("measured"), "status": repeat("Completed")}
    fields |= {_FIELDS.get(name, name): values for name, values in columns.items()}
    fields |= {
        "job_name": [f"line {line}" for line in lines],
        "reason": map(_REASONS.get, columns.get("status", repeat(None))),
        "clocks": map(Clocks._make, clocks),
        "train_clock": [None if each is None else clock for each in seconds],
    }
    # The columns of the table end, what is repeated does not.
    return list(map(JobOutcome._make, zip(*(fields[name] for name in JobOutcome._fields), strict=False)))


def _table_problems(outcomes: Sequence[JobOutcome]) -> list[str]:
    """What is wrong with the table as a whole, once every row is good."""
    if not outcomes:
        return ["the table has a header but no rows"]
    completed = [outcome for outcome in outcomes if outcome.completed]
    if not completed:
        return [f"no completed row among {len(outcomes)}: nothing to analyse"]
    counts = {outcome.nodes for outcome in outcomes}
    if len(counts) == 1:
        return [f"nothing to compare: all rows have nodes={counts.pop()}; give at least two node counts"]
    if len(counts) > MAX_NODE_COUNTS:
        return [f"nodes: {len(counts):,} different node counts; a table has at most {MAX_NODE_COUNTS:,}"]
    problems = []
    for column, described in _MUST_AGREE.items():
        found = {value for outcome in outcomes if (value := getattr(outcome, column))}
        if len(found) > 1:
            problems.append(f"{column}: {len(found)} different {described} ({_listed(found)}); give each its own table")
    problems += _gaps("batch_policy", [outcome.batch_policy for outcome in outcomes])
    problems += _gaps("cost_usd", [outcome.given_cost_usd for outcome in completed])
    return problems or _batch_problems(outcomes)


def _gaps(column: str, values: Sequence[object]) -> list[str]:
    """A policy that holds for some rows only, or costs some of which are given and some computed, don't compare."""
    missing = values.count(None)
    if missing in (0, len(values)):
        return []
    return [f"{column}: given in {len(values) - missing} rows and missing in {missing}; give it in all rows or in none"]


def _batch_problems(outcomes: Sequence[JobOutcome]) -> list[str]:
    """Where the batch and world sizes contradict each other or the batch policy (METHODOLOGY 3)."""
    points = {(o.batch_policy, o.nodes, o.world_size, o.global_batch_size) for o in outcomes}
    worlds: dict[int, set[float]] = defaultdict(set)
    batches: dict[int, set[float]] = defaultdict(set)
    per_policy: dict[str | None, set[float]] = defaultdict(set)
    for policy, nodes, world, batch in points:
        if world:
            worlds[nodes].add(world)
        if batch:
            batches[nodes].add(batch)
        if policy == "fixed_global" and batch:
            per_policy[policy].add(batch)
        elif policy == "fixed_per_replica" and batch and world:
            per_policy[policy].add(batch / world)
    problems = [
        f"{column}: different ones ({_listed(found)}) at nodes={nodes}; repeats must be alike"
        for column, at in (("world_size", worlds), ("global_batch_size", batches))
        for nodes, found in sorted(at.items())
        if len(found) > 1
    ]
    if len(found := per_policy["fixed_global"]) > 1:
        problems.append(f"global_batch_size: different ones ({_listed(found)}), but batch_policy is fixed_global")
    if len(found := per_policy["fixed_per_replica"]) > 1:
        problems.append(
            f"global_batch_size: different ones per process ({_listed(found)}), but batch_policy is fixed_per_replica"
        )
    return problems


def _listed(values: Iterable[str | float]) -> str:
    """The values in order, at most _SHOWN of them."""
    in_order = [value if isinstance(value, str) else f"{value:.12g}" for value in sorted(values)]
    return ", ".join([*in_order[:_SHOWN], *(["…"] if len(in_order) > _SHOWN else [])])
