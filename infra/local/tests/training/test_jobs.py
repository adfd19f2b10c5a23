"""A training job's life: phases, clocks, artifacts, logs, metrics, failure, stop, and one job
at a time."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import (
    job_request,
    phases,
    resources,
    run_job,
    wait_for_end,
    wait_for_phase,
    wait_until,
)
from sagemaker_emulator.interfaces import JobSpec, Node

LOG_GROUP = "/aws/sagemaker/TrainingJobs"


def archive_names(platform: SimpleNamespace, job: str, archive: str) -> dict[str, str]:
    body = platform.s3.get_object(Bucket="results", Key=f"jobs/{job}/output/{archive}")[
        "Body"
    ].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as opened:
        return {name: opened.extractfile(name).read().decode() for name in opened.getnames()}  # type: ignore[union-attr]


def test_completed_job(platform: SimpleNamespace) -> None:
    job = run_job(platform, "good", ResourceConfig=resources(2))
    assert job["TrainingJobStatus"] == job["SecondaryStatus"] == "Completed"
    assert phases(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    starting = job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert starting.endswith("(fake engine)")
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == "s3://results/jobs/good/output/model.tar.gz"
    assert job["HyperParameters"] == {"program": "quick"}


def test_billable_time_runs_from_downloading_to_the_end_of_uploading(
    platform: SimpleNamespace,
) -> None:
    job = run_job(platform, "billed")
    began = {
        transition["Status"]: transition["StartTime"]
        for transition in job["SecondaryStatusTransitions"]
    }
    assert job["TrainingStartTime"] == began["Downloading"]
    assert began["Uploading"] <= job["TrainingEndTime"] <= began["Completed"]
    wall_seconds = (job["TrainingEndTime"] - job["TrainingStartTime"]).total_seconds()
    assert (
        job["BillableTimeInSeconds"] == job["TrainingTimeInSeconds"] == max(1, round(wall_seconds))
    )


def test_artifacts_of_all_nodes_are_merged_and_the_first_node_wins(
    platform: SimpleNamespace,
) -> None:
    run_job(platform, "merged", ResourceConfig=resources(2))
    assert archive_names(platform, "merged", "model.tar.gz") == {"model.bin": "algo-1"}
    assert set(archive_names(platform, "merged", "output.tar.gz")) == {
        "metrics.json",
        "algo-1.txt",
        "algo-2.txt",
    }


def test_uncompressed_model(platform: SimpleNamespace) -> None:
    output = {"S3OutputPath": "s3://results/jobs", "CompressionType": "NONE"}
    job = run_job(platform, "plain", OutputDataConfig=output)
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == "s3://results/jobs/plain/output/model/"
    assert (
        platform.s3.get_object(Bucket="results", Key="jobs/plain/output/model/model.bin")[
            "ContentLength"
        ]
        == 6
    )


def test_failed_job_keeps_its_output_and_reason(platform: SimpleNamespace) -> None:
    def fail(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        (node.opt_ml / "output" / "data" / "partial.txt").write_text("partial")
        raise RuntimeError("ExecuteUserScriptError:\n" + "x" * 2000)

    platform.engine.programs["fail"] = fail
    job = run_job(platform, "bad", "fail")
    assert job["TrainingJobStatus"] == "Failed"
    assert phases(job)[-2:] == ["Uploading", "Failed"]
    assert job["FailureReason"].startswith("AlgorithmError: ExecuteUserScriptError:")
    assert len(job["FailureReason"]) == 1024
    assert archive_names(platform, "bad", "output.tar.gz") == {"partial.txt": "partial"}
    with pytest.raises(ClientError, match="404"):
        platform.s3.head_object(Bucket="results", Key="jobs/bad/output/model.tar.gz")


def test_failed_job_keeps_its_reason_when_the_disk_is_full(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is often what failed the program."""

    def fill(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        (node.opt_ml / "output" / "data" / "partial.txt").write_text("partial")
        raise OSError(errno.ENOSPC, "No space left on device")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    platform.engine.programs["fill"] = fill
    for name in ("NamedTemporaryFile", "TemporaryDirectory"):
        monkeypatch.setattr(tempfile, name, full)
    assert run_job(platform, "filled", "fill")["FailureReason"].startswith("AlgorithmError: ")


def test_output_that_is_not_uploaded_fails_a_completed_job(
    platform: SimpleNamespace, snapshot: SnapshotAssertion
) -> None:
    def odd(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        (node.opt_ml / "model" / os.fsdecode(b"mod\xe8le.pt")).write_text("1")

    platform.engine.programs["odd"] = odd
    output = {"S3OutputPath": "s3://results/jobs", "CompressionType": "NONE"}
    assert run_job(platform, "odd", "odd", OutputDataConfig=output)["FailureReason"] == snapshot


def test_platform_error_is_an_internal_server_error(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: JobSpec) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(platform.engine, "prepare", broken)
    reason = run_job(platform, "broken")["FailureReason"]
    assert reason.startswith("InternalServerError: We encountered an internal error.")
    assert "disk full" in reason


def test_metrics_are_the_last_values_of_the_log(platform: SimpleNamespace) -> None:
    metrics = [
        {"Name": "loss", "Regex": r"train_loss=([0-9.]+);"},
        {"Name": "absent", "Regex": "absent=(.*)"},
    ]
    algorithm = {**job_request("x")["AlgorithmSpecification"], "MetricDefinitions": metrics}
    found = run_job(platform, "measured", AlgorithmSpecification=algorithm)["FinalMetricDataList"]
    assert [(item["MetricName"], item["Value"]) for item in found] == [
        ("loss", pytest.approx(0.333))
    ]


def log_lines(platform: SimpleNamespace, job: str) -> dict[str, list[str]]:
    """Return the messages in the log streams of a job (<job>/<host>-<milliseconds>) by host."""
    found = platform.logs.describe_log_streams(
        logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job}/"
    )["logStreams"]
    lines = {}
    for name in (stream["logStreamName"] for stream in found):
        events = platform.logs.get_log_events(
            logGroupName=LOG_GROUP, logStreamName=name, startFromHead=True
        )["events"]
        lines[name.removeprefix(f"{job}/").rpartition("-")[0]] = [
            event["message"] for event in events
        ]
    return lines


def test_logs_have_one_stream_per_host(platform: SimpleNamespace) -> None:
    run_job(platform, "logged", ResourceConfig=resources(2))
    printed = ["train_loss=1.000;", "train_loss=0.500;", "train_loss=0.333;"]
    assert log_lines(platform, "logged") == {"algo-1": printed, "algo-2": printed}


def test_logs_can_be_followed_while_the_job_trains(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("live", "endless"))
    wait_for_phase(platform.sagemaker, "live", "Training")
    wait_until(lambda: log_lines(platform, "live").get("algo-1") == ["waiting"])
    platform.sagemaker.stop_training_job(TrainingJobName="live")
    wait_for_end(platform.sagemaker, "live")


def test_stop(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("halted", "endless"))
    wait_for_phase(platform.sagemaker, "halted", "Training")
    platform.sagemaker.stop_training_job(TrainingJobName="halted")
    job = wait_for_end(platform.sagemaker, "halted")
    assert job["TrainingJobStatus"] == job["SecondaryStatus"] == "Stopped"
    assert phases(job)[-4:] == ["Training", "Stopping", "Uploading", "Stopped"]
    with pytest.raises(ClientError, match="in status Stopped"):
        platform.sagemaker.stop_training_job(TrainingJobName="halted")


def test_max_runtime(platform: SimpleNamespace) -> None:
    job = run_job(platform, "slow", "endless", StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert phases(job)[-2:] == ["Uploading", "MaxRuntimeExceeded"]
    assert "FailureReason" not in job


def test_jobs_run_one_at_a_time_in_order(platform: SimpleNamespace) -> None:
    order: list[str] = []

    def note(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        order.append(job.job_name)

    platform.engine.programs["note"] = note
    platform.sagemaker.create_training_job(**job_request("first", "endless"))
    wait_for_phase(platform.sagemaker, "first", "Training")
    for name in ("second", "third", "dropped"):
        platform.sagemaker.create_training_job(**job_request(name, "note"))
        job = platform.sagemaker.describe_training_job(TrainingJobName=name)
        assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("InProgress", "Pending")
    platform.sagemaker.stop_training_job(TrainingJobName="dropped")
    platform.sagemaker.stop_training_job(TrainingJobName="first")
    assert phases(wait_for_end(platform.sagemaker, "third"))[:3] == [
        "Starting",
        "Pending",
        "Downloading",
    ]
    assert order == ["second", "third"]
    assert phases(wait_for_end(platform.sagemaker, "dropped")) == [
        "Starting",
        "Pending",
        "Stopping",
        "Stopped",
    ]
    assert platform.engine.most_jobs_at_once == 1


def test_waiter(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("awaited"))
    waiter = platform.sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName="awaited", WaiterConfig={"Delay": 1, "MaxAttempts": 300})


def test_fault_of_the_platform_names_no_path_of_this_machine(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(job: JobSpec) -> None:
        (platform.state_dir / "absent" / "folder").mkdir()

    monkeypatch.setattr(platform.engine, "prepare", prepare)
    reason = run_job(platform, "faulty")["FailureReason"]
    assert reason.startswith("InternalServerError: ")
    assert reason.endswith(f"(FileNotFoundError: {os.strerror(errno.ENOENT)})")


def test_name_of_a_deleted_job_is_free_once_its_nodes_are_gone(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second job with this name would be removed with the first and would never start."""
    clean_up = platform.engine.clean_up

    def slow_clean_up(job: JobSpec) -> None:
        time.sleep(0.5)
        clean_up(job)

    monkeypatch.setattr(platform.engine, "clean_up", slow_clean_up)
    for _ in range(2):
        assert run_job(platform, "again")["TrainingJobStatus"] == "Completed"
        platform.sagemaker.delete_training_job(TrainingJobName="again")
