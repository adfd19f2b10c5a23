"""Compare Great Expectations' SQL engine on DuckDB with nodesweep's validation: verdicts and cost.

    .venv/bin/uv pip install --target build/duckdb --no-deps duckdb==1.4.5 duckdb-engine==0.17.0
    PYTHONPATH=build/duckdb .venv/bin/python -m benchmarks.great_expectations_duckdb
        [--tables 20] [--rows 5000000] [--files 10] [--repeats 3] [--output FILE.json]

DuckDB is not a dependency of nodesweep: install it into a separate folder, as above.

Verdicts: small random tables, each with checks of every expectation that nodesweep evaluates, are
judged as in a run (tasks/dataset/validation.py) and on DuckDB, which reads the same Parquet file
through a view. Checks that nodesweep cannot evaluate are left out of the comparison.

Cost: the benchmark uses the data and the 36 checks of benchmarks/validation.py. `scan` counts every
column's values and finds their extremes in DuckDB, and `arrow_scan` does so in pyarrow;
`boolean_only` and `summary` are Great Expectations on DuckDB, without and with the counts and
examples that a report shows; `ours` is nodesweep's validation. Each way runs in a separate process
and is measured after its imports; CPU seconds include all threads of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Literal

from benchmarks import validation
from nodesweep.configs.dataset import DatasetConfig, ExpectationConfig
from nodesweep.scaling.names import pretty_json

PACKAGES = ("duckdb", "duckdb_engine")
HOLDS, BROKEN, NOT_EVALUATED = "holds", "broken", "not evaluated"
_MODULE = "benchmarks.great_expectations_duckdb"
_WAYS = ("scan", "arrow_scan", "ours", "boolean_only", "summary")
_VIEW = "dataset"
_MAX_EXAMPLES = 3
"""Examples of differing verdicts stored per expectation."""
_MOMENT = datetime(2026, 1, 1)
_NUMBERS = ("narrow", "wide", "single", "double", "money")
_TEXTS = ("text", "json", "day_text")
_BOUNDS = (0, 0.1, 1, 9, 10, 2**53)
_WORDS = ("train", "test", "")
_REGEXES = ("^t", "in$", "^[a-z]+$", r"\d", "a")
_TYPES = ("int32", "int64", "float64", "str", "datetime64[us]")
LEFT_OUT = frozenset(
    {
        # for SQL engines only
        "expect_column_values_to_match_like_pattern",
        "expect_column_values_to_match_like_pattern_list",
        "expect_column_values_to_not_match_like_pattern",
        "expect_column_values_to_not_match_like_pattern_list",
        "expect_query_results_to_match_comparison",
        "expect_table_row_count_to_equal_other_table",
        "unexpected_rows_expectation",
        # not implemented in Great Expectations 1.24
        "expect_multicolumn_values_to_be_unique",
    }
)
"""Expectations that nodesweep accepts but cannot evaluate."""

Draw = Callable[[Random], dict[str, Any]]


def columns() -> dict[str, tuple[Any, list[Any]]]:
    """Return, for each column of the random tables, its type and possible values."""
    import pyarrow as pa

    return {
        "narrow": (pa.int32(), [0, 1, 9, 10, 300]),
        "wide": (pa.int64(), [0, 9, 2**53, 2**53 + 1]),
        "single": (pa.float32(), [0.0, 0.1, 9.0, float("nan")]),
        "double": (pa.float64(), [0.0, 0.1, 9.0, float("nan")]),
        "money": (pa.decimal128(9, 2), [Decimal("0.10"), Decimal("9.00"), Decimal("300.00")]),
        "time": (pa.timestamp("us"), [_MOMENT, _MOMENT + timedelta(microseconds=1)]),
        "day": (pa.date32(), [_MOMENT.date(), _MOMENT.date() + timedelta(days=300)]),
        "text": (pa.string(), ["train", "test", "", "é", "Valid"]),
        "json": (pa.string(), ['{"a": 1}', "[]", "{"]),
        "day_text": (pa.string(), ["2026-01-01", "1 Jan 2026", "soon"]),
    }


def random_table(random: Random) -> Any:
    """Return a pyarrow table of 1 to 6 rows.

    A column has at most two distinct values, so that it often meets an expectation entirely.
    """
    import pyarrow as pa

    rows = random.randint(1, 6)
    drawn = {}
    for name, (kind, values) in columns().items():
        some = random.choices([*values, None], k=random.randint(1, 2))
        drawn[name] = pa.array([some[row % len(some)] for row in range(rows)], kind)
    return pa.table(drawn)


def _limits(random: Random, choices: Sequence[Any], strict: bool = True) -> dict[str, Any]:
    low, high = sorted(random.sample(choices, 2))
    found: dict[str, Any] = {"min_value": low, "max_value": high}
    if random.random() < 0.5:
        del found[random.choice(list(found))]
    if strict and random.random() < 0.3:
        found |= {f"strict_{name[:3]}": True for name in list(found)}
    return found


def _between(random: Random) -> dict[str, Any]:
    if random.random() < 0.3:
        return {"column": random.choice(("time", "day")), "min_value": "2026-01-01T00:00:00"}
    return {"column": random.choice(_NUMBERS), **_limits(random, _BOUNDS)}


def _aggregate(random: Random) -> dict[str, Any]:
    return {"column": random.choice(_NUMBERS), **_limits(random, _BOUNDS)}


def _share(random: Random) -> dict[str, Any]:
    return {"column": random.choice(list(columns())), **_limits(random, (0, 0.5, 1))}


def _count(random: Random, **arguments: Any) -> dict[str, Any]:
    return {**arguments, **_limits(random, (1, 2, 3, 10), strict=False)}


def _any_column(random: Random, **arguments: Any) -> dict[str, Any]:
    return {"column": random.choice(list(columns())), **arguments}


def _set(name: str, random: Random) -> dict[str, Any]:
    column = random.choice(("text", "narrow", "single", "money"))
    choices: Sequence[Any] = _WORDS if column == "text" else _BOUNDS[:4]
    return {"column": column, name: random.sample(choices, 2)}


def _text(random: Random, **arguments: Any) -> dict[str, Any]:
    mostly = {"mostly": 0.5} if random.random() < 0.3 else {}
    return {"column": random.choice(_TEXTS), **mostly, **arguments}


def _regex(random: Random) -> dict[str, Any]:
    return _text(random, regex=random.choice(_REGEXES))


def _regexes(random: Random) -> dict[str, Any]:
    return _text(random, regex_list=random.sample(_REGEXES, 2))


def _pair(random: Random) -> dict[str, Any]:
    first, second = random.sample(_NUMBERS, 2)
    return {"column_A": first, "column_B": second}


def _several(random: Random, **arguments: Any) -> dict[str, Any]:
    return {"column_list": random.sample(_NUMBERS, 2), **arguments}


def _quantiles(random: Random) -> dict[str, Any]:
    ranges = {"quantiles": [0.5], "value_ranges": [sorted(random.sample(_BOUNDS, 2))]}
    return {"column": random.choice(_NUMBERS), "quantile_ranges": ranges}


def _names(random: Random) -> list[str]:
    found = list(columns())
    return found if random.random() < 0.5 else found[::-1]


_C, _V = "expect_column_", "expect_column_values_to_"
DRAWS: dict[str, Draw] = {
    **{
        f"{_C}{what}_to_be_between": _aggregate
        for what in ("min", "max", "mean", "median", "sum", "stdev")
    },
    f"{_C}proportion_of_non_null_values_to_be_between": _share,
    f"{_C}proportion_of_unique_values_to_be_between": _share,
    f"{_C}unique_value_count_to_be_between": lambda random: _count(random, **_any_column(random)),
    f"{_C}quantile_values_to_be_between": _quantiles,
    **{
        f"{_C}{what}_set": partial(_set, "value_set")
        for what in (
            *("distinct_values_to_be_in", "distinct_values_to_contain"),
            *("distinct_values_to_equal", "most_common_value_to_be_in"),
            *("values_to_be_in", "values_to_not_be_in"),
        )
    },
    f"{_C}kl_divergence_to_be_less_than": lambda random: {
        "column": "text",
        "partition_object": {"values": ["train", "test"], "weights": [0.5, 0.5]},
        "threshold": random.choice((0.1, 1.0)),
    },
    f"{_C}to_exist": lambda random: {"column": random.choice(("narrow", "absent"))},
    f"{_C}type_to_be": lambda random: _any_column(random, type_=random.choice(_TYPES)),
    f"{_C}value_lengths_to_be_between": lambda random: _text(
        random, **_limits(random, (0, 1, 5, 10), strict=False)
    ),
    f"{_C}value_lengths_to_equal": lambda random: _text(random, value=random.choice((0, 1, 5))),
    f"{_C}value_z_scores_to_be_less_than": lambda random: {
        "column": random.choice(("narrow", "double")),
        "threshold": random.choice((0.5, 1, 3)),
        "double_sided": True,
    },
    f"{_V}be_between": _between,
    f"{_V}be_dateutil_parseable": _text,
    f"{_V}be_json_parseable": _text,
    f"{_V}match_json_schema": lambda random: _text(random, json_schema={"type": "object"}),
    f"{_V}match_strftime_format": lambda random: _text(random, strftime_format="%Y-%m-%d"),
    f"{_V}be_increasing": lambda random: {"column": random.choice(_NUMBERS)},
    f"{_V}be_decreasing": lambda random: {"column": random.choice(_NUMBERS)},
    f"{_V}be_null": _any_column,
    f"{_V}not_be_null": _any_column,
    f"{_V}be_unique": _any_column,
    f"{_V}be_of_type": lambda random: _any_column(random, type_=random.choice(_TYPES)),
    f"{_V}be_in_type_list": lambda random: _any_column(random, type_list=random.sample(_TYPES, 2)),
    f"{_V}not_be_outliers": lambda random: {
        "column": random.choice(("narrow", "double")),
        "method": "iqr",
        "multiplier": 1.5,
    },
    f"{_V}match_regex": _regex,
    f"{_V}not_match_regex": _regex,
    f"{_V}match_regex_list": _regexes,
    f"{_V}not_match_regex_list": _regexes,
    f"{_C}pair_values_a_to_be_greater_than_b": _pair,
    f"{_C}pair_values_to_be_equal": _pair,
    f"{_C}pair_values_to_be_in_set": lambda random: {
        **_pair(random),
        "value_pairs_set": [[0, 0], [9, 9]],
    },
    "expect_compound_columns_to_be_unique": _several,
    "expect_multicolumn_sum_to_equal": lambda random: _several(
        random, sum_total=random.choice((0, 9, 18))
    ),
    "expect_multicolumn_values_to_be_equal": _several,
    "expect_select_column_values_to_be_unique_within_record": _several,
    "expect_table_column_count_to_be_between": _count,
    "expect_table_column_count_to_equal": lambda random: {"value": random.choice((9, 10))},
    "expect_table_columns_to_match_ordered_list": lambda random: {"column_list": _names(random)},
    "expect_table_columns_to_match_set": lambda random: {"column_set": _names(random)[1:]},
    "expect_table_row_count_to_be_between": _count,
    "expect_table_row_count_to_equal": lambda random: {"value": random.randint(1, 6)},
}
"""Functions that draw random arguments, by expectation."""


def random_checks(random: Random) -> tuple[ExpectationConfig, ...]:
    """Return a check of every expectation, and five more of the most used one (be_between).

    All have severity warning; a check that cannot be evaluated is reported with another severity.
    """
    return tuple(
        ExpectationConfig(type=kind, kwargs=DRAWS[kind](random), severity="warning")
        for kind in (*DRAWS, *(f"{_V}be_between",) * 5)
    )


def verdicts_here(path: Path, checks: Sequence[ExpectationConfig]) -> list[str]:
    """Return nodesweep's verdict on each check of the file."""
    from nodesweep.tasks.dataset.validation import validate_dataset

    config = DatasetConfig(name="bench", source="x", format="parquet", expectations=tuple(checks))
    (report,) = validate_dataset([path], config, now=datetime.now(UTC)).files
    found = [HOLDS] * len(checks)
    for failure in report.failures:
        if failure.index is not None:
            is_judged = failure.severity == checks[failure.index].severity
            found[failure.index] = BROKEN if is_judged else NOT_EVALUATED
    return found


