"""How often a prediction beyond the measured node counts is right: scaling/fits/extrapolation.py on
simulated sweeps.

    nice -n 19 .venv/bin/python -m benchmarks.extrapolation [--sweeps 1000] [--noise 0.01 0.02]
        [--runs 3 5] [--curves amdahl ring] [--output FILE.json]

A cell is a curve of true medians on 1, 2, 4 and 8 nodes, a log-normal noise (sigma of the log of a
time), a number of runs, and how many times slower the link is at 16 nodes, where the prediction is
made: the part of T(16) that is not compute over 16 is multiplied by it, and nothing measured shows
it. The interval is looked at twice: in all sweeps, and in those whose prediction is supported,
which is what a report shows. The exit code is 1 where the link stays as it is, a law of the family
made the times, and fewer than 90 % of the intervals hold the truth (of the supported ones, too,
where there are 100 or more) or more than 5 % of the supported predictions are off by more than
10 %.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dated_result import store_result
from scaling.analysis.intervals import Interval
from scaling.fits.extrapolation import EXTRAPOLATION_FACTOR, REACH, laws_beyond, run_noise
from scaling.fits.fit import fit_laws
from scaling.fits.laws import Sample

NODE_COUNTS = (1, 2, 4, 8)
AT = EXTRAPOLATION_FACTOR * NODE_COUNTS[-1]
NOISES = (0.005, 0.01, 0.02, 0.05)
RUNS = (3, 5)
LINK_FACTORS = (1, 1.25, 2, 4)
ONE_NODE_SECONDS = 600.0
LEAST_COVERED, MOST_OFF, FROM_SUPPORTED = 0.90, 0.05, 100

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """What is added to compute over N, as a share of the time on one node, and whether one of the
    fitted laws is this curve. `per_replica`: the batch grows with the nodes, the steps do not.
    """

    overhead: Callable[[int], float]
    in_family: bool = True
    per_replica: bool = False

    def seconds(self, nodes: int, link_factor: float = 1) -> float:
        return ONE_NODE_SECONDS * (1 / nodes + link_factor * self.overhead(nodes))

    @property
    def steps_ratio(self) -> Mapping[int, float]:
        return {n: 1 / n if self.per_replica else 1.0 for n in (*NODE_COUNTS, AT)}


CURVES: Mapping[str, Curve] = {
    "amdahl 2 %": Curve(lambda n: 0.02 * (n - 1) / n),
    "amdahl 10 %": Curve(lambda n: 0.10 * (n - 1) / n),
    "usl": Curve(lambda n: (0.03 * (n - 1) + 0.001 * n * (n - 1)) / n),
    "ring": Curve(lambda n: 0.20 * (n - 1) / n**2, per_replica=True),
    "tree": Curve(lambda n: 0.02 * math.log2(n), in_family=False),
}
"""tree: a reduction of log2 N stages, which no fitted law is."""


@dataclass(frozen=True)
class Cell:
    """Shares of the sweeps, those named supported of the supported ones; None: there is none.
    `covered` is of those with an interval, where not every law is refuted; `median_ratio` is the
    median of its upper over its lower end.
    """

    curve: str
    link_factor: float
    noise: float
    runs: int
    sweeps: int
    covered: float | None
    median_ratio: float | None
    supported: float
    supported_covered: float | None
    supported_off_by_more: float | None
    supported_median_error: float | None

    @property
    def is_right(self) -> bool:
        asked = self.link_factor == 1 and CURVES[self.curve].in_family
        if not asked:
            return True
        if self.supported * self.sweeps < FROM_SUPPORTED:
            return (self.covered or 0.0) >= LEAST_COVERED
        covered, off = self.supported_covered or 0.0, self.supported_off_by_more or 0.0
        return min(covered, self.covered or 0.0) >= LEAST_COVERED and off <= MOST_OFF


@dataclass(frozen=True)
class Said:
    """What one sweep's report says of the count beyond, and what its interval is or would be."""

    interval: Interval | None
    seconds: float | None


def main(argv: Sequence[str]) -> int:
    """Simulate, print, store."""
    options = _parse(argv)
    started = time.perf_counter()
    print(
        "curve         link noise   n  covered high/low   supported: share, covered,"
        " off by > 10 %, median error"
    )
    cells: list[Cell] = []
    for name, noise, runs in product(options.curves, options.noise, options.runs):
        for cell in simulate(name, noise, runs, options.sweeps, options.seed):
            cells.append(cell)
            print(_line(cell), flush=True)
    for factor in LINK_FACTORS:
        print(_together([cell for cell in cells if cell.link_factor == factor], factor))
    store_result(
        options.output,
        started,
        cells,
        seed=options.seed,
        node_counts=NODE_COUNTS,
        predicted_at=AT,
        most_reach=REACH,
    )
    return 0 if all(cell.is_right for cell in cells) else 1


