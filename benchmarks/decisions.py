"""Measure how often shuffled sweeps are judged right, wrong or undecided, for nine kinds of noise.

    nice -n 19 .venv/bin/python -m benchmarks.decisions [--sweeps 4000] [--repeats 1 2 3 5 10]
        [--noise 0.02 0.05] [--kinds independent grows] [--output FILE.json]

A cell is a kind of noise, its size (sigma of the log of a time) and a number of repeats. Its shares
are means over the curves of benchmarks/designs.py; `most_wrong` is the share of wrong sweeps on its
worst curve. A sweep is wrong if a count is judged to pass but fails by the true geometric means, or
the reverse. It is undecided if it is not wrong and a count without a verdict is larger than each
that passes. Efficiency and doubling ratio are judged by the rules of
nodesweep/scaling/analysis/intervals.py, reimplemented on arrays because a cell has thousands of
sweeps; tests/benchmarks/test_decisions.py compares the two. Exit code 1 if a cell of at least 3
repeats is wrong in more than 5% of the sweeps of its worst curve (up to three standard errors).
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
from scipy.special import stdtrit

from benchmarks.dated_result import store_result
from benchmarks.designs import CURVES, LIMITS, NODE_COUNTS
from nodesweep.scaling.analysis.intervals import GROWS, LEVEL, MIN_REPEATS

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MOST_WRONG = 0.05
AUTOCORRELATION = 0.8
SLOW_NODE_SHARE, SLOW_NODE_SIGMAS = 0.05, 3.0
STRAGGLER_FACTOR = 1.3
RARE_SHARE, RARE_FACTOR = 0.05, 2.0
GROWTH = (1.0, 1.5, 2.0, 3.0)
KINDS = (
    "independent",
    "autocorrelated",  # AR(1) with coefficient 0.8 from run to run
    "slow_node",  # waits for the slowest of N nodes; each is three sigma slow in one run of 20
    "slowest_node",  # waits for the slowest of N nodes, whose times are exponential
    "bimodal",
    "t3",  # Student's t with 3 degrees of freedom
    "x2_in_20",  # one run in 20 takes twice as long
    "straggler",  # like slow_node, but 30% slow at every size of the noise
    "grows",  # sigma is 1, 1.5, 2 and 3 times the noise at 1, 2, 4 and 8 nodes
)


@dataclass(frozen=True)
class Cell:
    """Shares of the sweeps, averaged over the curves."""

    kind: str
    noise: float
    repeats: int
    sweeps_per_curve: int
    right: float
    wrong: float
    undecided: float
    most_wrong: float
    worst_curve: str

    @property
    def keeps_promise(self) -> bool:
        """True if at most 5% of the worst curve's sweeps are wrong, up to three standard errors."""
        error = (MOST_WRONG * (1 - MOST_WRONG) / self.sweeps_per_curve) ** 0.5
        return self.repeats < MIN_REPEATS or self.most_wrong <= MOST_WRONG + 3 * error


def draw(rng: np.random.Generator, kind: str, noise: float, sweeps: int, repeats: int) -> Floats:
    """Return errors of log times, with mean 0 and shape (sweeps, repeats, node counts)."""
    nodes = np.asarray(NODE_COUNTS)
    shape = (sweeps, repeats, len(nodes))
    normal = rng.normal(0, noise, shape)
    if kind == "autocorrelated":
        in_time = normal.reshape(sweeps, -1)
        for run in range(1, in_time.shape[1]):
            in_time[:, run] *= (1 - AUTOCORRELATION**2) ** 0.5
            in_time[:, run] += AUTOCORRELATION * in_time[:, run - 1]
        return rng.permuted(in_time.reshape(shape), axis=2)
    if kind in ("slow_node", "straggler"):
        share = 1 - (1 - SLOW_NODE_SHARE) ** nodes
        slow = SLOW_NODE_SIGMAS * noise if kind == "slow_node" else np.log(STRAGGLER_FACTOR)
        return normal + slow * ((rng.random(shape) < share) - share)
    if kind == "slowest_node":
        slowest = [rng.exponential(noise, (sweeps, repeats, count)).max(axis=2) for count in nodes]
        means = [noise * sum(1 / each for each in range(1, count + 1)) for count in nodes]
        return np.stack(slowest, axis=2) - means + normal / 2
    if kind == "bimodal":
        return normal / 3 + noise * rng.choice([-1, 1], shape)
    if kind == "t3":
        return noise * rng.standard_t(3, shape) / 3**0.5
    if kind == "x2_in_20":
        return normal + np.log(RARE_FACTOR) * ((rng.random(shape) < RARE_SHARE) - RARE_SHARE)
    return normal * (GROWTH if kind == "grows" else 1.0)


