"""training.baseline_seconds through the whole flow: the first run counts the steps, the other runs
make the same number, and the report says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import nodesweep.flows.detach
from infra.local.tests.platform_client import wait_for_end
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RunFailed
from nodesweep.flows.collect import collect_sweep
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.scaling_benchmark import SweepResult, scaling_benchmark
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.workload import sized_steps
from tests.flows.simulated_sweep import COMPLETED, SMALL, ledger, measure

pytestmark = pytest.mark.usefixtures("prefect")
SIZED = {**SMALL, "baseline_seconds": 60}
MODEL = {"noise_sigma": 0.0, "serial_share": 0.0, "gradient_bytes": 0, "latency_seconds": 0}


@pytest.mark.pages
def test_every_job_makes_the_steps_that_one_node_makes_in_the_seconds(
    simulated: Callable[..., Any], sweep_config: Callable[..., BenchmarkConfig]
) -> None:
    """A step of 1,024 of a million samples of 600 s takes 0.6144 s: 98 of them 60.2 s."""
    with simulated(model=MODEL) as served:
        config = sweep_config(served, training=SIZED, sweep={"max_parallel_jobs": 3})
        result = scaling_benchmark(config)
        written = json.loads((result.folder / "report.json").read_text())
        assert ledger(served) == COMPLETED
        again = scaling_benchmark(config, sweep_id=result.sweep_id)
        assert ledger(served) == COMPLETED, "a resume finds all of them"
    seconds = {each["nodes"]: each["clocks"]["train_seconds"] for each in written["points"]}
    assert seconds == pytest.approx({1: 60.2, 2: 30.1, 4: 15.05}, rel=0.01)
    [said] = [caveat for caveat in written["caveats"] if caveat.startswith("Sized: ")]
    assert "98 steps" in said and "1 min 0 s" in said
    assert said in again.report.caveats


def test_sweep_whose_first_run_failed_starts_no_other_and_goes_on_by_resume(
    simulated: Callable[..., Any], sweep_config: Callable[..., BenchmarkConfig]
) -> None:
    fault = {"fault": "internal_error", "after_seconds": 1, "jobs": "*-n1-r1-a1-*"}
    with simulated(fault, model=MODEL) as served:
        sweep = {"node_counts": [1, 2], "max_attempts": 1}
        config = sweep_config(served, training=SIZED, sweep=sweep)
        first = measure(config)
        assert ledger(served) == [(1, 1, "Failed")]
        assert first.missing_points == 2
        resumed = scaling_benchmark(config, sweep_id=first.sweep_id)
        assert [status for *_, status in ledger(served)] == ["Failed", *["Completed"] * 2]
    assert resumed.missing_points == 0


def test_detached_jobs_make_the_steps_of_the_first_one_and_start_once_it_has_completed(
    simulated: Callable[..., Any],
    sweep_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between: list[SweepResult | None] = []

    def collect_between_two_jobs(
        config: BenchmarkConfig, ended: Sequence[JobOutcome]
    ) -> int | None:
        between.append(collect_sweep(ended[0].job_name, config))
        return sized_steps(config, ended)

    monkeypatch.setattr(nodesweep.flows.detach, "sized_steps", collect_between_two_jobs)
    with simulated(model=MODEL) as served:
        config = sweep_config(
            served, training=SIZED, sweep={"max_parallel_jobs": 3, "order": "shuffled"}
        )
        left = start_detached_sweep(config)
        assert left.refused == () and "-n1-" in left.job_names[0]
        jobs = [wait_for_end(served.sagemaker, name) for name in left.job_names]
        assert [job["Environment"]["NODESWEEP_RUN_STEPS"] for job in jobs[1:]] == ["98", "98"]
        assert jobs[0]["Environment"]["NODESWEEP_RUN_SECONDS"] == "60"
        collected = collect_sweep(left.sweep_id, config)
    assert between == [None]
    assert collected is not None and collected.missing_points == 0
    assert any("98 steps" in said for said in collected.report.caveats)


def test_detached_sweep_whose_first_run_failed_starts_no_other(
    simulated: Callable[..., Any], sweep_config: Callable[..., BenchmarkConfig]
) -> None:
    fault = {"fault": "internal_error", "after_seconds": 1, "jobs": "*-n1-r1-a1-*"}
    with simulated(fault, model=MODEL) as served:
        config = sweep_config(served, training=SIZED, sweep={"max_parallel_jobs": 3})
        with pytest.raises(RunFailed, match=r"-n1-r1-a1-.*failed"):
            start_detached_sweep(config)
        assert ledger(served) == [(1, 1, "Failed")]


def test_detached_sweep_whose_first_run_is_refused_says_why_the_others_are_not_started(
    simulated: Callable[..., Any], sweep_config: Callable[..., BenchmarkConfig]
) -> None:
    with simulated(model=MODEL, **{"ml.local.small": 0}) as served:
        config = sweep_config(served, training=SIZED, sweep={"max_parallel_jobs": 3})
        left = start_detached_sweep(config)
        assert ledger(served) == []
    assert left.job_names == ()
    assert "ResourceLimitExceeded" in left.refused[0]
    assert [said.partition(": ")[0] for said in left.refused[1:]] == [
        "2 nodes, repeat 1", "4 nodes, repeat 1",
    ]  # fmt: skip
    assert "1 node" in left.refused[1]
