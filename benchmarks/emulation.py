"""Check that emulated nodes get the same compute at every node count, quiet and contended.

    .venv/bin/python benchmarks/emulation.py [--counts 1 2 4 8] [--neighbours 0 1 2] [--seconds 20]
        [--repeats 3] [--ways filled first plain nodes apart] [--torch-python PYTHON]
        [--ddp-repeats 5] [--held-by quota duty_cycle] [--report REPORT.json] [--output FILE.json]
        [--told-neighbours 0 1 2 4 8] [--threads 1 2 3]

The process engine runs the nodes, with its quota, CPUs, boot barrier and reported attainment. Each
node repeats a unit of work that fits a CPU's cache (a product of matrices) from `go` to `done`; the
result is a node's units per CPU second and per wall second, relative to one node on a quiet
machine. Ideally both ratios are 1 at every N.

There are three ways to keep the load of the machine constant. With `filled`, the engine's default,
CPUs are never idle, because processes of the kernel's idle class use spare time, and nodes take
priority over other work; `first` lacks those processes; `plain` also lacks the priority, so that a
node has the weight of one other process. Two alternatives were tested: `nodes` is `first` with
extra nodes that run the same work under the same quota, so that the total always equals the largest
count; `apart` is `first` with the first of two or more CPUs left to the rest of the machine.

With --torch-python (a Python with torch) a bare DDP loop of configs/local.yaml's model is trained
on the same nodes at every count, with no framework, data on disk or metrics. `--held-by quota
duty_cycle` alternates two ways of limiting the nodes: the control group's quota, and the duty cycle
that replaces it where no control group is writable. --report compares the speedups of the loop with
those of a sweep of the shipped program on this machine.

With --told-neighbours 0 1 2 4 8, a node's reported attainment is compared with the true one, which
is its work per second relative to the quiet machine. Cells are combinations of a number of threads,
a node that always works or is mostly idle, and a way of --held-by. Exit code 1 if a reported share
is more than 2 points off at equal CPU speed (work per CPU second). The attainment of an ordinary
user, who cannot write a control group, is measured as that user:

    setpriv --reuid USER --regid GROUP --clear-groups .venv/bin/python benchmarks/emulation.py
        --ways --held-by duty_cycle --told-neighbours 0 2 8
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sagemaker_emulator.engine.host import capacity  # noqa: E402
from sagemaker_emulator.engine.host.ballast import Ballast  # noqa: E402
from sagemaker_emulator.engine.host.cgroups import CpuQuotas  # noqa: E402
from sagemaker_emulator.engine.process.engine import ProcessEngine  # noqa: E402
from sagemaker_emulator.interfaces import JobSpec  # noqa: E402
from sagemaker_emulator.state.files import write_atomically  # noqa: E402

MOST_TOLD_ERROR = 0.02
WAYS = ("filled", "first", "plain", "nodes", "apart")
NODES_PROGRAM = """
import json, os, pathlib, sys, time
host = os.environ["NODESWEEP_NODE"].split("/")[1]
rank = int(host.removeprefix("algo-")) - 1
boot = pathlib.Path(os.environ["SM_BOOT_BARRIER_DIR"])
config = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "input", "config")
resources = json.loads((config / "resourceconfig.json").read_text())
os.environ["GLOO_SOCKET_IFNAME"] = resources["network_interface_name"]
def wait_for_go():
    (boot / "ready").touch()
    while not (boot / "go").exists(): time.sleep(0.005)
def done(**said):
    print("RESULT " + json.dumps(said), flush=True)
    (boot / "done").touch()
    time.sleep(0.5)  # so that the engine's last poll finds the node running
"""
WORK = """
import numpy, threading
seconds, rest = float(os.environ["SECONDS"]), float(os.environ["REST_SECONDS"])
units = [0] * int(os.environ["THREADS"])
a, b = numpy.ones((256, 128), "float32"), numpy.full((128, 128), 1e-3, "float32")
def work(number):
    while time.monotonic() - wall < seconds:
        begin = time.thread_time()
        while time.thread_time() - begin < 0.02 and time.monotonic() - wall < seconds:
            numpy.maximum(a @ b, 0)
            units[number] += 1
        if rest: time.sleep(rest)
