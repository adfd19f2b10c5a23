from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import tasks.jobs
from configs.models import BenchmarkConfig
from flows.report import report_sweep
from flows.scaling_benchmark import SweepResult, scaling_benchmark
from flows.stop import stop_sweep
from scaling import names
from tasks.errors import DatasetRefused, ImageBuildFailed, PreflightRefused, SweepNotFound

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def jobs_of(served: SimpleNamespace, sweep: str) -> list[str]:
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(NameContains=names.job_prefix(sweep))
    return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]


def speedups(result: SweepResult) -> dict[int, float | None]:
    return {row["nodes"]: row["speedup"] for row in result.report.to_dict()["summary"]}


def test_pipeline_runs_to_its_report(served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path) -> None:
    config = pipeline_config("scaling")
    result = scaling_benchmark(config)
    assert speedups(result) == {1: 1.0, 2: 2.0, 4: 4.0}
    assert result.missing_points == 0
    written = json.loads((tmp_path / "reports" / "latest" / "report.json").read_text())
    assert written["platform"]["kind"] == "emulated"
    assert written["provenance"]["image_uri"].split("@")[1].startswith("sha256:")
    assert {path.name for path in result.folder.iterdir()} >= {
        "report.json", "report.md", "report.html", "points.csv", "sweep.json",
    }  # fmt: skip
    key = names.report_key(config.platform.prefix, result.sweep_id, "report.html")
    stored = served.s3.get_object(Bucket=config.platform.bucket, Key=key)["Body"].read()
    assert stored == (result.folder / "report.html").read_bytes()


def test_second_run_builds_and_sends_nothing(served: SimpleNamespace, pipeline_config: Configs) -> None:
    config = pipeline_config("scaling", sweep={"node_counts": [1]})
    scaling_benchmark(config)
    puts = served.s3.list_objects_v2(Bucket=config.platform.bucket, Prefix="nodesweep/datasets/")["Contents"]
    builds = len(served.images.tags)
    scaling_benchmark(config)
    again = served.s3.list_objects_v2(Bucket=config.platform.bucket, Prefix="nodesweep/datasets/")["Contents"]
    assert [item["LastModified"] for item in again] == [item["LastModified"] for item in puts]
    assert len(served.images.tags) == builds


def test_failed_point_does_not_lose_the_others(pipeline_config: Configs) -> None:
    result = scaling_benchmark(pipeline_config("broken-at-2"))
    points = {point["nodes"]: point for point in result.report.to_dict()["points"]}
    assert result.missing_points == 1
    assert (points[1]["status"], points[2]["status"], points[4]["status"]) == ("Completed", "Failed", "Completed")
    assert "boom" in points[2]["reason"]
    assert any("about to fail" in line for line in points[2]["log_tail"])
    assert speedups(result)[4] == 4.0


def test_lack_of_capacity_gets_another_attempt_and_an_algorithm_error_none(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["no machines now"])
    monkeypatch.setattr(served.engine, "capacity_problem", lambda instance_type, count: next(answers, None))
    result = scaling_benchmark(pipeline_config("scaling", sweep={"node_counts": [1], "max_attempts": 2}))
    points = result.report.to_dict()["points"]
    assert [(point["attempt"], point["status"]) for point in points] == [(1, "Failed"), (2, "Completed")]
    assert points[0]["reason"].startswith("CapacityError")
    failed = scaling_benchmark(pipeline_config("broken-at-2", sweep={"node_counts": [2], "max_attempts": 3}))
    assert len(failed.report.to_dict()["points"]) == 1


