"""Managed spot: interruptions, checkpoints to S3 and back, the clocks, and the limit on the
wait."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    endless_until,
    job_request,
    phases,
    resources,
    run_job,
    serve_platform,
    spot_for,
    wait_for_end,
    wait_for_phase,
    wait_until,
)
from sagemaker_emulator.interfaces import JobSpec, Node
from sagemaker_emulator.jobs import folder_sync
from sagemaker_emulator.jobs.folder_sync import below_opt_ml
from sagemaker_emulator.training.record import SPOT_BILLABLE_SHARE, TrainingJob

CHECKPOINTS = "s3://results/checkpoints/job"
INTERRUPTION = {"fault": "spot_interruption", "at_line": "step 2$"}
SEGMENTS: Counter[tuple[str, str]] = Counter()
SEGMENT = ["Downloading", "Training"]


def counting(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """Count to 4 with a checkpoint, like a training program that resumes; each node has its own
    count, too."""
    own = node.opt_ml / "checkpoints" / f"{node.host}.txt"
    shared = node.opt_ml / "checkpoints" / "last.ckpt"
    step = int(shared.read_text()) if shared.exists() else 0
    SEGMENTS[job.job_arn, node.host] += 1
    say(f"began at {step} with {sorted(path.name for path in shared.parent.iterdir())}")
    while step < 4:
        step += 1
        shared.write_text(str(step))
        own.write_text(str(step))
        say(f"step {step}")
        if step == 2 and SEGMENTS[job.job_arn, node.host] == 1:
            stop.wait()  # the interruption follows
            return
    (node.opt_ml / "model" / "model.bin").write_text(str(step))


@contextmanager
def spot_platform(
    folder: Path, *faults: dict[str, Any], **options: Any
) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(folder, faults, **options) as served:
        served.s3.create_bucket(Bucket="results")
        served.engine.programs["counting"] = counting
        yield served


def spot(max_wait: int = 600, **changes: Any) -> dict[str, Any]:
    return {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": max_wait},
        **changes,
    }


def lines(platform: SimpleNamespace, job: str) -> list[str]:
    group = "/aws/sagemaker/TrainingJobs"
    streams = platform.logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{job}/")[
        "logStreams"
    ]
    events = [
        event
        for stream in streams
        for event in platform.logs.get_log_events(
            logGroupName=group, logStreamName=stream["logStreamName"]
        )["events"]
    ]
    return [event["message"] for event in sorted(events, key=lambda event: event["timestamp"])]


@pytest.fixture(autouse=True)
def first_segments() -> None:
    SEGMENTS.clear()


def test_interrupted_job_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    with spot_platform(tmp_path, INTERRUPTION) as platform:
        request = spot(CheckpointConfig={"S3Uri": CHECKPOINTS}, ResourceConfig=resources(2))
        job = run_job(platform, "resumed", "counting", **request)
        assert job["TrainingJobStatus"] == "Completed"
        restart = ["Interrupted", "Restarting"]
        assert phases(job) == ["Starting", *SEGMENT, *restart, *SEGMENT, "Uploading", "Completed"]
        assert all("EndTime" in transition for transition in job["SecondaryStatusTransitions"])
        began = [line for line in lines(platform, "resumed") if line.startswith("began")]
        files = "['algo-1.txt', 'algo-2.txt', 'last.ckpt']"
        assert began == ["began at 0 with []"] * 2 + [f"began at 2 with {files}"] * 2
        assert (
            platform.s3.get_object(Bucket="results", Key="checkpoints/job/last.ckpt")["Body"].read()
            == b"4"
        )
        assert job["CheckpointConfig"] == {"S3Uri": CHECKPOINTS}


def test_job_begins_with_the_checkpoints_of_an_earlier_one(tmp_path: Path) -> None:
    with spot_platform(tmp_path) as platform:
        platform.s3.put_object(Bucket="results", Key="checkpoints/job/last.ckpt", Body=b"3")
        platform.s3.put_object(Bucket="results", Key="checkpoints/job-2/last.ckpt", Body=b"1")
        run_job(platform, "later", "counting", CheckpointConfig={"S3Uri": CHECKPOINTS + "/"})
        assert "began at 3 with ['last.ckpt']" in lines(platform, "later")


def test_without_checkpoints_an_interruption_starts_over(tmp_path: Path) -> None:
    with spot_platform(tmp_path, INTERRUPTION) as platform:
        run_job(platform, "anew", "counting", **spot())
        assert [line for line in lines(platform, "anew") if line.startswith("began")] == [
            "began at 0 with []"
        ] * 2


def test_on_demand_instances_are_not_taken_away(tmp_path: Path) -> None:
    with spot_platform(tmp_path, {"fault": "spot_interruption", "after_seconds": 0}) as platform:
        job = run_job(platform, "on-demand")
        assert phases(job)[-1] == "Completed"
        assert "Interrupted" not in phases(job)


def test_checkpoints_are_in_s3_while_the_job_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_sync.FolderSync.__init__, "__defaults__", (0.05,))

    def save(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        (node.opt_ml / "checkpoints" / "deep").mkdir()
        (node.opt_ml / "checkpoints" / "deep" / "last.ckpt").write_text(node.host)
        stop.wait()

    with spot_platform(tmp_path) as platform:
        platform.engine.programs["save"] = save
        request = job_request(
            "saving", "save", CheckpointConfig={"S3Uri": CHECKPOINTS}, ResourceConfig=resources(2)
        )
        platform.sagemaker.create_training_job(**request)
        key = "checkpoints/job/deep/last.ckpt"

        def saved() -> bytes:
            listed = platform.s3.list_objects_v2(Bucket="results").get("Contents", ())
            assert {item["Key"] for item in listed} <= {key}
            if not listed:
                return b""
            return platform.s3.get_object(Bucket="results", Key=key)["Body"].read()

        # A file that is being written may be synchronized empty first, as on AWS, and that of
        # another node before it.
        wait_until(lambda: saved() == b"algo-1")
        platform.sagemaker.stop_training_job(TrainingJobName="saving")
        wait_for_end(platform.sagemaker, "saving")


def test_checkpoints_in_a_bucket_that_is_not_there(tmp_path: Path) -> None:
    with spot_platform(tmp_path) as platform:
        job = run_job(platform, "no-bucket", CheckpointConfig={"S3Uri": "s3://absent-bucket/x"})
        assert job["FailureReason"].startswith(
            "ClientError: Checkpoint download failed:s3://absent-bucket/x/ (NoSuch"
        )


def test_a_wait_for_spot_capacity_is_pending_and_is_not_paid(tmp_path: Path) -> None:
    with spot_platform(tmp_path, INTERRUPTION | {"restart_after_seconds": 1.2}) as platform:
        job = run_job(platform, "gap", "counting", **spot(CheckpointConfig={"S3Uri": CHECKPOINTS}))
        assert phases(job)[3:7] == ["Interrupted", "Restarting", "Pending", "Downloading"]
        pending, downloading = job["SecondaryStatusTransitions"][5:7]
        waited = downloading["StartTime"] - pending["StartTime"]
        paid = job["TrainingEndTime"] - job["TrainingStartTime"] - waited
        assert waited.total_seconds() >= 1.2
        assert 1 <= job["TrainingTimeInSeconds"] <= max(1, round(paid.total_seconds()))


def test_spot_is_billed_at_the_stated_share() -> None:
    job = TrainingJob("us-east-1", job_request("billed", **spot()), creation_time=100.0)
    for moment, begin in ((100.0, True), (130.0, False), (500.0, True), (570.0, False)):
        (job.begin_segment if begin else job.end_segment)(moment)
    job.enter("Completed", 570.0)
    described = job.describe(600.0)
    assert SPOT_BILLABLE_SHARE == 0.3
    assert (described["TrainingTimeInSeconds"], described["BillableTimeInSeconds"]) == (100, 30)
    assert (described["TrainingStartTime"], described["TrainingEndTime"]) == (100.0, 570.0)


def test_interrupted_job_has_no_end_yet(tmp_path: Path) -> None:
    with spot_platform(
        tmp_path, {"fault": "spot_interruption", "after_seconds": 0, "restart_after_seconds": 600}
    ) as up:
        up.sagemaker.create_training_job(**job_request("held", "endless", **spot(max_wait=900)))
        wait_for_phase(up.sagemaker, "held", "Pending")
        job = up.sagemaker.describe_training_job(TrainingJobName="held")
        assert job["TrainingJobStatus"] == "InProgress"
        assert "TrainingStartTime" in job
        assert not {"TrainingEndTime", "BillableTimeInSeconds"} & set(job)
        up.sagemaker.stop_training_job(TrainingJobName="held")
        assert phases(wait_for_end(up.sagemaker, "held"))[-3:] == ["Pending", "Stopping", "Stopped"]


def test_max_wait_while_training_and_in_the_queue(tmp_path: Path) -> None:
    """MaxWaitTimeInSeconds counts from the creation of the job, including waits for capacity."""
    rule = {"fault": "pending", "jobs": "late-*", "seconds": 0.5}
    with spot_platform(tmp_path, rule) as platform:
        job = endless_until(platform, "late", "Training")
        assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == (
            "Stopped",
            "MaxWaitTimeExceeded",
        )
        assert phases(job)[-3:] == ["Training", "Uploading", "MaxWaitTimeExceeded"]
        platform.sagemaker.create_training_job(**job_request("first", "endless"))
        wait_for_phase(platform.sagemaker, "first", "Training")
        job = run_job(platform, "never", "endless", **spot_for(1))
        assert phases(job) == ["Starting", "Pending", "MaxWaitTimeExceeded"]
        platform.sagemaker.stop_training_job(TrainingJobName="first")


def test_max_wait_while_waiting_for_capacity_again(tmp_path: Path) -> None:
    rule = {"fault": "spot_interruption", "after_seconds": 0, "restart_after_seconds": 600}
    with spot_platform(tmp_path, rule) as platform:
        job = endless_until(platform, "starved", "Restarting")
        assert phases(job)[-2:] == ["Pending", "MaxWaitTimeExceeded"]


def test_max_runtime_is_for_all_segments_together(tmp_path: Path) -> None:
    rule = {"fault": "spot_interruption", "at_line": "waiting"}
    with spot_platform(tmp_path, rule) as platform:
        request = job_request("long", "endless", **spot(max_wait=3000))
        platform.sagemaker.create_training_job(**request)
        first, second = wait_until(
            lambda: len(limits := platform.engine.limits_seconds) == 2 and limits
        )
        assert second < first == 300
        platform.sagemaker.stop_training_job(TrainingJobName="long")
        wait_for_end(platform.sagemaker, "long")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"EnableManagedSpotTraining": True},
            "Invalid MaxWaitTimeInSeconds. It must be present and be greater",
        ),
        (spot(max_wait=299), "Invalid MaxWaitTimeInSeconds"),
        (
            spot(ResourceConfig={**resources(1), "KeepAlivePeriodInSeconds": 60}),
            "KeepAlivePeriodInSeconds is not supported with managed spot training",
        ),
        (
            {"CheckpointConfig": {"S3Uri": "https://bucket/x"}},
            "CheckpointConfig.S3Uri 'https://bucket/x'",
        ),
        (
            {"CheckpointConfig": {"S3Uri": CHECKPOINTS, "LocalPath": "/data/x"}},
            "LocalPath /data/x ",
        ),
    ],
)
def test_requests_that_are_refused(
    platform: SimpleNamespace, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClientError) as caught:
        platform.sagemaker.create_training_job(**job_request("refused", **changes))
    error = caught.value.response["Error"]
    assert error["Code"] == "ValidationException"
    assert message in error["Message"]


@pytest.mark.parametrize(
    ("path", "below"), [("/opt/ml/checkpoints/", "checkpoints"), ("/opt/ml/output/tb", "output/tb")]
)
def test_local_paths(path: str, below: str) -> None:
    assert below_opt_ml(path) == below


@pytest.mark.parametrize("path", ["/opt/ml", "/opt/ml/../x", "checkpoints", "/tmp/x"])
def test_local_paths_a_node_does_not_have(path: str) -> None:
    with pytest.raises(ValueError, match="/opt/ml"):
        below_opt_ml(path)