threads = [threading.Thread(target=work, args=(number,)) for number in range(1, len(units))]
wait_for_go()
wall, cpu = time.monotonic(), time.process_time()
for thread in threads: thread.start()
work(0)
for thread in threads: thread.join()
done(
    units=sum(units), wall_seconds=time.monotonic() - wall, cpu_seconds=time.process_time() - cpu
)
"""
DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
world, steps, batch = (int(os.environ[name]) for name in ("WORLD", "STEPS", "BATCH"))
torch.manual_seed(1)
torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 128), torch.nn.ReLU()]
for _ in range(5): layers += [torch.nn.Linear(128, 128), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10))
rendezvous = "file://" + os.environ["RENDEZVOUS"]
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
model = DistributedDataParallel(model)
optimiser = torch.optim.AdamW(model.parameters(), lr=0.004)
x, y = torch.rand(batch // world, 64), torch.randint(0, 10, (batch // world,))
def step():
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
step()
wait_for_go()
dist.barrier()
wall, cpu = time.monotonic(), time.process_time()
for _ in range(steps): step()
dist.barrier()
said = {"wall_seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
dist.destroy_process_group()
done(units=steps, **said)
"""


@dataclass(frozen=True)
class Measured:
    """One run: medians over its nodes, and the lowest attainment among them."""

    way: str
    nodes: int
    neighbours: int
    repeat: int
    units_per_cpu_second: float
    units_per_wall_second: float
    wall_seconds: float
    attained: float | None
    quota_used: float | None
    cpu_speed: float | None


@dataclass(frozen=True)
class OneImage:
    """An image store that holds one image."""

    folder: Path

    def resolve(self, image_uri: str) -> Path:
        """Return the only image, whichever URI is requested."""
        return self.folder


class Bench:
    """A process engine with an image whose `train` is one of the programs above."""

    def __init__(self, folder: Path, python: str, program: str, instance_type: str) -> None:
        self.folder = folder
        image = folder / "image"
        (image / "venv" / "bin").mkdir(parents=True)
        (image / "code").mkdir()
        (image / "image.json").write_text(json.dumps({"environment": {"SM_BOOT_BARRIER": "1"}}))
        train = image / "venv" / "bin" / "train"
        train.write_text(f"#!{python}\n{NODES_PROGRAM}{program}")
        train.chmod(0o755)
        self.engine = ProcessEngine(folder / "state", OneImage(image), "http://127.0.0.1:1")  # type: ignore[arg-type]
        self._instance_type = instance_type
        self._runs = 0

    def run(
        self, nodes: int, counted: int, environment: dict[str, str]
    ) -> tuple[list[dict[str, Any]], Any]:
        """Run a job; return the output and the attainment of its first `counted` nodes."""
        self._runs += 1
        job = JobSpec(
            job_name=f"emulation-{self._runs}",
            job_arn=f"arn:aws:sagemaker:us-east-1:000000000000:training-job/emulation-{self._runs}",
            region="us-east-1",
            image_uri="emulation",
            instance_type=self._instance_type,
            instance_count=nodes,
            hyperparameters={},
            environment={"OPENBLAS_NUM_THREADS": "1", **environment},
        )
        lines: list[tuple[str, str]] = []
        made = self.engine.prepare(job)
        result = self.engine.run(
            job, made, lambda host, text, _: lines.append((host, text)), threading.Event(), 3600
        )
        self.engine.clean_up(job)
        said = {
            host: json.loads(text.removeprefix("RESULT "))
            for host, text in lines
            if text.startswith("RESULT ")
        }
        hosts = [f"algo-{number}" for number in range(1, counted + 1)]
        if missing := [host for host in hosts if host not in said]:
            last = [text for host, text in lines if host == missing[0]][-5:]
            raise SystemExit(
                f"{missing[0]} printed no result; its last lines: {last}; {result.failure_reason}"
            )
        attained = [result.attainment[host] for host in hosts if host in result.attainment]
        return [said[host] for host in hosts], attained


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    options = _parse(argv)
    result: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    result["options"] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
    }
    if options.told_neighbours:
        result["attainment"] = measure_attainment(options)
    if options.ways:
        runs = measure_work(options)
        result["work"] = {"runs": [asdict(run) for run in runs], "ratios": work_ratios(runs)}
        print_ratios(result["work"]["ratios"])
    if options.torch_python:
        bare = measure_ddp(options)
        for held_by in options.held_by:
            of_way = [run for run in bare if run.way == held_by]
            result[f"bare_ddp_{held_by}"] = {
                "runs": [asdict(run) for run in of_way],
                "speedups": speedups(of_way),
            }
            print(f"bare DDP loop, {held_by}, S:", _shown(speedups(of_way)))
        if {"quota", "duty_cycle"} <= {run.way for run in bare}:
            result["duty_cycle_of_quota"] = _over(
                result["bare_ddp_duty_cycle"]["speedups"], result["bare_ddp_quota"]["speedups"]
            )
            print("duty cycle relative to quota:", _shown(result["duty_cycle_of_quota"]))
    if options.report:
        product = {
            row["nodes"]: row["clocks"]["train"]["speedup"]
            for row in _read(options.report)["summary"]
        }
        result["product"] = {"report": _read(options.report)["sweep_id"], "speedups": product}
        print("nodesweep's program, S:", _shown(product))
        if options.torch_python:
            found = result[f"bare_ddp_{options.held_by[0]}"]["speedups"]
            result["product_of_bare"] = _over(product, found)
            print(
                "nodesweep's program relative to the bare loop:", _shown(result["product_of_bare"])
            )
    result["load_after"] = os.getloadavg()[0]
    if options.output:
        write_atomically(options.output, json.dumps(result, indent=1) + "\n")
    wrong = [row for row in result.get("attainment", ()) if is_wrong(row)]
    for row in wrong:
        print(f"MISSED: {row}")
    return 1 if wrong else 0


