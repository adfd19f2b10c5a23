"""Compare the time to validate a dataset (36 expectations on Parquet) with that of a mere scan.

    .venv/bin/python -m benchmarks.validation [--rows 5000000] [--files 10] [--repeats 3]
        [--output FILE.json]

Each way runs in a separate process and is measured after its imports. `scan` reads all columns with
pyarrow and finds their nulls and extremes; `ours` is nodesweep's validation
(tasks/dataset/validation.py). These two run in turn in every repeat, `great_expectations` only in
the first: it reads all files into one frame, which Great Expectations alone judges. Medians of both
wall and CPU seconds are compared, since other load lengthens wall time. The peak is the highest
resident memory of a process minus its peak after its imports. Exit code 1 if `ours` needs more than
3 times the scan's CPU seconds, or finds a failure in the data, which are valid.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from nodesweep.configs.dataset import DatasetConfig, ExpectationConfig
from nodesweep.scaling.names import pretty_json

GOAL_RATIO = 3.0
_MODULE = "benchmarks.validation"
_KIBIBYTE = 1024
_WAYS = ("scan", "ours", "great_expectations")
_NARROW, _SINGLE, _WIDE, _DOUBLE = range(6), range(6), range(3), range(2)


def write_data(folder: Path, rows: int, files: int, seed: int = 0) -> None:
    """Write `files` Parquet files of 20 columns, `rows` rows in all."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(seed)
    count = rows // files
    start = np.datetime64("2026-01-01", "us")
    words = np.array(["train", "test", "valid"])
    for part in range(files):
        columns: dict[str, Any] = {
            f"narrow_{index}": random.integers(0, 1000, count).astype("int32") for index in _NARROW
        }
        columns |= {f"single_{index}": random.random(count).astype("float32") for index in _SINGLE}
        columns |= {f"wide_{index}": random.integers(0, 10**6, count) for index in _WIDE}
        columns |= {f"double_{index}": random.random(count) for index in _DOUBLE}
        columns["time"] = start + random.integers(0, 10**12, count).astype("timedelta64[us]")
        columns["split"] = words[random.integers(0, 3, count)]
        columns["id"] = np.arange(part * count, (part + 1) * count)
        pq.write_table(pa.table(columns), folder / f"part-{part}.parquet")


def checks() -> tuple[ExpectationConfig, ...]:
    """Return 36 common expectations, all of which the generated data meets."""
    groups = [("narrow", _NARROW, 999), ("single", _SINGLE, 1), ("double", _DOUBLE, 1)]
    limits = {f"{name}_{index}": high for name, count, high in groups for index in count}
    limits |= {f"wide_{index}": 10**6 for index in _WIDE}
    specs: list[tuple[str, dict[str, Any]]] = [
        ("expect_column_values_to_be_between", {"column": name, "min_value": 0, "max_value": high})
        for name, high in limits.items()
    ]
    specs += [
        ("expect_column_values_to_not_be_null", {"column": name})
        for name in [*(name for name in limits if "wide" not in name), "split"]
    ]
    since = {"column": "time", "min_value": "2026-01-01T00:00:00"}
    splits = {"column": "split", "value_set": ["train", "test", "valid"]}
    specs += [
        ("expect_column_values_to_be_between", since),
        ("expect_column_values_to_be_in_set", splits),
        ("expect_table_column_count_to_equal", {"value": 20}),
        ("expect_column_to_exist", {"column": "split"}),
    ]
    return tuple(ExpectationConfig(type=kind, kwargs=arguments) for kind, arguments in specs)


