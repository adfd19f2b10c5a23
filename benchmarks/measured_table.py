"""How long a large table of measured times takes: reading it, analysing it, writing its report.

    .venv/bin/python benchmarks/measured_table.py [--rows 100000] [--limit 5] [--output FILE.json]

Two tables on four node counts: one of two columns, one of all but cost_usd. Each stage runs --repeats times, its median
counts. "command" is the whole of `nodesweep report --csv`, from its start with all imports to its end with every file
written; beside its seconds stand those of the processor, which say more on a machine that does other work as well.
"imports" is a process that imports what the command does, and ends; "read", "analyse" and "render" (tables, plots, JSON
and CSV, not yet written) are what the command does then. The exit code is 1 where the command takes longer than --limit
seconds for either table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from scaling.measured import read_measured
from scaling.names import pretty_json
from scaling.report import analyse
from scaling.report.render import render_files

T = TypeVar("T")
_COLUMNS = (
    *("nodes", "repeat", "train_seconds", "billable_seconds", "instance_type", "region", "status", "batch_policy"),
    *("global_batch_size", "world_size", "final_metric"),
)
_STAGES = ("command", "command_processor", "imports", "read", "analyse", "render")
_IMPORTS = "import flows.cli, flows.table, scaling.report.render, matplotlib.figure"
_CONSTANTS = ("ml.p3.16xlarge", "us-east-1", "Completed", "fixed_global", 4096)


def main(argv: Sequence[str]) -> int:
    """Measure, print, store."""
    options = _parse(argv)
    tables = {"two_columns": make_table(options.rows, ("nodes", "train_seconds")), "all": make_table(options.rows)}
    measured = {name: measure(table, options.repeats) for name, table in tables.items()}
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rows": options.rows,
        "tables": measured,
        "machine": describe_machine(),
    }
    print(json.dumps({name: each["median_seconds"] for name, each in measured.items()}, indent=1))
    if options.output:
        options.output.write_bytes(pretty_json(result))
    return 0 if all(each["median_seconds"]["command"] < options.limit for each in measured.values()) else 1


def measure(table: bytes, repeats: int) -> dict[str, Any]:
    """Seconds of each stage, every repeat and their median."""
    stages: dict[str, list[float]] = {name: [] for name in _STAGES}
    for _ in range(repeats):
        _run_command(table, stages)
        _run_once(table, stages)
    medians = {stage: median(seconds) for stage, seconds in stages.items()}
    return {"table_bytes": len(table), "median_seconds": medians, "seconds": stages}


def _run_command(table: bytes, stages: dict[str, list[float]]) -> None:
    """The whole command in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "times.csv"
        path.write_bytes(table)
        command = [sys.executable, "-m", "flows.cli", "report", "--csv", str(path), "--output", folder]
        before = _children_seconds()
        _timed(stages["command"], lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        stages["command_processor"].append(_children_seconds() - before)
        _timed(stages["imports"], lambda: subprocess.run([sys.executable, "-c", _IMPORTS], check=True))


def _children_seconds() -> float:
    """Processor time of the processes that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _run_once(table: bytes, stages: dict[str, list[float]]) -> None:
    """One run of every stage; what it made is freed before the next run."""
    outcomes = _timed(stages["read"], read_measured, table)
    given: tuple[Any, ...] = ("table", None, None, outcomes, None, {}, datetime.now(UTC))
    analysis = _timed(stages["analyse"], analyse, *given)
    _timed(stages["render"], render_files, *analysis)


def make_table(rows: int, columns: Sequence[str] = _COLUMNS) -> bytes:
    """A table of that many runs on 1, 2, 4 and 8 nodes, the same one each time."""
    draws = random.Random(0)
    lines = [",".join(columns)]
    for row in range(rows):
        nodes = 2 ** (row % 4)
        seconds = 5940 / nodes * draws.uniform(1, 1.1)
        metric = draws.uniform(0.75, 0.77)
        cells = (nodes, row // 4 + 1, f"{seconds:.3f}", f"{seconds + 120:.0f}", *_CONSTANTS, 8 * nodes, f"{metric:.4f}")
        by_name = dict(zip(_COLUMNS, cells, strict=True))
        lines.append(",".join(str(by_name[column]) for column in columns))
    return "\n".join(lines).encode()


def describe_machine() -> dict[str, Any]:
    """What the numbers belong to."""
    return {
        "cores": os.cpu_count(),
        "load_average_1_minute": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "pydantic", "matplotlib")},
    }


def _timed(seconds: list[float], work: Callable[..., T], *arguments: Any) -> T:
    started = time.perf_counter()
    made = work(*arguments)
    seconds.append(time.perf_counter() - started)
    return made


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How long a large table of measured times takes.")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table")
    parser.add_argument("--repeats", type=int, default=3, help="times each stage runs")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds of the command from which the exit code is 1")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