def measure_work(options: argparse.Namespace) -> list[Measured]:
    """Measure every way, count and number of neighbors, in a new random order in each repeat.

    The random order spreads the effect of other load over all cells.
    """
    cells = [
        (way, nodes, busy)
        for way in options.ways
        for nodes in options.counts
        for busy in options.neighbours
    ]
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), sys.executable, WORK, options.instance_type)
        for repeat in range(1, options.repeats + 1):
            for way, nodes, busy in random.Random(repeat).sample(cells, len(cells)):
                with kept_same(way), neighbours(busy):
                    ran = max(options.counts) if way == "nodes" else nodes
                    said, attained = bench.run(ran, nodes, _work(options.seconds))
                runs.append(_measured(way, nodes, busy, repeat, said, attained))
                print(f"{way:8} N={nodes} neighbours={busy}: {_line(runs[-1])}", flush=True)
        bench.engine.close()
    return runs


@contextmanager
def by_way_of_holding(
    python: str, program: str, options: argparse.Namespace
) -> Iterator[dict[str, Bench]]:
    """Yield a bench for each way of limiting nodes to their vCPUs, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        benches = {
            held_by: Bench(Path(folder) / held_by, python, program, options.instance_type)
            for held_by in options.held_by
        }
        if "duty_cycle" in benches:
            benches["duty_cycle"].engine._quotas = None
        if "quota" in benches and benches["quota"].engine._quotas is None:
            reason = benches["quota"].engine._quota_reason
            raise SystemExit(f"--held-by quota: {reason}; use --held-by duty_cycle")
        yield benches
        for bench in benches.values():
            bench.engine.close()


def measure_attainment(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return reported and true CPU shares of a node, by number of threads and busy neighbors.

    The node always works, or rests for 50 ms after each 20 ms of CPU time. Its true share is its
    work per wall second relative to the cell with the fewest neighbors.
    """
    cells = list(
        itertools.product(options.held_by, options.threads, (0.0, 0.05), options.told_neighbours)
    )
    found: dict[tuple[Any, ...], list[Measured]] = {}
    with by_way_of_holding(sys.executable, WORK, options) as benches:
        for repeat in range(1, options.repeats + 1):
            for cell in random.Random(repeat).sample(cells, len(cells)):
                held_by, threads, rest, busy = cell
                with neighbours(busy):
                    said, attained = benches[held_by].run(
                        1, 1, _work(options.seconds, threads, rest)
                    )
                run = _measured(held_by, 1, busy, repeat, said, attained)
                found.setdefault(cell, []).append(run)
    rows = []
    for held_by, threads, rest, busy in cells:
        runs = found[held_by, threads, rest, busy]
        quiet = found[held_by, threads, rest, min(options.told_neighbours)]
        told = [run.attained for run in runs if run.attained is not None]
        row = {
            "held_by": held_by,
            "threads": threads,
            "rests": rest > 0,
            "neighbours": busy,
            "true": _ratio(runs, quiet, "units_per_wall_second"),
            "cpu_speed": _ratio(runs, quiet, "units_per_cpu_second"),
            "told": median(told) if told else None,
        }
        rows.append(row)
        print(
            f"{held_by:10} {threads} threads, {'resting' if rest else 'busy   '}, {busy}"
            f" neighbours: true {row['true']:.1%}, CPU speed {row['cpu_speed']:.1%}, reported"
            f" {'-' if row['told'] is None else format(row['told'], '.1%')}",
            flush=True,
        )
    return rows