def verdicts_on_duckdb(path: Path, checks: Sequence[ExpectationConfig]) -> list[str]:
    """Return Great Expectations' verdict on each check of the file's view in DuckDB."""
    from nodesweep.tasks.dataset.findings import _raised_message

    with tempfile.TemporaryDirectory(prefix="nodesweep-duckdb-") as scratch:
        batch = batch_on_duckdb([path], Path(scratch))
        found = []
        for check in checks:
            try:
                result = _validate(batch, [check], "BOOLEAN_ONLY")[0]
            except Exception:  # whatever the error, there is no verdict
                found.append(NOT_EVALUATED)
                continue
            raised = _raised_message(result.exception_info)
            found.append(NOT_EVALUATED if raised else HOLDS if result.success else BROKEN)
    return found


def batch_on_duckdb(files: Sequence[Path], folder: Path) -> Any:
    """Create a database with a view of the Parquet files; return its Great Expectations batch."""
    import duckdb

    from nodesweep.tasks.dataset.validation import ephemeral_context

    database = folder / "view.duckdb"
    with duckdb.connect(str(database)) as connection:
        listed = ", ".join(f"'{path}'" for path in files)
        connection.execute(f"CREATE VIEW {_VIEW} AS SELECT * FROM read_parquet([{listed}])")
    _register_datasource()
    sources: Any = ephemeral_context().data_sources
    source = sources.add_duckdb(name="duckdb", connection_string=f"duckdb:///{database}")
    asset = source.add_table_asset(_VIEW, table_name=_VIEW)
    return asset.add_batch_definition_whole_table("all").get_batch()