def prepare_scan(files: list[Path]) -> Callable[[], bool]:
    """Return a function that scans the files."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    pq.read_table(files[0], columns=["id"])  # pyarrow imports further modules on first use

    def scan() -> bool:
        nulls = 0
        for path in files:
            for column in pq.read_table(path).columns:
                nulls += column.null_count
                pc.min_max(column)
        return nulls == 0

    return scan


def prepare_ours(files: list[Path]) -> Callable[[], bool]:
    """Return a function that validates the files as a run does."""
    import great_expectations  # noqa: F401  (its import takes seconds, which no way includes)

    from nodesweep.tasks.dataset.judging import proof  # noqa: F401
    from nodesweep.tasks.dataset.validation import validate_dataset

    config = DatasetConfig(name="bench", source="x", format="parquet", expectations=checks())
    return lambda: validate_dataset(files, config, now=datetime.now(UTC)).success


def prepare_great_expectations(files: list[Path]) -> Callable[[], bool]:
    """Return a function that validates the files with Great Expectations only."""
    import pandas as pd
    from great_expectations.expectations.metrics.column_map_metrics.column_values_between import (
        ColumnValuesBetween,
    )

    from nodesweep.tasks.dataset.judging.between import register_condition, use_vectorised_between
    from nodesweep.tasks.dataset.validation import _run_expectations

    use_vectorised_between()
    # Great Expectations' own comparison, for the rest of this process
    register_condition(ColumnValuesBetween._pandas)

    def judge() -> bool:
        frame = pd.concat([pd.read_parquet(path) for path in files], ignore_index=True)
        results = _run_expectations(frame, checks())
        return len(results) == len(checks()) and all(it.success for it in results.values())

    return judge


def measure(way: str, folder: Path) -> dict[str, Any]:
    """Measure one scan or validation in this process."""
    prepare = {
        "scan": prepare_scan,
        "ours": prepare_ours,
        "great_expectations": prepare_great_expectations,
    }[way]
    return measure_call(prepare(sorted(folder.glob("*.parquet"))))


def measure_call(run: Callable[[], bool]) -> dict[str, Any]:
    """Call `run`; return its success, its seconds, and the growth of peak memory in bytes."""
    before = _peak_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    success = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = _peak_bytes() - before
    return {
        "success": success,
        "wall_seconds": round(wall, 3),
        "cpu_seconds": round(cpu, 3),
        "peak_bytes": peak,
    }


def _peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * _KIBIBYTE


def in_a_process(module: str, way: str, folder: Path) -> dict[str, Any]:
    """Measure one way of a benchmark in a separate process."""
    command = [sys.executable, "-m", module, "--measure", way, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{way:20} {result}", flush=True)
    return result


def medians(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the median wall and CPU seconds of each way."""
    return {
        way: {key: median(run[key] for run in some) for key in ("wall_seconds", "cpu_seconds")}
        for way, some in runs.items()
    }


def peaks(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Return the highest memory growth of each way, in bytes."""
    return {way: max(run["peak_bytes"] for run in some) for way, some in runs.items()}


def compare(rows: int, files: int, repeats: int) -> dict[str, Any]:
    """Run every way on generated data, which is deleted afterwards, and compare them."""
    with tempfile.TemporaryDirectory(prefix="nodesweep-validation-") as scratch:
        folder = Path(scratch)
        write_data(folder, rows, files)
        size = sum(path.stat().st_size for path in folder.iterdir())
        in_a_process(_MODULE, "scan", folder)  # fills the page cache
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in _WAYS}
        for repeat in range(repeats):
            for way in _WAYS[: 3 if repeat == 0 else 2]:
                runs[way].append(in_a_process(_MODULE, way, folder))
    middle = medians(runs)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "load_at_end": [round(value, 1) for value in os.getloadavg()],
        "versions": {name: version(name) for name in ("great-expectations", "pandas", "pyarrow")},
        "data": {"rows": rows, "columns": 20, "files": files, "bytes": size},
        "expectations": len(checks()),
        "runs": runs,
        "median": middle,
        "peak_bytes": peaks(runs),
        "ratio_to_scan": {
            key: {way: round(middle[way][key] / middle["scan"][key], 2) for way in _WAYS}
            for key in ("wall_seconds", "cpu_seconds")
        },
    }


def main() -> int:
    """Measure, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the dataset")
    parser.add_argument("--files", type=int, default=10, help="files of the dataset")
    parser.add_argument("--repeats", type=int, default=3, help="validations per way")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        way, folder = options.measure
        print(json.dumps(measure(way, Path(folder))))
        return 0
    result = compare(options.rows, options.files, options.repeats)
    print(json.dumps({key: result[key] for key in ("median", "peak_bytes", "ratio_to_scan")}))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    is_near = result["ratio_to_scan"]["cpu_seconds"]["ours"] <= GOAL_RATIO
    return 0 if is_near and all(run["success"] for run in result["runs"]["ours"]) else 1


if __name__ == "__main__":
    sys.exit(main())
