"""Measure how often `nodesweep predict` is right at 8 nodes, on simulated sweeps over 1, 2 and 4.

    nice -n 19 .venv/bin/python -m benchmarks.predict [--design | --at 16] [--output FILE.json]

The truth is an event simulation, not the model of nodesweep/scaling/predict/. In each step, each
rank's backward pass fills one gradient bucket after the other. A bucket's all-reduce starts when
the slowest rank has filled the bucket and the previous all-reduce has ended; the step ends after
the last all-reduce. The speed of ranks varies by node and by step, with spikes. The simulated parts
of the time are those that nodesweep would measure. A cell is a program, a network, a batch policy,
a level of noise and a number of runs. In the policy "global, batches", one node is also measured at
the batch per process of 8 nodes (`--batches`). In "global, timed", the runs are those of "global",
but the runs on one node time passes at the smaller batches, as the shipped program does. Timed
passes are up to 7% faster than those of a run, by an amount between constant and proportional to
the pass; all ratios of a sweep share an error of 5% (standard deviation). With --at 16, 16 nodes
are predicted.

The same sweeps are extrapolated by nodesweep/scaling/fits/, and by Amdahl's law and the USL alone
(each with a 90% interval from the same bootstrap). Limits: efficiency at least 75%, doubling ratio
at least 1.5. Exit code 1 if fewer than 88% of the predicted intervals contain the next run.

With --design, the benchmark simulates sweep.design: predict over 1, 2, 4 and 8 nodes with a fixed
global batch. Counts 1 and 2 are measured by 3 runs of 10% of their steps; then, up to two times,
the largest other count that may be the answer is measured in the same way (--confirm, given once or
twice). In half of the cells, the runs on one node time passes. Every 100 steps of a run share a
speed that varies as much as the speed of runs; a whole run averages many of these, a short run only
a few. A sweep decides on the largest count that passes if no larger count is undecided; it
recommends the largest count that passes. Its share is its node-seconds, those of the timing
included, divided by those of a full sweep with equally many runs, both without start-up. Full
sweeps are simulated twice, since their agreement with each other is the most that can be expected.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.dated_result import store_result
from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.analysis.intervals import paired_ratio_interval, residuals_of
from nodesweep.scaling.fits.extrapolation import predict_by_law, run_noise
from nodesweep.scaling.fits.fit import fit_laws
from nodesweep.scaling.fits.laws import LAWS, Sample
from nodesweep.scaling.outcome.timed_passes import PassRatio
from nodesweep.scaling.predict.draws import LEVEL, Measurement, Outlook, look_ahead
from nodesweep.scaling.predict.physics import PARTS, Part, Place
from nodesweep.scaling.predict.solutions import corners

Floats = npt.NDArray[np.float64]
Policy = Literal["per replica", "global", "global, batches", "global, timed"]
Answer = Literal["pass", "fail", "undecided"]
COUNTS, AT = (1, 2, 4), 8
BATCH, STEPS, MADE = 64, 80, 3200
"""Samples per process; simulated steps of a run; steps on one node that these represent."""
TRUE_RUNS = 16
MIN_EFFICIENCY, MIN_RATIO = 0.75, 1.5
LEAST_COVERED = 0.88
POLICIES: tuple[Policy, ...] = ("per replica", "global", "global, batches", "global, timed")
DESIGN_POLICIES: tuple[Policy, ...] = ("global", "global, timed")
TIMING_ERROR, ROUNDS, ENTRY_SECONDS, LEAST_LIMIT_SECONDS, LIMIT_SHARE = 0.05, 7, 0.2, 15.0, 0.1
"""The assumed error of timed passes; the others as in infra/image/training/measuring/passes.py."""
MOST_FASTER = 0.07
"""By how much timed passes of the whole batch are faster than those of a run, at most."""
SHORT, RUN_COUNTS = 0.1, (1, 2)
"""With --design: the fraction of its steps that a run makes, and the counts measured first."""
DESIGN_RUNS, LEAST_STEPS, DRIFT_STEPS = 3, 30, 100
CLEAR = 0.9
"""A cell is clear if at least this fraction of its pairs of full sweeps recommend the same."""


class Program(NamedTuple):
    """The costs of a program's step, and its gradient buckets.

    Attributes:
        per_step: Seconds of a step's passes that don't depend on the batch.
        per_sample: Seconds per sample.
        cache: Fraction by which a sample of a large batch takes longer than one of a small batch.
        buckets: Each bucket's share of the gradients' bytes, in the order of filling.
        megabytes: Size of all gradients, in MB.
        optimizer: Seconds of an optimizer step.
    """

    per_step: float
    per_sample: float
    cache: float
    buckets: tuple[float, ...]
    megabytes: float
    optimizer: float

    def passes(self, batch: float) -> float:
        """Return the seconds of a step's forward and backward passes at this batch."""
        fullness = 1 + self.cache * batch / (batch + BATCH / 4)
        return self.per_step + self.per_sample * batch * fullness