@lru_cache(maxsize=1)
def _register_datasource() -> None:
    """Register a DuckDB data source, modeled on Great Expectations' sqlite_datasource.py.

    The execution engine of Great Expectations closes the connection before it fetches the rows,
    and DuckDB then drops them; the engine of this data source keeps the connection open.
    """
    from great_expectations.datasource.fluent import SQLDatasource
    from great_expectations.execution_engine import SqlAlchemyExecutionEngine

    class DuckDBExecutionEngine(SqlAlchemyExecutionEngine):
        kept: Any = None

        @contextmanager
        def get_connection(self) -> Iterator[Any]:
            if self.kept is None:
                self.kept = self.engine.connect()
            try:
                yield self.kept
            except Exception:
                self.kept.rollback()  # DuckDB refuses further queries in a failed transaction
                raise

    class DuckDBDatasource(SQLDatasource):
        type: Literal["duckdb"] = "duckdb"

        @property
        def execution_engine_type(self) -> Any:
            return DuckDBExecutionEngine


def _validate(batch: Any, checks: Sequence[ExpectationConfig], result_format: str) -> list[Any]:
    import great_expectations as gx

    from nodesweep.tasks.dataset.validation import build_expectations

    suite = gx.ExpectationSuite(name="checks", expectations=build_expectations(checks))
    return list(batch.validate(suite, result_format={"result_format": result_format}).results)


