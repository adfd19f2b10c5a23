"""Compare the predicted effects of changes with those measured in runs with the change.

    .venv/bin/python -m benchmarks.remedies --torch-python PYTHON [--cases batch compression …]
        [--counts 1 2 4] [--repeats 3] [--steps 40] [--output FILE.json]

The benchmark needs root to put nodes in network namespaces, and a PYTHON that has torch. A job per
node count trains a small model with DDP over gloo on emulated nodes, without and with each change,
in random order; nodesweep_measure observes it like any script. From the runs without the change,
nodesweep predicts E(N) and T(N) with it (nodesweep/scaling/analysis/remedies.py). The runs with the
change, at the baseline too, are the truth. Global batch and samples are the same at every count.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.dated_result import store_result
from benchmarks.emulation import ROOT, Bench, machine
from nodesweep.scaling.analysis.remedies import Setting, find_remedies
from nodesweep.scaling.analysis.speedup import summarise_runs
from nodesweep.scaling.analysis.step_budget import find_step_budget
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from sagemaker_emulator.engine.host.capacity import VCPUS_BY_INSTANCE_TYPE
from sagemaker_emulator.engine.host.network import OwnNetworks

GLOBAL_BATCH = 1024
PHASES = ("before", "after")
PROGRAM = """
import random, resource
sys.path.insert(0, os.environ["IMAGE"])
import nodesweep_measure
nodesweep_measure.watch()
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate
world, steps, batch = (int(os.environ[name]) for name in ("WORLD", "STEPS", "BATCH"))
quota = float(os.environ["QUOTA"])
torch.manual_seed(1)
torch.set_num_threads(1)
rendezvous = "file://" + os.environ["RENDEZVOUS"]
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
def train(larger=1, accumulate=1, workers=0, load=0.0, spin=0.0, slow=0.0, compress=False):
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 400), torch.nn.ReLU(),
        torch.nn.Linear(400, 10),
    )
    model = DistributedDataParallel(model)
    # DDP accepts bf16_compress_hook with NCCL only
    if compress: model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    size = batch // world * larger
    number = steps * batch // world
    def collate(samples):
        if load: time.sleep(load * len(samples) / (batch // world))
        end = time.thread_time() + spin * len(samples) / (batch // world)
        while time.thread_time() < end: pass
        return default_collate(samples)
    data = TensorDataset(torch.rand(number, 64), torch.randint(0, 10, (number,)))
    loader = DataLoader(data, size, num_workers=workers, collate_fn=collate)
    dist.barrier()
    begin = cpu_seconds()
    for place, (x, y) in enumerate(loader):
        is_last = (place + 1) % accumulate == 0
        if slow and world > 1 and rank == world - 1: time.sleep(slow)
        model.require_backward_grad_sync = is_last  # as no_sync() does
        torch.nn.functional.cross_entropy(model(x), y).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    del loader
    facts = nodesweep_measure.watched.facts()
    nodesweep_measure.watched._reset()
    used = (cpu_seconds() - begin) / (quota * facts["train_seconds"])
    return {"facts": facts, "cpu_used": used}
trainings = json.loads(os.environ["TRAININGS"])
wait_for_go()
said = {name: train(**given) for name, given in trainings}
dist.destroy_process_group()
done(**said)
"""


@dataclass(frozen=True)
class Case:
    """A change to check: its name in REMEDIES, and the program's options after and before it."""

    remedy: str
    instance_type: str
    after: Mapping[str, float]
    before: Mapping[str, float] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "batch": Case("batch", "ml.local.small100m", {"larger": 2}),
    "accumulation": Case("batch", "ml.local.small100m", {"accumulate": 2}),
    "compression": Case("compression", "ml.local.small100m", {"compress": True}),
    "compression_200m": Case("compression", "ml.local.small200m", {"compress": True}),
    "slow_node": Case("slow_node", "ml.local.small", {}, {"slow": 0.1}),
    "loader_waits": Case(
        "loader_workers", "ml.local.small", {"workers": 2, "load": 0.05}, {"load": 0.05}
    ),
    "loader_computes": Case(
        "loader_workers", "ml.local.small", {"workers": 2, "spin": 0.01}, {"spin": 0.01}
    ),
}


@dataclass(frozen=True)
class Ran:
    """One training; `cpu_used` is the mean share of its CPU quota that a node used."""

    nodes: int
    repeat: int
    phase: str
    metrics: Mapping[str, Any]
    cpu_used: float

    @property
    def seconds(self) -> float:
        """The train time in seconds."""
        return float(self.metrics["train_seconds"])


@dataclass(frozen=True)
class Checked:
    """The predicted and measured effect of a change at one node count."""

    case: str
    remedy: str
    instance_type: str
    nodes: int
    runs: int
    seconds_before: float
    seconds_predicted: float | None
    seconds_after: float
    efficiency_before: float
    efficiency_predicted: float | None
    """None if nothing is predicted, because the effect is within the noise."""
    interval: tuple[float, float] | None
    efficiency_after: float
    error: float | None
    """Predicted minus measured efficiency."""
    is_inside: bool | None
    """True if the interval contains the measured efficiency; None if there is no interval."""


def check(name: str, case: Case, runs: Sequence[Ran]) -> Iterator[Checked]:
    """Yield the predicted and the measured effect at every node count."""
    times = {
        phase: {
            nodes: geometric_mean(
                run.seconds for run in runs if (run.nodes, run.phase) == (nodes, phase)
            )
            for nodes in sorted({run.nodes for run in runs})
        }
        for phase in PHASES
    }
    outcomes = [_outcome(run) for run in runs if run.phase == "before"]
    rows, counted = summarise_runs(outcomes)
    budget = find_step_budget(rows, counted)
    found = budget and find_remedies(rows, counted, budget, Setting(), None)
    predicted = {
        each.nodes: each
        for remedy in (found.ranked if found else ())
        if remedy.name == case.remedy
        for each in remedy.predictions
    }
    base = min(times["before"])
    for nodes, after in times["after"].items():
        before = times["before"][nodes]
        own = predicted.get(nodes)
        interval = own.interval if own else None
        measured = times["after"][base] * base / (after * nodes)
        yield Checked(
            case=name,
            remedy=case.remedy,
            instance_type=case.instance_type,
            nodes=nodes,
            runs=sum((run.nodes, run.phase) == (nodes, "after") for run in runs),
            seconds_before=before,
            seconds_predicted=own.seconds if own else None,
            seconds_after=after,
            efficiency_before=times["before"][base] * base / (before * nodes),
            efficiency_predicted=own.efficiency if own else None,
            interval=(interval.low, interval.high) if interval else None,
            efficiency_after=measured,
            error=own.efficiency - measured if own else None,
            is_inside=interval.contains(measured) if interval else None,
        )


def _outcome(run: Ran) -> JobOutcome:
    return JobOutcome(
        nodes=run.nodes,
        repeat=run.repeat,
        attempt=1,
        job_name=f"n{run.nodes}-r{run.repeat}",
        status="Completed",
        platform_kind="emulated",
        clocks=Clocks(train_seconds=run.seconds),
        train_clock="observed",
        train_seconds_by={"observed": run.seconds},
        metrics=run.metrics,
        utilisation={"quota_used_percent": 100 * run.cpu_used},
    )


def main(argv: Sequence[str]) -> int:
    """Measure, print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    at_first = machine()
    cells: list[Checked] = []
    for instance_type in sorted({CASES[name].instance_type for name in options.cases}):
        cases = {
            name: CASES[name]
            for name in options.cases
            if CASES[name].instance_type == instance_type
        }
        with tempfile.TemporaryDirectory() as folder:
            runs = _run_type(instance_type, cases, options, Path(folder))
        for name, case in cases.items():
            for cell in check(name, case, runs[name]):
                cells.append(cell)
                print(_line(cell), flush=True)
        _store(options, started, at_first, cells)
    return 0


def _store(
    options: argparse.Namespace,
    started: float,
    at_first: Mapping[str, Any],
    cells: Sequence[Checked],
) -> None:
    """Print a summary of the results so far, and store it with them."""
    larger = [cell for cell in cells if cell.nodes > min(options.counts)]
    errors = [abs(cell.error) for cell in larger if cell.error is not None]
    times = [
        abs(cell.seconds_predicted / cell.seconds_after - 1)
        for cell in larger
        if cell.seconds_predicted is not None
    ]
    inside = [cell.is_inside for cell in larger if cell.is_inside is not None]
    summary = {
        "predictions": len(errors),
        "median_error_points": round(100 * median(errors), 1) if errors else None,
        "largest_error_points": round(100 * max(errors), 1) if errors else None,
        "median_time_error_percent": round(100 * median(times), 1) if times else None,
        "inside_interval": sum(inside),
        "with_interval": len(inside),
    }
    print(json.dumps(summary))
    store_result(
        options.output,
        started,
        cells,
        machine=at_first,
        load_after=os.getloadavg()[0],
        steps=options.steps,
        cases={name: asdict(CASES[name]) for name in options.cases},
        summary=summary,
    )


def _run_type(
    instance_type: str, cases: Mapping[str, Case], options: argparse.Namespace, folder: Path
) -> dict[str, list[Ran]]:
    """Run the cases of one instance type; cases with the same options share runs."""
    bench = Bench(folder, options.torch_python, PROGRAM, instance_type)
    network = bench.engine._network
    if not isinstance(network, OwnNetworks):
        raise SystemExit(f"cannot give nodes network namespaces: {network.describe(instance_type)}")
    programs = {
        json.dumps(given): given for case in cases.values() for given in (case.before, case.after)
    }
    runs: dict[str, list[Ran]] = {name: [] for name in cases}
    for nodes in options.counts:
        shuffled = random.Random(f"{instance_type}-{nodes}")
        trainings = [
            (f"{repeat} {name}", dict(programs[name]))
            for repeat in range(1, options.repeats + 1)
            for name in shuffled.sample(sorted(programs), len(programs))
        ]
        environment = {
            "IMAGE": str(ROOT / "infra" / "image"),
            "WORLD": str(nodes),
            "STEPS": str(options.steps),
            "BATCH": str(GLOBAL_BATCH),
            "QUOTA": str(VCPUS_BY_INSTANCE_TYPE[instance_type]),
            "RENDEZVOUS": f"{folder}/rendezvous-{nodes}",
            "TRAININGS": json.dumps(trainings),
        }
        said, _ = bench.run(nodes, nodes, environment)
        for name, case in cases.items():
            for repeat in range(1, options.repeats + 1):
                for phase in PHASES:
                    given = json.dumps(getattr(case, phase))
                    own = [each[f"{repeat} {given}"] for each in said]
                    runs[name].append(_ran(nodes, repeat, phase, own))
    bench.engine.close()
    return runs


def _ran(nodes: int, repeat: int, phase: str, said: Sequence[Mapping[str, Any]]) -> Ran:
    """Combine the outputs of the nodes of one training."""
    budget = [
        {**part, "node": f"algo-{number}"}
        for number, each in enumerate(said, start=1)
        for part in each["facts"].get("budget", [])
    ]
    return Ran(
        nodes=nodes,
        repeat=repeat,
        phase=phase,
        metrics={**said[0]["facts"], "budget": budget},
        cpu_used=sum(each["cpu_used"] for each in said) / nodes,
    )


def _line(cell: Checked) -> str:
    line = (
        f"{cell.case:16} N={cell.nodes} T {cell.seconds_before:6.2f} -> {cell.seconds_after:6.2f} s"
        f"  E {cell.efficiency_before:.3f} -> {cell.efficiency_after:.3f}"
    )
    if cell.error is None or cell.seconds_predicted is None:
        return f"{line}, nothing predicted"
    line += (
        f", predicted {cell.seconds_predicted:.2f} s, {cell.efficiency_predicted:.3f}"
        f" ({100 * cell.error:+.1f} points)"
    )
    if cell.interval is not None:
        line += f", [{cell.interval[0]:.3f}, {cell.interval[1]:.3f}]"
    return line


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch-python", required=True, help="a Python with torch")
    parser.add_argument(
        "--cases", choices=list(CASES), nargs="+", default=list(CASES), help="changes to compare"
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4], help="node counts")
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each kind")
    parser.add_argument("--steps", type=int, default=40, help="steps without accumulation")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
