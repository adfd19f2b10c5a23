"""Inject causes of lost efficiency on emulated nodes, and compare them with those reported.

    sudo .venv/bin/python -m benchmarks.causes [--cases 300] [--only KIND ...]
        [--frameworks plain ...] [--minutes 25] [--at-once 10] [--seed 1] [--output FILE.json]

Each case trains a small network for 25 steps on one and on two nodes, each node in a network
namespace. It injects no cause, one cause, or two causes, one of which costs twice as much as the
other: a slow network (50, 100 or 200 Mbit/s), a slow loader, a node at half speed, a rank that
sleeps, a slow checkpoint of rank 0, or a large evaluation. A sleep replaces a step's compute (400
ms on one node, 200 ms on two), so that other work on this machine slows no node. A case is a forked
process, since importing torch takes longer than its steps. nodesweep_measure.py and the analysis
are nodesweep's; there is no flow and no S3. Cases with the same program on one node share its run.
Real compute, GPUs, models larger than 2 MB, more than two nodes, and noise of compute in clean
cases are not tested.

The true cost of a cause is the time that the program slept for it; of a slow network, the time that
the gradients take at its rate. A case is right if the first named cause is the most expensive
injected one and a slow node is identified; a clean case, if no cause is named. A case is within
the limit if the cost of each injected cause is at most 10 points of efficiency off.

All 300 cases were run on 2026-11-28 (results/causes-2026-11-28.json), one process per framework,
each in a network namespace, next to other work (load 20 to 40 on 2 cores). Main cause right: 267 of
270; in the other three, which are DeepSpeed's, evaluation and network cost the same. Costs within
10 points: 269 of 270. No cause named: 30 of 30 clean cases. The stored runs of the first 100 cases
are a repetition: in their first run, when other work had the same priority, communication was named
in 2 of 10 clean cases. Limits on CPU time had no effect, since no node computes.

The output is written after every few cases, and a later call with the same seed continues it. Exit
code 1 if fewer than 95% of main causes, 90% of costs or 95% of clean cases are right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.dated_result import store_result
from benchmarks.emulation import machine
from benchmarks.network import expected_seconds
from benchmarks.training_loops import PACKAGES, VENVS, find_python, outcome_of, run_loops
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.analysis.step_budget import (
    EfficiencyLoss,
    find_missing_parts,
    find_step_budget,
)
from sagemaker_emulator.engine.host.capacity import LINK_BY_INSTANCE_TYPE

TYPE = "ml.local.small"
SLOW_TYPES = ("ml.local.small200m", "ml.local.small100m", "ml.local.small50m")
STEPS, EVERY = 25, 5
MEGABYTES = 2.0
"""Size of the gradients in a case with a slow network; in other cases it is 0.1 MB."""
STEP_SECONDS = 0.4
"""Approximate time of a step on one node, by which the delays are scaled."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "clean": (),
    "network": ("communication",),
    "loader": ("data",),
    "throttled": ("throttled",),
    "sleeping": ("waiting",),
    "checkpoint": ("checkpoint",),
    "evaluation": ("evaluation",),
    "loader and sleeping": ("data", "waiting"),
    "evaluation and network": ("evaluation", "communication"),
    "checkpoint and loader": ("checkpoint", "data"),
}
OF_SLOW_NODE = ("waiting", "throttled")
MOST_ERROR = 0.10
LEAST_RIGHT, LEAST_WITHIN, LEAST_CLEAN = 0.95, 0.90, 0.95
PROGRAM = """step_seconds = float(os.environ["STEP_SECONDS"])
inject, megabytes = {}, 0.1
def timed(cause, call, share=1.0):
    begin = time.perf_counter()
    call()
    injected[cause] = injected.get(cause, 0.0) + share * (time.perf_counter() - begin)
def spend(cause):
    if cause in inject: timed(cause, lambda: time.sleep(inject[cause]))
class Compute(torch.autograd.Function):
    "A third of the step's compute in the forward pass, the rest in the backward pass."
    @staticmethod
    def run(share):
        seconds = share * step_seconds / world
        if rank == 1 and "throttled" in inject:
            timed("throttled", lambda: time.sleep(2 * seconds), 0.5)
        else:
            time.sleep(seconds)
    @staticmethod
    def forward(context, values):
        Compute.run(1 / 3)
        return values.clone()
    @staticmethod
    def backward(context, gradient):
        Compute.run(2 / 3)
        return gradient
def collate(rows):
    spend("data")
    return default_collate(rows)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # used first, so that its gradient comes last and nothing hides its reduction
        self.fat = nn.Parameter(torch.zeros(int(megabytes * 250_000)))
        self.layer = nn.Linear(64, 10)
    def forward(self, pixels, labels=None):
        if self.training and rank == 1: spend("waiting")
        scores = self.layer(pixels + self.fat.mean())
        if labels is None: return scores
        loss = Compute.apply(nn.functional.cross_entropy(scores, labels))
        return {"loss": loss, "logits": scores}
class SlowDisk:
    def __init__(self): self.is_first = True
    def write(self, content):
        if self.is_first: time.sleep(inject["checkpoint"])
        self.is_first = False
        return len(content)
    def flush(self): pass
def evaluate(held_out):
    net.eval()
    with torch.no_grad():
        for rows in held_out:
            time.sleep(inject["evaluation"] / 2)
            net(rows["pixels"])
    net.train()
def after_step():
    global count
    count += 1
    if count % every or count == steps: return  # the train time ends with the last step
    if "evaluation" in inject: timed("evaluation", lambda: evaluate(held_out))
    if "checkpoint" in inject and rank == 0:
        timed("checkpoint", lambda: torch.save(net.state_dict(), SlowDisk()))
def prepare():
    global net, data, optimizer, held_out, inject, megabytes
    inject, megabytes = case["injected"], case["megabytes"]
    net, data, held_out = Net(), Rows(steps * batch), DataLoader(Rows(16), batch_size=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
"""