@dataclass(frozen=True)
class Difference:
    """A check with another verdict on DuckDB, and the values of the columns it checks."""

    expectation: str
    arguments: Mapping[str, Any]
    values: Mapping[str, str]
    here: str
    duckdb: str


def differences(
    table: Any, checks: Sequence[ExpectationConfig], here: Sequence[str], duckdb: Sequence[str]
) -> list[Difference]:
    """Return the checks that nodesweep evaluates and that have another verdict on DuckDB."""
    found = []
    for check, ours, theirs in zip(checks, here, duckdb, strict=True):
        if ours in (NOT_EVALUATED, theirs):
            continue
        named = [check.kwargs.get(key) for key in ("column", "column_A", "column_B")]
        named += check.kwargs.get("column_list", ())
        values = {
            name: f"{table.schema.field(name).type}: {table.column(name).to_pylist()}"
            for name in dict.fromkeys(map(str, named))
            if name in table.column_names
        }
        found.append(Difference(check.type, check.kwargs, values, ours, theirs))
    return found


def compare_verdicts(tables: int, seed: int) -> dict[str, Any]:
    """Count the verdicts on random tables that differ, and return the counts with examples."""
    import pyarrow.parquet as pq

    compared, found = Counter[str](), list[Difference]()
    with tempfile.TemporaryDirectory(prefix="nodesweep-verdicts-") as scratch:
        path = Path(scratch) / "table.parquet"
        for number in range(tables):
            random = Random(f"{seed} {number}")
            table, checks = random_table(random), random_checks(random)
            pq.write_table(table, path)
            here = verdicts_here(path, checks)
            compared.update(
                check.type
                for check, verdict in zip(checks, here, strict=True)
                if verdict != NOT_EVALUATED
            )
            found += differences(table, checks, here, verdicts_on_duckdb(path, checks))
    return summary_of(compared, found) | {"tables": tables, "seed": seed}


