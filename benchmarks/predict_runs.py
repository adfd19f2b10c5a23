"""Predict T on emulated nodes from runs on fewer nodes, and compare it with runs.

    sudo .venv/bin/python -m benchmarks.predict_runs [--cases 72] [--part 1/6] [--minutes 40]
        [--seed 1] [--output FILE.json [--again]]

Each case trains a small network by DDP over gloo, three times on each of 1, 2, 4 and 8 nodes, each
node in a network namespace (50 Mbit/s to 1 Gbit/s). Gradients, their buckets, loaders and hooks are
real. Sleeps with the noise of benchmarks/predict.py replace compute, loading, the optimizer,
evaluation and checkpoints, so that other work on this machine slows no node. From the runs on 1 and
2 nodes, and from those on 1, 2 and 4 nodes, nodesweep predicts T on more nodes
(nodesweep/scaling/predict/); so do its extrapolation, Amdahl's law and the USL where they have
enough counts. All runs have equally many steps. A case has a fixed batch per process or a fixed
global batch; with the latter, compute is predicted both without and with `--batches`.
nodesweep_measure.py and the analysis are nodesweep's; there is no flow and no S3.

All processes of a run first time all-reduces of several sizes, as the shipped program does.

Everything that sleeps or waits for a network takes DILATION times as long as stated, so that the
CPU time of torch and gloo, which takes no longer, is a small share of each step. Without that, jobs
of 8 nodes on 2 cores attained only 65 to 84% of their CPU quota, because a small all-reduce among 8
processes takes 30 to 50 times as long as between two, and the median error at 8 nodes was 10.1% (43
cases, 2026-11-28).

The stored runs of 2026-11-29 (48 of 72 cases, 222 cells, several jobs at a time, other work only at
the lowest priority): 95.4% of the intervals contain the next run, at least 88% in each group. Of
the answers, 189 are right, 33 undecided and none is wrong. The median error at 8 nodes is 3.8%
(Amdahl 21.0%, USL 22.8%, extrapolation 17.2%): 2.8 to 3.8% on the slower networks, and 6.3% on the
fastest, where CPU time matters most; 12.1% for "many buckets". The jobs of 8 nodes attained 81 to
97% of their quota. Without the timed all-reduces, the same runs give 12.2%, and intervals for 8
nodes from 1 and 2 that are 2.6 (fixed global batch) to 5.0 times (fixed batch per process) as wide.

The runs also serve as those of `sweep.design: predict`: those on 1 and 2 nodes, then up to two
times those that --confirm would make, with the rule of benchmarks/predict.py. The answer of the
full sweep is that of all runs of the case. Its runs at the measured counts are those of the design,
which favors agreement. In the stored runs, the design recommends the same as the full sweep in 62,
71 and 72 of 74 sweeps (48 cases, 26 also with `--batches`) after 0, 1 and 2 confirmations. It
decides on that in 50, 63 and 64; in the two sweeps of one case it decides on another count, where
the full sweep is undecided, as it is in 12. The full sweep recommends one node in 23 cases, two in
15, four in 1 and eight in 9. The node-seconds are 31%, 37% and 38% of its own (after two, 25% with
a global batch, 30% with `--batches`, 62% per replica) if all runs are whole and --confirm makes
three. They are a tenth of that (at most 10.0%) if the runs stand for the first 10% of longer ones,
and projecting the rest adds no error. nodesweep itself would accept no confirmation by contended
nodes.

The output is written after every few cases; a later call with the same seed continues it and
repeats the predictions from the stored runs; with --again, it does only that. One job at a time
runs in a network namespace of the machine; to run parts in parallel, give each its own (`ip netns
add NAME`, `nsenter --net=/run/netns/NAME`, `ip link set lo up`) and all the same output. A job of 8
nodes waits until only jobs of one node run. Exit code 1 if the predicted intervals contain fewer
than 88% of the runs, or if the median error at 8 nodes exceeds 7%.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from fcntl import LOCK_EX, LOCK_SH, flock
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.dated_result import store_result
from benchmarks.emulation import machine
from benchmarks.predict import (
    LEAST_COVERED,
    MIN_EFFICIENCY,
    MIN_RATIO,
    NOISES,
    RUN_COUNTS,
    SHORT,
    Answer,
    Program,
    by_extrapolation,
    by_law,
    choose,
    guess_of,
    judge_full,
    recommend,
    to_confirm,
    total_of,
)
from benchmarks.training_loops import find_python, outcome_of, run_loops
from nodesweep.configs.atomic import write_atomic
from nodesweep.scaling.analysis.exchange import Exchange
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.analysis.step_budget import find_missing_parts, find_step_budget
from nodesweep.scaling.predict.draws import Measurement, look_ahead
from nodesweep.scaling.predict.physics import PARTS, Place
from nodesweep.scaling.report.predictions.inputs import measurement_of, place_of
from sagemaker_emulator.engine.host.capacity import LINK_BY_INSTANCE_TYPE, Link

COUNTS, KNOWN = (1, 2, 4, 8), ((1, 2), (1, 2, 4))
RUNS, STEPS, EVERY, BATCH = 3, 24, 6, 16
DILATION = 4
"""How many times as long as stated all sleeps and transfers take.