@dataclass(frozen=True)
class Case:
    """One injection; `injected` holds seconds per step, or per checkpoint and per evaluation."""

    number: int
    framework: str
    kind: str
    instance_type: str
    injected: Mapping[str, float]

    @property
    def megabytes(self) -> float:
        """Size of the gradients, in MB."""
        return MEGABYTES if "communication" in KINDS[self.kind] else 0.1

    @property
    def on_one_node(self) -> tuple[Any, ...]:
        """Key of the run on one node; cases with the same key share that run."""
        alone = ("data", "checkpoint", "evaluation")
        injected = {cause: s for cause, s in self.injected.items() if cause in alone}
        return self.framework, self.megabytes, tuple(sorted(injected.items()))


@dataclass(frozen=True)
class Found:
    """The measurement of a case; points are the fraction of efficiency lost on two nodes."""

    number: int
    framework: str
    kind: str
    instance_type: str
    injected: Mapping[str, float]
    seconds: Mapping[str, float] = field(default_factory=dict)
    true_points: Mapping[str, float] = field(default_factory=dict)
    found_points: Mapping[str, float] = field(default_factory=dict)
    named: Sequence[str] = ()
    slowest_node: str | None = None
    not_counted: str | None = None
    """Error of the program, which excludes the case; None if there was no error."""

    @property
    def is_right(self) -> bool:
        """True if the costliest injected cause is named first, or no cause is in a clean case."""
        if not self.true_points:
            return not self.named
        main = max(self.true_points, key=self.true_points.__getitem__)
        is_node = main not in OF_SLOW_NODE or self.slowest_node == "algo-2"
        return [_reported(main)] == list(self.named[:1]) and is_node

    @property
    def is_within(self) -> bool:
        """True if the found cost of every injected cause is within 10 points of the true one."""
        return all(
            abs(points - self.found_points.get(_reported(cause), 0.0)) <= MOST_ERROR
            for cause, points in self.true_points.items()
        )


def _reported(cause: str) -> str:
    """Return the name that a report uses for an injected cause."""
    return "waiting" if cause == "throttled" else cause