class Network(NamedTuple):
    """A network: `latency` in seconds per message, `rate` in MB/s; a tree has log2 N stages."""

    latency: float
    rate: float
    is_tree: bool = False

    def seconds(self, nodes: int, megabytes: float) -> float:
        """Return the seconds of an all-reduce of this size."""
        if nodes == 1:
            return 0.0
        stages = 2 * math.log2(nodes) if self.is_tree else 2 * (nodes - 1)
        return stages * self.latency + 2 * (nodes - 1) / nodes * megabytes / self.rate


PROGRAMS: Mapping[str, Program] = {
    "one bucket": Program(0.010, 0.0020, 0.0, (1.0,), 4, 0.002),
    "convolutions": Program(0.020, 0.0040, 0.0, (0.4, 0.3, 0.2, 0.1), 60, 0.010),
    "transformer": Program(0.030, 0.0060, 0.0, (1 / 12,) * 12, 120, 0.020),
    "many buckets": Program(0.010, 0.0030, 0.0, (1 / 20,) * 20, 20, 0.005),
    "embedding last": Program(0.010, 0.0030, 0.0, (0.05, 0.05, 0.1, 0.1, 0.7), 60, 0.010),
    "caches": Program(0.005, 0.0030, 0.25, (0.5, 0.5), 30, 0.005),
}
NETWORKS: Mapping[str, Network] = {
    "fast": Network(0.00002, 1200),
    "slow": Network(0.00005, 400),
    "far": Network(0.0008, 800),
    "tree": Network(0.0006, 800, is_tree=True),
}


class Noise(NamedTuple):
    """Relative spread of each source of noise, and the mean height of spikes."""

    run: float
    network: float
    node: float
    step: float
    spike: float


NOISES: Mapping[str, Noise] = {
    "quiet": Noise(0.004, 0.02, 0.003, 0.01, 0.0),
    "loud": Noise(0.015, 0.08, 0.010, 0.04, 0.02),
}


@dataclass(frozen=True)
class Method:
    """Results of one method in a cell.

    Attributes:
        covered: Share of the intervals that contain the next run; None if there is no interval.
        median_error: Median absolute error relative to the mean; None if there is no prediction.
        right: Share of the sweeps with the true decision.
        wrong: Share of the sweeps with the opposite decision; the others are undecided.
        width: Median ratio of an interval's upper end to its lower end; None without intervals.
    """

    covered: float | None
    median_error: float | None
    right: float
    wrong: float
    width: float | None


@dataclass(frozen=True)
class Cell:
    """Results of one cell; `methods` holds them by method."""

    program: str
    network: str
    policy: str
    noise: str
    runs: int
    true_efficiency: float
    methods: dict[str, Method]


class Prediction(NamedTuple):
    """A prediction of T with a 90% interval; None where the method predicts nothing."""

    seconds: float | None
    low: float | None
    high: float | None


class Guess(NamedTuple):
    """A prediction and the decision that follows from it."""

    seconds: float | None
    low: float | None
    high: float | None
    answer: Answer


