"""Kill, cut off and resume sweeps until they are done, then check the platform's ledger.

    .venv/bin/python -m benchmarks.chaos [--seeds 0:50] [--at-once 4] [--work-dir DIR]
        [--output FILE.json]

A run is a sweep of 6 points (1, 2 and 4 nodes, 2 repeats, 2 jobs at once on a quota of 5) on the
simulated engine, through a proxy. Its seed determines at which calls up to three of its tries are
struck and how (kill -9, SIGTERM, SIGINT once or twice, SIGINT and then SIGTERM, `nodesweep stop`, a
second run of the same sweep, an outage of the platform; in every fifth seed the first try is a
Prefect worker's, in another fifth a detached one, and that is struck); which calls are dropped,
doubled, delayed, answered with 5xx or lose their response; which calls the platform throttles; by
how many seconds its lists, descriptions and tags lag; and if jobs keep warm pools. In every third
seed the dataset is in S3 and a Processing job validates it, which is struck first, waits, finds no
capacity or is lost. After each try the sweep is resumed. These invariants must hold:

- exactly one completed job per point, and after a kill or an outage no other job at all (SIGTERM
  and SIGINT stop jobs)
- a try that was ended on purpose (a stop, SIGTERM, Ctrl-C once) leaves no job running, and the last
  one no warm pool
- never more nodes in use than the quota, nor more jobs than sweep.max_parallel_jobs; no job left at
  the end
- the same for the Processing job: one completed, none left, none of another sweep that nobody
  stopped; the report includes the bill of all its attempts
- dataset, image context and training code are uploaded once, unless the response to an upload was
  lost
- the report equals that of an undisturbed sweep: benchmarks/chaos/ledger.py lists the compared
  parts

Commands are forks of a process that has imported what they need (benchmarks/chaos/forks.py); a
worker and its children are separate interpreters. A seed determines the actions, not thread
scheduling. Exit code 1 if an invariant is broken; that run's folder is kept.
"""

from __future__ import annotations

import argparse
import atexit
import os
import platform
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.chaos.forks import Forks
from benchmarks.chaos.ledger import broken_invariants
from benchmarks.chaos.plan import UNDISTURBED, UNDISTURBED_ON_SPARK, ChaosPlan, draw_plan
from benchmarks.chaos.run import Evidence, run_chaos
from benchmarks.chaos.world import forget, prefect_server
from nodesweep.scaling.names import pretty_json

_HEADINGS = (
    f"{'seed':>5} {'tries':>5} {'jobs':>5} {'done':>5} {'faults':>6} {'wall s':>7} "
    " verdict  disturbances"
)


