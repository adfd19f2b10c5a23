"""A job next to busy processes is reported as CPU-throttled, but less so if it has priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import (
    END_OF_MEASUREMENT,
    TIMES,
    Bench,
    OneImage,
    tell_end_of_measurement,
    write_image,
)
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host.cgroups import CpuQuotas
from sagemaker_emulator.engine.process.duty_cycle import process_cpu_seconds
from sagemaker_emulator.engine.process.engine import ProcessEngine

LEAST_ATTAINED = 1 / 1.05
"""Below this share, a scaling efficiency can be off by more than 5%."""
NEIGHBOURS_OF_A_CPU = 6
"""The nodes are one group to the scheduler, with the weight of one process; half of it is on each
of two CPUs.
"""
TRAIN = """
boot = pathlib.Path(os.environ["SM_BOOT_BARRIER_DIR"])
(boot / "ready").touch()
while not (boot / "go").exists(): time.sleep(0.01)
end = time.monotonic() + 4
while time.monotonic() < end: sum(range(1000))
(boot / "done").touch()
"""


@pytest.fixture
def busy_bench(tmp_path: Path, job, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    tell_end_of_measurement(monkeypatch)
    image = write_image(tmp_path / "image", SM_BOOT_BARRIER="1")
    engine = ProcessEngine(tmp_path / "state", OneImage(image), "http://127.0.0.1:1", times=TIMES)
    bench = Bench(engine, image, job)
    bench.program(TRAIN + END_OF_MEASUREMENT)
    yield bench
    engine.close()


@pytest.fixture
def neighbours() -> Iterator[None]:
    """Start processes that would use all of every CPU, each in a separate session.

    Where the kernel groups processes by session (autogroup), those of one session would share the
    weight of one process.
    """
    cpus = [cpu for cpu in sorted(os.sched_getaffinity(0)) for _ in range(NEIGHBOURS_OF_A_CPU)]
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(cpu)], start_new_session=True)
        for cpu in cpus
    ]
    wait_until(lambda: all(process_cpu_seconds(process.pid) > 0.1 for process in running))
    yield
    for process in running:
        process.kill()
        process.wait()


def shares(bench: Bench) -> list[float]:
    result = bench.run(nodes=2)
    assert result.failed_host is None
    found = [result.attainment[host].share for host in ("algo-1", "algo-2")]
    assert None not in found
    return [share for share in found if share is not None]


@pytest.mark.slow
def test_nodes_beside_busy_neighbours_are_starved_unless_they_come_first(
    busy_bench: Bench, neighbours: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of the nodes is compared to nodes without priority (64 times the weight of other
    processes), since other programs can use this machine, too.
    """
    if busy_bench.engine._quotas is None:
        assert busy_bench.run(nodes=2).attainment == {}
        return
    first = shares(busy_bench)
    # as if the kernel refused the weight
    monkeypatch.setattr(CpuQuotas, "_set_weight", lambda self, times: None)
    starved = shares(busy_bench)
    assert max(starved) < LEAST_ATTAINED
    assert min(first) > 2 * max(starved)
