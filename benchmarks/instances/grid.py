"""Measure cost and accuracy of probe sweeps over instance types on a simulated grid.

    nice -n 19 .venv/bin/python -m benchmarks.instances.grid [--sweeps 500] [--noise 0.02 0.05]
        [--kinds independent t3] [--grids generations alike] [--repeats 3] [--probe-share 0.05]
        [--output FILE.json]

It calls the functions that such a sweep uses (nodesweep/scaling/instances/), for 4 types x 4 node
counts. A grid gives each type a speed, a price and a curve of true times on 1, 2, 4 and 8 nodes;
a cell is a grid, a kind of noise (benchmarks/decisions.py) and its size (sigma of the log of a
time). The arms are probed in rounds, beaten ones no further; one whole run validates the result,
which is the cheapest arm within a deadline of half an hour.

The same runs are judged in passes, too, the design until November 2026: every arm was probed
twice, then again unless another arm was both faster and cheaper, or it missed the deadline.

Share: node-seconds of probes and validation run over those of --repeats whole runs of every arm.
Saved: what the rounds save of the passes' node-seconds, or USD. Best lost: the cheapest arm that
truly meets the deadline was dropped, and no arm within 2% of its cost is left. Right: the
recommendation truly meets the deadline and costs at most 2% more than the cheapest that does.
Undecided: there is none, or another arm is named as not ruled out or not distinguishable. Exit code
1 if a cell is wrong, or has lost the best arm, in more than 5% of sweeps.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.dated_result import store_result
from benchmarks.decisions import KINDS, draw
from benchmarks.designs import CURVES
from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.scaling.analysis.deadline import ASSUMED_FACTOR
from nodesweep.scaling.analysis.intervals import geometric_mean, mean_interval, next_run_bound
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.arms import Arm, Cell
from nodesweep.scaling.instances.compare import choose_cells, judge_cells
from nodesweep.scaling.instances.design import ERROR, Sample, replay_rounds
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.t_distribution import t_quantile

NODE_COUNTS = (1, 2, 4, 8)
NOISES = (0.02, 0.05, 0.15)
DEADLINE_SECONDS = 1800.0
CLOSE = 0.02
TYPES = ("ml.m5.xlarge", "ml.m5.4xlarge", "ml.g5.xlarge", "ml.g5.12xlarge")
"""Names only; prices and speeds come from the grid."""
ARMS = tuple(Arm(names.arm_code(place), name) for place, name in enumerate(TYPES))
Runs = Mapping[Cell, Mapping[int, Sample]]


@dataclass(frozen=True)
class Kind:
    """An instance type of a grid: speed relative to the reference, price, and scaling curve."""

    speed: float
    usd_per_hour: float
    curve: str = "reference"


GRIDS: Mapping[str, tuple[Kind, ...]] = {
    "one family": (Kind(1, 1), Kind(2, 2), Kind(4, 4), Kind(8, 8)),
    "generations": (Kind(1, 1), Kind(1.6, 1.1), Kind(2.5, 1.5), Kind(4, 3)),
    "one wins": (Kind(1, 1), Kind(1, 2), Kind(1.5, 3), Kind(3, 1)),
    "curves differ": (
        Kind(1, 1, "linear"),
        Kind(2, 1.9, "knee"),
        Kind(3, 3.2, "amdahl 10 %"),
        Kind(4, 4.1, "amdahl 25 %"),
    ),
    "alike": (Kind(1, 1),) * 4,
    "prices apart": (Kind(1, 1), Kind(2.5, 2), Kind(3, 6), Kind(8, 12)),
}


@dataclass(frozen=True)
class Verdicts:
    """Fractions of the sweeps."""

    right: float
    wrong: float
    undecided: float


@dataclass(frozen=True)
class GridCell:
    """Means over the sweeps; `dropped` is the mean fraction of arms."""

    grid: str
    kind: str
    noise: float
    sweeps: int
    share: float
    passes_share: float
    saved_node_seconds: float
    saved_usd: float
    saved_probes: float
    """Share of the passes' probes that is saved."""
    rounds: float
    dropped: float
    best_lost: float
    rounds_verdicts: Verdicts
    passes_verdicts: Verdicts

    @property
    def keeps_promise(self) -> bool:
        """True if `best_lost` and `wrong` are at most 5%, up to three standard errors."""
        most = ERROR + 3 * math.sqrt(ERROR * (1 - ERROR) / self.sweeps)
        return max(self.best_lost, self.rounds_verdicts.wrong) <= most


