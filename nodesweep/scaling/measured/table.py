"""A table of measured times (CSV) -> JobOutcomes, so that the analysis serves anyone's numbers.

docs/measured-tables.md describes the columns and rules. Comma, semicolon or tab separated; in a
semicolon table a comma is the decimal mark, as spreadsheets with that separator write it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodesweep.scaling.measured.columns import (
    COLUMNS,
    TEXT_COLUMNS,
    TIME_COLUMNS,
    BadCell,
    Reader,
    header_problems,
    shown,
    with_decimal_comma,
)
from nodesweep.scaling.measured.text import Grid, MeasuredTableError, read_grid
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome

__all__ = ["MeasuredTableError", "read_measured"]
MAX_NODE_COUNTS = 1_000
"""Node counts in one table; each has a row, an interval and a place in every plot of the report."""
_SHOWN = 4
# What one curve must share; where a row leaves it empty there is nothing to refuse.
_MUST_AGREE = {
    "instance_type": "instance types",
    "region": "regions",
    "batch_policy": "batch policies",
}


def read_measured(
    table: str | bytes, goal: str | None = None, origin: str = "the table"
) -> list[JobOutcome]:
    """Read the table; raises MeasuredTableError with every bad row's line number and reason.

    `goal` is that of the final metric, maximize or minimize; None: not known. A rate becomes
    seconds per sample (train_clock `throughput`), so that the median of times and their ratios are
    right for it too. `origin` names the table where it is refused for its number of rows.
    """
    grid = read_grid(
        table.encode("utf-8", "surrogatepass") if isinstance(table, str) else table, origin
    )
    problems = [f"line {grid.header_line}: {problem}" for problem in header_problems(grid.header)]
    if not problems:
        outcomes = _outcomes(grid, goal, problems)
    if not problems:
        problems += _table_problems(outcomes)
    if problems:
        raise MeasuredTableError(*problems)
    return outcomes


def _outcomes(grid: Grid, goal: str | None, problems: list[str]) -> list[JobOutcome]:
    """One outcome for each row whose cells are good;
    what is wrong with any row goes to `problems`.
    """
    readers = _readers(grid)
    outcomes: list[JobOutcome] = []
    first_lines: dict[tuple[int, int], int] = {}
    rows_at: Counter[int] = Counter()
    for line, cells in grid.rows:
        values, found = _read_cells(cells, readers)
        if not found:
            rows_at[values["nodes"]] += 1
            values.setdefault("repeat", rows_at[values["nodes"]])
            outcome = _outcome(values, line, goal)
            outcomes.append(outcome)
            found = _row_problems(
                outcome, line, first_lines.setdefault((outcome.nodes, outcome.repeat), line), values
            )
        problems += [f"line {line}: {problem}" for problem in found]
    return outcomes


def _readers(grid: Grid) -> list[tuple[str, Reader]]:
    """Each column's reader, in the header's order;
    where a number has a decimal comma, all numbers are read so.
    """
    comma_line = _first_decimal_comma(grid) if grid.separator == ";" else None
    return [
        (
            (name, COLUMNS[name])
            if comma_line is None or name in TEXT_COLUMNS
            else (name, with_decimal_comma(COLUMNS[name], comma_line))
        )
        for name in grid.header
    ]


def _first_decimal_comma(grid: Grid) -> int | None:
    """The line of the first number with a comma, or None."""
    are_numbers = [name not in TEXT_COLUMNS for name in grid.header]
    for line, cells in grid.rows:
        if any(
            "," in cell for cell, is_number in zip(cells, are_numbers, strict=False) if is_number
        ):
            return line
    return None


def _read_cells(
    cells: Sequence[str], readers: Sequence[tuple[str, Reader]]
) -> tuple[dict[str, Any], list[str]]:
    """(value of each column, why the row can't be read: its number of cells,
    or each bad one of them).
    """
    if len(cells) != len(readers):
        return {}, [f"{len(cells)} fields, but the header has {len(readers)}"]
    values, problems = {}, []
    for (name, read), cell in zip(readers, cells, strict=True):
        try:
            values[name] = read(cell)
        except BadCell as error:
            problems.append(f"{name} is {shown(cell)}; {error}")
    return values, problems


def _row_problems(
    outcome: JobOutcome, line: int, first_line: int, values: Mapping[str, Any]
) -> list[str]:
    """What is wrong with a row whose cells are good each by itself;
    `first_line` has the first row of its name.
    """
    problems = []
    nodes, world_size = outcome.nodes, outcome.world_size
    if first_line != line:
        problems.append(
            f"nodes {nodes}, repeat {outcome.repeat} stands in line {first_line} already; "
            "number the repeats, or leave the column out"
        )
    if world_size is not None and world_size < nodes:
        problems.append(
            f"world_size is {world_size}; expected at least one process on each"
            f" of the {nodes} nodes"
        )
    if outcome.train_clock is None and outcome.completed:
        (column,) = (name for name in TIME_COLUMNS if name in values)
        problems.append(
            f"{column} is empty; give the measured value, or a status other than Completed"
        )
    return problems


def _outcome(values: Mapping[str, Any], line: int, goal: str | None) -> JobOutcome:
    """A row's values, each by its column's name, as what a job would have given."""
    status = values.get("status", "Completed")
    seconds, rate, metric = (
        values.get(name) for name in ("train_seconds", "samples_per_second", "final_metric")
    )
    if rate is not None:
        seconds = 1 / rate
    return JobOutcome(
        nodes=values["nodes"],
        repeat=values["repeat"],
        attempt=1,
        job_name=f"line {line}",
        status=status,
        platform_kind="measured",
        instance_type=values.get("instance_type"),
        reason=None if status == "Completed" else f"given as {status.lower()}",
        clocks=Clocks(billable_seconds=values.get("billable_seconds"), train_seconds=seconds),
        train_clock=None if seconds is None else "measured" if rate is None else "throughput",
        metrics=None if metric is None else {"final_metric": {"value": metric, "goal": goal}},
        world_size=values.get("world_size"),
        global_batch_size=values.get("global_batch_size"),
        batch_policy=values.get("batch_policy"),
        region=values.get("region"),
        given_cost_usd=values.get("cost_usd"),
    )


def _table_problems(outcomes: Sequence[JobOutcome]) -> list[str]:
    """What is wrong with the table as a whole, once every row is good."""
    if not outcomes:
        return ["the table has a header but no rows"]
    completed = [outcome for outcome in outcomes if outcome.completed]
    if not completed:
        return [f"no completed row among {len(outcomes)}: nothing to analyse"]
    counts = {outcome.nodes for outcome in outcomes}
    if len(counts) == 1:
        return [
            f"nothing to compare: all rows have nodes={counts.pop()}; give at least two node counts"
        ]
    if len(counts) > MAX_NODE_COUNTS:
        return [
            f"nodes: {len(counts):,} different node counts; a table has at most {MAX_NODE_COUNTS:,}"
        ]
    problems = []
    for column, described in _MUST_AGREE.items():
        found = {value for outcome in outcomes if (value := getattr(outcome, column))}
        if len(found) > 1:
            problems.append(
                f"{column}: {len(found)} different {described} ({_listed(found)});"
                " give each its own table"
            )
    problems += _gaps("batch_policy", [outcome.batch_policy for outcome in outcomes])
    problems += _gaps("cost_usd", [outcome.given_cost_usd for outcome in completed])
    return problems or _batch_problems(outcomes)


def _gaps(column: str, values: Sequence[object]) -> list[str]:
    """A policy that holds for some rows only, or costs some of which are given and some computed,
    don't compare.
    """
    missing = values.count(None)
    if missing in (0, len(values)):
        return []
    return [
        f"{column}: given in {len(values) - missing} rows and missing in {missing}; give it in all"
        " rows or in none"
    ]


def _batch_problems(outcomes: Sequence[JobOutcome]) -> list[str]:
    """Where the batch and world sizes contradict each other,
    or the policy (docs/method.md, "Batch policy").
    """
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
        problems.append(
            f"global_batch_size: different ones ({_listed(found)}),"
            " but batch_policy is fixed_global"
        )
    if len(found := per_policy["fixed_per_replica"]) > 1:
        problems.append(
            f"global_batch_size: different ones per process ({_listed(found)}), but batch_policy is"
            " fixed_per_replica"
        )
    return problems


def _listed(values: Iterable[str | float]) -> str:
    """The values in order, at most _SHOWN of them."""
    in_order = [value if isinstance(value, str) else f"{value:.12g}" for value in sorted(values)]
    return ", ".join([*in_order[:_SHOWN], *(["…"] if len(in_order) > _SHOWN else [])])
