"""Measure how often the intervals of T(N) and S(N) cover the truth, on simulated sweeps.

    .venv/bin/python -m benchmarks.interval_coverage [--sweeps 8000] [--noise 0.05] [--repeats 5 7]
        [--kinds autocorrelated session_shift] [--orders in_a_row] [--output FILE.json]

The benchmark tests nodesweep/scaling/analysis/intervals.py. A cell is a log-normal noise (sigma of
the log of a time, approximately its relative standard deviation), the kind of the noise, the order
of the runs and a number of repeats. Sweeps run 1, 2, 4 and 8 nodes; the true T(N) is the geometric
mean of the distribution from which times are drawn, and the true S(N) is T(1)/T(N). S(1) = 1 is not
an estimate and has no interval. The standard error is computed over sweeps, since all S(N) of a
sweep share T(1). Exit code 1 if the coverage of T or S in a cell of independent noise is outside
93% to 98%.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dated_result import store_result
from nodesweep.scaling.analysis.intervals import (
    MIN_REPEATS,
    Interval,
    mean_interval,
    paired_ratio_interval,
    ratio_interval,
)

NODE_COUNTS = (1, 2, 4, 8)
# Amdahl's law with a serial fraction of 5%. The intervals scale with the times, so another law
# changes nothing.
TRUE_SECONDS = tuple(3600 * (0.05 + 0.95 / nodes) for nodes in NODE_COUNTS)
REQUIRED_COVERAGE = (0.93, 0.98)
# Parameters of dependent noise: a slow host runs every tenth run and adds three sigma; a session
# shift moves all runs after a random moment by a draw of twice the noise.
AUTOCORRELATION = 0.8
SLOW_HOST_SHARE, SLOW_HOST_SIGMAS = 0.1, 3.0
SHIFT_SIGMAS = 2.0
KINDS = ("independent", "autocorrelated", "slow_host", "session_shift")
# shuffled: one pass over all counts per repeat, in a new order; in_a_row: all repeats of one count
# before the next.
ORDERS = ("shuffled", "in_a_row")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Coverage:
    """Fraction of intervals that contain the truth, its standard error, and mean relative width."""

    share: float
    standard_error: float
    mean_relative_width: float


@dataclass(frozen=True)
class Cell:
    """Coverage of T(N) and S(N) for one noise and number of repeats; S unpaired and paired."""

    noise: float
    repeats: int
    sweeps: int
    train_seconds: Coverage
    speedup: Coverage
    paired_speedup: Coverage
    kind: str = "independent"
    order: str = "shuffled"

    @property
    def meets_requirement(self) -> bool:
        """True if the cell has the required coverage, or none is required of it."""
        low, high = REQUIRED_COVERAGE
        covered = (self.train_seconds.share, self.speedup.share, self.paired_speedup.share)
        return self.kind != "independent" or all(low <= share <= high for share in covered)


def main(argv: Sequence[str]) -> int:
    """Simulate, then print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    print("noise    n    T covered, width           S covered, width           S paired, width")
    cells = []
    for kind, order, noise, repeats in product(
        options.kinds, options.orders, options.noise, options.repeats
    ):
        cells.append(simulate(noise, repeats, options.sweeps, options.seed, kind, order))
        print(_line(cells[-1]), flush=True)
    store_result(
        options.output,
        started,
        cells,
        seed=options.seed,
        node_counts=NODE_COUNTS,
    )
    return 0 if all(cell.meets_requirement for cell in cells) else 1


def simulate(
    noise: float,
    repeats: int,
    sweeps: int,
    seed: int,
    kind: str = "independent",
    order: str = "shuffled",
) -> Cell:
    """Compare the intervals of simulated sweeps with the truth; `repeats` is at least 3."""
    generator = np.random.default_rng([seed, repeats, round(noise * 1_000_000)])
    true_seconds = np.asarray(TRUE_SECONDS) * np.exp(_mean_shift(kind, noise))
    true_speedups = [TRUE_SECONDS[0] / true for true in TRUE_SECONDS[1:]]
    times, speedups, paired = [], [], []
    for _ in range(sweeps):
        errors = _errors(generator, kind, order, noise, repeats)
        runs = [
            (true * np.exp(each)).tolist() for true, each in zip(TRUE_SECONDS, errors, strict=True)
        ]
        times.append(list(_checked(zip(true_seconds, map(mean_interval, runs), strict=True))))
        ratios = [ratio_interval(runs[0], some) for some in runs[1:]]
        speedups.append(list(_checked(zip(true_speedups, ratios, strict=True))))
        pairs = [dict(enumerate(some)) for some in runs]
        ratios = [paired_ratio_interval(pairs[0], some) for some in pairs[1:]]
        paired.append(list(_checked(zip(true_speedups, ratios, strict=True))))
    return Cell(
        noise,
        repeats,
        sweeps,
        _coverage(times),
        _coverage(speedups),
        _coverage(paired),
        kind,
        order,
    )