def main(argv: Sequence[str]) -> int:
    """Simulate, then print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    if options.design:
        return _simulate_designs(options, started)
    cells = [
        simulate(program, network, policy, noise, runs, options.sweeps, options.seed, options.at)
        for program, network, policy, noise, runs in product(
            PROGRAMS, NETWORKS, POLICIES, NOISES, (3, 5)
        )
    ]
    print(f"{len(cells)} cells of {options.sweeps} sweeps")
    for policy in ("all", *POLICIES):
        chosen = [cell for cell in cells if policy in ("all", cell.policy)]
        for method in chosen[0].methods:
            print(
                f"{policy:16} {method:14} {summary_of([each.methods[method] for each in chosen])}"
            )
    store_result(
        options.output, started, cells, seed=options.seed, sweeps=options.sweeps, counts=COUNTS,
        predicted_at=options.at,
    )  # fmt: skip
    covered = [each.methods["predict"].covered for each in cells]
    return 0 if np.mean([each for each in covered if each is not None]) >= LEAST_COVERED else 1


def simulate(
    program: str,
    network: str,
    policy: Policy,
    noise: str,
    runs: int,
    sweeps: int,
    seed: int,
    at: int = AT,
) -> Cell:
    """Simulate sweeps of one cell, and judge every method."""
    what = (PROGRAMS[program], NETWORKS[network], NOISES[noise])
    places = [list(each).index(name) for each, name in (
        (PROGRAMS, program), (NETWORKS, network), (POLICIES, policy), (NOISES, noise),
    )]  # fmt: skip
    is_timed = policy == "global, timed"
    if is_timed:
        places[2] = POLICIES.index("global")
    random = np.random.default_rng([seed, *places, runs])
    of_timing = np.random.default_rng([seed, *places, runs, 1])
    true = {
        nodes: total_of(run_parts(*what, _place(policy, nodes), TRUE_RUNS, random))
        for nodes in (*COUNTS, *((at // 2,) if at // 2 not in COUNTS else ()), at)
    }
    means = {nodes: float(times.mean()) for nodes, times in true.items()}
    truth = _by_point(means[at], means, at)
    guesses: dict[str, list[Guess]] = {}
    next_runs = []
    for _ in range(sweeps):
        measured = [
            Measurement(
                place, run_parts(*what, place, runs, random), 1.0, timed(*what, place, random)
            )
            for place in (_place(policy, nodes) for nodes in COUNTS)
        ]
        passes = {}
        if policy == "global, batches":
            alone = Place(1, 1, BATCH * COUNTS[-1] / at, 1.0)
            parts = run_parts(*what, alone, runs, random)
            passes[alone.batch] = parts["gradients"].tolist()
        if is_timed:
            ratios = timed_ratios(PROGRAMS[program], what[-1], [*COUNTS[1:], at], runs, of_timing)
            measured[0] = measured[0]._replace(ratios=ratios)
        place = _place(policy, at)
        for method, guess in ask(measured, place, passes, policy).items():
            guesses.setdefault(method, []).append(guess)
        next_runs.append(float(total_of(run_parts(*what, place, 1, random))[0]))
    return Cell(
        program, network, policy, noise, runs, round(means[1] / (at * means[at]), 4),
        {
            name: _judge(each, next_runs, means[at], truth) for name, each in guesses.items()
        },
    )  # fmt: skip


class Confirmed(NamedTuple):
    """Results of a cell's sweeps after 0, 1 or 2 counts were confirmed.

    Attributes:
        share: Node-seconds as a share of a full sweep's.
        covered: Share of the intervals at unmeasured counts that contain the next whole run; None
            if all counts were measured.
        right: Share of sweeps that decide on the same count as the true times.
        wrong: Share of sweeps that decide on another count; the others are undecided.
        same: Share of sweeps that recommend the same count as a full sweep of the cell.
    """

    share: float
    covered: float | None
    right: float
    wrong: float
    same: float


@dataclass(frozen=True)
class DesignCell:
    """Results of sweeps of the predict design in one cell, and of full sweeps.

    Attributes:
        full_right: Share of full sweeps that decide on the same count as the true times.
        full_wrong: Share of full sweeps that decide on another count; the others are undecided.
        full_same: Share of pairs of full sweeps that recommend the same count.
        confirmed: The design's results by number of confirmed counts.
    """

    program: str
    network: str
    policy: str
    noise: str
    true_choice: int
    full_right: float
    full_wrong: float
    full_same: float
    confirmed: tuple[Confirmed, ...]


def _simulate_designs(options: argparse.Namespace, started: float) -> int:
    cells = [
        simulate_design(*cell, options.sweeps, options.seed)
        for cell in product(PROGRAMS, NETWORKS, DESIGN_POLICIES, NOISES)
    ]
    for policy in DESIGN_POLICIES:
        _print_designs(policy, [each for each in cells if each.policy == policy])
    store_result(
        options.output, started, cells, seed=options.seed, sweeps=options.sweeps, share=SHORT,
        runs=DESIGN_RUNS,
    )  # fmt: skip
    covered = [each.covered for cell in cells for each in cell.confirmed if each.covered]
    return 0 if np.mean(covered) >= LEAST_COVERED else 1


def _print_designs(policy: Policy, cells: Sequence[DesignCell]) -> None:
    clear = [each for each in cells if each.full_same >= CLEAR]
    open_ = [each for each in cells if each.full_same < CLEAR]
    for name, chosen in (("all", cells), ("full sweeps agree", clear), ("they don't", open_)):
        full = [(each.full_right, each.full_wrong, each.full_same) for each in chosen]
        right, wrong, same = np.mean(full or [(math.nan,) * 3], axis=0)
        print(
            f"{policy}: {len(chosen)} cells ({name}), full sweeps: right {right:6.1%}"
            f"  wrong {wrong:6.1%}  recommend the same {same:6.1%}"
        )
        for count in range(len(RUN_COUNTS) + 1):
            print(
                f"  {count} confirmed: {_design_text([each.confirmed[count] for each in chosen])}"
            )


def _design_text(found: Sequence[Confirmed]) -> str:
    covered = [each.covered for each in found if each.covered is not None]
    means = [np.mean([each[place] for each in found] or [math.nan]) for place in (0, 2, 3, 4)]
    return (
        f"node-seconds {means[0]:5.1%} (most {max((each.share for each in found), default=0):5.1%})"
        f"  covered {np.mean(covered or [math.nan]):6.1%}"
        f"  right {means[1]:6.1%}  wrong {means[2]:6.1%}  same as a full sweep {means[3]:6.1%}"
    )


def simulate_design(
    program: str, network: str, policy: Policy, noise: str, sweeps: int, seed: int
) -> DesignCell:
    """Simulate predict and full sweeps with a fixed global batch, and return their cell.

    The times of the runs do not depend on whether passes are timed.
    """
    what = (PROGRAMS[program], NETWORKS[network], NOISES[noise])
    places = [list(each).index(name) for each, name in (
        (PROGRAMS, program), (NETWORKS, network), (NOISES, noise),
    )]  # fmt: skip
    random = np.random.default_rng([seed, *places, 1])
    of_network = np.random.default_rng([seed, *places, 2])
    of_timing = np.random.default_rng([seed, *places, 3])
    counts = (*COUNTS, AT)
    where = {nodes: _place(policy, nodes) for nodes in counts}

    def make(nodes: int, repeats: int, share: float = 1.0) -> dict[Part, Floats]:
        steps = max(LEAST_STEPS, round(share * MADE * where[nodes].steps))
        return run_parts(*what, where[nodes], repeats, random, steps, DRIFT_STEPS)

    whole = {nodes: total_of(make(nodes, 2 * TRUE_RUNS)) for nodes in counts}
    means = {nodes: float(times.mean()) for nodes, times in whole.items()}
    truth = choose({n: _by_point(means[n], means, n) for n in counts[1:]})
    full = DESIGN_RUNS * sum(nodes * means[nodes] for nodes in counts)
    answers: list[list[Mapping[int, Answer]]] = [[] for _ in range(2 + 1 + len(RUN_COUNTS))]
    spent: list[list[float]] = [[] for _ in answers]
    inside: list[list[bool]] = [[] for _ in answers]
    is_timed = policy == "global, timed"
    timing = DESIGN_RUNS * _timing_seconds(what[0], counts, SHORT * means[1]) if is_timed else 0.0
    for _ in range(sweeps):
        for index in range(2):
            times = {nodes: total_of(make(nodes, DESIGN_RUNS)) for nodes in counts}
            answers[index].append(judge_full(times))
        parts = {nodes: make(nodes, DESIGN_RUNS, SHORT) for nodes in RUN_COUNTS}
        next_runs = {nodes: float(total_of(make(nodes, 1))[0]) for nodes in counts[2:]}
        ratios: dict[float, PassRatio] = {}
        if is_timed:
            ratios = timed_ratios(what[0], what[-1], counts[1:], DESIGN_RUNS, of_timing)
        for index in range(2, len(answers)):
            measured = [
                Measurement(where[nodes], each, 1.0, timed(*what, where[nodes], of_network))
                for nodes, each in sorted(parts.items())
            ]
            measured[0] = measured[0]._replace(ratios=ratios)
            outlooks = look_ahead(measured, [(where[nodes], 1.0) for nodes in counts[1:]], {})
            guesses = {each.place.nodes: guess_of(each) for each in outlooks}
            others = {nodes: each for nodes, each in guesses.items() if nodes not in parts}
            inside[index] += [
                (guess.low or 0.0) <= next_runs[nodes] <= (guess.high or 0.0)
                for nodes, guess in others.items()
            ]
            spent[index].append(
                (timing + sum(
                    nodes * DESIGN_RUNS * means[nodes]
                    * max(SHORT, LEAST_STEPS / (MADE * where[nodes].steps))
                    for nodes in parts
                )) / full
            )  # fmt: skip
            found = {nodes: guess.answer for nodes, guess in guesses.items()}
            answers[index].append(found)
            if (nodes := to_confirm(found, parts)) is not None:
                parts[nodes] = make(nodes, DESIGN_RUNS, SHORT)

    def rate(index: int) -> tuple[float, float, float]:
        chosen = [choose(each) for each in answers[index]]
        other = answers[1 - index if index < 2 else 0]
        return (
            float(np.mean([each == truth for each in chosen])),
            float(np.mean([each not in (truth, None) for each in chosen])),
            float(np.mean([
                recommend(each) == recommend(like)
                for each, like in zip(answers[index], other, strict=True)
            ])),
        )  # fmt: skip

    return DesignCell(
        program, network, policy, noise, truth or 0, *rate(0),
        tuple(
            Confirmed(
                round(float(np.mean(spent[index])), 4),
                float(np.mean(inside[index])) if inside[index] else None,
                *rate(index),
            )
            for index in range(2, len(answers))
        ),
    )  # fmt: skip


def judge_full(times: Mapping[int, Floats]) -> dict[int, Answer]:
    """Judge the counts of a full sweep in shuffled order as a report does, by node count."""
    runs = {nodes: dict(enumerate(each.tolist())) for nodes, each in times.items()}
    rest = residuals_of([runs[nodes] for nodes in sorted(runs)])
    found: dict[int, Answer] = {}
    for nodes in sorted(runs)[1:]:
        speedup = paired_ratio_interval(runs[1], runs[nodes], rest)
        ratio = paired_ratio_interval(runs[nodes // 2], runs[nodes], rest)
        assert speedup is not None and ratio is not None
        found[nodes] = _answer(
            [(speedup.bounds, MIN_EFFICIENCY * nodes), (ratio.bounds, MIN_RATIO)]
        )
    return found


def _answer(limits: Sequence[tuple[tuple[float, float], float]]) -> Answer:
    """Return the verdict of (bounds, lower limit) pairs, all of which must be met."""
    if any(high < limit for (_, high), limit in limits):
        return "fail"
    return "pass" if all(low >= limit for (low, _), limit in limits) else "undecided"


def recommend(answers: Mapping[int, Answer]) -> int:
    """Return the largest count that passes, or 1, even if a larger count is undecided."""
    return max((nodes for nodes, each in answers.items() if each == "pass"), default=1)


def choose(answers: Mapping[int, Answer]) -> int | None:
    """Return the largest count that passes, or 1; None if a larger count is undecided."""
    for nodes, answer in sorted(answers.items(), reverse=True):
        if answer != "fail":
            return nodes if answer == "pass" else None
    return 1


def to_confirm(answers: Mapping[int, Answer], measured: Collection[int]) -> int | None:
    """Return the node count to measure next, as --confirm chooses it; None if there is none.

    It is the largest unmeasured count that may be the answer.
    """
    least = choose(answers) or recommend(answers)
    left = [nodes for nodes, each in answers.items() if each != "fail" and nodes >= least]
    return max((nodes for nodes in left if nodes not in measured), default=None)


def run_parts(
    program: Program,
    network: Network,
    noise: Noise,
    place: Place,
    runs: int,
    random: np.random.Generator,
    steps: int = STEPS,
    drift_steps: int | None = None,
) -> dict[Part, Floats]:
    """Simulate runs; return the seconds of each part of T, by run.

    Args:
        program: The program.
        network: The network.
        noise: The noise.
        place: The node count, its batch and its number of steps.
        runs: Number of runs.
        random: Generator of random numbers for the noise.
        steps: Steps to simulate, which represent all steps of a run.
        drift_steps: Number of consecutive steps that share a random speed; None for no such speeds.
    """
    ranks = place.nodes
    speed = random.lognormal(0, noise.run, (runs, 1, 1)) * random.lognormal(
        0, noise.node, (runs, 1, ranks)
    )
    jitter = random.lognormal(0, noise.step, (runs, steps, ranks))
    if drift_steps is not None:
        drift = random.lognormal(0, noise.run, (runs, -(-steps // drift_steps), 1))
        jitter *= drift.repeat(drift_steps, axis=1)[:, :steps]
    spikes = (random.random((runs, steps, ranks)) < 0.01) * random.exponential(
        noise.spike, (runs, steps, ranks)
    )
    slower = 1.03 if ranks > 1 else 1.0  # sending takes CPU time from the backward pass
    passes = program.passes(place.batch) * speed * (jitter + spikes)
    forward, backward = passes / 3, passes * 2 / 3 * slower
    rate = random.lognormal(0, noise.network, (runs, 1))
    filled, through = 0.0, np.zeros((runs, steps))
    for share in program.buckets:
        filled += 1 / len(program.buckets)
        ready = (forward + filled * backward).max(axis=2)
        through = np.maximum(through, ready)
        through = through + rate * network.seconds(ranks, share * program.megabytes)
    ended = (forward + backward).max(axis=2)
    reduced = np.maximum(through, ended)[:, :, None] - (forward + backward)
    exposed = reduced.min(axis=2).mean(axis=1) if ranks > 1 else np.zeros(runs)
    waited = reduced.mean(axis=(1, 2)) - exposed if ranks > 1 else np.zeros(runs)
    total = MADE * place.steps
    start = 1.5 + (0.4 if ranks > 1 else 0.0) + 0.05 * (ranks - 1)
    per_step: dict[Part, Floats] = {
        "gradients": (forward + backward).mean(axis=(1, 2)),
        "backward": backward.mean(axis=(1, 2)),
        "optimizer": np.full(runs, program.optimizer) * speed.mean(axis=(1, 2)),
        "communication": exposed,
        "waiting": waited,
        "data": 0.00002 * place.batch * speed.mean(axis=(1, 2)),
    }
    parts: dict[Part, Floats] = {name: total * each for name, each in per_step.items()}
    parts["fixed"] = start * random.lognormal(0, 0.05, runs) + 0.5 / ranks
    return parts


def timed(
    program: Program, network: Network, noise: Noise, place: Place, random: np.random.Generator
) -> Exchange | None:
    """Return the whole exchange of a run, timed once while nothing else used the network."""
    if place.nodes == 1:
        return None
    each = [network.seconds(place.nodes, share * program.megabytes) for share in program.buckets]
    latency = network.seconds(place.nodes, 0.004) * len(each)
    found = Exchange(latency, sum(each) - latency, each[-1] / sum(each))
    return found.times(MADE * place.steps * random.lognormal(0, noise.network))


def timed_ratios(
    program: Program,
    noise: Noise,
    counts: Sequence[int],
    runs: int,
    random: np.random.Generator,
) -> dict[float, PassRatio]:
    """Return the ratios of passes that runs on one node time, by batch per process of `counts`.

    Besides the error that all of them share, a ratio has the noise of the rounds.
    """
    sizes = [_place("global", nodes).batch for nodes in (1, *counts)]
    of_runs = [program.passes(size) for size in sizes]
    faster, constant = random.uniform(0, MOST_FASTER), random.uniform(0, 1)
    whole, *smaller = (
        seconds - faster * (constant * of_runs[0] + (1 - constant) * seconds) for seconds in of_runs
    )
    shared = random.normal(0, TIMING_ERROR)
    error = noise.step * math.sqrt(2 / (ROUNDS * runs))
    return {
        size: PassRatio(
            seconds / whole * (1 + shared + random.normal(0, error)), error, whole / of_runs[0]
        )
        for size, seconds in zip(sizes[1:], smaller, strict=True)
    }


def _timing_seconds(program: Program, counts: Sequence[int], train_seconds: float) -> float:
    """Return the seconds in which a run on one node times the passes at the batches of `counts`."""
    sizes = [_place("global", nodes).batch for nodes in counts]
    once = sum(map(program.passes, sizes))
    a_round = sum(max(ENTRY_SECONDS, program.passes(size)) for size in sizes)
    return min(once + ROUNDS * a_round, max(LEAST_LIMIT_SECONDS, LIMIT_SHARE * train_seconds))


def ask(
    measured: Sequence[Measurement],
    place: Place,
    passes: Mapping[float, Sequence[float]],
    policy: Policy,
) -> dict[str, Guess]:
    """Return the prediction of each method for a sweep, by name."""
    at = place.nodes
    asked = [nodes for nodes in (AT, 2 * AT) if nodes <= at]  # with AT for the doubling ratio
    *_, ours = look_ahead(measured, [(_place(policy, nodes), 1.0) for nodes in asked], passes)
    found = {"predict": guess_of(ours)}
    times = {each.place.nodes: total_of(each.runs) for each in measured}
    means = {nodes: float(each.mean()) for nodes, each in times.items()}
    ratio = {n: _place(policy, n).steps / measured[0].place.steps for n in (*COUNTS, at)}
    beyond = by_extrapolation(times, ratio, at)
    half = by_extrapolation(times, ratio | {AT: _place(policy, AT).steps}, AT) if at > AT else None
    before = means if half is None else {**means, AT: half.seconds or math.nan}
    ends = [end for end in (beyond.low, beyond.high) if end is not None]
    answers = {_by_point(end, before, at) for end in ends}
    answer = answers.pop() if len(answers) == 1 else "undecided"
    found["extrapolation"] = Guess(*beyond, answer)
    for law in ("amdahl", "usl"):
        by = by_law(law, times, at)
        assert by.seconds is not None
        before = {**means, AT: by_law(law, times).seconds or math.nan}
        found[law] = Guess(*by, _by_point(by.seconds, before, at))
    return found


def guess_of(outlook: Outlook) -> Guess:
    """Return an outlook's prediction, judged by the limits."""
    interval, efficiency, ratio = (
        outlook.interval, outlook.efficiency_interval, outlook.doubling_interval,
    )  # fmt: skip
    assert interval is not None and efficiency is not None and ratio is not None
    answer = _answer([(efficiency.bounds, MIN_EFFICIENCY), (ratio.bounds, MIN_RATIO)])
    return Guess(outlook.seconds, interval.low, interval.high, answer)


