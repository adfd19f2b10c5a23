"""Measure the cost of the full, sequential and probe designs on the local platform.

    .venv/bin/python -m benchmarks.local_platform.designs [--repeats 3] [--batch 16384]
        [--epochs 10] [--precision 0.02] [--min-efficiency 0.6]
        [--designs full sequential probe] [--state-directory FOLDER]
        [--full-report REPORT.json] [--output FILE.json]

The same training is swept by `nodesweep run`. Program and nodes are those of configs/local.yaml,
with smaller batches and more epochs, because its 16 steps are fewer than a probe needs.
Node-seconds are nodes x billed seconds over all jobs of a sweep, including start-up, as a share of
the full design's. Trained node-seconds are nodes x seconds on the train clock, without start-up.
Nothing else should run meanwhile; contended nodes are named by the report, and here.

- full: --repeats runs of 1, 2, 4 and 8 nodes;
- sequential: at most as many;
- probe: one probe per count, and the validation run.

--full-report takes the full design's report from an interrupted run, of the same options and on the
same machine shortly before, instead of running its 20 jobs. Then the sequential rule is replayed on
the full design's runs, in the order of their repeats, for other limits of efficiency.

Exit code 1 if a design recommends another count than the full one, or exceeds its share: 60% of the
node-seconds for sequential, 25% for probe.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos.world import REPOSITORY
from benchmarks.dated_result import store_result
from benchmarks.ports import free_port
from nodesweep.configs.models import RecommendationConfig
from nodesweep.scaling.design.sequential import Limits, replay

CONFIG = REPOSITORY / "configs" / "local.yaml"
REPLAYED_LIMITS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
MOST_SHARE: Mapping[str, float] = {"full": 1.0, "sequential": 0.60, "probe": 0.25}
_RUN_SECONDS = 7200.0


@dataclass(frozen=True)
class Swept:
    """One sweep of a design; `check_difference` of a probe is measured / projected - 1."""

    design: str
    jobs: int
    node_seconds: float
    share: float
    trained_node_seconds: float
    trained_share: float
    recommended: int | None
    train_seconds: dict[int, float]
    check_difference: float | None
    check_error_share: float | None
    starved: bool
    wall_seconds: float | None
    """None for a report passed by --full-report."""

    @property
    def keeps_share(self) -> bool:
        """True if the design stays within its share of node-seconds."""
        return self.share <= MOST_SHARE[self.design]


def settings_of(design: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields in which a design's config differs from configs/local.yaml."""
    amount = {
        "training.batch.size": options.batch,
        "training.hyperparameters.epochs": options.epochs,
        "training.hyperparameters.passes-per-epoch": 320,
        "training.max_runtime_seconds": 3600,
        "sweep.order": "shuffled",
        "sweep.design": design,
        "name": f"designs-{design}",
    }
    if options.min_efficiency is not None:
        amount["report.recommendation.min_efficiency"] = options.min_efficiency
    own: Mapping[str, dict[str, Any]] = {
        "full": {"sweep.repeats": options.repeats},
        "sequential": {"sweep.repeats": 3, "sweep.max_repeats": options.repeats},
        "probe": {"sweep.repeats": 1, "sweep.probe.precision": options.precision},
    }
    return amount | own[design]


