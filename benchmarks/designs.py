"""Measure cost and accuracy of sequential and probe sweeps on simulated times.

    nice -n 19 .venv/bin/python -m benchmarks.designs [--design sequential] [--sweeps 2000]
        [--noise 0.02 0.05] [--curves reference knee] [--output FILE.json]
    nice -n 19 .venv/bin/python -m benchmarks.designs --design probe [--repeats 1]
        [--probe-share 0.05] [--precision 0.01]

The benchmark calls the functions that a sweep uses (nodesweep/scaling/design/). A cell is a curve
of true medians on 1, 2, 4 and 8 nodes with a log-normal noise (sigma of the log of a time). Its
cost share divides the node-seconds of the design's runs by those of the full design with 5 runs per
count. A sweep is wrong if a count is reported to pass but truly fails, or the reverse, or is
reported to be on a limit from which its true value is more than 2% away. It is undecided if it is
not wrong and a tested count has no verdict. Exit code 1 if more than 5% of a cell's sweeps are
wrong.

A probe sweep runs --probe-share of the steps in each of --repeats runs per count, then one whole
run at the recommended count. A probe's error combines the spread between runs and the probe's
precision (95%). A probe sweep is right if the recommended count is the largest that truly passes;
for a count within 2% of a limit either verdict is right. It is undecided if the recommended count
truly passes and every larger count that passes is reported as not ruled out. There is no promised
error rate, so the exit code is 0.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dated_result import store_result
from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.design.base import Progress
from nodesweep.scaling.design.sequential import ERROR, ZONE, Limits, replay
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome

NODE_COUNTS = (1, 2, 4, 8)
FULL_REPEATS = 5
NOISES = (0.02, 0.05, 0.15)
_DEFAULTS = RecommendationConfig()
LIMITS = Limits(_DEFAULTS.min_efficiency, _DEFAULTS.min_doubling_ratio)
Curve = Mapping[int, float]


def _amdahl(serial: float) -> Curve:
    return {nodes: 99 * (serial + (1 - serial) / nodes) for nodes in NODE_COUNTS}


def _efficient(*efficiencies: float) -> Curve:
    """Return the curve with these values of E(1), E(2), E(4) and E(8)."""
    return {
        nodes: 99 / (nodes * efficiency)
        for nodes, efficiency in zip(NODE_COUNTS, efficiencies, strict=True)
    }


CURVES: Mapping[str, Curve] = {
    "reference": {1: 99, 2: 55, 4: 27, 8: 13.5},
    "linear": _efficient(1, 1, 1, 1),
    "superlinear": _efficient(1, 1.05, 1.1, 1.1),
    "amdahl 2 %": _amdahl(0.02),
    "amdahl 5 %": _amdahl(0.05),
    "amdahl 10 %": _amdahl(0.10),
    "amdahl 25 %": _amdahl(0.25),
    "knee": _efficient(1, 0.97, 0.95, 0.55),
    "slower beyond 4": _efficient(1, 0.95, 0.85, 0.40),
    "on the limit": _efficient(1, 0.95, 0.9, 0.75),
    "5 % above": _efficient(1, 0.95, 0.9, 0.7875),
    "5 % below": _efficient(1, 0.95, 0.9, 0.7125),
}
"""True median minutes by node count."""


@dataclass(frozen=True)
class Cell:
    """Fractions of the sweeps; `cost_share` is the mean of their cost shares."""

    curve: str
    noise: float
    sweeps: int
    cost_share: float
    least_cost_share: float
    most_cost_share: float
    right: float
    wrong: float
    undecided: float

    @property
    def keeps_promise(self) -> bool:
        """True if at most 5% of the sweeps are wrong."""
        return self.wrong <= ERROR


def margin(curve: Curve, nodes: int) -> float:
    """Return a count's log distance above its nearest limit; 0 is exactly on the limit."""
    seconds = curve[nodes]
    held = [curve[1] / seconds / nodes / LIMITS.min_efficiency]
    held += [curve[nodes // 2] / seconds / LIMITS.min_doubling_ratio]
    held += [curve[other] / seconds for other in curve if other < nodes]
    return round(math.log(min(held)), 12)


def sweep(
    curve: Curve, draw: Callable[[], float], max_repeats: int
) -> tuple[Progress, dict[tuple[int, int], float]]:
    """Simulate one sweep; return the design's final state and the times of its runs."""
    times: dict[tuple[int, int], float] = {}
    while True:
        progress = replay(times, NODE_COUNTS, LIMITS, max_repeats)
        if not progress.next_points:
            return progress, times
        for point in progress.next_points:
            times[point] = curve[point[0]] * math.exp(draw())


def verdict(progress: Progress, curve: Curve) -> str:
    """Judge a sequential sweep as "right", "wrong" or "undecided"."""
    for answer in progress.answers:
        above = margin(curve, answer.nodes)
        if (
            (answer.answer == "pass" and above < 0)
            or (answer.answer == "fail" and above >= 0)
            or (answer.answer == "on_the_limit" and abs(above) > math.log1p(ZONE))
        ):
            return "wrong"
    open_ = any(answer.answer == "undecided" for answer in progress.answers)
    return "undecided" if open_ else "right"


def simulate(
    name: str, noise: float, sweeps: int, seed: int = 1, max_repeats: int = FULL_REPEATS
) -> Cell:
    """Simulate sequential sweeps over a curve; the same arguments give the same result."""
    curve = CURVES[name]
    generator = np.random.default_rng([seed, sorted(CURVES).index(name), round(noise * 1e4)])
    draws = iter(lambda: float(generator.normal(0, noise)), None)
    full = FULL_REPEATS * sum(nodes * seconds for nodes, seconds in curve.items())
    verdicts: dict[str, int] = {"right": 0, "wrong": 0, "undecided": 0}
    costs = []
    for _ in range(sweeps):
        progress, times = sweep(curve, draws.__next__, max_repeats)
        verdicts[verdict(progress, curve)] += 1
        costs.append(sum(nodes * curve[nodes] for nodes, _ in times) / full)
    shares = {answer: count / sweeps for answer, count in verdicts.items()}
    return Cell(name, noise, sweeps, float(np.mean(costs)), min(costs), max(costs), **shares)


def simulate_probes(
    name: str,
    noise: float,
    sweeps: int,
    repeats: int = 1,
    share: float = 0.05,
    precision: float = 0.01,
    seed: int = 1,
) -> Cell:
    """Simulate probe sweeps over a curve; the same arguments give the same result."""
    curve = CURVES[name]
    generator = np.random.default_rng([seed, sorted(CURVES).index(name), round(noise * 1e4), 2])
    whole = {nodes: nodes * seconds for nodes, seconds in curve.items()}
    full = FULL_REPEATS * sum(whole.values())
    spread = math.hypot(noise, precision / 1.96)
    verdicts: dict[str, int] = {"right": 0, "wrong": 0, "undecided": 0}
    costs = []
    for _ in range(sweeps):
        outcomes = [
            _probed(nodes, repeat, seconds * math.exp(generator.normal(0, spread)))
            for nodes, seconds in curve.items()
            for repeat in range(1, repeats + 1)
        ]
        advice = recommend(summarise_runs(outcomes, paired=True)[0], _DEFAULTS)
        if advice is None or advice.chosen is None:
            raise RuntimeError(f"{name}: no node count was recommended, although each has a time")
        chosen = advice.chosen.nodes
        verdicts[_probe_verdict(curve, chosen, advice.not_ruled_out)] += 1
        costs.append((share * repeats * sum(whole.values()) + whole[chosen]) / full)
    shares = {answer: count / sweeps for answer, count in verdicts.items()}
    return Cell(name, noise, sweeps, float(np.mean(costs)), min(costs), max(costs), **shares)


def _probed(nodes: int, repeat: int, seconds: float) -> JobOutcome:
    return JobOutcome(
        nodes=nodes,
        repeat=repeat,
        attempt=1,
        job_name=f"n{nodes}-r{repeat}",
        status="Completed",
        platform_kind="simulated",
        clocks=Clocks(train_seconds=seconds),
        train_clock="projected",
    )


def _probe_verdict(curve: Curve, chosen: int, not_ruled_out: Sequence[int]) -> str:
    """Judge a probe sweep as "right", "wrong" or "undecided"; near a limit any verdict is right."""
    near = math.log1p(ZONE)
    if chosen != min(curve) and margin(curve, chosen) < -near:
        return "wrong"
    better = [nodes for nodes in curve if nodes > chosen and margin(curve, nodes) > near]
    if not better:
        return "right"
    return "undecided" if set(better) <= set(not_ruled_out) else "wrong"


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Simulate, print and yield each cell."""
    for name in arguments.curves:
        for noise in arguments.noise:
            if arguments.design == "probe":
                cell = simulate_probes(
                    name,
                    noise,
                    arguments.sweeps,
                    arguments.repeats,
                    arguments.probe_share,
                    arguments.precision,
                )
            else:
                cell = simulate(name, noise, arguments.sweeps, max_repeats=arguments.max_repeats)
            print(
                f"{cell.curve:>16} {cell.noise:>6.0%} {cell.cost_share:>7.0%}"
                f" {cell.least_cost_share:>6.0%} {cell.most_cost_share:>6.0%} {cell.right:>7.1%}"
                f" {cell.wrong:>7.2%} {cell.undecided:>10.1%}",
                flush=True,
            )
            yield cell


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=2000, help="sweeps per cell (2000)")
    parser.add_argument(
        "--noise",
        type=float,
        nargs="+",
        default=NOISES,
        help="standard deviations of the log of a time",
    )
    parser.add_argument(
        "--curves", nargs="+", choices=list(CURVES), default=list(CURVES), help="scaling curves"
    )
    parser.add_argument(
        "--design",
        choices=["sequential", "probe"],
        default="sequential",
        help="design of the sweeps",
    )
    parser.add_argument(
        "--max-repeats",
        type=int,
        default=FULL_REPEATS,
        help="with --design sequential: maximum runs per node count",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="with --design probe: runs per node count (1)"
    )
    parser.add_argument(
        "--probe-share",
        type=float,
        default=0.05,
        help="with --design probe: share of a full run's steps",
    )
    parser.add_argument(
        "--precision",
        type=float,
        default=0.01,
        help="with --design probe: precision of the step time (0.01)",
    )
    parser.add_argument("--output", type=Path, help="where to store the cells (JSON)")
    arguments = parser.parse_args(argv)
    print(
        f"{'curve':>16} {'noise':>6} {'cost':>7} {'least':>6} {'most':>6} {'right':>7}"
        f" {'wrong':>7} {'undecided':>10}"
    )
    started = time.perf_counter()
    measured = list(cells(arguments))
    own: dict[str, Any] = {"max_repeats": arguments.max_repeats}
    if arguments.design == "probe":
        own = {name: getattr(arguments, name) for name in ("repeats", "probe_share", "precision")}
    store_result(
        arguments.output,
        started,
        measured,
        sweeps_per_cell=arguments.sweeps,
        **own,
        full_repeats=FULL_REPEATS,
        limits=asdict(LIMITS),
    )
    broken = [cell for cell in measured if not cell.keeps_promise]
    print(
        f"{len(measured) - len(broken)} of {len(measured)} cells are wrong in at most {ERROR:.0%}"
        " of sweeps"
    )
    return 1 if broken and arguments.design == "sequential" else 0


if __name__ == "__main__":
    sys.exit(main())
