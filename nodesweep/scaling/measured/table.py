"""Read a table of measured times (CSV) as JobOutcomes, so that any times can be analyzed.

docs/measured-tables.md describes the columns and rules. Cells are separated by commas, semicolons
or tabs. In a table with semicolons, a comma in a number is a decimal comma, which is how
spreadsheets export numbers in many locales.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nodesweep.scaling.measured.columns import (
    COLUMNS,
    TEXT_COLUMNS,
    TIME_COLUMNS,
    BadCell,
    Reader,
    header_problems,
    quoted,
    with_decimal_comma,
)
from nodesweep.scaling.measured.text import Cells, MeasuredTableError, read_cells
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["MeasuredTableError", "read_measured"]
MAX_NODE_COUNTS = 1_000
"""Maximum number of node counts, each of which takes space in every table and plot."""
_SHOWN = 4
# Columns that must have the same value in all rows of a table; empty cells are ignored.
_MUST_AGREE = {
    "instance_type": "instance types",
    "region": "regions",
    "batch_policy": "batch policies",
}


def read_measured(
    table: str | bytes, goal: str | None = None, origin: str = "the table"
) -> list[JobOutcome]:
    """Read a table of measured times, one outcome per row.

    A rate is converted to seconds per sample (train_clock `throughput`), so that means and ratios
    are computed in the same way as for times.

    Args:
        table: The CSV table.
        goal: Goal of the final metric, maximize or minimize; None if unknown.
        origin: Name of the table in the error about too many rows.

    Raises:
        MeasuredTableError: The table is invalid. `problems` lists every invalid row with its line
            number and the reason.
    """
    cells = read_cells(
        table.encode("utf-8", "surrogatepass") if isinstance(table, str) else table, origin
    )
    header = header_problems(list(cells.frame.columns))
    if header:
        raise MeasuredTableError(*(f"line {cells.header_line}: {problem}" for problem in header))
    rows, found = _read_rows(cells)
    problems = [f"line {line}: {problem}" for line, problem in found]
    if problems := problems or table_problems(rows):
        raise MeasuredTableError(*problems)
    known = rows.where(rows.notna(), None)
    return [
        _outcome(values, int(line), goal)
        for line, values in zip(rows.index, known.to_dict("records"), strict=True)
    ]


def _read_rows(cells: Cells) -> tuple[DataFrame, list[tuple[int, str]]]:
    """Return the valid rows, with all columns, and (line, problem) of each invalid cell or row."""
    from pandas import DataFrame

    width = len(cells.frame.columns)
    problems = [
        (line, f"{len(fields)} fields, but the header has {width}")
        for line, fields in cells.ragged.items()
    ]
    values: dict[str, list[Any]] = {}
    for name, read in _readers(cells).items():
        values[name] = []
        for line, cell in cells.frame[name].items():
            try:
                value = read(cell)
            except BadCell as error:
                value = None
                problems.append((line, f"{name} is {quoted(cell)}; {error}"))
            values[name].append(value)
    rows = DataFrame(values, index=cells.frame.index, columns=list(COLUMNS), dtype=object)
    rows = rows.drop(index=[line for line, _ in problems if line in rows.index])
    if "status" not in values:
        rows["status"] = "Completed"
    (times,) = (name for name in TIME_COLUMNS if name in values)
    if "repeat" not in values:
        completed = rows.loc[rows["status"] == "Completed", list(values)]
        problems += _copies(completed.dropna(subset=times), times)
        rows["repeat"] = (rows.groupby("nodes").cumcount() + 1).astype(object)
    problems += _row_problems(rows, times)
    # sorted() is stable, so the problems of a line stay in the order of its columns
    return rows, sorted(problems, key=lambda problem: problem[0])


def _readers(cells: Cells) -> dict[str, Reader]:
    """Return the reader of each column.

    If a number in a table with semicolons has a decimal comma, all numbers must.
    """
    readers = {name: COLUMNS[name] for name in cells.frame.columns}
    numbers = [name for name in readers if name not in TEXT_COLUMNS]
    rows = {**cells.ragged, **cells.frame.T.to_dict("list")}
    lines = [
        line
        for line, fields in rows.items()
        if any(
            "," in field for name, field in zip(readers, fields, strict=False) if name in numbers
        )
    ]
    if cells.separator != ";" or not lines:
        return readers
    comma_line = min(lines)
    return readers | {name: with_decimal_comma(readers[name], comma_line) for name in numbers}


def _copies(rows: DataFrame, times: str) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) of each row that is a copy of an earlier row.

    Without started_at, equal rows are copies only if no row is unique, as in a table that was
    pasted twice, and the times are not whole numbers.
    """
    lines: dict[tuple[Any, ...], list[int]] = {}
    for line, *cells in rows.itertuples(name=None):
        lines.setdefault(tuple(cells), []).append(line)
    if "started_at" not in rows or rows["started_at"].isna().any():
        all_whole = all(float(each).is_integer() for each in rows[times])
        if all_whole or any(len(alike) == 1 for alike in lines.values()):
            return
    for first, *copies in lines.values():
        for line in copies:
            yield (
                line,
                f"the same run as line {first}, since all columns are equal; delete it or, if it "
                "is another run, number the repeats in a column 'repeat'",
            )