def sweep(design: str, folder: Path, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one sweep; return its report.json, with the seconds that the command took."""
    settings = settings_of(design, options) | {
        "platform.endpoint_url": f"http://127.0.0.1:{port}",
        "platform.state_directory": str(options.state_directory or folder / "platform"),
        "report.directory": str(folder / "reports" / design),
    }
    command = [sys.executable, "-m", "nodesweep", "run", str(CONFIG)]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "PREFECT_HOME": str(folder / "prefect")},
        capture_output=True, text=True, timeout=_RUN_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(
            f"the {design} sweep ended with exit code {done.returncode}:\n{done.stderr}"
        )
    (path,) = (folder / "reports" / design).glob("designs-*/report.json")
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**report, "wall_seconds": time.perf_counter() - began}


def node_seconds(report: Mapping[str, Any]) -> float:
    """Return nodes x billed seconds over all jobs."""
    return sum(
        point["nodes"] * (point["clocks"]["billable_seconds"] or 0.0) for point in report["points"]
    )


def trained_node_seconds(report: Mapping[str, Any]) -> float:
    """Return nodes x train clock seconds over all jobs; for a probe, only its own training."""
    return sum(
        point["nodes"]
        * (
            point["projection"]["measured_seconds"]
            if "projection" in point
            else point["clocks"]["train_seconds"] or 0.0
        )
        for point in report["points"]
    )


def summarise(design: str, report: Mapping[str, Any], full: Mapping[str, Any]) -> Swept:
    """Summarize a design's report relative to `full`, the full design's report."""
    advice, check, spent = report["recommendation"], report.get("check"), node_seconds(report)
    chosen = advice and advice["chosen"]
    return Swept(
        design=design,
        jobs=len(report["points"]),
        node_seconds=round(spent, 1),
        share=round(spent / node_seconds(full), 4),
        trained_node_seconds=round(trained_node_seconds(report), 1),
        trained_share=round(trained_node_seconds(report) / trained_node_seconds(full), 4),
        recommended=chosen and chosen["nodes"],
        train_seconds={
            row["nodes"]: round(row["clocks"]["train"]["seconds"], 2)
            for row in report["summary"]
            if row["clocks"]["train"]["seconds"] is not None
        },
        check_difference=check and check["difference"],
        check_error_share=check
        and check["error_seconds"]
        and check["error_seconds"] / check["projected_seconds"],
        starved=any("starved" in row["flags"] for row in report["summary"]),
        wall_seconds=round(report["wall_seconds"], 1) if "wall_seconds" in report else None,
    )


def replayed(full: Mapping[str, Any], min_efficiency: float) -> dict[str, Any]:
    """Replay the sequential rule on a full design's runs.

    Returns:
        Its share of their node-seconds, and its result for each count it tested.
    """
    points = {
        (each["nodes"], each["repeat"]): each
        for each in full["points"]
        if each["clocks"]["train_seconds"]
    }
    times = {point: each["clocks"]["train_seconds"] for point, each in points.items()}
    limits = Limits(min_efficiency, RecommendationConfig().min_doubling_ratio)
    counts = sorted({nodes for nodes, _ in times})
    went = replay(times, counts, limits, max(repeat for _, repeat in times))
    spent = node_seconds({"points": [points[point] for point in went.points]})
    return {
        "min_efficiency": min_efficiency,
        "jobs": len(went.points),
        "share": round(spent / node_seconds(full), 4),
        "answers": [each.text for each in went.answers],
    }


def line(swept: Swept) -> str:
    """Return one row of the printed table."""
    check = ""
    if swept.check_difference is not None:
        check = f"  check {swept.check_difference:+.1%}"
        if swept.check_error_share is not None:
            check += f" (error ± {swept.check_error_share:.1%})"
    times = ", ".join(f"{nodes}: {seconds:g}" for nodes, seconds in swept.train_seconds.items())
    return (
        f"{swept.design:>11} {swept.jobs:>5} {swept.node_seconds:>13.0f} {swept.share:>7.1%}"
        f" {swept.trained_share:>8.1%}"
        f" {swept.recommended!s:>12}  {times}{check}{'  CONTENDED' if swept.starved else ''}"
    )


def failures(all_swept: Sequence[Swept]) -> list[str]:
    """Return the missed targets."""
    wanted = all_swept[0].recommended
    found = [
        f"{each.design} recommends {each.recommended}, but the full design {wanted}"
        for each in all_swept
        if each.recommended != wanted
    ]
    return found + [
        f"{each.design} took {each.share:.1%}, more than {MOST_SHARE[each.design]:.0%}"
        for each in all_swept
        if not each.keeps_share
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep each design, then print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs per node count of the full design (3)"
    )
    parser.add_argument("--batch", type=int, default=16384, help="global batch (16384)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs (10)")
    parser.add_argument(
        "--precision", type=float, default=0.02, help="precision of the probe design (0.02)"
    )
    parser.add_argument(
        "--min-efficiency",
        type=float,
        help="minimum efficiency of a recommendation (default: nodesweep's)",
    )
    parser.add_argument(
        "--designs",
        nargs="+",
        choices=list(MOST_SHARE),
        default=list(MOST_SHARE),
        help="designs to run",
    )
    parser.add_argument(
        "--state-directory",
        type=Path,
        help="state folder of a platform that has built the image (default: a new platform)",
    )
    parser.add_argument(
        "--full-report", type=Path, help="use this report instead of running a full sweep"
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    options = parser.parse_args(argv)
    designs = ["full", *(name for name in options.designs if name != "full")]
    started = time.perf_counter()
    all_swept: list[Swept] = []
    print(
        f"{'design':>11} {'jobs':>5} {'node-seconds':>13} {'share':>7} {'trained':>8}"
        f" {'recommended':>12}  T in s"
    )
    full: dict[str, Any] | None = None
    replays: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nodesweep-designs-") as folder:
        port = free_port()
        for design in designs:
            if design == "full" and options.full_report:
                report = json.loads(options.full_report.read_text(encoding="utf-8"))
            else:
                report = sweep(design, Path(folder), port, options)
            full = full or report
            replays = replays or [replayed(full, limit) for limit in REPLAYED_LIMITS]
            all_swept.append(summarise(design, report, full))
            print(line(all_swept[-1]), flush=True)
            store_result(  # after each sweep, which takes minutes
                options.output, started, all_swept, repeats=options.repeats, batch=options.batch,
                epochs=options.epochs, precision=options.precision,
                min_efficiency=options.min_efficiency, cpus=os.cpu_count(),
                full_made_at=full["generated_at"],
                load_average_1_minute=round(os.getloadavg()[0], 2), missed=failures(all_swept),
                replayed=replays,
            )  # fmt: skip
    print("\nthe sequential rule on the full design's runs, by least efficiency:")
    for each in replays:
        limit, share = each["min_efficiency"], each["share"]
        print(f"{limit:>5.0%} {each['jobs']:>3} jobs {share:>6.1%}  {'; '.join(each['answers'])}")
    missed = failures(all_swept)
    print("\n".join(missed) or "every design recommends the same, within its share")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