Only the CPU time of torch and gloo takes no longer, so it is a smaller share of each step. The
module's docstring says what happens without that.
"""
MOST_ERROR = 0.07
TYPES = ("ml.local.small", "ml.local.small200m", "ml.local.small100m", "ml.local.small50m")
POLICIES = ("per replica", "global")
CASES_PER_JOB = 3


class Training(NamedTuple):
    """A training: the cost of its steps, and of its loading, evaluations and checkpoints.

    Attributes:
        program: Passes, gradients and optimizer.
        framework: Framework whose training loop it uses.
        load: Seconds to load a sample.
        is_shared: True if all nodes load from one source, so that N nodes load N times slower.
        evaluation: Seconds of each evaluation on one node, which N nodes divide by N.
        checkpoint: Seconds of each checkpoint of rank 0.
    """

    program: Program
    framework: str = "plain"
    load: float = 0.0
    is_shared: bool = False
    evaluation: float = 0.0
    checkpoint: float = 0.0


TRAININGS: Mapping[str, Training] = {
    "one bucket": Training(Program(0.010, 0.008, 0.0, (1.0,), 0.3, 0.002)),
    "convolutions": Training(
        Program(0.020, 0.010, 0.0, (0.4, 0.3, 0.2, 0.1), 1.0, 0.005), load=0.0005
    ),
    "transformer": Training(Program(0.030, 0.010, 0.0, (1 / 8,) * 8, 1.5, 0.010), evaluation=0.2),
    "many buckets": Training(Program(0.010, 0.008, 0.0, (1 / 16,) * 16, 0.6, 0.003)),
    "embedding last": Training(
        Program(0.010, 0.008, 0.0, (0.05, 0.05, 0.1, 0.1, 0.7), 1.0, 0.005), checkpoint=0.1
    ),
    "caches": Training(Program(0.005, 0.008, 0.25, (0.5, 0.5), 0.5, 0.003)),
    "shared source": Training(
        Program(0.010, 0.008, 0.0, (0.5, 0.5), 0.4, 0.003), load=0.001, is_shared=True
    ),
    "accelerate": Training(
        Program(0.020, 0.008, 0.0, (0.25,) * 4, 0.8, 0.005), "accelerate", checkpoint=0.1
    ),
    "lightning": Training(
        Program(0.020, 0.010, 0.0, (0.6, 0.4), 0.6, 0.005), "lightning", load=0.0005
    ),
}
PROGRAM = """
import random
from nodesweep_network import network, time_all_reduces
ddp = {"bucket_cap_mb": 1e-4}  # a bucket for each parameter
class Compute(torch.autograd.Function):
    "A bucket's share of the step's compute: a third in the forward pass, the rest backward."
    @staticmethod
    def forward(context, values):
        time.sleep(net.seconds / 3)
        return values.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(net.seconds * 2 / 3)
        return gradient