def is_wrong(row: dict[str, Any]) -> bool:
    """Return True if the reported share is unknown or more than MOST_TOLD_ERROR off.

    The true share is taken at equal CPU speed.
    """
    true_share = min(row["true"] / row["cpu_speed"], 1.0)
    return row["told"] is None or abs(row["told"] - true_share) > MOST_TOLD_ERROR


def _ratio(runs: Sequence[Measured], base: Sequence[Measured], name: str) -> float:
    return median(getattr(run, name) for run in runs) / median(getattr(run, name) for run in base)


def _work(seconds: float, threads: int = 1, rest_seconds: float = 0.0) -> dict[str, str]:
    return {
        "SECONDS": f"{seconds:g}",
        "THREADS": str(threads),
        "REST_SECONDS": f"{rest_seconds:g}",
    }


def measure_ddp(options: argparse.Namespace) -> list[Measured]:
    """Measure each count without neighbors, alternating the ways of limiting nodes to vCPUs."""
    runs = []
    with by_way_of_holding(options.torch_python, DDP, options) as benches:
        for repeat in range(1, options.ddp_repeats + 1):
            for nodes, (held_by, bench) in itertools.product(options.counts, benches.items()):
                environment = {
                    "WORLD": str(nodes),
                    "STEPS": str(options.steps),
                    "BATCH": str(options.batch),
                    "RENDEZVOUS": f"{bench.folder}/rendezvous-{repeat}-{nodes}",
                }
                said, attained = bench.run(nodes, nodes, environment)
                runs.append(_measured(held_by, nodes, 0, repeat, said, attained))
                print(f"ddp {held_by} N={nodes}: {_line(runs[-1])}", flush=True)
    return runs


