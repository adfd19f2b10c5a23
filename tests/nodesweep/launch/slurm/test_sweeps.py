"""The commands of nodesweep on a real cluster: a sweep from its plan to its report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.tests.platform_client import wait_until
from tests.nodesweep.launch.slurm.cluster import CODE, Cluster, running_cluster
from tests.nodesweep.launch.slurm.run_example import EXAMPLE

pytestmark = pytest.mark.slow
JOBS_DEADLINE_SECONDS = 600
SECRET = "words that only the program gets"
_PATIENCE_SECONDS = 100  # no node of a busy machine fails; MessageTimeout is 100 at most


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), _PATIENCE_SECONDS) as cluster:
        yield cluster


class Commands:
    """Runs nodesweep's commands with one config, and a home of their own."""

    def __init__(self, cluster: Cluster, folder: Path, **hyperparameters: Any) -> None:
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
        config["training"]["hyperparameters"] |= {"steps": 20, **hyperparameters}
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
        """Run a command, and return all that it prints."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=900)
        assert process.returncode == code, printed[-6000:]
        return printed

    def sweep(self) -> str:
        """The only sweep's id."""
        [folder] = self.reports.glob("*-*-*")
        return folder.name

    def report(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(
            (self.reports / self.sweep() / "report.json").read_text()
        )
        return result


def test_a_sweep_runs_and_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    commands = Commands(cluster, tmp_path)
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


def test_a_killed_and_stopped_sweep_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """A killed run leaves its job, which the next one adopts; a stop ends it."""
    go = tmp_path / "go"
    commands = Commands(cluster, tmp_path, **{"wait-for": str(go)})
    config = str(commands.config)

    def running() -> list[str]:
        found = [
            name.split(" ")[0]
            for name in cluster.command("squeue", "-h", "-t", "R", "-o", "%j").stdout.split("\n")
        ]
        return [name for name in found if commands.reports.is_dir() and commands.sweep() in name]

    first = commands.start("run", config)
    wait_until(lambda: commands.reports.is_dir() and running(), JOBS_DEADLINE_SECONDS)
    [job] = running()
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    sweep = commands.sweep()
    job_id = cluster.job_id(job)

    second = commands.start("run", config, "--resume", sweep)
    owner = cluster.shared / "nodesweep" / "sweeps" / sweep / "owner.json"
    written = owner.stat().st_mtime_ns
    wait_until(lambda: owner.stat().st_mtime_ns != written, JOBS_DEADLINE_SECONDS)
    assert running() == [job] and cluster.job_id(job) == job_id
    assert job in commands.run("stop", sweep, "--config", config)
    printed, _ = second.communicate(timeout=JOBS_DEADLINE_SECONDS)
    assert second.returncode == 1, printed[-6000:]
    assert "was stopped" in printed and running() == []

    go.touch()
    commands.run("run", config, "--resume", sweep)
    completed = {each["nodes"] for each in commands.report()["points"] if each["used"]}
    assert completed == {1, 2, 4}
