"""Measure cost and accuracy of probe sweeps over instance types on a simulated grid.

    nice -n 19 .venv/bin/python -m benchmarks.instances.grid [--sweeps 500] [--noise 0.02 0.05]
        [--grids generations alike] [--repeats 3] [--probe-share 0.05] [--output FILE.json]

It calls the functions that such a sweep uses (nodesweep/scaling/instances/), for 4 types x 4 node
counts. A grid gives each type a speed, a price and a curve of true medians on 1, 2, 4 and 8 nodes;
a cell is a grid and a log-normal noise (sigma of the log of a time). Every arm is probed in passes,
dominated ones no further; one whole run validates the result, which is the cheapest arm within a
deadline of half an hour.

Cost share: USD of probes and validation run over those of --repeats whole runs of every arm. Front
lost: an arm that truly belongs on the time-cost front was dropped; the design promises at most 5%.
Right: the recommendation truly meets the deadline and costs at most 2% more than the cheapest that
does. Undecided: there is none, or another arm is named as not ruled out or not distinguishable.
Exit code 1 if a cell has lost the front in more than 5% of sweeps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.dated_result import store_result
from benchmarks.designs import CURVES
from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import arms, names
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.instances.compare import choose_cells, judge_cells
from nodesweep.scaling.instances.design import ERROR, Passes, Sample, replay_passes
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome

NODE_COUNTS = (1, 2, 4, 8)
NOISES = (0.02, 0.05, 0.15)
DEADLINE_SECONDS = 1800.0
CLOSE = 0.02
TYPES = ("ml.m5.xlarge", "ml.m5.4xlarge", "ml.g5.xlarge", "ml.g5.12xlarge")
"""Names only; prices and speeds come from the grid."""
ARMS = tuple(arms.Arm(names.arm_code(place), name) for place, name in enumerate(TYPES))
Runs = dict[arms.Cell, dict[int, Sample | None]]


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
}


@dataclass(frozen=True)
class Cell:
    """Fractions of the sweeps; `cost_share` and `dropped` (fraction of combinations) are means."""

    grid: str
    noise: float
    sweeps: int
    cost_share: float
    least_cost_share: float
    most_cost_share: float
    dropped: float
    front_lost: float
    right: float
    wrong: float
    undecided: float

    @property
    def keeps_promise(self) -> bool:
        """True if the front was lost no more often than promised."""
        return self.front_lost <= ERROR


def truth(grid: str) -> dict[arms.Cell, Sample]:
    """Return each combination's true median time in seconds and the cost of a run."""
    found = {}
    for arm, kind in zip(ARMS, GRIDS[grid], strict=True):
        for nodes in NODE_COUNTS:
            seconds = CURVES[kind.curve][nodes] * 60 / kind.speed
            usd = nodes * seconds * kind.usd_per_hour / 3600
            found[arms.Cell(arm, nodes)] = Sample(seconds, usd)
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


def probe_grid(
    config: BenchmarkConfig,
    true: Mapping[arms.Cell, Sample],
    generator: np.random.Generator,
    noise: float,
) -> tuple[Runs, Passes]:
    """Run one sweep's probes; without goals, only dominated combinations are dropped."""
    runs: Runs = {}
    goals = config.report.recommendation.model_copy(update={"deadline_seconds": None})
    while True:
        passes = replay_passes(runs, list(true), config.sweep.repeats, goals)
        if not passes.missing:
            return runs, passes
        for cell, repeat in passes.missing:
            factor = float(np.exp(generator.normal(0, noise)))
            mean = true[cell]
            sample = Sample(mean.seconds * factor, (mean.usd or 0.0) * factor)
            runs.setdefault(cell, {})[repeat] = sample


def answer(config: BenchmarkConfig, grid: str, runs: Runs) -> tuple[arms.Cell | None, str]:
    """Return what the report would recommend, and the reason it would state."""
    rows = {}
    for arm, kind in zip(ARMS, GRIDS[grid], strict=True):
        outcomes = [
            _outcome(cell, repeat, sample)
            for cell, own in runs.items()
            if cell.arm == arm
            for repeat, sample in own.items()
            if sample is not None
        ]
        price = Price(instance_type=arm.name, usd_per_hour=kind.usd_per_hour)
        rows[arm] = summarise_runs(outcomes, price, paired=True)[0]
    choice = choose_cells(config, judge_cells(config, rows))[0]
    if choice.instance_type is None or choice.nodes is None:
        return None, choice.reason
    [chosen] = [arm for arm in ARMS if arm.name == choice.instance_type]
    return arms.Cell(chosen, choice.nodes), choice.reason


