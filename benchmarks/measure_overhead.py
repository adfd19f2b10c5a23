"""Compare the step time of an unmodified script with and without nodesweep_measure.

    PYTHON_OF_THE_IMAGE benchmarks/measure_overhead.py [--repeats 15] [--work-seconds 0]
        [--output FILE.json]

A script of small steps (a linear layer on one thread, batches from a DataLoader) runs alternately
with and without nodesweep_measure on PYTHONPATH, each time in a new process, so that other load
affects both alike. The result is the difference of the median steps in microseconds, with a 95%
interval from resampling pairs of runs, and as a share of a step of --work-seconds, or of 2 ms if
that is longer. Every step busy-waits for --work-seconds; from 20 ms on, the parts of a step are
measured, too (nodesweep_budget.py). The start-up is the same difference for `python -c pass`. Exit
code 1 if the share is above --limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

IMAGE = Path(__file__).resolve().parents[1] / "infra" / "image"
LEAST_STEP_SECONDS = 0.002
SCRIPT = """
import sys, time, torch
from statistics import median
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(8000, 64)), batch_size=8)
times, work = [], float(sys.argv[1])
for epoch in range(3):
    last = time.perf_counter()
    for [batch] in loader:
        optimizer.zero_grad()
        end = time.perf_counter() + work
        while time.perf_counter() < end:
            pass
        model(batch).square().mean().backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
print(median(times[100:]))
"""


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    options = _parse(argv)
    pairs: list[tuple[float, float]] = []
    starts: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats + 1):
            order = (True, False) if repeat % 2 else (False, True)
            steps = {
                measured: step_seconds(measured, folder, options.work_seconds) for measured in order
            }
            began = {measured: start_seconds(measured, folder) for measured in order}
            if repeat:  # the first pair warms up caches
                pairs.append((steps[False], steps[True]))
                starts.append((began[False], began[True]))
    low, high = interval(pairs)
    step = max(LEAST_STEP_SECONDS, options.work_seconds)
    share = difference(pairs) / step
    result = {
        "step_microseconds_without": round(1e6 * median(without for without, _ in pairs), 2),
        "added_microseconds": round(1e6 * difference(pairs), 2),
        "added_microseconds_95": [round(1e6 * low, 2), round(1e6 * high, 2)],
        "share": round(share, 5),
        "of_a_step_of_milliseconds": round(1e3 * step, 3),
        "start_up_milliseconds": round(1e3 * difference(starts), 2),
        "repeats": options.repeats,
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
    }
    print(json.dumps(result, indent=1))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(share > options.limit)


def step_seconds(is_measured: bool, folder: str, work: float) -> float:
    """Run the script once, and return the median seconds of its steps."""
    return float(_run(is_measured, folder, "-c", SCRIPT, str(work)))


def start_seconds(is_measured: bool, folder: str) -> float:
    """Return the wall-clock seconds of a Python process that does nothing."""
    started = time.perf_counter()
    _run(is_measured, folder, "-c", "pass")
    return time.perf_counter() - started


def _run(is_measured: bool, folder: str, *command: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "SM_OUTPUT_DATA_DIR": folder,
        "OMP_NUM_THREADS": "1",
        **({"PYTHONPATH": str(IMAGE)} if is_measured else {}),
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def difference(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median over the pairs of the difference within a pair."""
    return median(measured - without for without, measured in pairs)


def interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the 95% interval of that median, from 2,000 resamplings of the pairs."""
    draw = random.Random(0)
    ends = quantiles((difference(draw.choices(pairs, k=len(pairs))) for _ in range(2000)), n=40)
    return ends[0], ends[-1]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15, help="pairs of runs")
    parser.add_argument(
        "--work-seconds", type=float, default=0.0, help="seconds of busy waiting in each step"
    )
    parser.add_argument(
        "--limit", type=float, default=0.01, help="maximum overhead, as a share of a step"
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