def _errors(
    generator: np.random.Generator, kind: str, order: str, noise: float, repeats: int
) -> Floats:
    """Draw errors of the runs' log times, of shape (node counts, repeats)."""
    counts = len(NODE_COUNTS)
    if kind == "independent":
        return generator.normal(0, noise, (counts, repeats))
    in_time = _in_time(generator, kind, noise, counts * repeats)
    if order == "in_a_row":
        return in_time.reshape(counts, repeats)
    return np.stack(
        [each[generator.permutation(counts)] for each in in_time.reshape(repeats, counts)], axis=1
    )


def _in_time(generator: np.random.Generator, kind: str, noise: float, runs: int) -> Floats:
    """Draw errors of the log times of consecutive runs."""
    drawn = generator.normal(0, noise, runs)
    if kind == "slow_host":
        return drawn + SLOW_HOST_SIGMAS * noise * (generator.random(runs) < SLOW_HOST_SHARE)
    if kind == "session_shift":
        shifted = np.arange(runs) >= generator.integers(1, runs)
        return drawn + shifted * generator.normal(0, SHIFT_SIGMAS * noise)
    for run in range(1, runs):
        drawn[run] = AUTOCORRELATION * drawn[run - 1] + (1 - AUTOCORRELATION**2) ** 0.5 * drawn[run]
    return drawn


def _mean_shift(kind: str, noise: float) -> float:
    """Return the mean error of a log time: positive for slow hosts, 0 for symmetric noise."""
    return SLOW_HOST_SHARE * SLOW_HOST_SIGMAS * noise if kind == "slow_host" else 0.0


def _checked(pairs: Iterator[tuple[float, Interval | None]]) -> Iterator[tuple[bool, float]]:
    """Yield (interval contains the truth, relative width) for each (truth, interval)."""
    for truth, interval in pairs:
        assert interval is not None
        yield interval.contains(truth), (interval.high - interval.low) / truth


def _coverage(sweeps: Sequence[Sequence[tuple[bool, float]]]) -> Coverage:
    """Average (contains the truth, relative width) over sweeps and intervals."""
    checked = np.asarray(sweeps, dtype=np.float64)
    per_sweep = checked[:, :, 0].mean(axis=1)
    error = per_sweep.std(ddof=1) / len(per_sweep) ** 0.5
    return Coverage(float(per_sweep.mean()), float(error), float(checked[:, :, 1].mean()))


def _line(cell: Cell) -> str:
    columns = [
        f"{covered.share * 100:5.2f} ± {covered.standard_error * 100:.2f}%  "
        f" {covered.mean_relative_width * 100:6.1f}% "
        for covered in (cell.train_seconds, cell.speedup, cell.paired_speedup)
    ]
    missed = "" if cell.meets_requirement else "  outside 93 to 98%"
    noise = f"{cell.noise * 100:3.0f}%   {cell.repeats:3d}"
    return f"{noise}  {'  '.join(columns)}  {cell.kind}, {cell.order}{missed}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(
            "Measure the coverage of the 95% intervals of T(N) and S(N). The whole table of"
            " docs/statistics.md: --kinds " + " ".join(KINDS) + " --orders " + " ".join(ORDERS)
        ).replace("%", "%%")
    )
    parser.add_argument(
        "--sweeps", type=int, default=8000, help="simulated sweeps per cell, at least 2"
    )
    parser.add_argument(
        "--noise",
        type=float,
        nargs="+",
        default=[0.02, 0.05, 0.1],
        help="standard deviations of the log of a time",
    )
    parser.add_argument(
        "--repeats", type=int, nargs="+", default=[3, 5, 7, 10], help="runs per node count"
    )
    parser.add_argument(
        "--kinds", nargs="+", default=["independent"], choices=KINDS, help="kinds of noise"
    )
    parser.add_argument(
        "--orders", nargs="+", default=["shuffled"], choices=ORDERS, help="order of the runs"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    if min(options.repeats) < MIN_REPEATS:
        parser.error(
            f"--repeats: got {min(options.repeats)}; an interval needs at least {MIN_REPEATS} runs"
        )
    if options.sweeps < 2:
        parser.error(f"--sweeps: got {options.sweeps}; a standard error needs at least 2")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
