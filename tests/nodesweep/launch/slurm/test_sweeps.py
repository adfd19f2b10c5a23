"""The commands of nodesweep on a real cluster: a sweep from its plan to its report, and sweeps that
are killed, interrupted or stopped at every step, and resumed (docs/ending.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.tests.platform_client import wait_until
from nodesweep.cli.session import PREFECT_DEFAULTS
from nodesweep.scaling import names
from tests.nodesweep.launch.slurm.cluster import CODE, EIGHT, FOUR, Cluster, running_cluster
from tests.nodesweep.launch.slurm.run_example import EXAMPLE
from tests.nodesweep.launch.slurm.strike import ASKED, GO, KILL_PARENT, Kind, name_in
from tests.processes.warm_process import Forked, WarmProcess, warm_process

pytestmark = pytest.mark.slow
JOBS_DEADLINE_SECONDS = 600
SECRET = "words that only the program gets"
_PATIENCE_SECONDS = 100  # no node of a busy machine fails; MessageTimeout is 100 at most


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), _PATIENCE_SECONDS) as cluster:
        yield cluster


class Commands:
    """Runs nodesweep's commands with one config and a separate home folder."""

    def __init__(self, cluster: Cluster, folder: Path, steps: int = 20) -> None:
        self.reports, self._folder = folder / "reports", folder
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "numbers.txt").write_text("1 2 3\n")
        config = yaml.safe_load(EXAMPLE.read_text())
        config["name"] = folder.name.replace("_", "-")[:20].strip("-")
        config["dataset"] = {"name": "numbers", "source": "data", "format": "files"}
        config["training"] |= {"source_dir": str(CODE), "entry_point": "sweep.py"}
        config["training"]["environment"] = {"DB_PASSWORD": SECRET}
        config["training"]["max_runtime_seconds"] = 3 * JOBS_DEADLINE_SECONDS
        config["training"]["hyperparameters"]["steps"] = steps
        config["sweep"] |= {"order": "ascending", "poll_interval_seconds": 0.5}
        config["report"] = {"directory": str(self.reports)}
        config["platform"] |= {
            "folder": str(cluster.shared),
            "node": {"cores": 1, "usd_per_hour": 2.0},
            "setup": [f"export PATH={Path(sys.executable).parent}:$PATH"],
        }
        self.config = folder / "slurm.yaml"
        self.config.write_text(yaml.safe_dump(config))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "PREFECT_HOME": str(self._folder / "prefect"),
            "HOME": str(self._folder),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "nodesweep", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self._folder,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command, and return its output."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=900)
        assert process.returncode == code, printed[-6000:]
        return printed

    def sweep(self) -> str:
        """The ID of the only sweep."""
        [folder] = self.reports.glob("*-*-*")
        return folder.name

    def report(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(
            (self.reports / self.sweep() / "report.json").read_text()
        )
        return result


def test_a_sweep_runs_and_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    # On 4 nodes it lasts over a second, as Slurm's times are whole ones and 0 s cost nothing known.
    commands = Commands(cluster, tmp_path, steps=80)
    config = str(commands.config)
    assert "cost bound:" in commands.run("plan", "--online", config)
    printed = commands.run("requests", config)
    assert "masked here, but sent unmasked: script" in printed and SECRET not in printed
    requests, _ = json.JSONDecoder().raw_decode(printed)
    assert [re.findall(r"--nodes=(\d)\n", each["script"]) for each in requests] == [
        ["1"], ["2"], ["4"],
    ]  # fmt: skip

    commands.run("run", config)
    report = commands.report()
    assert report["platform"] == {
        "kind": "slurm", "isolation": "whole nodes (--exclusive)", "instance_type": "one-core",
        "cluster": "my-cluster",
    }  # fmt: skip
    points = {point["nodes"]: point for point in report["points"]}
    assert sorted(points) == [1, 2, 4]
    assert {point["status"] for point in points.values()} == {"Completed"}
    assert all(point["clocks"]["train_seconds"] > 0 for point in points.values())
    assert report["price"]["usd_per_hour"] == 2.0
    assert all(point["costs"]["billing_hours"] > 0 for point in points.values())
    assert report["conditions"]["dataset_digest"]
    assert (
        "Slurm cluster my-cluster, one-core" in (commands.reports / "latest/report.md").read_text()
    )

    sweep = commands.sweep()
    log = commands.run("logs", sweep, "--config", config)
    assert "n4-r1-a1 node-3 world_size=4;" in log and "data: numbers.txt" in log
    commands.run("report", sweep, "--config", config)
    again = commands.report()
    assert again["points"] == report["points"]
    saved = [path.read_text() for path in (commands.reports / sweep / "logs").iterdir()]
    assert any("password: (hidden)" in text for text in [*saved, log])
    assert not any(SECRET in text for text in [*saved, log])


MODULES = (
    "nodesweep.flows.scaling_benchmark",
    "nodesweep.flows.stop",
    "nodesweep.launch.slurm.backend",
    "nodesweep.scaling.report.render",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "tests.nodesweep.launch.slurm.strike",
)
"""Modules that `nodesweep run` and `stop` import."""
PROGRAM = "from tests.nodesweep.launch.slurm.strike import main; main()"
SBATCH = """\
#!/bin/sh
[ -e {mark} ] && rm {mark} && kill -9 $PPID
exec {sbatch} "$@"
"""
MOST_TRIES = 100
ENDED = "ended"
"""File in a sweep's folder: a run that was struck has ended a job."""
COMPLETED = Counter([(1, "COMPLETED"), (2, "COMPLETED")])


@pytest.fixture(scope="module")
def forks(cluster: Cluster, prefect: None) -> Iterator[WarmProcess]:
    """A process that has imported nodesweep, to fork from, with these tests' Prefect server."""
    from prefect.settings import PREFECT_API_URL

    folder = cluster.folder / "bin"
    folder.mkdir()
    mark = cluster.folder / KILL_PARENT
    (folder / "sbatch").write_text(SBATCH.format(mark=mark, sbatch=shutil.which("sbatch")))
    (folder / "sbatch").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PREFECT_DEFAULTS.items():
            patch.setenv(name, value)
        patch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        with warm_process(*MODULES) as process:
            yield process


class Struck:
    """A sweep over 1 and 2 nodes that is struck and resumed until a run ends by itself."""

    def __init__(
        self,
        cluster: Cluster,
        forks: WarmProcess,
        folder: Path,
        wait_for: str = "",
        max_runtime_seconds: int = 3 * JOBS_DEADLINE_SECONDS,
        **sweep: Any,
    ) -> None:
        self._cluster, self._forks, self._folder = cluster, forks, folder
        self.commands = Commands(cluster, folder)
        config = yaml.safe_load(self.commands.config.read_text())
        config["sweep"] |= {"node_counts": [1, 2], **sweep}
        config["training"]["hyperparameters"]["wait-for"] = wait_for and str(folder / wait_for)
        config["training"]["max_runtime_seconds"] = max_runtime_seconds
        config["dataset"] = "none"
        config["name"] = self._name = name_in(folder)
        self.commands.config.write_text(yaml.safe_dump(config))
        (folder / "struck").touch()
        self.output = ""

    @property
    def steps(self) -> list[str]:
        """The steps at which a run was struck."""
        return (self._folder / "struck").read_text().splitlines()

    @property
    def sweep(self) -> str | None:
        """The recorded sweep; None before its record is written."""
        sweeps = self._cluster.shared / "nodesweep" / "sweeps"
        found = sorted(sweeps.glob(f"{self._name}-*/config.json"))
        return found[-1].parent.name if found else None

    def start(self, kind: Kind, *arguments: str) -> Forked:
        """Start a command that is struck at a new step."""
        places = (str(self._folder), str(self._cluster.shared))
        return self._forks.start(PROGRAM, kind, *places, *arguments)

    def run(self, *kinds: Kind) -> None:
        """Run the sweep, and resume it until a run is not struck; `kinds` take turns."""
        for number in range(MOST_TRIES):
            before, sweep = len(self.steps), self.sweep
            kind = kinds[number % len(kinds)]
            if kind == "stop" and sweep is None:
                kind = "sigint"  # there is nothing to stop yet
            resume = [] if sweep is None else ["--resume", sweep]
            run = self.start(kind, "run", str(self.commands.config), *resume)
            if kind == "stop":
                self._stop(run, str(sweep))
            code = run.wait(JOBS_DEADLINE_SECONDS)
            self.output = run.output("stderr")[-6000:]
            if len(self.steps) == before:
                if kind == "sigint, kill" and code != 0:  # it ended all its jobs
                    kinds = ("nothing",)
                    (self._folder / GO).touch()
                    continue
                assert code == 0, self.output
                return
            assert code == -signal.SIGKILL or "kill" not in kind, self.output
            if kind in ("sigint", "sigterm", "stop", "timeout") and self.sweep is not None:
                assert self._cluster.running(self.sweep) == [], (self.steps[-1], self.output)
                if list(self._cluster.shared.glob(f"{self.sweep}-n*/job.json")):
                    (self._folder / ENDED).touch()
            if kind != "kill in sbatch":  # in which it still is
                self._forget_unsent()
            if any(job["JobState"] == "TIMEOUT" for job in self._cluster.ended(str(self.sweep))):
                (self._folder / GO).touch()
        raise AssertionError(f"struck {MOST_TRIES} times: {self.steps}")

    def _stop(self, run: Forked, sweep: str) -> None:
        """Stop the sweep by another command; the struck run continues at the mark of that
        command."""
        asked, go = self._folder / ASKED, self._folder / GO
        wait_until(lambda: asked.exists() or run.poll() is not None, JOBS_DEADLINE_SECONDS)
        if not asked.exists():
            return
        mark = self._cluster.shared / "nodesweep" / "sweeps" / sweep / "stopped.json"
        before = mark.read_bytes() if mark.exists() else None
        stop = self.start("nothing", "stop", sweep, "--config", str(self.commands.config))
        wait_until(lambda: mark.exists() and mark.read_bytes() != before)
        go.touch()
        assert stop.wait(JOBS_DEADLINE_SECONDS) == 0, stop.output("stderr")
        run.wait(JOBS_DEADLINE_SECONDS)
        asked.unlink()
        go.unlink()

    def _forget_unsent(self) -> None:
        """Age the claims of jobs that were not sent, instead of waiting for sbatch's deadline."""
        for claim in self._cluster.shared.glob(f"{self._name}-*/job.sh"):
            if not self._is_sent(claim.parent):
                os.utime(claim, (0, 0))

    def _is_sent(self, job: Path) -> bool:
        return (job / "job.json").exists() or bool(self._cluster.running(str(self.sweep)))

    def report(self) -> dict[str, Any]:
        """Return the sweep's report."""
        path = self.commands.reports / str(self.sweep) / names.REPORT_JSON
        return dict(json.loads(path.read_text()))

    def jobs(self) -> Counter[tuple[int, str]]:
        """The number of jobs by their nodes and state, of all of the sweep's that Slurm had."""
        sweep = str(self.sweep)
        wait_until(lambda: self._cluster.running(sweep) == [])
        submitted = list((self._cluster.shared).glob(f"{sweep}-n*/job.json"))
        wait_until(lambda: len(self._cluster.ended(sweep)) >= len(submitted))
        ended = self._cluster.ended(sweep)
        assert len({job["Name"] for job in ended}) == len(ended), "two jobs of a name"
        keys = [(names.parse_job_name(job["Name"]), job["JobState"]) for job in ended]
        return Counter((key.nodes, state) for key, state in keys if key is not None)


def facts_of(report: dict[str, Any]) -> dict[int, Any]:
    """Return, by node count, the facts that are equal in all reports of a sweep, whatever its
    times."""
    shared = ("nodes", "repeat", "status", "world_size", "global_batch_size")
    return {
        row["nodes"]: (
            row["n"],
            [
                {name: point[name] for name in shared}
                for point in report["points"]
                if point["used"] and point["nodes"] == row["nodes"]
            ],
        )
        for row in report["summary"]
    }


@pytest.fixture(scope="module")
def undisturbed(
    cluster: Cluster, forks: WarmProcess, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The report of an undisturbed sweep."""
    sweep = Struck(cluster, forks, tmp_path_factory.mktemp("undisturbed"))
    sweep.run("nothing")
    assert sweep.jobs() == COMPLETED
    return sweep.report()


def test_a_killed_sweep_has_the_jobs_of_an_undisturbed_one(
    cluster: Cluster, forks: WarmProcess, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    sweep = Struck(cluster, forks, tmp_path)
    sweep.run("kill")
    assert {"sbatch n2", "job.json n2", "ended.json n2", names.REPORT_JSON} <= set(sweep.steps)
    assert sweep.jobs() == COMPLETED
    assert facts_of(sweep.report()) == facts_of(undisturbed)


def test_a_sweep_that_is_killed_while_it_submits_has_no_job_twice(
    cluster: Cluster, forks: WarmProcess, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    sweep = Struck(cluster, forks, tmp_path)
    sweep.run("kill in sbatch")
    assert sweep.steps == ["sbatch n1", "sbatch n2"]
    assert sweep.jobs() == COMPLETED
    assert facts_of(sweep.report()) == facts_of(undisturbed)


@pytest.mark.parametrize(
    ("kinds", "wait_for"),
    [
        pytest.param(("sigint", "sigterm", "stop"), ENDED, id="ended"),
        pytest.param(("timeout",), ENDED, id="out of time"),
        pytest.param(("sigint, kill",), GO, id="killed while it ends"),
    ],
)
def test_an_ended_sweep_leaves_no_job_and_is_resumed(
    cluster: Cluster,
    forks: WarmProcess,
    tmp_path: Path,
    undisturbed: dict[str, Any],
    kinds: tuple[Kind, ...],
    wait_for: str,
) -> None:
    """Of one point, since each stopped attempt adds steps."""
    sweep = Struck(cluster, forks, tmp_path, wait_for, node_counts=[1])
    sweep.run(*kinds)
    assert {"stopped n1", "scancel"} <= set(sweep.steps) or kinds[0] != "sigint, kill"
    jobs = sweep.jobs()
    assert jobs.pop((1, "COMPLETED")) == 1 and set(jobs) == {(1, "CANCELLED")}
    assert facts_of(sweep.report()) == {1: facts_of(undisturbed)[1]}


def test_a_sweep_that_is_killed_while_a_job_times_out_gives_its_point_another_attempt(
    cluster: Cluster, forks: WarmProcess, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Slurm's shortest limit is a minute; the second attempt does not wait."""
    sweep = Struck(cluster, forks, tmp_path, GO, max_runtime_seconds=60, node_counts=[1])
    sweep.run("kill")
    assert {"ended.json n1", "squeue, running: n1, ended: n1", names.REPORT_JSON} <= {*sweep.steps}
    assert sweep.jobs() == Counter([(1, "TIMEOUT"), (1, "COMPLETED")])
    report = sweep.report()
    assert facts_of(report) == {1: facts_of(undisturbed)[1]}
    assert [point["reason"] for point in report["points"] if not point["used"]] == [
        "MaxRuntimeExceeded: the job reached its time limit"
    ]


def test_variants_run_on_the_nodes_that_they_name(
    cluster: Cluster, forks: WarmProcess, tmp_path: Path
) -> None:
    settings = {
        "training.instance_type": "big", "platform.partition": EIGHT,
        "platform.node": {"cores": 1, "usd_per_hour": 4.0},
    }  # fmt: skip
    sweep = Struck(
        cluster, forks, tmp_path, node_counts=[1], variants=[{"name": "big", "set": settings}]
    )
    sweep.run("nothing")
    assert sweep.jobs() == Counter({(1, "COMPLETED"): 2})
    keys = {
        key.arm: job["Partition"]
        for job in cluster.ended(str(sweep.sweep))
        if (key := names.parse_job_name(job["Name"])) is not None
    }
    assert keys == {"a": FOUR, "b": EIGHT}
    comparison = sweep.report()["instances"]
    assert comparison["instance_types"] == ["one-core", "big"]
    prices = {arm["variant"]: arm["usd_per_hour"] for arm in comparison["arms"]}
    assert prices == {"base": 2.0, "big": 4.0}
