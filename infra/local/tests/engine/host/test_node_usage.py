"""The resource usage of real node processes, and nodes that the platform kills."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import once
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host.node_usage import _counted_by, usage_by_host
from sagemaker_emulator.interfaces import NodeUsage

BUSY_CHILD = """
    child = "import time; block = bytearray(64 * 2**20); print('up', flush=True)\\nwhile True: pass"
    subprocess.run([sys.executable, "-ISc", child])
"""


@once
def test_usage_counts_all_of_a_nodes_processes(bench):
    bench.program(BUSY_CHILD)
    seen: list[dict[str, NodeUsage]] = []
    spec = replace(bench.job, instance_count=2)

    def look() -> None:
        wait_until(lambda: len(bench.lines) == 2)
        # the event of a node can follow its first line
        wait_until(lambda: len(bench.engine.usage(spec)) == 2)
        first = bench.engine.usage(spec)
        later = wait_until(lambda: _later(bench.engine.usage(spec), first))
        seen.extend([first, later])
        bench.stop.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    result = bench.run(nodes=2)
    watcher.join()
    assert result.stopped
    first, later = seen
    assert set(first) == {"algo-1", "algo-2"}
    for host in first:
        assert later[host].memory_bytes > 64 * 2**20
        assert later[host].vcpus == 0.2
    assert bench.engine.usage(spec) == {}


def _later(usage: dict[str, NodeUsage], first: dict[str, NodeUsage]) -> dict[str, NodeUsage] | None:
    """Return the usage after every node has used another 0.05 s of CPU time."""
    grown = all(usage[host].cpu_seconds >= first[host].cpu_seconds + 0.05 for host in first)
    return usage if grown else None


@once
def test_killed_node_fails_its_job(bench):
    bench.program("print('up'); time.sleep(600)")

    def on_line(host, text, milliseconds):
        bench.note(host, text, milliseconds)
        if (host, text) == ("algo-2", "up"):
            bench.engine.kill_node(bench.job, "algo-2")

    result = bench.run(nodes=2, on_line=on_line)
    assert result.failed_host == "algo-2"
    assert result.failure_reason.startswith("AlgorithmError: algo-2")
    bench.engine.kill_node(bench.job, "algo-2")  # nothing is running


def test_checkpoint_config_names_the_nodes_own_folder(bench):
    config = {"S3Uri": "s3://bucket/x", "LocalPath": "/opt/ml/checkpoints/deep"}
    bench.engine.prepare(replace(bench.job, checkpoint_config=config))
    [ml] = bench.engine._state_dir.glob("jobs/job-a/algo-1/ml")
    seen = json.loads((ml / "input" / "config" / "checkpointconfig.json").read_text())
    assert seen == {"S3Uri": "s3://bucket/x", "LocalPath": f"{ml}/checkpoints/deep"}
    bench.engine.prepare(bench.job)
    assert not (ml / "input" / "config" / "checkpointconfig.json").exists()


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        ("cpuacct.usage", "2500000000\n", 2.5),
        ("cpu.stat", "usage_usec 1500000\nuser_usec 1\n", 1.5),
        ("cpu.stat", "nr_periods 3\n", None),
    ],
)
def test_what_a_cgroup_counts(tmp_path: Path, name: str, text: str, seconds: float | None) -> None:
    (tmp_path / name).write_text(text)
    assert _counted_by(tmp_path) == seconds


def test_process_that_has_ended_uses_nothing() -> None:
    assert usage_by_host({"algo-1": 2**22 + 1}, {}, 0.2) == {"algo-1": NodeUsage(0.0, 0, 0.2)}