def main(argv: Sequence[str]) -> int:
    """Execute the chaos runs, then print and store the results."""
    options = _parse(argv)
    began = time.monotonic()
    folder = options.work_dir or Path(tempfile.mkdtemp(prefix="nodesweep-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    lost: list[int] = []
    with (
        prefect_server(folder) as environment,
        # One process per platform: moto's state is global to a process.
        ProcessPoolExecutor(
            options.at_once, get_context("spawn"), _begin_process, (dict(environment),)
        ) as runs,
    ):
        plans = [draw_plan(seed) for seed in options.seeds]
        wanted = [UNDISTURBED]
        if any(plan.on_spark for plan in plans):
            wanted.append(UNDISTURBED_ON_SPARK)
        begun = [runs.submit(_run, plan, folder / f"undisturbed{plan.seed}") for plan in wanted]
        undisturbed, *_ = references = [run.result() for run in begun]
        broken = [problem for each in references for problem in broken_invariants(each, None)]
        if broken:
            print("the undisturbed sweep is already broken:", *broken, sep="\n  ")
            return 1
        print(f"undisturbed: {undisturbed.seconds:.1f} s\n{_HEADINGS}", flush=True)
        reports = {each.plan.on_spark: each.report or {} for each in references}
        waiting = {
            runs.submit(_run, plan, folder / f"seed-{plan.seed}"): plan.seed for plan in plans
        }
        for done in as_completed(waiting):
            if error := done.exception():
                # an error of this program itself, which must not lose the other runs
                lost.append(waiting[done])
                print(f"{waiting[done]:5d} could not run: {error!r}", flush=True)
                continue
            evidence = done.result()
            rows.append(_judge(evidence, folder, reports[evidence.plan.on_spark], options))
            if options.output:
                # after each run, so that an interrupted program keeps its results
                options.output.write_bytes(pretty_json(_result(rows, undisturbed, options, began)))
    # all processes have ended, so their CPU time is known
    result = _result(rows, undisturbed, options, began)
    if options.output:
        options.output.write_bytes(pretty_json(result))
    summary, seconds = result["summary"], result["seconds_per_seed"]
    print(f"{summary['runs']} runs, {summary['broken_runs']} broken, {summary['tries']} tries")
    print(
        f"per seed: {seconds['wall']:.1f} s, {seconds['cpu']:.1f} s of CPU time,"
        f" {options.at_once} at once"
    )
    print(f"struck: {summary['struck']}")
    print(f"faults of single calls: {summary['faults']}")
    if lost:
        print(f"could not run: {sorted(lost)}")
    return 1 if summary["broken_runs"] or lost else 0


_forks: Forks | None = None


def _begin_process(environment: Mapping[str, str]) -> None:
    """Initialize a process that executes runs one after another."""
    global _forks
    cache = Path(environment["XDG_CACHE_HOME"]) / str(
        os.getpid()
    )  # each process caches prices separately
    _forks = Forks({**environment, "XDG_CACHE_HOME": str(cache)})
    atexit.register(_forks.close)


def _run(plan: ChaosPlan, folder: Path) -> Evidence:
    assert _forks is not None
    return run_chaos(plan, folder, _forks)


def _judge(
    evidence: Evidence, folder: Path, undisturbed: Mapping[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Judge and print one run; keep its folder if an invariant is broken."""
    seed = evidence.plan.seed
    broken = broken_invariants(evidence, undisturbed)
    row = describe(evidence, broken)
    print(_line(row), flush=True)
    for problem in broken:
        print(f"      {problem}")
    if broken:
        print(
            f"      repeat it: python -m benchmarks.chaos --seeds {seed}; logs:"
            f" {folder / f'seed-{seed}'}",
            flush=True,
        )
    elif not options.work_dir:
        forget(folder / f"seed-{seed}")
    return row


def describe(evidence: Evidence, broken: Sequence[str]) -> dict[str, Any]:
    """Return a run's data, stored if an invariant is broken; draw_plan() recreates the plan."""
    statuses = Counter(str(job["TrainingJobStatus"]) for job in evidence.jobs)
    return {
        "seed": evidence.plan.seed,
        "planned": [str(disturbance) for disturbance in evidence.plan.disturbances],
        "api_faults": [dict(rule) for rule in evidence.plan.api_faults],
        "lag": asdict(evidence.plan.lag),
        "keep_alive_seconds": evidence.plan.keep_alive_seconds,
        "on_spark": evidence.plan.on_spark,
        "processing_jobs": [job["ProcessingJobStatus"] for job in evidence.processing_jobs],
        "tries": [asdict(one) for one in evidence.tries],
        "jobs_created": len(evidence.jobs),
        "jobs_completed": statuses["Completed"],
        "jobs_stopped": statuses["Stopped"],
        "peak_nodes": evidence.peak_nodes,
        "calls": len(evidence.calls),
        "call_faults": dict(evidence.faults),
        "wall_seconds": round(evidence.seconds, 1),
        "broken": list(broken),
    }


def _line(row: Mapping[str, Any]) -> str:
    verdict = "BROKEN" if row["broken"] else "ok"
    struck = [one["disturbance"] for one in row["tries"] if one["struck"]]
    faults = sum(row["call_faults"].values())
    return (
        f"{row['seed']:5d} {len(row['tries']):5d} {row['jobs_created']:5d}"
        f" {row['jobs_completed']:5d} {faults:6d} {row['wall_seconds']:7.1f}  {verdict:<7} "
        f" {'; '.join(struck) or 'none reached'}"
    )


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts over all runs: disturbances, faults by kind, and tries that failed unaided."""
    tries = [one for row in rows for one in row["tries"]]
    faults: Counter[str] = Counter()
    for row in rows:
        faults.update(row["call_faults"])
    own_failures = [one for one in tries if not one["struck"] and one["exit_code"] != 0]
    return {
        "runs": len(rows),
        "broken_runs": sum(bool(row["broken"]) for row in rows),
        "tries": len(tries),
        "tries_that_failed_by_themselves": len(own_failures),
        "struck": dict(Counter(one["disturbance"].split()[0] for one in tries if one["struck"])),
        "faults": dict(faults),
        "jobs_created": sum(row["jobs_created"] for row in rows),
        "jobs_completed": sum(row["jobs_completed"] for row in rows),
        "calls": sum(row["calls"] for row in rows),
    }


def _result(
    rows: Sequence[Mapping[str, Any]],
    undisturbed: Evidence,
    options: argparse.Namespace,
    began: float,
) -> dict[str, Any]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(one.ru_utime + one.ru_stime for one in used)
    runs = len(rows) + 1
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "summary": _summary(rows),
        "undisturbed_seconds": round(undisturbed.seconds, 1),
        "at_once": options.at_once,
        "seconds_per_seed": {
            "wall": round((time.monotonic() - began) / runs, 1),
            "cpu": round(cpu_seconds / runs, 1),
        },
        "machine": {
            "cores": os.cpu_count(),
            "load_average_1_minute": os.getloadavg()[0],
            "python": platform.python_version(),
            **{name: version(name) for name in ("boto3", "prefect", "moto")},
        },
        "columns": _HEADINGS,
        "runs": [_line(row) for row in sorted(rows, key=lambda row: int(row["seed"]))],
        "broken": [row for row in rows if row["broken"]],
    }


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description="Chaos runs of a simulated sweep."
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=range(50),
        help="one seed, or FIRST:END[:STEP] without END (default: 0:50)",
    )
    parser.add_argument(
        "--at-once", type=_at_once, default=1, help="number of runs at the same time (1)"
    )
    parser.add_argument("--work-dir", type=Path, help="keep the folders of all runs in this folder")
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


def _seeds(text: str) -> range:
    parts = text.split(":")
    if len(parts) > 3 or not all(part.isdigit() for part in parts) or parts[2:] == ["0"]:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither FIRST:END[:STEP] nor a seed; 2:50:3 selects only the Spark runs"
        )
    first, *rest = map(int, parts)
    seeds = range(first, *rest) if rest else range(first, first + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} contains no seed: END must be above FIRST")
    return seeds


def _at_once(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs: 1 to 64")
    return int(text)


if __name__ == "__main__":
    # Imported by name, because a spawned process cannot find objects in a package's __main__.
    from benchmarks.chaos.__main__ import main as run_main

    sys.exit(run_main(sys.argv[1:]))
