"""CloudWatch metrics of a job's nodes, read with an unmodified client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import (
    job_request,
    resources,
    wait_for_end,
    wait_for_phase,
    wait_until,
)
from infra.local.tests.platform_fakes import FakeEngine
from nodesweep.launch.sagemaker.utilisation import EMULATED_METRICS, read_utilisation
from sagemaker_emulator.interfaces import JobSpec, NodeAttainment, NodeUsage
from sagemaker_emulator.jobs import utilisation
from sagemaker_emulator.jobs.utilisation import (
    NodeMetrics,
    attained_per_cent,
    cpu_per_cent,
    machine_memory_bytes,
)
from sagemaker_emulator.training.metrics import NAMESPACE


def window(description: Mapping[str, Any]) -> tuple[datetime, datetime]:
    """Return the time in which the job had its nodes."""
    return description["TrainingStartTime"], description["TrainingEndTime"]


def values(platform: SimpleNamespace, host: str, metric: str) -> list[float]:
    """Return GetMetricData of one metric of one host over the last hour."""
    now = datetime.now(UTC)
    query = {
        "Namespace": NAMESPACE,
        "MetricName": metric,
        "Dimensions": [{"Name": "Host", "Value": host}],
    }
    answer = platform.cloudwatch.get_metric_data(
        MetricDataQueries=[
            {"Id": "m", "MetricStat": {"Metric": query, "Period": 60, "Stat": "Average"}}
        ],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
    )
    return list(answer["MetricDataResults"][0]["Values"])


class SampleClock:
    """A clock on which five seconds pass before each sample."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 5.0
        return self.seconds

    def usage_at_20_percent(self, job: JobSpec) -> dict[str, NodeUsage]:
        used = NodeUsage(0.1 * self.seconds, 2**20, 0.5)
        return {f"algo-{number}": used for number in range(1, job.instance_count + 1)}


def test_nodes_have_metrics_while_they_train(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utilisation, "_FIRST_SAMPLE_SECONDS", 0.1)
    samples = SampleClock()
    monkeypatch.setattr(utilisation, "time", samples)
    monkeypatch.setattr(FakeEngine, "usage", lambda engine, job: samples.usage_at_20_percent(job))
    platform.sagemaker.create_training_job(
        **job_request("metered", "endless", ResourceConfig=resources(2))
    )
    wait_for_phase(platform.sagemaker, "metered", "Training")
    for host in ("metered/algo-1", "metered/algo-2"):
        cpu, *_ = wait_until(lambda host=host: values(platform, host, "CPUUtilization"))
        assert cpu == pytest.approx(20.0)
        memory, *_ = values(platform, host, "MemoryUtilization")
        assert memory == pytest.approx(100 * 2**20 / machine_memory_bytes())
    assert values(platform, "metered/algo-3", "CPUUtilization") == []
    found = platform.cloudwatch.list_metrics(Namespace=NAMESPACE, MetricName="CPUUtilization")[
        "Metrics"
    ]
    assert {"Name": "Host", "Value": "metered/algo-1"} in [
        metric["Dimensions"][0] for metric in found
    ]
    platform.sagemaker.stop_training_job(TrainingJobName="metered")
    wait_for_end(platform.sagemaker, "metered")


def test_whether_nodes_were_connected_is_written_while_they_train(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utilisation, "_FIRST_SAMPLE_SECONDS", 0.1)
    usage = {
        host: NodeUsage(1.0, 0, 0.5, is_connected)
        for host, is_connected in (("algo-1", True), ("algo-2", False), ("algo-3", None))
    }
    monkeypatch.setattr(FakeEngine, "usage", lambda engine, job: usage)
    platform.sagemaker.create_training_job(
        **job_request("talking", "endless", ResourceConfig=resources(3))
    )
    wait_until(lambda: values(platform, "talking/algo-3", "MemoryUtilization"))
    # one value per minute of the day
    assert set(values(platform, "talking/algo-1", "NodesConnected")) == {100.0}
    assert set(values(platform, "talking/algo-2", "NodesConnected")) == {0.0}
    assert values(platform, "talking/algo-3", "NodesConnected") == []
    platform.sagemaker.stop_training_job(TrainingJobName="talking")
    description = wait_for_end(platform.sagemaker, "talking")
    found = read_utilisation(
        platform.cloudwatch, "talking", 3, *window(description), EMULATED_METRICS
    )
    assert found["connected_percent"] == 50.0


