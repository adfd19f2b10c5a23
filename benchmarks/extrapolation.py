"""Measure how often predictions beyond the measured node counts are right, on simulated sweeps.

    nice -n 19 .venv/bin/python -m benchmarks.extrapolation [--sweeps 1000] [--noise 0.01 0.02]
        [--runs 3 5] [--curves amdahl ring] [--output FILE.json]

The benchmark tests nodesweep/scaling/fits/extrapolation.py. A cell is a curve of true means on 1,
2, 4 and 8 nodes, a log-normal noise (sigma of the log of a time), a number of runs, and a slowdown
of the link at 16 nodes, the predicted count. The slowdown multiplies the communication in T(16) and
appears in no measurement. Intervals are evaluated over all sweeps, and over those whose prediction
is supported, so that a report shows it.

Exit code 1 if, in a cell with an unchanged link, fewer than 90% of the intervals contain the truth.
In a cell with 100 or more supported predictions, the same holds for their intervals, and at most 5%
of the predictions may be off by more than 10%.
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
from nodesweep.scaling.analysis.intervals import Interval
from nodesweep.scaling.fits.extrapolation import (
    EXTRAPOLATION_FACTOR,
    MAX_MARGIN_OF_ERROR,
    predict_by_law,
    run_noise,
)
from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.fits.laws import Sample

NODE_COUNTS = (1, 2, 4, 8)
AT = EXTRAPOLATION_FACTOR * NODE_COUNTS[-1]
NOISES = (0.005, 0.01, 0.02, 0.05)
RUNS = (3, 5)
LINK_FACTORS = (1, 1.25, 2, 4)
ONE_NODE_SECONDS = 600.0
OFF = 0.10
"""Relative error above which a prediction is wrong."""
LEAST_COVERED, MOST_OFF, FROM_SUPPORTED = 0.90, 0.05, 100

Floats = npt.NDArray[np.float64]


# Mean of the largest of N standard normal values (Harter, Biometrika 48, 1961).
SLOWEST = {1: 0.0, 2: 0.56419, 4: 1.02938, 8: 1.42360, 16: 1.76599}


@dataclass(frozen=True)
class Curve:
    """Time beyond a perfect division of the compute by N, as a fraction of the time on one node.

    Attributes:
        overhead: Communication, which a slower link multiplies.
        unshared: Compute that is not divided by N; a slower link does not affect it.
        per_replica: True if the batch grows with the nodes, so that there are fewer steps.
    """

    overhead: Callable[[int], float]
    unshared: Callable[[int], float] = lambda n: 0.0
    per_replica: bool = False

    def seconds(self, nodes: int, link_factor: float = 1) -> float:
        """Return the true geometric mean of the times."""
        fractions = 1 / nodes + self.unshared(nodes) + link_factor * self.overhead(nodes)
        return ONE_NODE_SECONDS * fractions

    @property
    def steps_ratio(self) -> Mapping[int, float]:
        """Number of steps by node count, relative to one node."""
        return {n: 1 / n if self.per_replica else 1.0 for n in (*NODE_COUNTS, AT)}


def fullness(nodes: int) -> float:
    """Return the utilization of an accelerator that gets 90% from a fifth of one node's batch."""
    return 1 - math.exp(-12 / nodes)


CURVES: Mapping[str, Curve] = {
    "amdahl 2 %": Curve(lambda n: 0.02 * (n - 1) / n),
    "amdahl 10 %": Curve(lambda n: 0.10 * (n - 1) / n),
    "usl": Curve(lambda n: (0.03 * (n - 1) + 0.001 * n * (n - 1)) / n),
    "ring": Curve(lambda n: 0.20 * (n - 1) / n**2, per_replica=True),
    "tree": Curve(lambda n: 0.02 * math.log2(n)),
    "stragglers": Curve(lambda n: 0.02 * (n - 1) / n, lambda n: 0.10 * SLOWEST[n] / n),
    "less full": Curve(lambda n: 0.01 * (n - 1) / n, lambda n: (fullness(1) / fullness(n) - 1) / n),
    "from 2 nodes": Curve(lambda n: (0.05 + 0.02 * (n - 1) / n) * (n > 1)),
}
"""True curves by name. The last four follow none of the fitted laws: log2 N stages of reduction,
a wait for the slowest of N nodes whose speeds differ by 10%, accelerators that a smaller batch
utilizes less, and a network that costs 5% from the second node on."""


