"""Measure probe sweeps of jobs whose first steps differ from the others, on simulated steps.

    nice -n 19 .venv/bin/python -m benchmarks.probe_blind_spots [--sweeps 100] [--repeats 1 3]
        [--curves reference …] [--effects evaluation …] [--output FILE.json]

Each run has 30 epochs; its steps vary by 2% (log-normal) and runs of one node count by 1%. Probes
are those of the training program (infra/image/nodesweep_clock.py); the recommendation, the
validation runs and their consequences are those of a sweep (nodesweep/scaling/design/probe.py). An
epoch has 100 steps or, in the effects called "long", 5,000 steps, which is more than a probe runs.
The effects are the same at every node count, in units of a step on one node: a cold cache adds 1.32
to each step of the first epoch, an evaluation adds 2.9% of an epoch to each epoch, and a restarted
loader adds 3.5 over three steps; throttling slows steps by 12.5% with a time constant of 60.

A sweep is right if the recommended count is the largest that passes the limits by the true times of
whole runs; for a count within 2% of a limit either verdict is right. It is wrong if the recommended
count fails, or if a larger count that passes is ruled out. Otherwise it is undecided. `_before`
applies the earlier rules: probes that ignored epochs and trends, and a single validation run, which
never changed the recommendation. Exit code 1 if more than 5% of a cell's sweeps are wrong.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dated_result import store_result
from benchmarks.designs import CURVES, NODE_COUNTS, Curve, _probe_verdict
from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.advice import Recommendation
from nodesweep.scaling.analysis.recommend import recommend
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.design.progress import progress_of
from nodesweep.scaling.design.registry import design_of
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.outcome.projection import project

sys.path.insert(0, str(Path(__file__).parent.parent / "infra" / "image"))
from nodesweep_clock import Probe, mean_step  # type: ignore[import-not-found]

EPOCHS, EPOCH_STEPS, LONG_EPOCH_STEPS = 30, 100, 5000
STEP_NOISE, RUN_NOISE = 0.02, 0.01
PRECISION, MAX_STEPS = 0.01, 2000
COLD, EVALUATED, RESTARTED = 1.32, 0.029, 3.5
THROTTLED, TIME_CONSTANT = 0.125, 60.0
EFFECTS = (
    "none",
    "cold first epoch",
    "throttling",
    "evaluation",
    "loader restart",
    "cold first epoch, long",
    "evaluation, long",
)
MOST_WRONG = 0.05


@dataclass(frozen=True)
class Cell:
    """Shares of the sweeps, and `steps`, the mean per probe; `_before` under the earlier rules."""

    curve: str
    effect: str
    repeats: int
    sweeps: int
    right: float
    wrong: float
    undecided: float
    steps: float
    right_before: float
    wrong_before: float
    undecided_before: float
    steps_before: float

    @property
    def is_right(self) -> bool:
        """True if at most 5% of the sweeps are wrong."""
        return self.wrong <= MOST_WRONG


class Before(Probe):
    """A probe by the earlier rule, which ignores epochs and does not test for a trend."""

    def expect_epochs(self, epoch_steps: int, planned_steps: int) -> None:
        """Ignore the epochs, as the earlier rule did."""

    def _knows(self, seconds: Sequence[float]) -> bool:
        middle, half = mean_step(seconds)
        return half is not None and half <= self.precision * middle


def epoch_steps(effect: str) -> int:
    """Return the number of steps in an epoch under an effect."""
    return LONG_EPOCH_STEPS if effect.endswith("long") else EPOCH_STEPS


def step_times(effect: str, step: float, steps: int) -> np.ndarray:
    """Return the noiseless times of a run's first steps; `step` is the time of a warm step."""
    of_epoch = epoch_steps(effect)
    number = np.arange(steps)
    times = np.full(steps, step)
    if effect.startswith("cold"):
        times += COLD * (number < of_epoch)
    elif effect == "throttling":
        times *= 1 + THROTTLED * (1 - np.exp(-number * step / TIME_CONSTANT))
    elif effect.startswith("evaluation"):
        times += EVALUATED * of_epoch * ((number > 0) & (number % of_epoch == 0))
    elif effect == "loader restart":
        times += RESTARTED / 3 * ((number >= of_epoch) & (number % of_epoch < 3))
    return times


