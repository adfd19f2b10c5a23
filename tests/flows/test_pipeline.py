from __future__ import annotations

import itertools
import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import Task
from prefect.client.orchestration import SyncPrefectClient

import nodesweep.flows.stages.outcomes
import nodesweep.flows.stages.sweep
import nodesweep.tasks.jobs.training_jobs
from infra.local.tests.platform_client import wait_until
from nodesweep.cli.commands.plan import plan_of, requests_of
from nodesweep.cli.inputs import config_of_sweep
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import (
    DatasetRefused,
    ImageBuildFailed,
    PreflightRefused,
    QuotaReached,
    SweepNotFound,
)
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import SweepResult, scaling_benchmark
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobStatus
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report.plots import draw_plots
from nodesweep.tasks.report.history import read_history_files
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def jobs_of(served: SimpleNamespace, sweep: str) -> list[str]:
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(
        NameContains=names.job_prefix(sweep)
    )
    return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]


def speedups(result: SweepResult) -> dict[int, float | None]:
    return {row.nodes: row.train.speedup for row in result.report.summary}


@pytest.mark.pages
def test_pipeline_runs_to_its_report(
    served: SimpleNamespace,
    pipeline_config: Configs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = pipeline_config("scaling")
    with monkeypatch.context() as patched:
        patched.setattr("nodesweep.scaling.report.render.draw_plots", draw_plots)
        result = scaling_benchmark(config)
    assert speedups(result) == {1: 1.0, 2: 2.0, 4: 4.0}
    assert result.missing_points == 0
    written = json.loads((tmp_path / "reports" / "latest" / "report.json").read_text())
    assert written["platform"]["kind"] == "emulated"
    assert written["provenance"]["image_uri"].split("@")[1].startswith("sha256:")
    assert {path.name for path in result.folder.iterdir()} >= {
        "report.json", "report.md", "report.html", "points.csv", "sweep.json", "speedup.svg",
        "speedup.png",
    }  # fmt: skip
    key = names.report_key(config.platform.prefix, result.sweep_id, "report.html")
    stored = served.s3.get_object(Bucket=config.platform.bucket, Key=key)["Body"].read()
    assert stored == (result.folder / "report.html").read_bytes()
    files = read_history_files(BucketStore(config.platform, client=served.s3), config.name)
    assert f"{result.sweep_id}.parquet" in [uri.rsplit("/", 1)[1] for uri in files]

    other = config.model_copy(update={"training": config.training.model_copy(update={"seed": 99})})
    report, _ = report_sweep(result.sweep_id, other)
    assert report.config["training"]["seed"] == config.training.seed, "that of what was measured"
    monkeypatch.setattr(
        "nodesweep.flows.scaling_benchmark.preflight",
        lambda *_, **__: pytest.fail("a resume of another config asks no rules"),
    )
    with pytest.raises(PreflightRefused, match="a different config"):
        scaling_benchmark(other, sweep_id=result.sweep_id)


@pytest.mark.drawn
def test_a_job_is_one_task_run_and_its_calls_are_none(
    pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's database would need 20 KB for each claim, poll and result."""
    runs: Counter[str] = Counter()
    jobs: set[str] = set()  # a call whose answer is lost is repeated, and is one run
    call, create = Task.__call__, SyncPrefectClient.create_task_run

    def counted(self: Task[Any, Any], *arguments: Any, **named: Any) -> Any:
        runs[self.name] += 1
        return call(self, *arguments, **named)

    def created(self: SyncPrefectClient, task: Any, *arguments: Any, **named: Any) -> Any:
        if task.name != "training-job":
            runs[task.name] += 1
        elif named["dynamic_key"].startswith("counted-"):  # and is no other test's
            jobs.add(named["dynamic_key"])
        return create(self, task, *arguments, **named)

    monkeypatch.setattr(Task, "__call__", counted)
    monkeypatch.setattr(SyncPrefectClient, "create_task_run", created)
    scaling_benchmark(
        pipeline_config("scaling", name="counted", sweep={"node_counts": [1, 2], "repeats": 2})
    )
    wait_until(lambda: len(jobs) >= 4)
    assert len(jobs) == 4
    assert {name: count for name, count in runs.items() if count >= 4} == {}


def test_own_code_runs_in_a_container_as_it_is(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    """The platform accepts any image in ECR; on AWS it is one of the Deep Learning Containers."""
    there = scaling_benchmark(
        pipeline_config("scaling", sweep={"node_counts": [1]})
    ).report.conditions.image_uri
    (repository, tag), _ = list(served.images.tags.items())[-1]
    base = f"{str(there).partition('/')[0]}/{repository}:{tag}"
    builds = len(served.images.tags)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('own')\n")
    config = pipeline_config(
        "scaling", image={"context": None, "base_image": base}, training={"source_dir": "code"},
        sweep={"node_counts": [1]},
    )  # fmt: skip
    result = scaling_benchmark(config)
    assert (result.missing_points, len(served.images.tags)) == (0, builds)
    (job,) = jobs_of(served, result.sweep_id)
    sent = served.sagemaker.describe_training_job(TrainingJobName=job)
    # By its digest: a tag may move during a sweep.
    assert sent["AlgorithmSpecification"]["TrainingImage"] == there
    assert sent["HyperParameters"]["sagemaker_submit_directory"].startswith('"s3://')


def test_record_of_a_config_with_secrets_and_names_that_look_like_them_is_read_back(
    pipeline_config: Configs, tmp_path: Path
) -> None:
    tags = {"auth": "x", "CostCenter": "token:1"}
    patterns = {"loss_per_token": "token=([0-9.]+)(?:;|$)"}
    given = pipeline_config("scaling").training.hyperparameters
    training = {
        "tags": tags,
        "metric_definitions": patterns,
        "hyperparameters": {"api-key": "s3cr3t"} | given,
        "environment": {"HF_TOKEN": "s3cr3t", "PLAIN": "pl41n"},
    }
    config = pipeline_config("scaling", sweep={"node_counts": [1]}, training=training)
    found = requests_of(config, plan_of(config))
    assert found.requests[0]["Environment"]["HF_TOKEN"] == "(hidden)"
    assert found.requests[0]["Environment"]["PLAIN"] == "pl41n"  # its name is no secret's
    assert "Environment.HF_TOKEN" in found.masked
    result = scaling_benchmark(config)
    remembered = config_of_sweep(result.sweep_id, None, tmp_path / "reports")
    assert remembered.training.tags == tags and remembered.training.metric_definitions == patterns
    report = report_sweep(result.sweep_id, config)[0]
    assert report.config["training"]["tags"] == tags
    assert "s3cr3t" not in json.dumps(report.config) + (result.folder / "sweep.json").read_text()
    assert scaling_benchmark(config, sweep_id=result.sweep_id).sweep_id == result.sweep_id


def test_failed_point_loses_no_other_and_a_resume_reruns_it_alone(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config("broken-at-2")
    result = measure(config)
    points = {point["nodes"]: point for point in result.report.model_dump(mode="json")["points"]}
    assert result.missing_points == 1
    assert (points[1]["status"], points[2]["status"], points[4]["status"]) == (
        "Completed",
        "Failed",
        "Completed",
    )
    assert "boom" in points[2]["reason"]
    assert any("about to fail" in line for line in points[2]["log_tail"])
    assert speedups(result)[4] == 4.0

    shutil.rmtree(result.folder)
    again, folder = report_sweep(result.sweep_id, config)
    assert again.points == result.report.points, "made anew from the platform"
    assert (folder / "report.html").is_file()

    programs = served.engine.programs
    monkeypatch.setitem(programs, '"broken-at-2"', programs['"scaling"'])
    resumed = scaling_benchmark(config, resume=True)
    assert (resumed.sweep_id, resumed.missing_points) == (result.sweep_id, 0)
    keys = sorted(filter(None, map(names.parse_job_name, jobs_of(served, result.sweep_id))))
    assert [key[1:] for key in keys] == [(1, 1, 1), (2, 1, 1), (2, 1, 2), (4, 1, 1)]


def test_lack_of_capacity_gets_another_attempt_and_an_algorithm_error_none(
    served: SimpleNamespace,
    pipeline_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = iter(["no machines now"])
    monkeypatch.setattr(
        served.engine, "capacity_problem", lambda instance_type, count: next(answers, None)
    )
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.sweep")
    sweep = {"node_counts": [1, 2], "max_attempts": 2, "order": "ascending"}
    result = measure(pipeline_config("broken-at-2", sweep=sweep))
    points = result.report.model_dump(mode="json")["points"]
    assert [(point["nodes"], point["attempt"], point["status"]) for point in points] == [
        (1, 1, "Failed"),
        (1, 2, "Completed"),
        (2, 1, "Failed"),
    ]
    assert points[0]["reason"].startswith("CapacityError")
    # Points are counted, not attempts; Prefect may log each a second time.
    messages = dict.fromkeys(record.getMessage() for record in caplog.records)
    started = [message for message in messages if message.startswith("job ")]
    assert [line.partition(":")[0] for line in started] == ["job 1/2", "job 1/2", "job 2/2"]
    assert started[1].endswith(", attempt 2")


@pytest.mark.parametrize(
    ("status", "waited_seconds", "phases", "named"),
    [
        ("Stopped", 60.0, {"Starting": 60.0}, True),
        ("Stopped", 59.0, {"Starting": 59.0}, False),  # by hand, before its time
        ("Stopped", 90.0, {"Starting": 5.0, "Training": 80.0}, False),
        ("Failed", 90.0, {"Starting": 90.0}, False),
    ],
)
def test_stopped_job_that_never_trained_names_the_queue_deadline(
    status: str, waited_seconds: float, phases: dict[str, float], named: bool
) -> None:
    outcome = JobOutcome(
        nodes=1, repeat=1, attempt=1, job_name="j", status=status, platform_kind="aws",
        reason="stopped on request",
        clocks=Clocks(submit_to_end_seconds=waited_seconds), phases=phases,
    )  # fmt: skip
    reason = nodesweep.flows.stages.outcomes.with_queue_deadline_reason(outcome, 60).reason
    assert ("60 s (sweep.queue_deadline_seconds)" in str(reason)) is named


def test_jobs_are_watched_with_the_limits_of_the_config_and_the_report_needs_no_history(
    pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch, seen = nodesweep.flows.stages.sweep.watch_training_jobs, []

    def spy(
        platform: Any,
        sweep: str,
        names: Any,
        poll_seconds: float,
        limits: nodesweep.tasks.jobs.training_jobs.JobLimits,
        *rest: Any,
    ) -> Any:
        seen.append(limits)
        return watch(platform, sweep, names, poll_seconds, limits, *rest)

    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", spy)
    monkeypatch.setattr("nodesweep.flows.report.append_history", refuse)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    sweep = {"node_counts": [1], "queue_deadline_seconds": 900}
    spot = {"spot": {"max_wait_seconds": 7200}}  # more than max_runtime_seconds
    result = scaling_benchmark(pipeline_config("scaling", training=spot, sweep=sweep))
    assert (result.folder / "report.html").is_file() and "not written" in caplog.text
    assert seen == [
        nodesweep.tasks.jobs.training_jobs.JobLimits(queue_seconds=900, run_seconds=7200 + 600)
    ]


def test_refused_point_does_not_lose_the_others(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota allows 2 nodes, but never 4."""
    create = SageMakerJobs.submit

    def refuse_four(jobs: SageMakerJobs, spec: JobSpec) -> JobStatus:
        if spec.nodes == 4:
            raise QuotaReached("the account-level service limit is 2")
        return create(jobs, spec)

    monkeypatch.setattr(SageMakerJobs, "submit", refuse_four)
    clock = itertools.count(step=500.0)  # the deadline of ten minutes passes after a few looks
    monkeypatch.setattr(
        "nodesweep.flows.stages.sweep.time",
        SimpleNamespace(monotonic=lambda: time.monotonic() + next(clock)),
    )
    config = pipeline_config("scaling", sweep={"queue_deadline_seconds": 600})
    result = measure(config)
    points = {point["nodes"]: point for point in result.report.model_dump(mode="json")["points"]}
    assert (points[1]["status"], points[2]["status"]) == ("Completed", "Completed")
    assert (points[4]["status"], points[4]["reason"]) == (
        "Failed",
        "the account-level service limit is 2",
    )
    assert result.missing_points == 1


def test_report_of_an_unknown_sweep_says_so(pipeline_config: Configs) -> None:
    with pytest.raises(SweepNotFound, match="no sweep bench-20260101000000-00000000"):
        report_sweep("bench-20260101000000-00000000", pipeline_config("scaling"))


def test_dataset_that_breaks_an_expectation_stops_before_anything_is_sent(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    expectation = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "label", "value_set": [0, 1]},
    }
    config = pipeline_config(
        "scaling", dataset={"expectations": [expectation]}, platform={"bucket": "untouched-bucket"}
    )
    builds = len(served.images.tags)
    with pytest.raises(DatasetRefused, match=r"'label'.*1 of 3"):
        scaling_benchmark(config)
    listed = served.s3.list_objects_v2(Bucket="untouched-bucket").get("Contents", [])
    # run.json is what a claim of the id is.
    assert [item["Key"].rsplit("/", 1)[-1] for item in listed] == ["data-docs.html", "run.json"]
    assert len(served.images.tags) == builds


def test_failed_build_is_explained(pipeline_config: Configs, tmp_path: Path) -> None:
    (tmp_path / "image" / "Dockerfile").write_text("BREAK")
    with pytest.raises(ImageBuildFailed, match="no such package"):
        scaling_benchmark(pipeline_config("scaling"))


def test_plan_with_problems_is_refused_before_the_bucket_is_touched(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    config = pipeline_config(
        "scaling", sweep={"node_counts": [3]}, platform={"bucket": "never-made"}
    )
    with pytest.raises(PreflightRefused, match=r"64 .* divisible by 3"):
        scaling_benchmark(config)
    assert "never-made" not in {bucket["Name"] for bucket in served.s3.list_buckets()["Buckets"]}