def _outcome(cell: arms.Cell, repeat: int, sample: Sample) -> JobOutcome:
    return JobOutcome(
        job_name=f"grid-n{cell.nodes}-r{repeat}",
        nodes=cell.nodes,
        repeat=repeat,
        attempt=1,
        status="Completed",
        platform_kind="simulated",
        clocks=Clocks(train_seconds=sample.seconds, billable_seconds=sample.seconds),
        train_clock="program",
    )


def verdict(true: Mapping[arms.Cell, Sample], chosen: arms.Cell | None, reason: str) -> str:
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


def true_front(true: Mapping[arms.Cell, Sample]) -> set[arms.Cell]:
    """Return the combinations that no other truly beats in both time and cost."""
    return {
        cell
        for cell, own in true.items()
        if not any(
            other.seconds <= own.seconds and (other.usd or 0.0) <= (own.usd or 0.0) and other != own
            for other in true.values()
        )
    }


def simulate(grid: str, noise: float, sweeps: int, repeats: int, share: float) -> Cell:
    """Simulate sweeps over a grid; deterministic for its arguments."""
    true, config = truth(grid), config_of(repeats)
    front = true_front(true)
    generator = np.random.default_rng([sorted(GRIDS).index(grid), round(noise * 1e4)])
    whole = repeats * sum(each.usd or 0.0 for each in true.values())
    costs, dropped, lost = [], 0, 0
    counted = dict.fromkeys(("right", "wrong", "undecided"), 0)
    for _ in range(sweeps):
        runs, passes = probe_grid(config, true, generator, noise)
        chosen, reason = answer(config, grid, runs)
        probes = sum(true[cell].usd or 0.0 for cell, own in runs.items() for _ in own) * share
        check = 0.0 if chosen is None else true[chosen].usd or 0.0
        costs.append((probes + check) / whole)
        dropped += len(passes.dropped)
        lost += bool(front & passes.dropped.keys())
        counted[verdict(true, chosen, reason)] += 1
    return Cell(
        grid=grid,
        noise=noise,
        sweeps=sweeps,
        cost_share=float(np.mean(costs)),
        least_cost_share=min(costs),
        most_cost_share=max(costs),
        dropped=dropped / sweeps / len(true),
        front_lost=lost / sweeps,
        **{name: number / sweeps for name, number in counted.items()},
    )


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Simulate, print and yield each cell."""
    for grid in arguments.grids:
        for noise in arguments.noise:
            cell = simulate(grid, noise, arguments.sweeps, arguments.repeats, arguments.probe_share)
            print(
                f"{grid:<14} {noise:>5.0%} noise: cost {cell.cost_share:6.1%}"
                f" ({cell.least_cost_share:.1%}-{cell.most_cost_share:.1%}), dropped"
                f" {cell.dropped:5.1%} of combinations, front lost {cell.front_lost:5.2%}, right"
                f" {cell.right:6.1%}, wrong {cell.wrong:5.1%}, undecided {cell.undecided:6.1%}",
                flush=True,
            )
            yield cell


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=500, help="sweeps per cell (500)")
    parser.add_argument("--noise", type=float, nargs="+", default=NOISES)
    parser.add_argument("--grids", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--repeats", type=int, default=3, help="passes (3)")
    parser.add_argument(
        "--probe-share", type=float, default=0.05, help="share of a full run's steps"
    )
    parser.add_argument("--output", type=Path, help="where to store the cells (JSON)")
    arguments = parser.parse_args(argv)
    started = time.perf_counter()
    made = list(cells(arguments))
    settings = {
        "repeats": arguments.repeats,
        "probe_share": arguments.probe_share,
        "deadline_seconds": DEADLINE_SECONDS,
    }
    store_result(arguments.output, started, made, **settings)
    return 0 if all(cell.keeps_promise for cell in made) else 1


if __name__ == "__main__":
    sys.exit(main())