@dataclass(frozen=True)
class Supported:
    """Supported predictions of a cell: coverage, share off by more than 10%, and median error.

    The three are None if no prediction is supported.
    """

    count: int
    covered: float | None
    off_by_more: float | None
    median_error: float | None


@dataclass(frozen=True)
class Cell:
    """Results of one cell.

    Attributes:
        covered: Fraction of the intervals that contain the truth. A sweep in which every law is
            rejected has no interval.
        median_ratio: Median ratio of an interval's upper end to its lower end.
    """

    curve: str
    link_factor: float
    noise: float
    runs: int
    sweeps: int
    covered: float | None
    median_ratio: float | None
    supported: Supported

    @property
    def is_right(self) -> bool:
        """True if the cell meets its requirements, or has none because its link is slower."""
        if self.link_factor != 1:
            return True
        shown = self.supported
        if shown.count < FROM_SUPPORTED:
            return self.covered is None or self.covered >= LEAST_COVERED
        covered, off = shown.covered or 0.0, shown.off_by_more or 0.0
        return min(covered, self.covered or 0.0) >= LEAST_COVERED and off <= MOST_OFF


@dataclass(frozen=True)
class Prediction:
    """A prediction that the fits support."""

    seconds: float
    interval: Interval


@dataclass(frozen=True)
class Answer:
    """Interval and prediction of one sweep at the larger count; None where a sweep has none."""

    interval: Interval | None
    prediction: Prediction | None