def truth(curve: Curve, effect: str) -> dict[int, float]:
    """Return the true train time of a whole run by node count."""
    steps = EPOCHS * epoch_steps(effect)
    return {n: float(step_times(effect, t / curve[1], steps).sum()) for n, t in curve.items()}


def config_of(repeats: int) -> BenchmarkConfig:
    """Return the config of the simulated sweep."""
    raw = {
        "name": "blind-spots",
        "dataset": None,
        "training": {
            "instance_type": "ml.m5.large",
            "max_runtime_seconds": 3600,
            "distribution": {"kind": "none"},
        },
        "sweep": {"design": "probe", "node_counts": NODE_COUNTS, "repeats": repeats},
        "platform": {
            "region": "us-east-1",
            "bucket": "none",
            "role_arn": "arn:aws:iam::000000000000:role/none",
        },
    }
    return parse_config(raw, origin="blind-spots")


def run_probe(probe: Probe, seconds: Sequence[float], of_epoch: int) -> dict[str, Any]:
    """Run a probe over these step times, and return its metrics.json."""
    planned = EPOCHS * of_epoch
    probe.expect_epochs(of_epoch, planned)
    made = next(
        n
        for n in range(1, MAX_STEPS + 1)
        if probe.ends(n, lambda n=n: probe.steady(seconds[:n]), bool)
    )
    return {
        "train_seconds": math.fsum(seconds[:made]),
        "steps": made,
        "probe": probe.section(seconds[:made], planned),
    }


def outcome_of(nodes: int, repeat: int, metrics: Mapping[str, Any] | float) -> JobOutcome:
    """Return the outcome of a probe with this metrics.json, or of a whole run of this time."""
    projection = None if isinstance(metrics, float) else project(metrics, {})
    if isinstance(metrics, float):
        seconds, clock = metrics, "program"
    elif projection is None:
        seconds, clock = metrics["train_seconds"], "projected"
    else:
        seconds, clock = projection.train_seconds, "projected"
    return JobOutcome(
        nodes=nodes,
        repeat=repeat,
        attempt=1,
        job_name=f"n{nodes}-r{repeat}",
        status="Completed",
        platform_kind="simulated",
        clocks=Clocks(train_seconds=seconds),
        train_clock=clock,  # type: ignore[arg-type]
        train_seconds_by={clock: seconds},  # type: ignore[dict-item]
        projection=projection,
    )


def answer_of(
    config: BenchmarkConfig, probes: Sequence[JobOutcome], whole: Mapping[int, float]
) -> Recommendation:
    """Return the recommendation after validation runs that take the times in `whole`."""
    design, progress = design_of(config.sweep), progress_of(config, probes)
    assert progress is not None
    checks = [outcome_of(nodes, repeat, whole[nodes]) for nodes, repeat in progress.next_points]
    rows, runs = summarise_runs([*probes, *checks], paired=True)
    check, others = design.find_checks(config, runs, progress)
    first = recommend(rows, config.report.recommendation)
    found = [*([check] if check else []), *others]
    confirmed = design.confirm(config, runs, first, found)
    assert confirmed is not None
    return confirmed