def make_cases(number: int, seed: int) -> list[Case]:
    """Return cases that alternate kinds and, within a kind, frameworks; their costs are drawn."""
    kinds, frameworks = list(KINDS), list(PACKAGES)
    cases = []
    for index in range(number):
        draw = random.Random(f"{seed}-{index}")
        kind = kinds[index % len(kinds)]
        costs = [draw.choice((0.2, 0.4))]  # lost on two nodes, as a share of a step on one node
        costs.append(0.6 - costs[0])
        by_cause = dict(zip(KINDS[kind], costs, strict=False))
        instance_type = TYPE
        if "communication" in by_cause:
            slow = SLOW_TYPES
            is_main = by_cause["communication"] > 0.3
            instance_type = slow[is_main] if len(by_cause) == 2 else draw.choice(slow)
        cases.append(
            Case(
                index,
                frameworks[index // len(kinds) % len(frameworks)],
                kind,
                instance_type,
                {cause: _injected(cause, cost) for cause, cost in by_cause.items()},
            )
        )
    return cases


def _injected(cause: str, cost: float) -> float:
    """Return the seconds of each sleep with which two nodes lose this share of a step.

    Of a delay that a single node has, too, two nodes lose only half.
    """
    times = EVERY if cause in ("checkpoint", "evaluation") else 1
    return STEP_SECONDS * cost * times * (1 if cause in OF_SLOW_NODE else 2)


class Nodes:
    """Runs the program on emulated nodes, in jobs of one framework and instance type."""

    def __init__(self, folder: Path, pythons: Mapping[str, str]) -> None:
        self._folder, self._pythons = folder, pythons

    def measure(self, cases: Sequence[Case]) -> list[Found]:
        """Run cases of one framework, one job per node count and network, and analyse them."""
        jobs: dict[tuple[int, str], dict[str, Case]] = {}
        for case in cases:
            jobs.setdefault((1, TYPE), {})[f"{case.on_one_node}"] = case
            jobs.setdefault((2, case.instance_type), {})[f"{case.number}"] = case
        ran = {job: self._run(*job, of_job) for job, of_job in jobs.items()}
        found = []
        for case in cases:
            one = ran[1, TYPE].get(f"{case.on_one_node}", [])
            two = ran[2, case.instance_type].get(f"{case.number}", [])
            facts = (case.number, case.framework, case.kind, case.instance_type, case.injected)
            errors = [each["error"] for each in (*one, *two) if "error" in each]
            if errors or not one or len(two) < 2:
                why = f"failed: {errors[0] if errors else 'a node wrote no result'}"
                found.append(Found(*facts, not_counted=why[:300]))
            else:
                found.append(Found(*facts, **compare(case, one, two)))
        return found

    def _run(
        self, nodes: int, instance_type: str, cases: Mapping[str, Case]
    ) -> dict[str, list[dict[str, Any]]]:
        """Run a job of several cases; return the output of each node, by case."""
        framework = next(iter(cases.values())).framework
        said, _ = run_loops(
            self._folder,
            self._pythons[framework],
            PROGRAM,
            instance_type,
            nodes,
            framework,
            [{"injected": case.injected, "megabytes": case.megabytes} for case in cases.values()],
            {
                "STEPS": str(STEPS),
                "EVERY": str(EVERY),
                "STEP_SECONDS": f"{STEP_SECONDS:g}",
            },
        )
        return dict(zip(cases, said, strict=True))


def compare(
    case: Case, one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the fields of Found that follow from the output of the nodes."""
    outcomes = [outcome_of(said) for said in (one, two)]
    rows, runs = summarise_runs(outcomes)
    budget = find_step_budget(rows, runs)
    seconds = {each.nodes: each.clocks.train_seconds or 0.0 for each in outcomes}
    found: dict[str, Any] = {
        "seconds": {str(nodes): value for nodes, value in seconds.items()},
        "true_points": {
            cause: points_of(*_injected_seconds(case, cause, one, two), seconds[2])
            for cause in case.injected
        },
    }
    losses: Sequence[EfficiencyLoss] = budget.losses if budget is not None else ()
    if not losses:
        reasons = {each.reason for each in find_missing_parts(runs, "observed")}
        return {**found, "named": [f"none: {reason}" for reason in sorted(reasons)]}
    [loss] = losses
    return {
        **found,
        "found_points": {each.cause: each.efficiency for each in loss.causes},
        "named": [each.cause for each in loss.named],
        "slowest_node": loss.slowest_node,
    }


def points_of(on_one: float, on_two: float, seconds_on_two: float) -> float:
    """Return E(1) s(2) - E(2) s(1), where s(N) is a cause's share of T(N)."""
    return (on_two - on_one / 2) / seconds_on_two


def _injected_seconds(
    case: Case, cause: str, one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]]
) -> tuple[float, float]:
    """Return the seconds of the train time that a cause takes on one and on two nodes."""
    if cause == "communication":
        rate = LINK_BY_INSTANCE_TYPE[case.instance_type].gbit_per_second
        seconds = expected_seconds("all-reduce", int(case.megabytes * 1e6), 2, rate)
        # ZeRO 1 all-reduces the gradients and then gathers the other half of the parameters
        return 0.0, STEPS * seconds * (1.5 if case.framework == "deepspeed" else 1)
    of_ranks = [max(each["injected"].get(cause, 0.0) for each in said) for said in (one, two)]
    return of_ranks[0], of_ranks[1]