def _row_problems(rows: DataFrame, times: str) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) of each row that contradicts itself or repeats an earlier row."""
    lines = rows.index.to_series()
    first_lines = lines.groupby([rows["nodes"], rows["repeat"]]).transform("first")
    for line, row in rows[lines != first_lines].iterrows():
        yield (
            line,
            f"nodes {row['nodes']}, repeat {row['repeat']} is already in line "
            f"{first_lines[line]}; number the repeats, or leave the column out",
        )
    sized = rows[rows["world_size"].notna()]
    for line, row in sized[sized["world_size"] < sized["nodes"]].iterrows():
        yield (
            line,
            f"world_size is {row['world_size']}; expected at least one process on each"
            f" of the {row['nodes']} nodes",
        )
    for line in rows.index[rows[times].isna() & (rows["status"] == "Completed")]:
        yield (
            line,
            f"{times} is empty; give the measured value, or a status other than Completed",
        )


def _outcome(values: Mapping[str, Any], line: int, goal: str | None) -> JobOutcome:
    status, metric = values["status"], values["final_metric"]
    seconds, rate = values["train_seconds"], values["samples_per_second"]
    if rate is not None:
        seconds = 1 / rate
    return JobOutcome(
        nodes=values["nodes"],
        repeat=values["repeat"],
        attempt=1,
        job_name=f"line {line}",
        status=status,
        platform_kind="measured",
        instance_type=values["instance_type"],
        reason=None if status == "Completed" else f"listed as {status.lower()} in the table",
        clocks=Clocks(billable_seconds=values["billable_seconds"], train_seconds=seconds),
        train_clock=None if seconds is None else "measured" if rate is None else "throughput",
        metrics=None if metric is None else {"final_metric": {"value": metric, "goal": goal}},
        world_size=values["world_size"],
        global_batch_size=values["global_batch_size"],
        batch_policy=values["batch_policy"],
        region=values["region"],
        given_cost_usd=values["cost_usd"],
        created_at=values["started_at"],
        is_given=True,
    )


def table_problems(rows: DataFrame) -> list[str]:
    """Return the problems of the table as a whole, or [] if it is valid; all rows must be valid."""
    if rows.empty:
        return ["the table has a header but no rows"]
    completed = rows[rows["status"] == "Completed"]
    if completed.empty:
        return [f"no run completed (of {len(rows)}), so there is nothing to analyze"]
    counts = rows["nodes"].unique()
    if len(counts) == 1:
        return [
            f"nothing to compare: all runs have nodes={counts[0]}; give at least two node counts"
        ]
    if len(counts) > MAX_NODE_COUNTS:
        return [
            f"nodes: {len(counts):,} different node counts; at most {MAX_NODE_COUNTS:,} are allowed"
        ]
    problems = [
        (
            f"{column}: {len(found)} different {described} ({_listed(found)}); use a separate "
            "table for each"
        )
        for column, described in _MUST_AGREE.items()
        if len(found := rows[column].dropna().unique()) > 1
    ]
    problems += _gaps(rows["batch_policy"]) + _gaps(completed["cost_usd"])
    problems += _gaps(completed["started_at"])
    return problems or list(_batch_problems(rows))


def _gaps(column: Series) -> list[str]:
    """Return a problem if only some rows have a value in the column, else [].

    A missing cost, for example, would be computed from a price and not be comparable to the rest.
    """
    missing = int(column.isna().sum())
    if missing in (0, len(column)):
        return []
    return [
        f"{column.name}: given in {column.count()} rows and missing in {missing}; give it in all"
        " rows or in none"
    ]


def _batch_problems(rows: DataFrame) -> Iterator[str]:
    """Yield a problem for each batch or world size that contradicts the others or the batch policy.

    docs/method.md, "Batch policy", defines the policies.
    """
    for column in ("world_size", "global_batch_size"):
        for nodes, values in rows.groupby("nodes")[column]:
            if len(found := values.dropna().unique()) > 1:
                yield (
                    f"{column}: different values ({_listed(found)}) at nodes={nodes}; all "
                    "repeats must have the same value"
                )
    batched = rows[rows["global_batch_size"].notna()]
    fixed = batched[batched["batch_policy"] == "fixed_global"]
    if len(found := fixed["global_batch_size"].unique()) > 1:
        yield (
            f"global_batch_size: different values ({_listed(found)}), but batch_policy is "
            "fixed_global"
        )
    per_process = batched[
        (batched["batch_policy"] == "fixed_per_replica") & batched["world_size"].notna()
    ]
    if len(found := (per_process["global_batch_size"] / per_process["world_size"]).unique()) > 1:
        yield (
            f"global_batch_size: different values per process ({_listed(found)}), but "
            "batch_policy is fixed_per_replica"
        )
    if rows["world_size"].notna().any():
        return
    growing = batched[batched["batch_policy"] == "fixed_per_replica"]
    if len(found := (growing["global_batch_size"] / growing["nodes"]).unique()) > 1:
        yield (
            f"global_batch_size: different values per node ({_listed(found)}), but batch_policy is "
            "fixed_per_replica; correct them, or give world_size if nodes have different numbers "
            "of processes"
        )


def _listed(values: Iterable[str | float]) -> str:
    """Return the first _SHOWN values in ascending order, followed by … if there are more."""
    in_order = [value if isinstance(value, str) else f"{value:.12g}" for value in sorted(values)]
    return ", ".join([*in_order[:_SHOWN], *(["…"] if len(in_order) > _SHOWN else [])])