def test_cpu_is_in_per_cent_of_the_nodes_vcpus() -> None:
    before = NodeUsage(cpu_seconds=10.0, memory_bytes=0, vcpus=0.2)
    assert cpu_per_cent(100.0, before, 105.0, NodeUsage(10.5, 0, 0.2)) == pytest.approx(50.0)
    # a process ended unnoticed
    assert cpu_per_cent(100.0, before, 105.0, NodeUsage(9.0, 0, 0.2)) == 0.0


def test_what_a_node_attained_is_in_per_cent() -> None:
    attained = NodeAttainment(100.0, 20.0, 6.0, 12.0, 80.0, 0.25)
    assert attained_per_cent(attained) == {
        "CPUAttained": 50.0,
        "CPUQuotaUsed": 30.0,
        "CPUThrottled": 25.0,
        "CPURunQueueDelay": 80.0,
    }
    assert attained_per_cent(NodeAttainment(100.0, 20.0, 6.0, None, None, None)) == {
        "CPUQuotaUsed": 30.0
    }
    # asked nothing
    assert (
        attained_per_cent(NodeAttainment(100.0, 20.0, 0.0, 0.0, 0.0, 0.0))["CPUAttained"] == 100.0
    )


def test_what_the_nodes_attained_is_written_when_the_job_has_run(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    attained = {"algo-1": NodeAttainment(100.0, 20.0, 6.0, 12.0, 80.0, 0.25)}
    run = FakeEngine.run
    monkeypatch.setattr(FakeEngine, "run", lambda *given: replace(run(*given), attainment=attained))
    platform.sagemaker.create_training_job(**job_request("attained"))
    description = wait_for_end(platform.sagemaker, "attained")
    assert values(platform, "attained/algo-1", "CPUAttained") == [50.0]
    assert values(platform, "attained/algo-1", "CPURunQueueDelay") == [80.0]
    found = read_utilisation(
        platform.cloudwatch, "attained", 1, *window(description), EMULATED_METRICS
    )
    assert found["attained_percent"] == 50.0


def test_how_fast_the_cpus_were_is_in_per_cent_of_a_gigabyte() -> None:
    attained = NodeAttainment(100.0, 20.0, 6.0, None, None, None, cpu_speed=7.4e8)
    assert attained_per_cent(attained) == {"CPUQuotaUsed": 30.0, "CPUSpeed": pytest.approx(74.0)}


def test_what_the_nodes_attained_is_that_of_the_time_that_the_program_reports(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the program under the quota is not included."""
    whole = {"algo-1": NodeAttainment(100.0, 20.0, 6.0, 12.0, 80.0, 0.25)}
    of_training = {"algo-1": NodeAttainment(10.0, 2.0, 1.9, 2.0, 0.5, 0.25)}
    asked: list[tuple[float, float]] = []
    run = FakeEngine.run

    def within(*window: float) -> dict[str, NodeAttainment]:
        asked.append(window)
        return of_training

    def trained(engine: FakeEngine, job, nodes, on_line, *others):
        on_line("algo-1", "rank=0; train_seconds=10.0;", 1_010_000)
        result = run(engine, job, nodes, on_line, *others)
        return replace(result, attainment=whole, attainment_within=within)

    monkeypatch.setattr(FakeEngine, "run", trained)
    platform.sagemaker.create_training_job(**job_request("window"))
    wait_for_end(platform.sagemaker, "window")
    assert asked == [(1000.0, 1010.0)]
    assert values(platform, "window/algo-1", "CPUAttained") == [95.0]


def test_machine_memory(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemFree: 1 kB\nMemTotal:       16384 kB\n")
    assert machine_memory_bytes(path) == 16 * 2**20


def test_samples_that_fail_do_not_end_the_job(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("no /proc")

    with NodeMetrics(None, NAMESPACE, "job", broken, sample_seconds=0.01) as metrics:
        wait_until(lambda: "the metrics of its nodes could not be written" in caplog.text)
    assert metrics._samples.is_over and not metrics._samples._thread.is_alive()
