"""Sweeps that are stopped or interrupted on the simulated engine: their jobs end, and no further
job begins."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import CancelledRun
from prefect.states import Paused, State

import nodesweep.flows.stages.sweep
import nodesweep.tasks.cancelling
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_for_end, wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import SweepStopped
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stop import stop_sweep
from nodesweep.launch.registry import backend_of
from nodesweep.scaling import names
from nodesweep.tasks.calls import prepare_store
from nodesweep.tasks.sweeps.claims import mark_sweep_stopped
from tests.flows.simulated_sweep import begin_as, kept_records
from tests.flows.test_pipeline import jobs_of

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


@pytest.mark.drawn
def test_interrupted_sweep_stops_its_jobs(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    config = pipeline_config("endless", sweep={"node_counts": [1]})
    monkeypatch.setattr("nodesweep.flows.stages.sweep.watch_training_jobs", interrupt)
    sweep = "bench-20261120000000-" + names.config_digest(config)[:8]
    with pytest.raises(CancelledRun):
        begin_as(config, sweep)
    [job] = jobs_of(served, sweep)
    assert wait_for_end(served.sagemaker, job)["TrainingJobStatus"] == "Stopped"


def test_run_that_is_paused_without_a_new_process_is_cancelled_and_stops_its_jobs(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodesweep.tasks.cancelling, "POLL_SECONDS", 0.05)
    config = pipeline_config("endless", sweep={"node_counts": [1]})
    sweep = "bench-20261120000002-" + names.config_digest(config)[:8]
    raised: list[BaseException] = []

    def run() -> None:
        try:
            begin_as(config, sweep)
        except CancelledRun as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: jobs_of(served, sweep) or not thread.is_alive())
    [kept] = kept_records(sweep).flow_runs
    with get_client(sync_client=True) as client:
        paused: State[None] = Paused(timeout_seconds=3600, reschedule=False)
        answer = client.set_flow_run_state(UUID(kept["id"]), paused)
    assert answer.status.value == "ACCEPT"
    thread.join(HANG_SECONDS)
    if thread.is_alive():
        stop_sweep(sweep, config)  # so that the process can exit
    assert len(raised) == 1
    [kept] = kept_records(sweep).flow_runs
    assert kept["state"]["type"] == "CANCELLED"
    [job] = jobs_of(served, sweep)
    assert wait_for_end(served.sagemaker, job)["TrainingJobStatus"] == "Stopped"


@pytest.mark.drawn
def test_stop_flow_stops_what_runs(served: SimpleNamespace, pipeline_config: Configs) -> None:
    config = pipeline_config("endless", sweep={"node_counts": [1]})
    result: dict[str, Any] = {}
    sweep = "bench-20261120000001-" + names.config_digest(config)[:8]

    def run() -> None:
        try:
            begin_as(config, sweep)
        except SweepStopped as error:
            result["refused"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: jobs_of(served, sweep) or not thread.is_alive())
        assert stop_sweep(sweep, config) == jobs_of(served, sweep)
    finally:
        thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    report, _ = report_sweep(sweep, config)
    [point] = report.model_dump(mode="json")["points"]
    assert (point["status"], point["reason"]) == ("Stopped", "stopped on request")
    assert "with 1 of" in str(result["refused"])


def test_stopped_sweep_runs_no_further_point_until_it_is_resumed(
    served: SimpleNamespace,
    pipeline_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = pipeline_config("scaling", sweep={"order": "ascending"})
    sweep = "bench-20261120000002-" + names.config_digest(config)[:8]
    watch = nodesweep.flows.stages.sweep.watch_training_jobs

    def watch_then_stop(*args: Any, **kwargs: Any) -> Any:
        ended = watch(*args, **kwargs)
        stop_sweep(sweep, config)
        return ended

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", watch_then_stop)
    with pytest.raises(
        SweepStopped,
        match=f"{sweep} .* with 2 of .*--resume {sweep}",
    ):
        begin_as(config, sweep)
    assert len(jobs_of(served, sweep)) == 1
    kept = json.loads((tmp_path / "reports" / sweep / "report.json").read_text())
    assert [(point["nodes"], point["status"]) for point in kept["points"]] == [(1, "Completed")]
    monkeypatch.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", watch)
    assert scaling_benchmark(config, sweep_id=sweep).missing_points == 0


def test_sweep_that_is_stopped_before_its_first_job_submits_none(
    served: SimpleNamespace, pipeline_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    config = pipeline_config("scaling")
    sweep = "bench-20261120000003-" + names.config_digest(config)[:8]
    prepare_store(backend_of(config.platform).store)
    assert stop_sweep(sweep, config) == []
    assert f"no sweep {sweep}" in caplog.text
    with pytest.raises(SweepStopped, match="with 3 of"):
        begin_as(config, sweep)
    assert jobs_of(served, sweep) == []
    caplog.clear()
    assert stop_sweep(sweep, config) == []
    assert "has begun" not in caplog.text


def test_job_submitted_while_the_sweep_is_being_stopped_is_stopped(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config("endless", sweep={"node_counts": [1]})
    sweep = "bench-20261120000004-" + names.config_digest(config)[:8]
    submit = nodesweep.flows.stages.sweep.submit_training_job

    def stop_then_submit(backend: Any, spec: Any) -> Any:
        mark_sweep_stopped(backend.store, sweep)
        return submit(backend, spec)

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "submit_training_job", stop_then_submit)
    with pytest.raises(SweepStopped):
        begin_as(config, sweep)
    [job] = jobs_of(served, sweep)
    assert (
        served.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"]
        == "Stopped"
    )


def test_running_jobs_are_stopped_even_where_the_mark_cannot_be_left(
    pipeline_config: Configs,
) -> None:
    config = pipeline_config("scaling", platform={"bucket": "bucket-that-was-deleted"})
    assert stop_sweep("bench-20261120000005-00000000", config) == []