def truth(grid: str) -> dict[Cell, Sample]:
    """Return each arm's true median time in seconds and the cost of a run."""
    found = {}
    for arm, kind in zip(ARMS, GRIDS[grid], strict=True):
        for nodes in NODE_COUNTS:
            seconds = CURVES[kind.curve][nodes] * 60 / kind.speed
            usd = nodes * seconds * kind.usd_per_hour / 3600
            found[Cell(arm, nodes)] = Sample(seconds, usd)
    return found


def config_of(repeats: int) -> BenchmarkConfig:
    """Return the config of a sweep over the four types, with the deadline."""
    raw = {
        "name": "grid",
        "dataset": None,
        "training": {
            "instance_type": TYPES[0],
            "max_runtime_seconds": 3600,
            "distribution": {"kind": "none"},
        },
        "sweep": {
            "instance_types": TYPES,
            "node_counts": NODE_COUNTS,
            "design": "probe",
            "repeats": repeats,
        },
        "report": {"recommendation": {"deadline_seconds": DEADLINE_SECONDS}},
        "platform": {
            "region": "us-east-1",
            "bucket": "grid",
            "role_arn": "arn:aws:iam::000000000000:role/grid",
        },
    }
    return parse_config(raw, origin="grid")


def draw_runs(
    true: Mapping[Cell, Sample],
    generator: np.random.Generator,
    kind: str,
    noise: float,
    repeats: int,
) -> Runs:
    """Return `repeats` runs of every arm; a type's runs depend on each other as the kind says."""
    factors = np.exp(draw(generator, kind, noise, len(TYPES), repeats))
    found: dict[Cell, dict[int, Sample]] = {}
    for arm, mean in true.items():
        own = factors[ARMS.index(arm.arm), :, NODE_COUNTS.index(arm.nodes)]
        found[arm] = {
            at + 1: Sample(mean.seconds * float(factor), (mean.usd or 0.0) * float(factor))
            for at, factor in enumerate(own)
        }
    return found


def made(runs: Runs, asked: Collection[tuple[Cell, int]]) -> Runs:
    """Return the runs that were asked for."""
    return {
        arm: {at: each for at, each in own.items() if (arm, at) in asked}
        for arm, own in runs.items()
    }