def bound_distances(errors: Floats, one: int, other: int) -> Floats:
    """Return each sweep's distance of the one-sided bounds from the log ratio of two counts."""
    sweeps, repeats, counts = errors.shape
    if repeats < MIN_REPEATS:
        return np.zeros(sweeps)
    rest = errors - errors.mean(axis=1, keepdims=True) - errors.mean(axis=2, keepdims=True)
    rest += errors.mean(axis=(1, 2), keepdims=True)
    squares = (rest**2).sum(axis=1)
    freedom = (repeats - 1) * (counts - 1)
    place = np.arange(counts) - (counts - 1) / 2
    variance = 2 * (repeats - 1) * (1 - 2 / counts) * (place @ place) / (freedom * (freedom + 2))
    grow = squares @ place > GROWS * variance**0.5 * squares.sum(axis=1)
    pooled = np.sqrt(squares.sum(axis=1) / freedom * 2 / repeats)
    own = (errors[:, :, one] - errors[:, :, other]).std(axis=1, ddof=1) / repeats**0.5
    apart = np.maximum(
        stdtrit(freedom, (1 + LEVEL) / 2) * pooled, stdtrit(repeats - 1, LEVEL) * own
    )
    return np.asarray(np.where(grow, apart, stdtrit(freedom, LEVEL) * pooled))


def judge(curve: str, errors: Floats) -> tuple[Flags, Flags, list[bool]]:
    """Return flags of the counts that pass, of those that fail, and of those that truly pass.

    The first two have shape (sweeps, node counts without the first).
    """
    logs = np.log([CURVES[curve][nodes] for nodes in NODE_COUNTS])
    means = logs + errors.mean(axis=1)
    passed, failed, truth = [], [], []
    for at in range(1, len(NODE_COUNTS)):
        efficient = (0, np.log(LIMITS.min_efficiency * NODE_COUNTS[at]))
        limits = (efficient, (at - 1, np.log(LIMITS.min_doubling_ratio)))
        passes, fails, is_true = np.ones(len(errors), bool), np.zeros(len(errors), bool), True
        for than, least in limits:
            value, reach = means[:, than] - means[:, at], bound_distances(errors, than, at)
            passes &= value - reach >= least
            fails |= value + reach < least
            is_true &= bool(round(logs[than] - logs[at] - least, 9) >= 0)
        passed.append(passes)
        failed.append(fails)
        truth.append(is_true)
    return np.stack(passed, axis=1), np.stack(failed, axis=1), truth


def simulate(kind: str, noise: float, repeats: int, sweeps: int, seed: int = 1) -> Cell:
    """Judge `sweeps` sweeps over each curve; the same arguments give the same result."""
    rng = np.random.default_rng([seed, KINDS.index(kind), repeats, round(noise * 1e4)])
    shares = {}
    for curve in CURVES:
        passed, failed, truth = judge(curve, draw(rng, kind, noise, sweeps, repeats))
        wrong = np.where(truth, failed, passed).any(axis=1)
        open_ = ~(passed | failed)
        # undecided: a count without a verdict, if no larger count passes
        larger_pass = np.logical_or.accumulate(passed[:, ::-1], axis=1)[:, ::-1]
        undecided = (open_ & ~larger_pass).any(axis=1) & ~wrong
        shares[curve] = (float(wrong.mean()), float(undecided.mean()))
    wrongs, undecideds = np.mean(list(shares.values()), axis=0).tolist()
    worst = max(shares, key=lambda curve: shares[curve][0])
    return Cell(
        kind, noise, repeats, sweeps, 1 - wrongs - undecideds, wrongs, undecideds,
        shares[worst][0], worst,
    )  # fmt: skip


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Simulate, print and yield each cell."""
    for kind, noise, repeats in product(arguments.kinds, arguments.noise, arguments.repeats):
        cell = simulate(kind, noise, repeats, arguments.sweeps)
        print(
            f"{kind:>15} {noise:>6.0%} {repeats:>3} {cell.right:>7.1%} {cell.wrong:>7.2%}"
            f" {cell.undecided:>10.1%} {cell.most_wrong:>11.1%}  {cell.worst_curve}",
            flush=True,
        )
        yield cell


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=4000, help="sweeps per curve and cell")
    parser.add_argument(
        "--noise",
        type=float,
        nargs="+",
        default=[0.02, 0.05],
        help="standard deviations of the log of a time",
    )
    parser.add_argument(
        "--repeats", type=int, nargs="+", default=[1, 2, 3, 5, 10], help="runs per node count"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of noise")
    parser.add_argument("--output", type=Path, help="where to store the cells (JSON)")
    arguments = parser.parse_args(argv)
    print(f"{'noise':>15} {'':>6} {'n':>3} {'right':>7} {'wrong':>7} {'undecided':>10} most wrong")
    started = time.perf_counter()
    measured = list(cells(arguments))
    store_result(arguments.output, started, measured, curves=list(CURVES))
    return 0 if all(cell.keeps_promise for cell in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