def test_refused_point_does_not_lose_the_others(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota that holds 2 nodes but not 4, and never will."""
    create = tasks.jobs.submit

    def refuse_four(sagemaker: Any, request: Any) -> Any:
        if request["ResourceConfig"]["InstanceCount"] == 4:
            raise tasks.jobs.QuotaReached("the account-level service limit is 2")
        return create(sagemaker, request)

    monkeypatch.setattr("tasks.jobs.submit", refuse_four)
    monkeypatch.setattr("flows.sweep._QUOTA_PAUSE_SECONDS", 0.01)
    clock = itertools.count(step=50.0)  # the minute's deadline passes after a few looks
    monkeypatch.setattr("flows.sweep.time", SimpleNamespace(monotonic=lambda: time.monotonic() + next(clock)))
    config = pipeline_config("scaling", sweep={"queue_deadline_seconds": 60})
    result = scaling_benchmark(config)
    points = {point["nodes"]: point for point in result.report.to_dict()["points"]}
    assert (points[1]["status"], points[2]["status"]) == ("Completed", "Completed")
    assert (points[4]["status"], points[4]["reason"]) == ("Failed", "the account-level service limit is 2")
    assert result.missing_points == 1


def test_resume_reruns_only_what_is_missing(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config("broken-at-2")
    first = scaling_benchmark(config)
    monkeypatch.setitem(served.engine.programs, '"broken-at-2"', served.engine.programs['"scaling"'])
    resumed = scaling_benchmark(config, resume=True)
    assert resumed.sweep_id == first.sweep_id
    assert resumed.missing_points == 0
    names_by_nodes = sorted(names.parse_job_name(name) for name in jobs_of(served, first.sweep_id))  # type: ignore[type-var]
    assert names_by_nodes == [(1, 1, 1), (2, 1, 1), (2, 1, 2), (4, 1, 1)]


def test_resume_of_another_config_is_refused(pipeline_config: Configs) -> None:
    first = scaling_benchmark(pipeline_config("scaling", sweep={"node_counts": [1]}))
    with pytest.raises(PreflightRefused, match="started with another config"):
        scaling_benchmark(pipeline_config("scaling", sweep={"node_counts": [1, 2]}), first.sweep_id, resume=True)


def test_report_is_made_anew_from_the_platform(pipeline_config: Configs, tmp_path: Path) -> None:
    config = pipeline_config("broken-at-2")
    result = scaling_benchmark(config)
    for path in result.folder.iterdir():
        path.unlink()
    again, folder = report_sweep(config, result.sweep_id)
    assert again.to_dict()["points"] == result.report.to_dict()["points"]
    assert (folder / "report.html").is_file()


def test_report_of_an_unknown_sweep_says_so(pipeline_config: Configs) -> None:
    with pytest.raises(SweepNotFound, match="no sweep bench-20260101000000-00000000"):
        report_sweep(pipeline_config("scaling"), "bench-20260101000000-00000000")


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
    assert [item["Key"].rsplit("/", 1)[-1] for item in listed] == ["data-docs.html"]
    assert len(served.images.tags) == builds


def test_failed_build_is_explained(pipeline_config: Configs, tmp_path: Path) -> None:
    (tmp_path / "image" / "Dockerfile").write_text("BREAK")
    with pytest.raises(ImageBuildFailed, match="no such package"):
        scaling_benchmark(pipeline_config("scaling"))


def test_plan_with_problems_is_refused_before_the_bucket_is_touched(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    config = pipeline_config("scaling", sweep={"node_counts": [3]}, platform={"bucket": "never-made"})
    with pytest.raises(PreflightRefused, match="64 does not divide by 3"):
        scaling_benchmark(config)
    assert "never-made" not in {bucket["Name"] for bucket in served.s3.list_buckets()["Buckets"]}


def test_interrupted_sweep_stops_its_jobs(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    config = pipeline_config("endless", sweep={"node_counts": [1]})
    monkeypatch.setattr("flows.sweep.watch_training_jobs", interrupt)
    sweep = "bench-20261120000000-" + names.config_digest(config)[:8]
    with pytest.raises(KeyboardInterrupt):
        scaling_benchmark(config, sweep)
    [job] = jobs_of(served, sweep)
    waiter = served.sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName=job, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    assert served.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] == "Stopped"


def test_stop_flow_stops_what_runs(served: SimpleNamespace, pipeline_config: Configs) -> None:
    config = pipeline_config("endless", sweep={"node_counts": [1]})
    result: dict[str, Any] = {}
    sweep = "bench-20261120000001-" + names.config_digest(config)[:8]

    import threading

    def run() -> None:
        result["sweep"] = scaling_benchmark(config, sweep)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(300):
            if jobs_of(served, sweep):
                break
            thread.join(0.1)
        assert stop_sweep(config.platform, sweep) == jobs_of(served, sweep)
    finally:
        thread.join(60)
    [point] = result["sweep"].report.to_dict()["points"]
    assert (point["status"], point["reason"]) == ("Stopped", "stopped on request")


def test_dataset_already_in_s3_is_used_where_it_is(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    served.s3.create_bucket(Bucket="raw-bucket")
    served.s3.upload_file(str(tmp_path / "data" / "a.parquet"), "raw-bucket", "tables/a.parquet")
    config = pipeline_config("scaling", dataset={"source": "s3://raw-bucket/tables/"}, sweep={"node_counts": [1]})
    result = scaling_benchmark(config)
    assert result.report.to_dict()["provenance"]["dataset_uri"] == "s3://raw-bucket/tables/"
    assert pd.read_parquet(tmp_path / "data" / "a.parquet").shape == (3, 1)