def in_passes(runs: Runs, repeats: int) -> set[tuple[Cell, int]]:
    """Return the runs of the passes; their bounds hold for all pairs of arms."""
    left = list(runs)
    asked = set()
    error = ERROR / (max(1, repeats - 2) * len(runs) * (len(runs) + 1))
    for repeat in range(1, repeats + 1):
        asked |= {(arm, repeat) for arm in left}
        if not 2 <= repeat < repeats:
            continue
        logs = np.log([[runs[arm][at].seconds for at in range(1, repeat + 1)] for arm in left])
        per_second = [(runs[arm][1].usd or 0.0) / runs[arm][1].seconds for arm in left]
        usd = logs.mean(axis=1) + np.log(per_second)
        freedom = len(left) * (repeat - 1)
        squares = ((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum()
        reach = t_quantile(freedom, 1 - error) * max(0.001, math.sqrt(squares / freedom))
        reach /= math.sqrt(repeat)
        beats = [each[:, None] + reach * math.sqrt(2) < each for each in (logs.mean(axis=1), usd)]
        out = (beats[0] & beats[1]).any(axis=0)
        out |= logs.mean(axis=1) - reach > math.log(DEADLINE_SECONDS)
        left = [arm for arm, is_out in zip(left, out, strict=True) if not is_out]
    return asked


def quick_answer(runs: Runs) -> tuple[Cell | None, str]:
    """Return answer()'s arm and its reason's notes on other arms, but much faster."""
    passing: list[tuple[float, float, Cell]] = []
    undecided: list[tuple[float, float, Cell]] = []
    for arm, own in runs.items():
        if not own:
            continue
        seconds = [each.seconds for each in own.values()]
        key = (geometric_mean(_usd(own)), geometric_mean(seconds), arm)
        if key[1] > DEADLINE_SECONDS:
            continue
        longest = next_run_bound(seconds) or ASSUMED_FACTOR * key[1]
        (passing if longest <= DEADLINE_SECONDS else undecided).append(key)
    if not passing:
        return None, "not ruled out" if undecided else ""
    usd, _, chosen = best = min(passing, key=lambda each: (each[:2], each[2].nodes))
    notes = [f"{arm.text} is not ruled out" for *key, arm in undecided if tuple(key) < best[:2]]
    mine = mean_interval(_usd(runs[chosen]))
    for other in passing:
        its = mean_interval(_usd(runs[other[2]]))
        apart = (
            other[0] != usd
            if mine is None or its is None
            else mine.high < its.low or its.high < mine.low
        )
        if other is not best and not apart:
            notes.append(f"{other[2].text} is not distinguishable")
    return chosen, "; ".join(notes)


def _usd(own: Mapping[int, Sample]) -> list[float]:
    return [each.usd or 0.0 for each in own.values()]


def answer(config: BenchmarkConfig, grid: str, runs: Runs) -> tuple[Cell | None, str]:
    """Return the arm that the report would recommend, and the reason it would state."""
    rows = {}
    for own_arm, kind in zip(ARMS, GRIDS[grid], strict=True):
        outcomes = [
            _outcome(arm, repeat, sample)
            for arm, own in runs.items()
            if arm.arm == own_arm
            for repeat, sample in own.items()
        ]
        price = Price(instance_type=own_arm.name, usd_per_hour=kind.usd_per_hour)
        rows[own_arm] = summarise_runs(outcomes, price, paired=True)[0]
    choice = choose_cells(config, judge_cells(config, rows))[0]
    if choice.instance_type is None or choice.nodes is None:
        return None, choice.reason
    [chosen] = [arm for arm in ARMS if arm.name == choice.instance_type]
    return Cell(chosen, choice.nodes), choice.reason


def _outcome(arm: Cell, repeat: int, sample: Sample) -> JobOutcome:
    return JobOutcome(
        job_name=f"grid-n{arm.nodes}-r{repeat}",
        nodes=arm.nodes,
        repeat=repeat,
        attempt=1,
        status="Completed",
        platform_kind="simulated",
        clocks=Clocks(train_seconds=sample.seconds, billable_seconds=sample.seconds),
        train_clock="program",
    )


def verdict(true: Mapping[Cell, Sample], chosen: Cell | None, reason: str) -> str:
    """Return "right", "wrong" or "undecided"."""
    in_time = [each.usd or 0.0 for each in true.values() if each.seconds <= DEADLINE_SECONDS]
    if chosen is None:
        return "undecided" if in_time else "right"
    own = true[chosen]
    meets = own.seconds <= DEADLINE_SECONDS * (1 + CLOSE)
    if meets and (own.usd or 0.0) <= min(in_time, default=0.0) * (1 + CLOSE):
        return "right"
    is_open = "not ruled out" in reason or "not distinguishable" in reason
    return "undecided" if meets and is_open else "wrong"


def best_arms(true: Mapping[Cell, Sample]) -> set[Cell]:
    """Return the arms that truly meet the deadline within 2% of the lowest cost."""
    in_time = {
        arm: each.usd or 0.0 for arm, each in true.items() if each.seconds <= DEADLINE_SECONDS
    }
    return {arm for arm, usd in in_time.items() if usd <= min(in_time.values()) * (1 + CLOSE)}


def spent(true: Mapping[Cell, Sample], runs: Runs, share: float) -> dict[str, float]:
    """Return the node-seconds and USD of probes that make this share of a run's steps."""
    counts = {arm: len(own) * share for arm, own in runs.items()}
    return {
        "node_seconds": sum(each * arm.nodes * true[arm].seconds for arm, each in counts.items()),
        "usd": sum(each * (true[arm].usd or 0.0) for arm, each in counts.items()),
    }


def simulate(
    grid: str, kind: str, noise: float, sweeps: int, repeats: int, share: float
) -> GridCell:
    """Simulate sweeps over a grid; deterministic for its arguments."""
    true, config = truth(grid), config_of(repeats)
    arms, best = list(true), best_arms(true)
    generator = np.random.default_rng(
        [sorted(GRIDS).index(grid), KINDS.index(kind), round(noise * 1e4)]
    )
    whole = spent(true, draw_runs(true, generator, kind, noise, repeats), 1.0)
    used: dict[str, list[dict[str, float]]] = {"rounds": [], "passes": []}
    probes: dict[str, list[float]] = {"rounds": [], "passes": []}
    counted = {name: dict.fromkeys(("right", "wrong", "undecided"), 0.0) for name in used}
    numbers, dropped, lost = 0, 0, 0
    for _ in range(sweeps):
        runs = draw_runs(true, generator, kind, noise, repeats)
        rounds = replay_rounds(runs, arms, repeats, config.report.recommendation)
        numbers += rounds.number - 1
        dropped += len(rounds.dropped)
        lost += bool(best) and best <= rounds.dropped.keys()
        for name, asked in (("rounds", set(rounds.asked)), ("passes", in_passes(runs, repeats))):
            own = made(runs, asked)
            chosen, reason = quick_answer(own)
            counted[name][verdict(true, chosen, reason)] += 1 / sweeps
            cost = spent(true, own, share)
            probes[name].append(cost["node_seconds"])
            if chosen is not None:
                check = spent(true, {chosen: {1: true[chosen]}}, 1.0)
                cost = {unit: cost[unit] + check[unit] for unit in cost}
            used[name].append(cost)
    mean = {
        name: {unit: float(np.mean([each[unit] for each in costs])) for unit in whole}
        for name, costs in used.items()
    }
    saved = {unit: 1 - mean["rounds"][unit] / mean["passes"][unit] for unit in whole}
    return GridCell(
        grid=grid,
        kind=kind,
        noise=noise,
        sweeps=sweeps,
        share=mean["rounds"]["node_seconds"] / whole["node_seconds"],
        passes_share=mean["passes"]["node_seconds"] / whole["node_seconds"],
        saved_node_seconds=saved["node_seconds"],
        saved_usd=saved["usd"],
        saved_probes=1 - sum(probes["rounds"]) / sum(probes["passes"]),
        rounds=numbers / sweeps,
        dropped=dropped / sweeps / len(true),
        best_lost=lost / sweeps,
        rounds_verdicts=Verdicts(**counted["rounds"]),
        passes_verdicts=Verdicts(**counted["passes"]),
    )


def cells(arguments: argparse.Namespace) -> Iterator[GridCell]:
    """Simulate, print and yield each cell."""
    for grid, kind, noise in product(arguments.grids, arguments.kinds, arguments.noise):
        cell = simulate(
            grid, kind, noise, arguments.sweeps, arguments.repeats, arguments.probe_share
        )
        verdicts = (
            f"{own.right:6.1%} {own.wrong:6.1%} {own.undecided:6.1%}"
            for own in (cell.rounds_verdicts, cell.passes_verdicts)
        )
        print(
            f"{grid:<14} {kind:<14} {noise:>4.0%}: share {cell.share:5.1%} for"
            f" {cell.passes_share:5.1%}, saved {cell.saved_node_seconds:6.1%} (USD"
            f" {cell.saved_usd:6.1%}, probes {cell.saved_probes:6.1%}), {cell.rounds:.1f} rounds,"
            f" best lost {cell.best_lost:5.2%}, right, wrong, undecided {' for '.join(verdicts)}",
            flush=True,
        )
        yield cell


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=500, help="sweeps per cell (500)")
    parser.add_argument(
        "--noise",
        type=float,
        nargs="+",
        default=NOISES,
        help="standard deviations of the log of a time",
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of noise")
    parser.add_argument(
        "--grids",
        nargs="+",
        choices=list(GRIDS),
        default=list(GRIDS),
        help="grids of times and prices",
    )
    parser.add_argument("--repeats", type=int, default=3, help="maximum probes of an arm (3)")
    parser.add_argument(
        "--probe-share", type=float, default=0.05, help="share of a full run's steps"
    )
    parser.add_argument("--output", type=Path, help="where to store the cells (JSON)")
    arguments = parser.parse_args(argv)
    started = time.perf_counter()
    measured = list(cells(arguments))
    settings = {
        "repeats": arguments.repeats,
        "probe_share": arguments.probe_share,
        "deadline_seconds": DEADLINE_SECONDS,
    }
    store_result(arguments.output, started, measured, **settings)
    mean = np.mean([each.saved_node_seconds for each in measured])
    print(f"saved {mean:.1%} of the node-seconds on average over {len(measured)} cells")
    return 0 if all(cell.keeps_promise for cell in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