def work_ratios(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return medians per cell relative to the same way with the fewest nodes and neighbors."""
    cells: dict[tuple[str, int, int], list[Measured]] = {}
    for run in runs:
        cells.setdefault((run.way, run.nodes, run.neighbours), []).append(run)
    least_nodes, least_busy = min(run.nodes for run in runs), min(run.neighbours for run in runs)
    rows = []
    for (way, nodes, busy), of_cell in sorted(cells.items()):
        base = cells[way, least_nodes, least_busy]
        row: dict[str, Any] = {"way": way, "nodes": nodes, "neighbours": busy, "n": len(of_cell)}
        for name in ("units_per_cpu_second", "units_per_wall_second"):
            row[name] = _ratio(of_cell, base, name)
        known = [run.attained for run in of_cell if run.attained is not None]
        rows.append({**row, "attained": min(known, default=None)})
    return rows


def speedups(runs: Sequence[Measured]) -> dict[int, float]:
    """Return S(N) by node count, the ratio of the median wall times."""
    times = {
        n: median(run.wall_seconds for run in runs if run.nodes == n)
        for n in sorted({r.nodes for r in runs})
    }
    return {nodes: times[min(times)] / seconds for nodes, seconds in times.items()}


@contextmanager
def kept_same(way: str) -> Iterator[None]:
    """Patch the engine for this way of keeping the load of the machine constant."""
    fill, weigh, deal = Ballast.start, CpuQuotas._set_weight, capacity.assign_cpus
    allowed = sorted(os.sched_getaffinity(0))

    def without_first(instance_count: int) -> list[int]:
        left = allowed[1:] or allowed
        return [left[index % len(left)] for index in range(instance_count)]

    if way != "filled":
        Ballast.start = lambda self: None  # type: ignore[method-assign]
    if way == "plain":
        CpuQuotas._set_weight = lambda self, times: None  # type: ignore[method-assign]
    elif way == "apart":
        capacity.assign_cpus = without_first
    try:
        yield
    finally:
        Ballast.start, CpuQuotas._set_weight = fill, weigh  # type: ignore[method-assign]
        capacity.assign_cpus = deal


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run busy processes that each want a whole CPU, placed by the kernel."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def machine() -> dict[str, Any]:
    """Return the CPUs, kernel and load of this machine."""
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        ":",
    )
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model.partition(":")[2].strip(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "is_root": os.geteuid() == 0,
        "load_before": os.getloadavg()[0],
    }


def print_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Print the ratios as a table, in which 1.00 is one node on a quiet machine."""
    print(
        f"{'way':8} {'N':>2} {'neighbours':>10} {'per CPU s':>9} {'per wall s':>10} {'attained':>8}"
    )
    for row in rows:
        attained = "-" if row["attained"] is None else f"{row['attained']:.0%}"
        print(
            f"{row['way']:8} {row['nodes']:>2} {row['neighbours']:>10}"
            f" {row['units_per_cpu_second']:>9.2f}"
            f" {row['units_per_wall_second']:>10.2f} {attained:>8}"
        )


def _measured(
    way: str, nodes: int, busy: int, repeat: int, said: Sequence[dict[str, float]], attained: Any
) -> Measured:
    shares = [each.share for each in attained if each.share is not None]
    return Measured(
        way=way,
        nodes=nodes,
        neighbours=busy,
        repeat=repeat,
        units_per_cpu_second=median(each["units"] / each["cpu_seconds"] for each in said),
        units_per_wall_second=median(each["units"] / each["wall_seconds"] for each in said),
        wall_seconds=max(each["wall_seconds"] for each in said),
        attained=min(shares, default=None),
        quota_used=min((each.cpu_seconds / each.quota_seconds for each in attained), default=None),
        cpu_speed=next((each.cpu_speed for each in attained), None),
    )


def _line(run: Measured) -> str:
    attained = "unknown" if run.attained is None else f"{run.attained:.0%}"
    return (
        f"{run.units_per_cpu_second:.0f} units per CPU s, {run.units_per_wall_second:.0f} per wall"
        f" s, {run.wall_seconds:.1f} s, attained {attained}"
    )


def _shown(ratios: dict[int, Any]) -> str:
    return ", ".join(
        f"{nodes}: {ratio:.2f}" for nodes, ratio in ratios.items() if ratio is not None
    )


def _over(speedups_of: dict[int, float | None], base: dict[int, float]) -> dict[int, float]:
    return {nodes: s / base[nodes] for nodes, s in speedups_of.items() if s and nodes in base}


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8], help="node counts")
    parser.add_argument(
        "--neighbours",
        type=int,
        nargs="+",
        default=[0, 1, 2],
        help="busy processes next to the nodes",
    )
    parser.add_argument(
        "--ways",
        choices=WAYS,
        nargs="*",
        default=list(WAYS),
        help="ways to keep the load of the machine constant; with no way, skip this measurement",
    )
    parser.add_argument(
        "--told-neighbours",
        type=int,
        nargs="*",
        default=[],
        help="busy processes next to the node whose reported CPU share is checked",
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="runnable threads of the checked node",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each cell")
    parser.add_argument(
        "--instance-type",
        choices=sorted(capacity.VCPUS_BY_INSTANCE_TYPE),
        default="ml.local.small",
        help="instance type of the nodes",
    )
    parser.add_argument("--ddp-repeats", type=int, default=5, help="runs of each DDP loop")
    parser.add_argument(
        "--held-by",
        choices=("quota", "duty_cycle"),
        nargs="+",
        default=["quota"],
        help="how the DDP loop's nodes are limited to their vCPUs",
    )
    parser.add_argument("--torch-python", help="a Python with torch, for the bare DDP loop")
    parser.add_argument(
        "--steps",
        type=int,
        default=16,
        help="steps of the DDP loop (2 epochs of configs/local.yaml: 16)",
    )
    parser.add_argument("--batch", type=int, default=57344, help="global batch of the DDP loop")
    parser.add_argument(
        "--report",
        type=Path,
        help="report.json of a sweep of nodesweep's program on this machine",
    )
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args(argv)
    most = capacity.machine_cores() / capacity.VCPUS_BY_INSTANCE_TYPE[options.instance_type]
    if max(options.counts) > most + 1e-9:
        parser.error(
            f"--counts: {max(options.counts)} nodes of {options.instance_type} do not fit; at most"
            f" {most:g} do"
        )
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