def simulate(name: str, effect: str, repeats: int, sweeps: int, seed: int = 1) -> Cell:
    """Simulate sweeps over a curve under an effect; the same arguments give the same result."""
    curve, true, config = CURVES[name], truth(CURVES[name], effect), config_of(repeats)
    generator = np.random.default_rng([seed, sorted(CURVES).index(name), EFFECTS.index(effect)])
    bare = {n: step_times(effect, t / curve[1], MAX_STEPS) for n, t in curve.items()}
    verdicts = {key: {"right": 0, "wrong": 0, "undecided": 0} for key in (Probe, Before)}
    steps: dict[type, list[int]] = {Probe: [], Before: []}
    for _ in range(sweeps):
        noisy = {
            (n, repeat): np.exp(
                generator.normal(0, STEP_NOISE, MAX_STEPS) + generator.normal(0, RUN_NOISE)
            )
            * bare[n]
            for repeat in range(1, repeats + 1)
            for n in curve
        }
        whole = {n: t * math.exp(generator.normal(0, RUN_NOISE)) for n, t in true.items()}
        for kind in (Probe, Before):
            outcomes = []
            for (nodes, repeat), seconds in noisy.items():
                metrics = run_probe(
                    kind(PRECISION, MAX_STEPS), seconds.tolist(), epoch_steps(effect)
                )
                steps[kind].append(metrics["steps"])
                outcomes.append(outcome_of(nodes, repeat, metrics))
            if kind is Probe:
                advice: Recommendation | None = answer_of(config, outcomes, whole)
            else:
                rows = summarise_runs(outcomes, paired=True)[0]
                advice = recommend(rows, config.report.recommendation)
            assert advice is not None
            verdict = "undecided"
            if advice.chosen is not None:
                verdict = _probe_verdict(true, advice.chosen.nodes, advice.not_ruled_out)
            verdicts[kind][verdict] += 1
    after = {key: count / sweeps for key, count in verdicts[Probe].items()}
    before = {f"{key}_before": count / sweeps for key, count in verdicts[Before].items()}
    return Cell(
        curve=name,
        effect=effect,
        repeats=repeats,
        sweeps=sweeps,
        steps=float(np.mean(steps[Probe])),
        steps_before=float(np.mean(steps[Before])),
        **after,
        **before,
    )


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Simulate, print and yield each cell."""
    for repeats in arguments.repeats:
        for effect in arguments.effects:
            for name in arguments.curves:
                cell = simulate(name, effect, repeats, arguments.sweeps)
                print(
                    f"{cell.repeats:>2} {cell.effect:>22} {cell.curve:>12}"
                    f" {cell.steps_before:>7.0f} {cell.right_before:>6.0%}"
                    f" {cell.wrong_before:>6.0%}"
                    f" {cell.undecided_before:>6.0%} {cell.steps:>7.0f} {cell.right:>6.0%}"
                    f" {cell.wrong:>6.0%} {cell.undecided:>6.0%}",
                    flush=True,
                )
                yield cell


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, then print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=100, help="sweeps per cell (100)")
    parser.add_argument(
        "--repeats", type=int, nargs="+", default=[1, 3], help="runs per node count"
    )
    parser.add_argument(
        "--effects", nargs="+", choices=EFFECTS, default=EFFECTS, help="effects in the first steps"
    )
    parser.add_argument(
        "--curves",
        nargs="+",
        choices=list(CURVES),
        default=["reference", "5 % above", "5 % below"],
        help="scaling curves",
    )
    parser.add_argument("--output", type=Path, help="where to store the cells (JSON)")
    arguments = parser.parse_args(argv)
    print(
        f"{'n':>2} {'effect':>22} {'curve':>12} {'before':>7} {'right':>6} {'wrong':>6}"
        f" {'open':>6} {'after':>7} {'right':>6} {'wrong':>6} {'open':>6}"
    )
    started = time.perf_counter()
    measured = list(cells(arguments))
    store_result(
        arguments.output,
        started,
        measured,
        step_noise=STEP_NOISE,
        run_noise=RUN_NOISE,
        precision=PRECISION,
        max_steps=MAX_STEPS,
    )
    broken = [cell for cell in measured if not cell.is_right]
    print(f"{len(measured) - len(broken)} of {len(measured)} cells are wrong in at most 5%")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