def main(argv: Sequence[str]) -> int:
    """Simulate, then print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    print(
        "curve         link noise   n  covered, high/low   supported: share, covered,"
        " off by > 10%, median error"
    )
    cells: list[Cell] = []
    for name, noise, runs in product(options.curves, options.noise, options.runs):
        for cell in simulate(name, noise, runs, options.sweeps, options.seed):
            cells.append(cell)
            print(_line(cell), flush=True)
    for factor in LINK_FACTORS:
        of_link = [cell for cell in cells if cell.link_factor == factor]
        sweeps = sum(cell.sweeps for cell in of_link)
        now = _summary_of([cell.supported for cell in of_link], sweeps)
        print(f"link {factor:g}x slower, {sweeps} sweeps: {now}")
    store_result(
        options.output,
        started,
        cells,
        seed=options.seed,
        node_counts=NODE_COUNTS,
        predicted_at=AT,
        max_margin_of_error=MAX_MARGIN_OF_ERROR,
    )
    return 0 if all(cell.is_right for cell in cells) else 1


def simulate(name: str, noise: float, runs: int, sweeps: int, seed: int) -> Iterator[Cell]:
    """Simulate sweeps, and yield a cell for each slowdown of the link; `runs` is at least 3."""
    curve = CURVES[name]
    generator = np.random.default_rng([seed, list(CURVES).index(name), runs, round(noise * 10_000)])
    true_seconds = np.array([curve.seconds(nodes) for nodes in NODE_COUNTS])
    answers = []
    for _ in range(sweeps):
        errors = generator.normal(0, noise, (len(NODE_COUNTS), runs))
        answers.append(ask(true_seconds[:, None] * np.exp(errors), curve.steps_ratio))
    for factor in LINK_FACTORS:
        yield _cell(name, noise, runs, answers, factor)


def ask(times: Floats, steps_ratio: Mapping[int, float]) -> Answer:
    """Fit one sweep, and return its result at 16 nodes.

    Args:
        times: Array of shape (node counts, runs), in seconds.
        steps_ratio: Steps by node count, relative to one node.
    """
    means = np.exp(np.log(times).mean(axis=1))
    points = list(zip(NODE_COUNTS, means.tolist(), strict=True))
    by_nodes = dict(zip(NODE_COUNTS, times.tolist(), strict=True))
    fits = fit_laws(points, steps_ratio, runs=by_nodes)
    noise = run_noise(times.tolist())
    assert noise is not None
    nodes = np.array(NODE_COUNTS, dtype=np.float64)
    sample = Sample(nodes, nodes * means, np.ones(len(nodes)))
    interval = predict_by_law(fits.laws, sample, steps_ratio, noise, AT).interval
    shown = fits.extrapolation
    prediction = None
    if shown.train_seconds is not None and shown.interval is not None:
        prediction = Prediction(shown.train_seconds, shown.interval)
    return Answer(interval, prediction)


def _cell(name: str, noise: float, runs: int, answers: Sequence[Answer], factor: float) -> Cell:
    truth = CURVES[name].seconds(AT, factor)
    intervals = [each.interval for each in answers if each.interval is not None]
    return Cell(
        curve=name,
        link_factor=factor,
        noise=noise,
        runs=runs,
        sweeps=len(answers),
        covered=_share_covered(intervals, truth),
        median_ratio=(
            float(np.median([each.high / each.low for each in intervals])) if intervals else None
        ),
        supported=_supported([each.prediction for each in answers], truth),
    )


def _share_covered(intervals: Sequence[Interval], truth: float) -> float | None:
    return float(np.mean([each.contains(truth) for each in intervals])) if intervals else None


def _supported(predictions: Sequence[Prediction | None], truth: float) -> Supported:
    shown = [each for each in predictions if each is not None]
    if not shown:
        return Supported(0, None, None, None)
    errors = np.array([each.seconds / truth - 1 for each in shown])
    return Supported(
        count=len(shown),
        covered=float(np.mean([each.interval.contains(truth) for each in shown])),
        off_by_more=float(np.mean(np.abs(errors) > OFF)),
        median_error=float(np.median(errors)),
    )


def _summary_of(cells: Sequence[Supported], sweeps: int) -> str:
    """Summarize the supported predictions of several cells together."""
    total = sum(cell.count for cell in cells)
    if not total:
        return "none supported"
    covered = sum((cell.covered or 0) * cell.count for cell in cells) / total
    off = sum((cell.off_by_more or 0) * cell.count for cell in cells) / total
    return (
        f"{total / sweeps:.1%} supported, {covered:.1%} of them covered,"
        f" {off:.1%} off by more than 10%"
    )


def _line(cell: Cell) -> str:
    of_all = "none"
    if cell.covered is not None and cell.median_ratio is not None:
        of_all = f"{cell.covered:6.1%} {cell.median_ratio:8.2f}"
    return (
        f"{cell.curve:<12} {cell.link_factor:4g}x {cell.noise:5.1%} {cell.runs:3d}  {of_all:15}"
        f"   {_shares(cell.supported, cell):34}{'' if cell.is_right else '  below the requirement'}"
    )


def _shares(supported: Supported, cell: Cell) -> str:
    share = f"{supported.count / cell.sweeps:6.1%}"
    if supported.covered is None or supported.off_by_more is None:
        return f"{share} none"
    error = supported.median_error or 0
    return f"{share} {supported.covered:7.1%} {supported.off_by_more:8.1%} {error:+7.1%}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.extrapolation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--sweeps", type=int, default=1000, help="sweeps per curve, noise and number of runs"
    )
    parser.add_argument(
        "--noise",
        type=float,
        nargs="+",
        default=NOISES,
        help="standard deviations of the log of a time",
    )
    parser.add_argument(
        "--runs", type=int, nargs="+", default=RUNS, help="runs per node count, at least 3"
    )
    parser.add_argument(
        "--curves", nargs="+", choices=list(CURVES), default=list(CURVES), help="scaling curves"
    )
    parser.add_argument("--seed", type=int, default=2, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    if options.sweeps < 1:
        parser.error(f"--sweeps: got {options.sweeps}; expected 1 or more")
    if min(options.runs) < 3:
        parser.error(f"--runs: got {min(options.runs)}; a prediction needs 3 or more")
    if min(options.noise) <= 0:
        parser.error(f"--noise: got {min(options.noise):g}; expected a standard deviation above 0")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
