"""Measure how often, and how soon, the control chart of a trend alarms on simulated histories.

    .venv/bin/python -m benchmarks.trend [--histories 250] [--tolerance 0.05] [--output FILE.json]

The benchmark tests nodesweep/scaling/trend/chart.py. A cell is a noise, a number of runs and an
event. A history is 30 sweeps of 1, 2, 4 and 8 nodes; it alarms if one of its node counts does. An
event is found if the first alarm of a history is within the first 4 sweeps of the event (of a
creep: 16). Exit code 1 if a noise raises false alarms in more than 5% of the histories, or if an
event is found in fewer than 90% of the histories although the chart reports that it would notice a
step of 10%.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dated_result import store_result
from nodesweep.scaling.trend.chart import (
    FALSE_ALARM_SHARE,
    FOUND_WITHIN,
    HISTORY_SWEEPS,
    LEARNING_SWEEPS,
    Judgement,
    chart_sweeps,
    sweep_level,
)

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]

NODE_COUNTS = (1, 2, 4, 8)
RUNS = (1, 2, 3, 5)
MOST_FALSE, LEAST_FOUND = 0.05, 0.90


@dataclass(frozen=True)
class Event:
    """A change of all times; `begins` is the index of the first sweep that should alarm."""

    name: str
    begins: int
    within: int
    log_effect: Callable[[npt.NDArray[np.int64]], Floats]


def _since(sweeps: npt.NDArray[np.int64], index: int) -> Floats:
    return np.asarray(sweeps >= index, dtype=np.float64)


NOTHING = Event("nothing", 0, HISTORY_SWEEPS, lambda sweeps: np.zeros(len(sweeps)))
STEP, LATER_STEP = (
    Event(
        f"10% slower from sweep {begins + 1} on",
        begins,
        FOUND_WITHIN,
        lambda sweeps, begins=begins: np.log(1.1) * _since(sweeps, begins),  # type: ignore[misc]
    )
    for begins in (LEARNING_SWEEPS, 15)
)
STEP_BACK = Event(
    "10% faster from sweep 9 on, 10% slower than that from sweep 19 on",
    18,
    FOUND_WITHIN,
    lambda sweeps: np.log(1.1) * (_since(sweeps, 18) - _since(sweeps, 8)),
)
AFTER_A_BAD_SWEEP = Event(
    "sweep 3 25% slower, 10% slower from sweep 16 on",
    15,
    FOUND_WITHIN,
    lambda sweeps: np.log(1.25) * (sweeps == 2) + np.log(1.1) * _since(sweeps, 15),
)
AFTER_A_SLOW_WEEK = Event(
    "sweeps 1 to 6 4% slower, 10% slower from sweep 26 on",
    25,
    FOUND_WITHIN,
    lambda sweeps: np.log(1.04) * (1 - _since(sweeps, 6)) + np.log(1.1) * _since(sweeps, 25),
)
CREEP, CREEP_FROM_FIRST = (
    Event(
        f"1% slower with each sweep from sweep {begins + 1} on",
        begins,
        16,
        lambda sweeps, begins=begins: np.log(1.01) * np.maximum(sweeps - begins + 1, 0),  # type: ignore[misc]
    )
    for begins in (LEARNING_SWEEPS, 0)
)
EVENTS = (
    NOTHING,
    STEP,
    LATER_STEP,
    STEP_BACK,
    AFTER_A_BAD_SWEEP,
    AFTER_A_SLOW_WEEK,
    CREEP,
    CREEP_FROM_FIRST,
)


def _normal(run: float, night: float) -> Draw:
    """Draw independent errors of runs and sweeps; the arguments are sigmas of log times."""

    def draw(generator: np.random.Generator, histories: int, runs: int) -> Floats:
        errors = generator.normal(0, run, (histories, HISTORY_SWEEPS, len(NODE_COUNTS), runs))
        return errors + generator.normal(0, night, (histories, HISTORY_SWEEPS, 1, 1))

    return draw


def _slow_runs(share: float, factor: float) -> Draw:
    """Draw errors in which a share of the runs takes `factor` times as long."""

    def draw(generator: np.random.Generator, histories: int, runs: int) -> Floats:
        times = _normal(0.02, 0.02)(generator, histories, runs)
        return times + np.log(factor) * (generator.random(times.shape) < share)

    return draw


def _correlated(night: float) -> Draw:
    """Draw errors of sweeps that follow an AR(1) process with coefficient 0.8."""

    def draw(generator: np.random.Generator, histories: int, runs: int) -> Floats:
        shifts = generator.normal(0, night, (HISTORY_SWEEPS, histories))
        for sweep in range(1, HISTORY_SWEEPS):
            shifts[sweep] = 0.8 * shifts[sweep - 1] + 0.6 * shifts[sweep]
        return _normal(0.02, 0.0)(generator, histories, runs) + shifts.T[:, :, None, None]

    return draw


def _heavy_tails(scale: float) -> Draw:
    """Draw errors of sweeps from Student's t with 3 degrees of freedom."""

    def draw(generator: np.random.Generator, histories: int, runs: int) -> Floats:
        shifts = scale * generator.standard_t(3, (histories, HISTORY_SWEEPS, 1, 1))
        return _normal(0.02, 0.0)(generator, histories, runs) + shifts

    return draw