def summary_of(compared: Counter[str], found: Sequence[Difference]) -> dict[str, Any]:
    """Return the counts of differing verdicts by kind and expectation, with examples."""
    kinds = Counter(f"{one.here} here, {one.duckdb} on DuckDB" for one in found)
    by_expectation: dict[str, list[Difference]] = {}
    for one in found:
        by_expectation.setdefault(one.expectation, []).append(one)
    return {
        "compared": compared.total(),
        "differ": len(found),
        "by_kind": dict(kinds),
        "by_expectation": {
            kind: {
                "compared": compared[kind],
                "differ": len(some),
                "examples": [asdict(one) for one in some[:_MAX_EXAMPLES]],
            }
            for kind, some in sorted(by_expectation.items())
        },
    }


def prepare(way: str, files: list[Path], scratch: Path) -> Callable[[], bool]:
    """Return a function that scans or validates the files in one way."""
    if way == "arrow_scan":
        return validation.prepare_scan(files)
    if way == "ours":
        return validation.prepare_ours(files)
    if way == "scan":
        return _prepare_scan(files)
    import duckdb_engine  # noqa: F401  (imported before the measurement, as for the other ways)
    import great_expectations  # noqa: F401

    def judge() -> bool:
        batch = batch_on_duckdb(files, scratch)
        results = _validate(batch, validation.checks(), way.upper())
        return len(results) == len(validation.checks()) and all(it.success for it in results)

    return judge


def _prepare_scan(files: list[Path]) -> Callable[[], bool]:
    import duckdb
    import pyarrow.parquet as pq

    names = pq.read_schema(files[0]).names
    listed = ", ".join(f"'{path}'" for path in files)
    sums = ", ".join(f'count("{name}"), min("{name}"), max("{name}")' for name in names)

    def scan() -> bool:
        with duckdb.connect() as connection:
            row = connection.execute(f"SELECT {sums} FROM read_parquet([{listed}])").fetchone()
        return row is not None and len(set(row[::3])) == 1

    return scan


def compare_cost(rows: int, files: int, repeats: int) -> dict[str, Any]:
    """Run every way on generated data, which is deleted afterwards, and compare the costs."""
    with tempfile.TemporaryDirectory(prefix="nodesweep-duckdb-cost-") as scratch:
        folder = Path(scratch)
        validation.write_data(folder, rows, files)
        validation.in_a_process(_MODULE, "arrow_scan", folder)  # fills the page cache
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in _WAYS}
        for _ in range(repeats):
            for way in _WAYS:
                runs[way].append(validation.in_a_process(_MODULE, way, folder))
    middle = validation.medians(runs)
    return {
        "data": {"rows": rows, "columns": 20, "files": files},
        "expectations": len(validation.checks()),
        "succeeds": {way: all(run["success"] for run in some) for way, some in runs.items()},
        "median": middle,
        "peak_bytes": validation.peaks(runs),
        "cpu_ratio": {
            base: {
                way: round(middle[way]["cpu_seconds"] / middle[base]["cpu_seconds"], 2)
                for way in _WAYS
            }
            for base in ("scan", "arrow_scan", "ours")
        },
    }


def missing_packages() -> list[str]:
    """Return the missing packages among those that only this program needs."""
    return [name for name in PACKAGES if find_spec(name) is None]


def main() -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=20, help="tables whose verdicts are compared")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument(
        "--rows", type=int, default=5_000_000, help="rows of the table whose cost is measured"
    )
    parser.add_argument("--files", type=int, default=10, help="files of the measured table")
    parser.add_argument("--repeats", type=int, default=3, help="validations in each way")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if missing := missing_packages():
        print(f"{', '.join(missing)}: not installed; see the top of {__file__}", file=sys.stderr)
        return 2
    if options.measure:
        way, folder = options.measure
        with tempfile.TemporaryDirectory(prefix="nodesweep-duckdb-") as scratch:
            run = prepare(way, sorted(Path(folder).glob("*.parquet")), Path(scratch))
            print(json.dumps(validation.measure_call(run)))
        return 0
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "versions": {
            name: version(name)
            for name in ("great-expectations", "duckdb", "duckdb-engine", "pandas", "pyarrow")
        },
        "verdicts": compare_verdicts(options.tables, options.seed),
        "cost": compare_cost(options.rows, options.files, options.repeats),
        "load_at_end": [round(value, 1) for value in os.getloadavg()],
    }
    verdicts, cost = result["verdicts"], result["cost"]
    print(f"{verdicts['differ']} of {verdicts['compared']} verdicts differ: {verdicts['by_kind']}")
    print(json.dumps({key: cost[key] for key in ("succeeds", "peak_bytes", "cpu_ratio")}))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