def simulate(name: str, noise: float, runs: int, sweeps: int, seed: int) -> Iterator[Cell]:
    """The same sweeps against each truth; `runs` at least 3."""
    curve = CURVES[name]
    generator = np.random.default_rng([seed, list(CURVES).index(name), runs, round(noise * 10_000)])
    true_seconds = np.array([curve.seconds(nodes) for nodes in NODE_COUNTS])
    said = []
    for _ in range(sweeps):
        errors = generator.normal(0, noise, (len(NODE_COUNTS), runs))
        said.append(extrapolated(true_seconds[:, None] * np.exp(errors), curve.steps_ratio))
    for factor in LINK_FACTORS:
        yield _cell(name, noise, runs, said, factor)


def extrapolated(times: Floats, steps_ratio: Mapping[int, float]) -> Said:
    """(node counts, runs) of times -> what is said at twice the largest count."""
    medians = np.median(times, axis=1)
    points = list(zip(NODE_COUNTS, medians.tolist(), strict=True))
    by_nodes = dict(zip(NODE_COUNTS, times.tolist(), strict=True))
    fits = fit_laws(points, steps_ratio, runs=by_nodes)
    noise = run_noise(times.tolist())
    assert noise is not None
    nodes = np.array(NODE_COUNTS, dtype=np.float64)
    sample = Sample(nodes, nodes * medians, np.ones(len(nodes)))
    found = laws_beyond(fits.laws, sample, steps_ratio, noise, AT)
    return Said(found.interval, fits.extrapolation.train_seconds)


def _cell(name: str, noise: float, runs: int, said: Sequence[Said], factor: float) -> Cell:
    truth = CURVES[name].seconds(AT, factor)
    intervals = [each.interval for each in said if each.interval is not None]
    shown = [
        (each.seconds, each.interval.contains(truth))
        for each in said
        if each.seconds is not None and each.interval is not None
    ]
    errors = np.array([seconds / truth - 1 for seconds, _ in shown])
    return Cell(
        curve=name,
        link_factor=factor,
        noise=noise,
        runs=runs,
        sweeps=len(said),
        covered=float(np.mean([each.contains(truth) for each in intervals])) if intervals else None,
        median_ratio=(
            float(np.median([each.high / each.low for each in intervals])) if intervals else None
        ),
        supported=len(shown) / len(said),
        supported_covered=float(np.mean([holds for _, holds in shown])) if shown else None,
        supported_off_by_more=float(np.mean(np.abs(errors) > REACH)) if shown else None,
        supported_median_error=float(np.median(errors)) if shown else None,
    )


def _together(cells: Sequence[Cell], factor: float) -> str:
    """All cells of one link: their supported predictions as one heap."""
    counts = [cell.supported * cell.sweeps for cell in cells]
    total, sweeps = sum(counts), sum(cell.sweeps for cell in cells)
    if not total:
        return f"link {factor:g}x: none of {sweeps} predictions supported"
    pairs = list(zip(cells, counts, strict=True))
    covered = sum((cell.supported_covered or 0) * count for cell, count in pairs) / total
    off = sum((cell.supported_off_by_more or 0) * count for cell, count in pairs) / total
    return (
        f"link {factor:g}x slower: {total / sweeps:.1%} of {sweeps} supported; of those"
        f" {covered:.1%} covered, {off:.1%} off by more than 10 %"
    )


def _line(cell: Cell) -> str:
    of_all, shown = "none", "none"
    if cell.covered is not None and cell.median_ratio is not None:
        of_all = f"{cell.covered:6.1%} {cell.median_ratio:8.2f}"
    if cell.supported_covered is not None and cell.supported_off_by_more is not None:
        shown = (
            f"{cell.supported_covered:7.1%} {cell.supported_off_by_more:8.1%}"
            f" {cell.supported_median_error or 0:+7.1%}"
        )
    return (
        f"{cell.curve:<12} {cell.link_factor:4g}x {cell.noise:5.1%} {cell.runs:3d}  {of_all:15}"
        f"   {cell.supported:6.1%} {shown}{'' if cell.is_right else '  required is more'}"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.extrapolation", description="See the module."
    )
    parser.add_argument("--sweeps", type=int, default=1000, help="per curve, noise and runs")
    parser.add_argument("--noise", type=float, nargs="+", default=NOISES)
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS, help="per node count, from 3")
    parser.add_argument("--curves", nargs="+", choices=list(CURVES), default=list(CURVES))
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    if options.sweeps < 1:
        parser.error(f"--sweeps: got {options.sweeps}; expected 1 or more")
    if min(options.runs) < 3:
        parser.error(f"--runs: got {min(options.runs)}; a prediction needs 3 or more")
    if min(options.noise) <= 0:
        parser.error(f"--noise: got {min(options.noise):g}; expected a share above 0")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