NOISES: dict[str, Draw] = {
    "runs 2%": _normal(0.02, 0.0),
    "runs 2%, sweeps 2%": _normal(0.02, 0.02),
    "runs 5%, sweeps 2%": _normal(0.05, 0.02),
    "runs 5%, sweeps 5%": _normal(0.05, 0.05),
    "a fifth of the runs 10% slower": _slow_runs(0.2, 1.1),
    "a third of the runs 15% slower": _slow_runs(1 / 3, 1.15),
    "one run in 20 takes twice as long": _slow_runs(0.05, 2.0),
    "sweeps AR(1) 2%": _correlated(0.02),
    "sweeps AR(1) 3%": _correlated(0.03),
    "sweeps t3, scale 2%": _heavy_tails(0.02),
}


FOUND_IN = ("runs 2%", "runs 2%, sweeps 2%", "one run in 20 takes twice as long")
"""Noises that are combined with events; the others have no event."""


@dataclass(frozen=True)
class Cell:
    """Results of one cell.

    Attributes:
        share: Fraction of the histories that alarm, if the cell has no event; otherwise fraction of
            the histories in which the event is found in time.
        noticeable: Median of the smallest step that the chart reports it would notice, as a
            fraction.
    """

    noise: str
    runs: int
    event: str
    histories: int
    share: float
    standard_error: float
    noticeable: float

    @property
    def meets_goal(self) -> bool:
        """True if the cell meets its goal, or the chart reports that it cannot notice 10%."""
        if self.event == NOTHING.name:
            return self.share <= MOST_FALSE
        return self.noticeable > np.expm1(np.log(1.1)) or self.share >= LEAST_FOUND


def main(argv: Sequence[str]) -> int:
    """Simulate, then print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    cells = []
    for noise, runs, event in product(NOISES, RUNS, EVENTS):
        if event != NOTHING and noise not in FOUND_IN:
            continue
        cell = simulate(noise, runs, event, options.histories, options.seed, options.tolerance)
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
    noise: str, runs: int, event: Event, histories: int, seed: int, tolerance: float = 0.05
) -> Cell:
    """Simulate histories with `runs` runs per node count and sweep, and return their cell."""
    generator = np.random.default_rng([seed, runs, *noise.encode()])
    effect = event.log_effect(np.arange(HISTORY_SWEEPS))
    times = np.exp(NOISES[noise](generator, histories, runs) + effect[:, None, None])
    told, noticeable = 0, []
    for history in times[:, : event.begins + event.within]:
        judged = judge(history, tolerance)
        first = min((index for index, each in judged if each.alarms), default=None)
        told += first is not None and first >= event.begins
        noticeable += [each.noticeable for _, each in judged[-1:]]
    share = told / histories
    error = (share * (1 - share) / histories) ** 0.5
    step = float(np.expm1(np.median(noticeable)))
    return Cell(noise, runs, event.name, histories, share, error, step)


def judge(times: Floats, tolerance: float) -> list[tuple[int, Judgement]]:
    """Judge each node count by the chart; return (index of the sweep, judgement) pairs.

    Args:
        times: Array of shape (sweeps, node counts, runs), in seconds.
        tolerance: Fraction by which a sweep may be slower.
    """
    sweeps, counts, _ = times.shape
    judged: list[tuple[int, Judgement]] = []
    for count in range(counts):
        levels = [sweep_level(str(sweep), times[sweep, count].tolist()) for sweep in range(sweeps)]
        judged += [(int(each.sweep_id), each) for each in chart_sweeps(levels, tolerance, counts)]
    return judged


def _line(cell: Cell) -> str:
    what = "false alarms" if cell.event == NOTHING.name else "found"
    missed = "" if cell.meets_goal else "  goal missed"
    return (
        f"{cell.noise}, n = {cell.runs}; {cell.event}: {what} {cell.share * 100:.1f} ±"
        f" {cell.standard_error * 100:.1f}%, notices {cell.noticeable * 100:.0f}%{missed}"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the share of false and true alarms of the trend chart."
    )
    parser.add_argument("--histories", type=int, default=250, help="histories per cell, at least 1")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="tolerance of the chart, as a share",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    if options.histories < 1:
        parser.error(f"--histories: got {options.histories}; expected 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
