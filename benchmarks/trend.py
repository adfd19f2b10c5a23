"""Measure how often, and how soon, the trend's control chart alarms on simulated histories.

    .venv/bin/python -m benchmarks.trend [--histories 1000] [--tolerance 0.05] [--output FILE.json]

It tests nodesweep/scaling/trend/chart.py. A cell is a run noise (sigma of the log of a time), a
number of runs, a shift of each sweep as a whole (standard deviation, as a fraction) and an event:
nothing, a step of 10%, or a creep of 1% per sweep, after the learning period or from the first
sweep on. A history is 30 sweeps of 1, 2, 4 and 8 nodes; it alarms if one of its counts does. A step
must be found within 3 sweeps, a creep within 12, each from its first sweep, and not after an
earlier alarm. Exit code 1 if a goal is missed at 2% run noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dated_result import store_result
from nodesweep.scaling.trend.chart import (
    FALSE_ALARM_SHARE,
    HISTORY_SWEEPS,
    LEARNING_SWEEPS,
    chart_sweeps,
    sweep_level,
)

NODE_COUNTS = (1, 2, 4, 8)
STEP, CREEP = 0.10, 0.01
NOTHING, STEP_AFTER, CREEP_AFTER, CREEP_FROM_FIRST = (
    "nothing",
    "step after learning",
    "creep after learning",
    "creep from the first",
)
# Event -> sweeps within which it must be found.
EVENTS = {NOTHING: HISTORY_SWEEPS, STEP_AFTER: 3, CREEP_AFTER: 12, CREEP_FROM_FIRST: 12}
GOAL_NOISE, MOST_FALSE, LEAST_FOUND = 0.02, 0.05, 0.90
# (run noise, runs per count)
NOISES = ((0.02, 5), (0.02, 3), (0.05, 5), (0.10, 5))
SHIFTS = (0.0, 0.02)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """Results of one cell.

    Attributes:
        share: Fraction of the histories that alarm if nothing happens, otherwise those in which the
            event is found in time.
    """

    noise: float
    runs: int
    shift: float
    event: str
    histories: int
    share: float
    standard_error: float

    @property
    def meets_goal(self) -> bool:
        """True if the goal is met, or none applies."""
        if self.noise > GOAL_NOISE:
            return True
        if self.event == NOTHING:
            return self.share <= MOST_FALSE
        return self.share >= LEAST_FOUND


def main(argv: Sequence[str]) -> int:
    """Simulate, then print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    print("noise  runs  shift  share of histories")
    cells = []
    for (noise, runs), shift, event in product(NOISES, SHIFTS, EVENTS):
        cell = simulate(
            noise, runs, shift, event, options.histories, options.seed, options.tolerance
        )
        cells.append(cell)
        print(_line(cell), flush=True)
    store_result(
        options.output,
        started,
        cells,
        seed=options.seed,
        tolerance=options.tolerance,
        node_counts=NODE_COUNTS,
        sweeps=HISTORY_SWEEPS,
        learning_sweeps=LEARNING_SWEEPS,
        false_alarm_share=FALSE_ALARM_SHARE,
    )
    return 0 if all(cell.meets_goal for cell in cells) else 1


def simulate(
    noise: float,
    runs: int,
    shift: float,
    event: str,
    histories: int,
    seed: int,
    tolerance: float = 0.05,
) -> Cell:
    """Simulate histories with `runs` per node count and sweep, at least 3."""
    generator = np.random.default_rng([seed, runs, round(noise * 10_000), round(shift * 10_000)])
    begins = 0 if event == CREEP_FROM_FIRST else LEARNING_SWEEPS
    drift = _drift(event, begins)
    told = 0
    for _ in range(histories):
        errors = generator.normal(0, noise, (HISTORY_SWEEPS, len(NODE_COUNTS), runs))
        shifts = generator.normal(0, shift, (HISTORY_SWEEPS, 1, 1))
        first = first_alarm(np.exp(errors + shifts + drift[:, None, None]), tolerance)
        told += first is not None and begins <= first < begins + EVENTS[event]
    share = told / histories
    error = (share * (1 - share) / histories) ** 0.5
    return Cell(noise, runs, shift, event, histories, share, error)


def first_alarm(times: Floats, tolerance: float) -> int | None:
    """Return the index of the first sweep that alarms.

    Args:
        times: Array of shape (sweeps, node counts, runs), in seconds.
        tolerance: Fraction by which a sweep may be slower.
    """
    sweeps, counts, _ = times.shape
    found: list[int] = []
    for count in range(counts):
        levels = [sweep_level(str(sweep), times[sweep, count].tolist()) for sweep in range(sweeps)]
        judged = chart_sweeps([each for each in levels if each is not None], tolerance, counts)
        found += [int(each.sweep_id) for each in judged if each.alarms]
    return min(found, default=None)


def _drift(event: str, begins: int) -> Floats:
    """Return the event's effect on the log time of each sweep."""
    since = np.arange(HISTORY_SWEEPS) - begins + 1
    if event == STEP_AFTER:
        return np.asarray(np.log1p(STEP) * (since > 0), dtype=np.float64)
    if event in (CREEP_AFTER, CREEP_FROM_FIRST):
        return np.asarray(np.log1p(CREEP) * np.maximum(since, 0), dtype=np.float64)
    return np.zeros(HISTORY_SWEEPS)


def _line(cell: Cell) -> str:
    what = "false alarms" if cell.event == NOTHING else f"found in {EVENTS[cell.event]}"
    missed = "" if cell.meets_goal else "  goal missed"
    return (
        f"{cell.noise * 100:3.0f} %  {cell.runs:4d}  {cell.shift * 100:3.0f} % "
        f" {cell.share * 100:5.1f} ± {cell.standard_error * 100:.1f} %"
        f"  {cell.event}, {what}{missed}"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the share of false and true alarms of the trend chart."
    )
    parser.add_argument(
        "--histories", type=int, default=1000, help="histories per cell, at least 1"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="smallest shift that the chart looks for, as a share",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    if options.histories < 1:
        parser.error(f"--histories: got {options.histories}; expected 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
