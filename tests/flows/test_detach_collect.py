"""`run --detach` and `collect`: a sweep that no process waits for, through the served platform."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import wait_for_end, wait_until
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused, SweepNotFound
from nodesweep.flows.collect import collect_sweep
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling import names
from nodesweep.tasks.report.history import read_history_files
from nodesweep.tasks.sweeps.owner import SweepOwner, read_heartbeat
from tests.flows.simulated_sweep import held_jobs, ledger, nodesweep_run, write_config

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
ENDED = "Finished in state "


def jobs_of(served: SimpleNamespace, sweep: str) -> list[str]:
    listed = served.sagemaker.list_training_jobs(NameContains=names.job_prefix(sweep))[
        "TrainingJobSummaries"
    ]
    return sorted(job["TrainingJobName"] for job in listed)


def submissions(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Return the name of the last state of each submission's task run, by the task run's name."""
    return {
        record.__dict__["task_run_name"]: record.getMessage().removeprefix(ENDED).split("(")[0]
        for record in caplog.records
        if record.__dict__.get("task_run_name", "").startswith("train-")
        and record.getMessage().startswith(ENDED)
    }


def test_detached_sweep_is_collected_from_the_platform_alone(
    pipeline_config: Configs, served: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    config = pipeline_config("scaling", name="apart", sweep={"max_parallel_jobs": 3})
    sweep = start_detached_sweep(config)
    assert len(sweep.job_names) == 3 and sweep.refused == ()
    assert jobs_of(served, sweep.sweep_id) == sorted(sweep.job_names)
    assert submissions(caplog) == {f"train-{nodes}n-r1": "Submitted" for nodes in (1, 2, 4)}
    sign = read_heartbeat(BucketStore(config.platform, client=served.s3), sweep.sweep_id)
    assert sign is not None and sign.left_running, "a reaper would take its jobs for orphans"
    for name in sweep.job_names:
        assert wait_for_end(served.sagemaker, name)["TrainingJobStatus"] == "Completed"
    collected = collect_sweep(sweep.sweep_id, config)
    assert collected is not None
    assert (collected.planned_points, collected.missing_points) == (3, 0)
    assert [row.nodes for row in collected.report.summary] == [1, 2, 4]
    assert (collected.folder / names.REPORT_HTML).is_file()
    assert jobs_of(served, sweep.sweep_id) == sorted(sweep.job_names), "collecting starts none"


def test_collect_waits_for_the_last_job_and_counts_what_is_missing(
    pipeline_config: Configs, served: SimpleNamespace
) -> None:
    config = pipeline_config(
        "endless", name="patient", sweep={"node_counts": [1, 2], "max_parallel_jobs": 2}
    )
    sweep = start_detached_sweep(config)
    first, second = sweep.job_names
    assert collect_sweep(sweep.sweep_id, config) is None
    served.sagemaker.stop_training_job(TrainingJobName=first)
    wait_for_end(served.sagemaker, first)
    assert collect_sweep(sweep.sweep_id, config) is None, "the second one still runs"
    served.sagemaker.stop_training_job(TrainingJobName=second)
    wait_for_end(served.sagemaker, second)
    collected = collect_sweep(sweep.sweep_id, config)
    assert collected is not None
    assert (collected.planned_points, collected.missing_points) == (2, 2)


@pytest.mark.usefixtures("quiet")
def test_collect_leaves_a_sweep_to_its_run_even_between_two_jobs(
    simulated: Callable[..., Any],
    sweep_config: Configs,
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    with simulated() as served:
        config = sweep_config(
            served, sweep={"node_counts": [1]}, training={"keep_alive_seconds": 3600}
        )
        sweep = start_detached_sweep(config).sweep_id
        wait_until(lambda: ledger(served) == [(1, 1, "Completed")])
        store = BucketStore(config.platform, client=served.s3)
        resumed = SweepOwner(store, sweep)
        resumed.write_heartbeat()
        words = ["collect", sweep, "--config", str(write_config(config, tmp_path))]
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code == 1
        assert refused.output.splitlines()[-1].replace(sweep, "SWEEP") == snapshot
        [job] = served.sagemaker.list_training_jobs()["TrainingJobSummaries"]
        assert job["WarmPoolStatus"]["Status"] == "Available"
        assert read_history_files(store, config.name) == {}
        resumed.leave()
        collected = CliRunner().invoke(main, words)
        assert collected.exit_code == 0, collected.output
        assert len(read_history_files(store, config.name)) == 1


def test_points_that_would_have_to_queue_are_refused_before_anything_is_sent(
    pipeline_config: Configs, served: SimpleNamespace
) -> None:
    config = pipeline_config("scaling", name="queued", sweep={"max_parallel_jobs": 2})
    with pytest.raises(PreflightRefused, match=r"sweep\.max_parallel_jobs: got 2, .* 3 jobs"):
        start_detached_sweep(config)
    assert not served.sagemaker.list_training_jobs(NameContains="queued-")["TrainingJobSummaries"]


def test_detached_sweep_of_more_than_twenty_jobs_is_started_whole_as_the_refusal_advises(
    simulated: Callable[..., Any], sweep_config: Configs
) -> None:
    sections: dict[str, Any] = {"node_counts": [1], "repeats": 22}
    with simulated() as served:
        with pytest.raises(PreflightRefused, match=r"22 jobs .* 22 "):
            start_detached_sweep(sweep_config(served, sweep=sections))
        assert not ledger(served), "nothing was sent"
        sweep = start_detached_sweep(
            sweep_config(served, sweep=sections | {"max_parallel_jobs": 22})
        )
        assert (len(sweep.job_names), sweep.refused, len(ledger(served))) == (22, (), 22)


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow  # two runs
def test_jobs_that_were_not_accepted_are_named_and_sent_by_a_resume(
    simulated: Callable[..., Any],
    sweep_config: Configs,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The quota allows two of three jobs simultaneously; no job ends before the first command has
    ended."""
    with simulated(**{"ml.local.small": 2}) as served, held_jobs() as detached:
        config = sweep_config(
            served, sweep={"node_counts": [1], "repeats": 3, "max_parallel_jobs": 3}
        )
        done = nodesweep_run(config, tmp_path, "--detach")
        assert done.exit_code == 1, done.output
        assert "not accepted: 1 job:" in done.output and len(ledger(served)) == 2
        sweep = done.output.rsplit("--resume ", 1)[1].strip()
        assert names.is_sweep_id(sweep)
        assert submissions(caplog) == {
            "train-1n-r1": "Submitted", "train-1n-r2": "Submitted", "train-1n-r3": "Refused",
        }  # fmt: skip
        assert "Traceback" not in done.output and "NoneType" not in done.output
        detached.set()
        resumed = nodesweep_run(config, tmp_path, "--resume", sweep)
        assert resumed.exit_code == 0, resumed.output
        assert ledger(served) == [(1, 1, "Completed")] * 3


def test_unknown_sweep_has_nothing_to_collect(pipeline_config: Configs) -> None:
    with pytest.raises(SweepNotFound, match="no sweep bench-20260102030405-0a1b2c3d"):
        collect_sweep("bench-20260102030405-0a1b2c3d", pipeline_config("scaling"))


@pytest.mark.parametrize(
    "job",
    [
        "bert-finetune-2026-11-29-03-00-00-123",
        f"AWSBatch{'0f' * 27}a",
        "bench-20260102030405-0a1b2c3d-n1-r1-a1-0123abcd",
    ],
)
def test_job_of_no_sweep_here_has_nothing_to_collect_and_is_no_error(
    job: str, pipeline_config: Configs
) -> None:
    assert collect_sweep(job, pipeline_config("scaling")) is None