def collate(rows):
    if case["load"]: time.sleep(case["load"] * len(rows) * speed)
    return default_collate(rows)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.buckets = nn.ParameterList(
            nn.Parameter(torch.zeros(int(each * 250_000))) for each in case["megabytes"]
        )
        self.layer = nn.Linear(64, 10)
    def forward(self, pixels, labels=None):
        scores = self.layer(pixels)
        if labels is None: return scores
        values = nn.functional.cross_entropy(scores, labels)
        noise = draw.lognormvariate(0, case["noise"]["step"])
        if draw.random() < 0.01: noise += draw.expovariate(1 / max(1e-9, case["noise"]["spike"]))
        self.seconds = case["seconds"] * speed * noise / len(self.buckets)
        for each in reversed(self.buckets):  # the gradient of the last bucket is ready first
            values = Compute.apply(values + each.mean())
        return {"loss": values, "logits": scores}
class Slow(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        time.sleep(case["optimizer"] * speed)
        return loss
class SlowDisk:
    def __init__(self): self.is_first = True
    def write(self, content):
        if self.is_first: time.sleep(case["checkpoint"])
        self.is_first = False
        return len(content)
    def flush(self): pass
def after_step():
    global count
    count += 1
    if count % every or count == steps: return
    if case["evaluation"]:
        net.eval()
        with torch.no_grad():
            for rows in held_out:
                time.sleep(case["evaluation"] / world / 2)
                net(rows["pixels"])
        net.train()
    if case["checkpoint"] and rank == 0: torch.save(net.state_dict(), SlowDisk())
def prepare():
    global net, data, optimizer, held_out, batch, draw, speed
    of_run = random.Random(f"{case['name']}")
    draw = random.Random(f"{case['name']} {rank}")
    speed = of_run.lognormvariate(0, case["noise"]["run"])
    speed *= draw.lognormvariate(0, case["noise"]["node"])
    batch = case["batch"] * world
    net, data, held_out = Net(), Rows(steps * batch), DataLoader(Rows(16), batch_size=8)
    optimizer = Slow(net.parameters(), lr=0.01)
    if world > 1: network.timed = time_all_reduces(torch)
"""


class Case(NamedTuple):
    """A training on a network with a batch policy and a level of noise."""

    number: int
    training: str
    instance_type: str
    policy: str
    noise: str


class Run(NamedTuple):
    """A run to make; `batch` is in samples per process."""

    nodes: int
    batch: int
    repeat: int


@dataclass(frozen=True)
class Cell:
    """T predicted for a node count by each method, and the seconds of its runs.

    Attributes:
        policy: Batch policy; "global, batches" if one node also ran at smaller batches.
        known: Node counts from which T is predicted.
        answer: Predicted verdict on the limits of efficiency and doubling ratio.
        true_answer: Verdict that follows from the mean times.
        most_noise: The largest relative standard deviation of the runs of one count.
        terms: Lowest, most likely and highest seconds of each predicted term.
    """

    training: str
    instance_type: str
    policy: str
    noise: str
    known: Sequence[int]
    nodes: int
    seconds: Sequence[float]
    efficiency: float
    predictions: Mapping[str, Sequence[float | None]]
    answer: Answer
    true_answer: Answer
    most_noise: float
    terms: Mapping[str, Sequence[float]]
    true_parts: Mapping[str, float]


@dataclass(frozen=True)
class Ran:
    """A case after its runs: its cells, or the reason why it has none.

    Attributes:
        parts: Seconds of each part of T by run, by nodes and samples per process; `exchange` has
            the latency and transfer of a run's whole exchange, and the last bucket's share of it.
        attained: Lowest share of its CPU quota that a node of the job got, by number of nodes.
    """

    number: int
    training: str
    instance_type: str
    policy: str
    noise: str
    parts: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    cells: Sequence[Mapping[str, Any]] = ()
    not_counted: str | None = None
    attained: Mapping[str, float | None] = field(default_factory=dict)


def make_cases(number: int, seed: int) -> list[Case]:
    """Return the first `number` cases of a random order; the levels of noise alternate."""
    every = list(product(TRAININGS, TYPES, POLICIES))
    random.Random(seed).shuffle(every)
    noises = list(NOISES)
    return [
        Case(index, *each, noises[index % len(noises)]) for index, each in enumerate(every[:number])
    ]


def runs_of(case: Case) -> list[Run]:
    """Return the runs that a case needs."""
    batches = [(nodes, _batch(case, nodes)) for nodes in COUNTS]
    if case.policy == "global":
        batches += [(1, batch) for nodes, batch in batches[2:]]
    return [Run(*each, repeat) for each in batches for repeat in range(1, RUNS + 1)]


def _batch(case: Case, nodes: int) -> int:
    return BATCH // nodes if case.policy == "global" else BATCH


def run_cases(
    cases: Sequence[Case], folder: Path, pythons: Mapping[str, str], seed: int
) -> list[Ran]:
    """Run cases of one framework and network in a job per node count, and predict T."""
    framework, instance_type = TRAININGS[cases[0].training].framework, cases[0].instance_type
    said: dict[tuple[int, Run], list[dict[str, Any]]] = {}
    attained: dict[str, float | None] = {}
    for nodes in COUNTS:
        asked = [(case, run) for case in cases for run in runs_of(case) if run.nodes == nodes]
        random.Random(f"{seed} {nodes}").shuffle(asked)
        with machine_for(nodes), slow_links():
            written, attained[f"{nodes}"] = run_loops(
                folder,
                pythons[framework],
                PROGRAM,
                instance_type,
                nodes,
                framework,
                [_asked(*each, seed) for each in asked],
                {"STEPS": str(STEPS), "EVERY": str(EVERY)},
            )
        said |= {(case.number, run): each for (case, run), each in zip(asked, written, strict=True)}
    found = [judge(case, {run: said[case.number, run] for run in runs_of(case)}) for case in cases]
    return [replace(each, attained=attained) for each in found]


def _asked(case: Case, run: Run, seed: int) -> dict[str, Any]:
    training = TRAININGS[case.training]
    program = training.program
    return {
        "name": f"{seed} {case.number} {run}",
        "seconds": DILATION * program.passes(run.batch),
        "megabytes": [share * program.megabytes for share in program.buckets],
        "optimizer": DILATION * program.optimizer,
        "load": DILATION * training.load * (run.nodes if training.is_shared else 1),
        "evaluation": DILATION * training.evaluation,
        "checkpoint": DILATION * training.checkpoint,
        "noise": NOISES[case.noise]._asdict(),
        "batch": run.batch,
    }


@contextmanager
def machine_for(nodes: int, folder: Path | None = None) -> Iterator[None]:
    """Hold this machine for a job, beside those of other parts.

    A job of the most nodes runs beside jobs of one node only, which mostly sleep.

    Args:
        nodes: The job's number of nodes.
        folder: Folder of the locks; by default, one that all parts share.
    """
    with ExitStack() as held:
        if nodes > 1:
            kind = LOCK_EX if nodes == COUNTS[-1] else LOCK_SH
            start = Path(folder or tempfile.gettempdir()) / f"nodesweep-predict-runs-{os.getuid()}"
            # while a job of the most nodes waits for the others to end, no other one starts
            with start.with_suffix(".next").open("w") as turn:
                flock(turn, kind)
                flock(held.enter_context(start.with_suffix(".lock").open("w")), kind)
        yield


def slow_links() -> AbstractContextManager[object]:
    """Divide the rates of this process's links by DILATION, and multiply their latencies by it."""
    slower = {
        name: Link(link.gbit_per_second / DILATION, link.latency_milliseconds * DILATION)
        for name, link in LINK_BY_INSTANCE_TYPE.items()
    }
    return patch.dict(LINK_BY_INSTANCE_TYPE, slower)


def judge(case: Case, said: Mapping[Run, Sequence[Mapping[str, Any]]]) -> Ran:
    facts = (*case,)
    errors = [each["error"] for run in said.values() for each in run if "error" in each]
    if errors or any(len(each) < run.nodes for run, each in said.items()):
        return Ran(*facts, not_counted=f"{errors[0] if errors else 'a node wrote no result'}"[:300])
    measured = []
    for nodes, batch in dict.fromkeys(run[:2] for run in said):
        own = {run: each for run, each in said.items() if run[:2] == (nodes, batch)}
        try:
            measured.append(measure(case, own))
        except (SystemExit, ValueError) as error:
            if batch == _batch(case, nodes):
                return Ran(*facts, not_counted=str(error)[:300])
            # without this batch, as if it were not in --batches
    return Ran(
        *facts,
        parts={
            f"{each.place.nodes} x {each.place.batch:g}": {
                name: np.round(seconds, 4).tolist()
                for name, seconds in [*each.runs.items(), ("exchange", each.exchange)]
                if seconds is not None
            }
            for each in measured
        },
        cells=[vars(cell) for cell in predict_case(case, measured)],
    )


def predict_again(ran: Ran) -> Ran:
    """Repeat the predictions of a case from its stored runs."""
    measured = measured_in(ran)
    if not measured:
        return ran
    return replace(ran, cells=[vars(cell) for cell in predict_case(_case_of(ran), measured)])


def _case_of(ran: Ran) -> Case:
    return Case(ran.number, ran.training, ran.instance_type, ran.policy, ran.noise)


def measured_in(ran: Ran) -> list[Measurement]:
    """Return the measurements of a case's stored runs."""
    measured = []
    for name, runs in ran.parts.items():
        nodes, batch = map(int, name.split(" x "))
        place = Place(nodes, nodes, batch, 1 / BATCH)
        parts = {part: np.array(runs[part]) for part in PARTS}
        exchange = Exchange(*runs["exchange"]) if "exchange" in runs else None
        measured.append(Measurement(place, parts, nodes * batch / BATCH, exchange))
    return measured


def measure(case: Case, said: Mapping[Run, Sequence[Mapping[str, Any]]]) -> Measurement:
    """Return the measurement of runs at one node count and batch, as a report derives it.

    Raises:
        ValueError: The parts of T were not measured.
    """
    outcomes = [outcome_of(each, run.repeat, run.batch * run.nodes) for run, each in said.items()]
    rows, runs = summarise_runs(outcomes)
    budget = find_step_budget(rows, runs)
    if budget is None:
        reasons = {each.reason for each in find_missing_parts(runs, "observed")}
        raise ValueError("; ".join(sorted(reasons)))
    # the number of steps is the same at each count and batch
    work = next(iter(said)).batch * next(iter(said)).nodes / BATCH
    row = rows[0].model_copy(update={"samples_ratio": work})
    return measurement_of(budget.counts[0], row)


def predict_case(case: Case, measured: Sequence[Measurement]) -> list[Cell]:
    """Return the cells of a case, for each set of known node counts."""
    full, others = _split(case, measured)
    passes = _passes_of(others)
    cells = []
    for known in KNOWN:
        own = {nodes: full[nodes] for nodes in known}
        cells += _predict(case, case.policy, own, full, {})
        if passes:
            cells += _predict(case, f"{case.policy}, batches", own, full, passes)
    return cells


def _split(
    case: Case, measured: Sequence[Measurement]
) -> tuple[dict[int, Measurement], list[Measurement]]:
    """Return the measurement at each node count, and those of one node at smaller batches."""
    full = {
        each.place.nodes: each
        for each in measured
        if each.place.batch == _batch(case, each.place.nodes)
    }
    return full, [each for each in measured if each is not full.get(each.place.nodes)]


def _passes_of(others: Sequence[Measurement]) -> dict[float, Sequence[float]]:
    return {
        each.place.batch: (each.runs["gradients"] / each.place.steps).tolist() for each in others
    }


class Design(NamedTuple):
    """A sweep of the predict design, emulated from the runs of a case, after some confirmations.

    Attributes:
        policy: As that of a cell.
        confirmed: Number of times that --confirm was given, even if nothing was left to confirm.
        share: Node-seconds of its runs as a share of those of the full sweep.
        choice: Node count that it decides on; None if a larger one than recommended may pass.
        recommended: Node count that it recommends.
        full_choice: Node count that the full sweep decides on.
        full_recommended: Node count that the full sweep recommends.
    """

    policy: str
    confirmed: int
    share: float
    choice: int | None
    recommended: int
    full_choice: int | None
    full_recommended: int


def emulate_designs(ran: Ran) -> list[Design]:
    """Return the answers and costs of the predict design if its runs were those of a case.

    All counts do the same work, so with a fixed batch per process, N nodes make 1/N of the steps.
    """
    case = _case_of(ran)
    full, others = _split(case, measured_in(ran))
    if len(full) < len(COUNTS):
        return []
    times = {nodes: total_of(full[nodes].runs) / full[nodes].work for nodes in COUNTS}
    costs = {nodes: nodes * float(each.sum()) for nodes, each in times.items()}
    judged = judge_full(times)
    of_full = (choose(judged), recommend(judged))
    designs = []
    for policy, batches in [(case.policy, []), (f"{case.policy}, batches", others)]:
        if policy != case.policy and not batches:
            continue
        known = {nodes: full[nodes] for nodes in RUN_COUNTS}
        for confirmed in range(3):
            measured = [known[nodes] for nodes in sorted(known)]
            places = [(full[nodes].place, full[nodes].work) for nodes in COUNTS[1:]]
            outlooks = look_ahead(measured, places, _passes_of(batches))
            answers = {each.place.nodes: guess_of(each).answer for each in outlooks}
            spent = sum(costs[nodes] for nodes in known)
            spent += sum(float(total_of(each.runs).sum()) for each in batches)
            share = spent / sum(costs.values())
            own = (choose(answers), recommend(answers))
            designs.append(Design(policy, confirmed, share, *own, *of_full))
            if (nodes := to_confirm(answers, known)) is not None:
                known[nodes] = full[nodes]
    return designs


def summarise_designs(designs: Sequence[Design]) -> dict[str, dict[str, Any]]:
    """Return the cost and answers of the designs, by policy and number of confirmations.

    An answer is right if it decides on the node count that the full sweep recommends, undecided if
    it decides on none, and otherwise wrong. `short_share` holds for jobs that end after SHORT of
    their steps, as those of the shipped program do, if the rest of T is projected without error.
    """
    found = {}
    for policy, confirmed in product(("all", *POLICIES, "global, batches"), range(3)):
        own = [
            each
            for each in designs
            if each.confirmed == confirmed and policy in ("all", each.policy)
        ]
        if not own:
            continue
        decided = [each for each in own if each.choice is not None]
        right = sum(each.choice == each.full_recommended for each in decided)
        share = fmean(each.share for each in own)
        found[f"{policy}, {confirmed} confirmed"] = {
            "sweeps": len(own),
            "share": round(share, 4),
            "short_share": round(SHORT * share, 4),
            "most_short_share": round(SHORT * max(each.share for each in own), 4),
            "right": right,
            "undecided": len(own) - len(decided),
            "wrong": len(decided) - right,
            "recommends_the_same": sum(each.recommended == each.full_recommended for each in own),
            "full_undecided": sum(each.full_choice is None for each in own),
        }
    return found


def _predict(
    case: Case,
    policy: str,
    known: Mapping[int, Measurement],
    full: Mapping[int, Measurement],
    passes: Mapping[float, Sequence[float]],
) -> list[Cell]:
    """Return the cells of one set of known node counts."""
    asked = [nodes for nodes in full if nodes not in known]
    places = [place_of(list(known.values()), nodes) for nodes in asked]
    times = {nodes: total_of(each.runs) for nodes, each in full.items()}
    per_work = {nodes: float(times[nodes].mean()) / each.work for nodes, each in full.items()}
    cells = []
    for nodes, outlook in zip(asked, look_ahead([*known.values()], places, passes), strict=True):
        guess = guess_of(outlook)
        efficiency = per_work[1] / (nodes * per_work[nodes])
        ratio = per_work[nodes // 2] / per_work[nodes]
        passes_limits = efficiency >= MIN_EFFICIENCY and ratio >= MIN_RATIO
        parts = {name: float(each.mean()) for name, each in full[nodes].runs.items()}
        cells.append(
            Cell(
                case.training,
                case.instance_type,
                policy,
                case.noise,
                tuple(known),
                nodes,
                np.round(times[nodes], 4).tolist(),
                round(efficiency, 4),
                {"predict": _rounded(guess[:3])} | _by_laws(known, nodes, full[nodes].work),
                guess.answer,
                "pass" if passes_limits else "fail",
                round(max(float(each.std(ddof=1) / each.mean()) for each in times.values()), 4),
                {term: np.round(each, 4).tolist() for term, each in outlook.terms.items()},
                {name: round(each, 4) for name, each in parts.items()},
            )
        )
    return cells


def _by_laws(
    known: Mapping[int, Measurement], nodes: int, work: float
) -> dict[str, list[float | None]]:
    """Return the predictions by the other methods, which predict the time of equal work."""
    times = {each: total_of(own.runs) / own.work for each, own in known.items()}
    found = {"amdahl": by_law("amdahl", times, nodes)}
    if len(times) > 2:
        ratio = {each: 1 / own.work for each, own in known.items()} | {nodes: 1 / work}
        found["usl"] = by_law("usl", times, nodes)
        found["extrapolation"] = by_extrapolation(times, ratio, nodes)
    return {
        name: _rounded([None if each is None else each * work for each in prediction])
        for name, prediction in found.items()
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if each is None else round(each, 4) for each in values]


def summary_of(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """Return the results of each method, with coverage of the runs and of their means."""
    return {
        name: _summarise(
            [(cell, cell.predictions[name]) for cell in cells if name in cell.predictions]
        )
        for name in ("predict", "extrapolation", "amdahl", "usl")
    }


def _summarise(found: Sequence[tuple[Cell, Sequence[float | None]]]) -> dict[str, Any]:
    inside, inside_mean, errors, widths = [], [], [], []
    for cell, (seconds, low, high) in found:
        mean = fmean(cell.seconds)
        if seconds is not None:
            errors.append(abs(seconds / mean - 1))
        if low is not None and high is not None:
            inside.append(fmean(low <= each <= high for each in cell.seconds))
            inside_mean.append(low <= mean <= high)
            widths.append(high / max(low, 1e-9))
    return {
        "cells": len(found),
        "predicted": len(errors),
        "next_run_covered": round(fmean(inside), 4) if inside else None,
        "mean_covered": round(fmean(inside_mean), 4) if inside else None,
        "median_error": round(median(errors), 4) if errors else None,
        "high_over_low": round(median(widths), 3) if widths else None,
    }


def summaries(ran: Sequence[Ran]) -> dict[str, Any]:
    """Return the results of all cells, and of each policy and set of known counts."""
    cells = [Cell(**cell) for each in ran for cell in each.cells]
    groups = {"all": cells, "at 8": [cell for cell in cells if cell.nodes == COUNTS[-1]]}
    for policy, known, nodes in product((*POLICIES, "global, batches"), KNOWN, COUNTS[2:]):
        name = f"{policy}: {', '.join(map(str, known))} -> {nodes}"
        groups[name] = [
            cell
            for cell in cells
            if (cell.policy, tuple(cell.known), cell.nodes) == (policy, known, nodes)
        ]
    return {
        "cases": len(ran),
        "not_counted": sum(each.not_counted is not None for each in ran),
        "cells": len(cells),
        "right": sum(cell.answer == cell.true_answer for cell in cells),
        "wrong": sum(cell.answer not in (cell.true_answer, "undecided") for cell in cells),
        **{name: summary_of(group) for name, group in groups.items() if group},
        "designs": summarise_designs([each for one in ran for each in emulate_designs(one)]),
    }


def is_good(found: Mapping[str, Any]) -> bool:
    """Return True if coverage and the median error at 8 nodes are within their limits."""
    if not found["cells"]:
        return False
    return bool(
        found["all"]["predict"]["next_run_covered"] >= LEAST_COVERED
        and found["at 8"]["predict"]["median_error"] <= MOST_ERROR
    )


def main(argv: Sequence[str]) -> int:
    """Run the cases that the output lacks; print and store the result."""
    options = _parse(argv)
    started, at_first = time.perf_counter(), machine()
    if options.again:
        return _predict_stored(options.output, options.seed)
    ran = [predict_again(each) for each in read_ran(options.output, options.seed)]
    numbers = {each.number for each in ran if not each.not_counted}
    frameworks = {training.framework for training in TRAININGS.values()}
    pythons = {name: each for name in frameworks if (each := find_python(name))}
    if missing := sorted(frameworks - pythons.keys()):
        print(f"no environment has: {', '.join(missing)}")
    jobs = jobs_of(
        [
            case
            for case in make_cases(options.cases, options.seed)
            if TRAININGS[case.training].framework in pythons
        ]
    )
    place, parts = options.part
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs[place - 1 :: parts]:
            cases = [case for case in job if case.number not in numbers]
            if not cases:
                continue
            if time.perf_counter() - started > 60 * options.minutes:
                print(f"{options.minutes:g} minutes are over; run it again to continue")
                break
            found = run_cases(cases, Path(folder), pythons, options.seed)
            print("\n".join(map(_line, found)), flush=True)
            ran = store(
                options.output,
                started,
                [*ran, *found],
                seed=options.seed,
                steps=STEPS,
                runs=RUNS,
                dilation=DILATION,
                machine=at_first,
                load_after=os.getloadavg()[0],
            )
    summary = summaries(ran)
    print(json.dumps(summary, indent=1))
    return 0 if is_good(summary) else 1


def _predict_stored(output: Path, seed: int) -> int:
    """Store and print what the output's runs predict now; keep all else that it has."""
    ran = [predict_again(each) for each in read_ran(output, seed)]
    stored = json.loads(output.read_text())
    summary = summaries(ran)
    stored |= {"summary": summary, "cells": [asdict(each) for each in ran]}
    write_atomic(output, (json.dumps(stored, indent=1) + "\n").encode())
    print(json.dumps(summary, indent=1))
    return 0 if is_good(summary) else 1


def store(output: Path | None, started: float, ran: Sequence[Ran], **settings: Any) -> list[Ran]:
    """Add cases to the output, to which other parts may write, too; return all its cases."""
    if output is None:
        return list(ran)
    with output.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        by_number = {each.number: each for each in read_ran(output, settings["seed"])}
        by_number |= {each.number: each for each in ran}
        every = [by_number[number] for number in sorted(by_number)]
        store_result(output, started, every, **settings, summary=summaries(every))
    return every


def jobs_of(cases: Sequence[Case]) -> list[list[Case]]:
    """Return the cases in groups that can share jobs, in the order of their first case."""
    alike: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        place = (TRAININGS[case.training].framework, case.instance_type)
        alike.setdefault(place, []).append(case)
    groups = [
        group[start : start + CASES_PER_JOB]
        for group in alike.values()
        for start in range(0, len(group), CASES_PER_JOB)
    ]
    return sorted(groups)


def read_ran(output: Path | None, seed: int) -> list[Ran]:
    """Return the cases that earlier calls stored; an empty list if there is no output.

    Raises:
        SystemExit: The file holds cases of another seed.
    """
    if output is None or not output.exists():
        return []
    stored = json.loads(output.read_text())
    if stored["seed"] != seed:
        raise SystemExit(
            f"{output} has cases of --seed {stored['seed']}; use that seed, or another file"
        )
    return [Ran(**cell) for cell in stored["cells"]]


def _line(ran: Ran) -> str:
    head = f"{ran.number:3} {ran.training}, {ran.instance_type}, {ran.policy}, {ran.noise}"
    if ran.not_counted:
        return f"{head}: {ran.not_counted}"
    found = []
    for cell in (Cell(**each) for each in ran.cells):
        seconds, low, high = cell.predictions["predict"]
        found.append(
            f"   {cell.policy:15} {tuple(cell.known)} -> {cell.nodes}: predicted {seconds}"
            f" [{low}, {high}], ran {' '.join(map(str, cell.seconds))}"
        )
    return "\n".join([head, *found])


def _part(text: str) -> tuple[int, int]:
    """Parse a part such as 1/2."""
    place, parts = map(int, text.split("/"))
    if not 1 <= place <= parts:
        raise ValueError(text)
    return place, parts


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=72, help="number of cases")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), help="jobs to run; 1/2 is every second job"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="start no case after this time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="write the result as JSON, or continue it")
    parser.add_argument("--again", action="store_true", help="predict from stored runs, run none")
    options = parser.parse_args(argv)
    if options.again and (options.output is None or not options.output.exists()):
        parser.error(f"--again: no runs in --output {options.output}; name an earlier result")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