def by_extrapolation(
    times: Mapping[int, Floats], steps_ratio: Mapping[int, float], at: int = AT
) -> Prediction:
    """Extrapolate as a report does, from the times of three or more counts for the same work."""
    means = {nodes: float(np.exp(np.log(each).mean())) for nodes, each in times.items()}
    fits = fit_laws(list(means.items()), steps_ratio)
    noise = run_noise([each.tolist() for each in times.values()])
    assert noise is not None
    nodes = np.array(list(means), dtype=np.float64)
    sample = Sample(nodes, nodes * np.array(list(means.values())), np.ones(len(nodes)))
    beyond = predict_by_law(fits.laws, sample, steps_ratio, noise, at)
    if beyond.interval is None:
        return Prediction(None, None, None)
    low, high = beyond.interval.low, beyond.interval.high
    return Prediction(beyond.seconds[fits.laws[0].law], low, high)


def by_law(law: str, times: Mapping[int, Floats], at: int = AT) -> Prediction:
    """Predict by the best fit of one law, with a bootstrap interval."""
    spec = next(each for each in LAWS if each.law == law)
    nodes, one = np.array(list(times), dtype=np.float64), np.ones(len(times))
    means = np.array([each.mean() for each in times.values()])
    counts = np.array([len(each) for each in times.values()])
    freedom = int((counts - 1).sum())
    deviations = [each / each.mean() - 1 for each in times.values()]
    spread = math.sqrt(sum(float((each**2).sum()) for each in deviations) / freedom)
    random = np.random.default_rng(1)
    draws = random.standard_t(freedom, (1000, len(times) + 1)) * spread
    draws[0] = 0.0
    values = nodes * means * (1 + draws[:, :-1] / np.sqrt(counts))
    columns = np.column_stack(spec.columns(nodes, one))
    there = np.column_stack(spec.columns(np.array([float(at)]), one[:1]))[0]
    found = corners(columns, there, values)
    best = found.misfit.argmin(axis=0)
    seconds = found.predicted[best, np.arange(len(values))] / at
    low, high = np.quantile(
        seconds[1:] * (1 + draws[1:, -1]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    ).tolist()
    return Prediction(float(seconds[0]), low, high)


def _by_point(seconds: float, means: Mapping[int, float], nodes: int) -> Answer:
    """Judge a node count by the limits, assuming that a run takes this time on it."""
    efficiency, ratio = means[1] / (nodes * seconds), means[nodes // 2] / seconds
    return "pass" if efficiency >= MIN_EFFICIENCY and ratio >= MIN_RATIO else "fail"


def _place(policy: Policy, nodes: int) -> Place:
    if policy == "per replica":
        return Place(nodes, nodes, BATCH, 1 / nodes)
    return Place(nodes, nodes, BATCH * COUNTS[-1] / nodes, 1.0)


def total_of(parts: Mapping[Part, Floats]) -> Floats:
    """Return T of each run, the sum of its parts."""
    return np.asarray(sum(parts[part] for part in PARTS if part != "backward"))


def _judge(
    guesses: Sequence[Guess], next_runs: Sequence[float], mean: float, truth: Answer
) -> Method:
    ends = [
        (each.low, each.high, run)
        for each, run in zip(guesses, next_runs, strict=True)
        if each.low is not None and each.high is not None
    ]
    errors = [abs(each.seconds / mean - 1) for each in guesses if each.seconds is not None]
    right = float(np.mean([each.answer == truth for each in guesses]))
    open_ = float(np.mean([each.answer == "undecided" for each in guesses]))
    widths = [high / max(low, 1e-9) for low, high, _ in ends]
    return Method(
        covered=float(np.mean([low <= run <= high for low, high, run in ends])) if ends else None,
        median_error=round(float(np.median(errors)), 4) if errors else None,
        right=right,
        wrong=round(1 - right - open_, 4),
        width=round(float(np.median(widths)), 4) if ends else None,
    )


def summary_of(methods: Sequence[Method]) -> str:
    """Format a summary of one method's results in several cells."""
    covered = [each.covered for each in methods if each.covered is not None]
    errors = [each.median_error for each in methods if each.median_error is not None]
    widths = [each.width for each in methods if each.width is not None]
    return (
        f"covered {np.mean(covered):6.1%}  median error {np.median(errors):6.1%}"
        f"  right {np.mean([each.right for each in methods]):6.1%}"
        f"  wrong {np.mean([each.wrong for each in methods]):6.1%}"
        f"  high/low {np.median(widths):5.2f}"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--design", action="store_true", help="simulate sweep.design: predict")
    parser.add_argument("--at", type=int, choices=(AT, 2 * AT), default=AT, help="predicted count")
    parser.add_argument("--sweeps", type=int, default=4, help="sweeps per cell")
    parser.add_argument("--seed", type=int, default=2, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    if options.sweeps < 1:
        parser.error(f"--sweeps: got {options.sweeps}; expected 1 or more")
    if options.design and options.at != AT:
        parser.error("--at: not allowed with --design, which simulates sweeps over 1 to 8 nodes")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