def summary(cells: Sequence[Found]) -> dict[str, Any]:
    """Return the shares of right cases; a share is None if it has no counted case."""
    counted = [cell for cell in cells if cell.not_counted is None]
    injected = [cell for cell in counted if cell.true_points]
    clean = [cell for cell in counted if not cell.true_points]
    return {
        "counted": len(counted),
        "main_cause_right": _share([cell.is_right for cell in injected]),
        "shares_within_10_points": _share([cell.is_within for cell in injected]),
        "clean_without_a_cause": _share([cell.is_right for cell in clean]),
    }


def _share(answers: Sequence[bool]) -> float | None:
    return round(sum(answers) / len(answers), 4) if answers else None


def is_good(shares: Mapping[str, Any]) -> bool:
    """Return True if there are counted cases and no known share is below its limit."""
    limits = {
        "main_cause_right": LEAST_RIGHT,
        "shares_within_10_points": LEAST_WITHIN,
        "clean_without_a_cause": LEAST_CLEAN,
    }
    return shares["counted"] > 0 and all(
        shares[name] is None or shares[name] >= least for name, least in limits.items()
    )


def main(argv: Sequence[str]) -> int:
    """Measure the cases that the output lacks; print and store the result."""
    options = _parse(argv)
    started, at_first = time.perf_counter(), machine()
    cells = read_cells(options.output, options.seed)
    done = {cell.number for cell in cells}
    pythons = {name: each for name in options.frameworks if (each := find_python(name))}
    if missing := sorted({*options.frameworks} - pythons.keys()):
        print(f"no environment in {VENVS} has: {', '.join(missing)}")
    cases = [
        case
        for case in make_cases(options.cases, options.seed)
        if case.kind in (options.only or KINDS) and case.framework in pythons
    ]
    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder), pythons)
        left = [case for case in cases if case.number not in done]
        while left:
            if time.perf_counter() - started > 60 * options.minutes:
                print(f"{options.minutes:g} minutes are over; run it again to continue")
                break
            alike = [case for case in left if case.framework == left[0].framework]
            now = alike[: options.at_once]
            left = [case for case in left if case not in now]
            found = nodes.measure(now)
            cells += found
            print("\n".join(map(_line, found)), flush=True)
            store_result(
                options.output,
                started,
                cells,
                seed=options.seed,
                steps=STEPS,
                machine=at_first,
                load_after=os.getloadavg()[0],
                shares=summary(cells),
            )
    shares = summary(cells)
    print(json.dumps({"cases": len(cells), **shares}))
    return 0 if is_good(shares) else 1


def read_cells(output: Path | None, seed: int) -> list[Found]:
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
    return [Found(**cell) for cell in stored["cells"]]


def _line(cell: Found) -> str:
    words = [f"{cell.number:3} {cell.framework:10} {cell.kind:22} {cell.instance_type}"]
    words += [f"T {' / '.join(f'{seconds:.1f}' for seconds in cell.seconds.values())} s"]
    for cause, points in cell.true_points.items():
        found = cell.found_points.get(_reported(cause), float("nan"))
        words.append(f"{cause} {100 * points:.0f} found {100 * found:.0f}")
    words.append(f"named: {', '.join(cell.named) or 'none'} {cell.slowest_node or ''}")
    words.append(cell.not_counted or ("right" if cell.is_right else "WRONG"))
    words += [] if cell.is_within or cell.not_counted else ["OFF"]
    return "; ".join(words)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=300, help="number of cases")
    parser.add_argument("--only", choices=sorted(KINDS), nargs="+", help="kinds of cases")
    parser.add_argument(
        "--frameworks",
        choices=sorted(PACKAGES),
        nargs="+",
        default=list(PACKAGES),
        help="frameworks whose training loops run",
    )
    parser.add_argument("--at-once", type=int, default=10, help="cases per job")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="start no new case after this time"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--output", type=Path, help="write the result as JSON, or continue it")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
