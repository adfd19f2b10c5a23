"""Measure the CPU time of each expectation in Great Expectations and in nodesweep.

    .venv/bin/python -m benchmarks.expectations [--rows 1000000] [--output FILE.json]

Every value expectation of the pandas engine runs alone on a frame of the columns it needs. `theirs`
is the CPU seconds of unmodified Great Expectations. `ours` is measured with nodesweep's comparison
with bounds (tasks/dataset/judging/between.py) for expectations that use it, and equals `theirs` for
the others. `proven` marks expectations that the pass over a Parquet file
(tasks/dataset/judging/proof.py) can confirm, so that a run needs neither.

NOT EVALUATED marks expectations for which Great Expectations raises an error.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.scaling.names import pretty_json

if TYPE_CHECKING:
    import pandas as pd

_ANY_NUMBER = {"min_value": -(10**12), "max_value": 10**12}
_VALUES = "expect_column_values_to_"
_PAIR = {"column_A": "wide", "column_B": "narrow"}


def make_table(rows: int, seed: int = 0) -> Any:
    """Return a pyarrow table with a column of each type that the expectations check."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(seed)
    start = np.datetime64("2026-01-01", "us")
    days = random.integers(0, 300, rows).astype("timedelta64[D]")
    words = np.array(["train", "test", "valid"])[random.integers(0, 3, rows)]
    return pa.table(
        {
            "narrow": random.integers(0, 1000, rows).astype("int32"),
            "single": random.random(rows).astype("float32"),
            "wide": np.arange(1000, rows + 1000),
            "double": random.random(rows),
            "time": start + random.integers(0, 10**12, rows).astype("timedelta64[us]"),
            "day": np.datetime64("2026-01-01", "D") + days,
            "text": words,
            "json": np.array(['{"a": 1}', "[]"])[random.integers(0, 2, rows)],
            "date_text": (np.datetime64("2026-01-01", "D") + days).astype(str),
        }
    )


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Return the expectations, with arguments that the data meets."""
    moments = {"min_value": "2026-01-01T00:00:00"}
    found: list[tuple[str, dict[str, Any]]] = [
        (f"{_VALUES}be_between", {"column": name, **_ANY_NUMBER})
        for name in ("narrow", "single", "wide", "double")
    ]
    found += [
        (f"{_VALUES}be_between", {"column": "time", **moments}),
        (f"{_VALUES}be_between", {"column": "day", "min_value": "2026-01-01"}),
        (f"{_VALUES}not_be_null", {"column": "single"}),
        (f"{_VALUES}be_in_set", {"column": "text", "value_set": ["train", "test", "valid"]}),
        (f"{_VALUES}be_in_set", {"column": "narrow", "value_set": list(range(1000))}),
        (f"{_VALUES}not_be_in_set", {"column": "text", "value_set": ["other"]}),
        (f"{_VALUES}be_unique", {"column": "wide"}),
        (f"{_VALUES}be_of_type", {"column": "narrow", "type_": "int32"}),
        (f"{_VALUES}be_of_type", {"column": "text", "type_": "str"}),
        (f"{_VALUES}be_in_type_list", {"column": "day", "type_list": ["date"]}),
        (f"{_VALUES}match_regex", {"column": "text", "regex": "^[a-z]+$"}),
        (f"{_VALUES}not_match_regex", {"column": "text", "regex": "[0-9]"}),
        (f"{_VALUES}match_regex_list", {"column": "text", "regex_list": ["^t", "^v"]}),
        (f"{_VALUES}not_match_regex_list", {"column": "text", "regex_list": ["^q", "^w"]}),
        (f"{_VALUES}match_strftime_format", {"column": "date_text", "strftime_format": "%Y-%m-%d"}),
        (f"{_VALUES}be_dateutil_parseable", {"column": "date_text"}),
        (f"{_VALUES}be_json_parseable", {"column": "json"}),
        (f"{_VALUES}be_increasing", {"column": "wide"}),
        ("expect_column_value_lengths_to_be_between", {"column": "text", "min_value": 1}),
        (
            "expect_column_value_z_scores_to_be_less_than",
            {"column": "double", "threshold": 9, "double_sided": True},
        ),
        ("expect_column_distinct_values_to_be_in_set", {"column": "text", "value_set": ["train"]}),
        ("expect_column_unique_value_count_to_be_between", {"column": "wide", **_ANY_NUMBER}),
        (
            "expect_column_quantile_values_to_be_between",
            {
                "column": "double",
                "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
            },
        ),
        ("expect_column_pair_values_a_to_be_greater_than_b", _PAIR),
        ("expect_column_pair_values_to_be_equal", _PAIR),
        ("expect_column_pair_values_to_be_in_set", {**_PAIR, "value_pairs_set": [[1, 1]]}),
        ("expect_compound_columns_to_be_unique", {"column_list": ["wide", "text"]}),
        (
            "expect_select_column_values_to_be_unique_within_record",
            {"column_list": ["wide", "narrow"]},
        ),
        ("expect_multicolumn_sum_to_equal", {"column_list": ["wide", "narrow"], "sum_total": 1}),
    ]
    found += [
        (f"expect_column_{what}_to_be_between", {"column": "double", **_ANY_NUMBER})
        for what in ("min", "max", "mean", "median", "sum", "stdev")
    ]
    return found


def _seconds(frame: pd.DataFrame, spec: ExpectationConfig) -> tuple[float, bool]:
    """Return the CPU seconds of an expectation, and True if it was evaluated without an error."""
    from nodesweep.tasks.dataset.findings import _raised_message
    from nodesweep.tasks.dataset.validation import _run_expectations

    began = time.process_time()
    try:
        result = _run_expectations(frame, [spec])[0]
    except TypeError as error:  # Great Expectations cannot store some results as JSON
        print(f"{spec.type}: {error}", file=sys.stderr)
        return time.process_time() - began, False
    return time.process_time() - began, _raised_message(result.exception_info) is None


def measure(rows: int) -> list[dict[str, Any]]:
    """Return the CPU seconds of each expectation, slowest in Great Expectations first."""
    import pyarrow.parquet as pq
    from great_expectations.expectations.metrics.column_map_metrics.column_values_between import (
        ColumnValuesBetween,
    )

    from nodesweep.tasks.dataset.judging.between import (
        between,
        register_condition,
        use_vectorised_between,
    )
    from nodesweep.tasks.dataset.judging.columns import needed_columns
    from nodesweep.tasks.dataset.judging.proof import inspect_file
    from nodesweep.tasks.dataset.validation import build_expectations

    specs = [ExpectationConfig(type=kind, kwargs=arguments) for kind, arguments in cases()]
    found = []
    with tempfile.TemporaryDirectory(prefix="nodesweep-expectations-") as scratch:
        path = Path(scratch) / "table.parquet"
        pq.write_table(make_table(rows), path)
        proven = inspect_file(path, build_expectations(specs)).proven
        use_vectorised_between()
        for index, spec in enumerate(specs):
            frame = pq.read_table(path).to_pandas()
            frame = frame[needed_columns(spec, list(frame.columns))]
            register_condition(ColumnValuesBetween._pandas)
            theirs, is_evaluated = _seconds(frame, spec)
            register_condition(between)
            is_ours = spec.type == f"{_VALUES}be_between"
            ours = _seconds(frame, spec)[0] if is_ours else theirs
            found.append(
                {
                    "expectation": spec.type,
                    "columns": [f"{name}: {dtype}" for name, dtype in frame.dtypes.items()],
                    "theirs_cpu_seconds": round(theirs, 3),
                    "ours_cpu_seconds": round(ours, 3),
                    "proven": index in proven,
                    "evaluated": is_evaluated,
                }
            )
    return sorted(found, key=lambda row: -row["theirs_cpu_seconds"])


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the result as text, one line per expectation."""
    lines = [f"{'GX':>8} {'here':>8}  proven  expectation"]
    for row in found:
        columns = ", ".join(row["columns"])
        lines.append(
            f"{row['theirs_cpu_seconds']:8.2f} {row['ours_cpu_seconds']:8.2f}"
            f"  {'yes' if row['proven'] else '':6}  {row['expectation']} ({columns})"
            + ("" if row["evaluated"] else "  NOT EVALUATED")
        )
    return "\n".join(lines)


def main() -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args()
    found = measure(options.rows)
    print(table(found))
    if options.output:
        result = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            "versions": {
                name: version(name) for name in ("great-expectations", "pandas", "pyarrow")
            },
            "rows": options.rows,
            "expectations": found,
        }
        options.output.write_bytes(pretty_json(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
