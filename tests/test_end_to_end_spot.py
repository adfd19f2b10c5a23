"""Real managed spot: `nodesweep run` on two nodes that are interrupted, and on two that are not."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nodesweep.configs.load import load_config
from tests.test_end_to_end import (
    REPOSITORY,
    client,
    latest_report,
    node_processes,
    nodesweep,
    site,  # noqa: F401  (platform_with_faults takes it)
    write_config,
)

pytestmark = pytest.mark.slow

# 1,438 training rows x 40 passes in batches of 192. The epochs after the first last longer (10 s
# where nothing else runs) than a busy machine takes to notice the line at which the nodes are taken
# away: a completed run has removed its checkpoint, and S3 keeps an older one.
EPOCHS, EPOCH_STEPS = 8, 299
STEPS = EPOCHS * EPOCH_STEPS
FAULTS = {
    # Told by the first epoch's evaluation; checkpoints are made every 7 steps, so step 294's is
    # there.
    "faults": [
        {
            "fault": "spot_interruption",
            "jobs": "interrupted-*",
            "at_line": f"^step={EPOCH_STEPS}; validation_",
            "times": 1,
        },
    ]
}
TRAINING = {
    "instance_type": "ml.local.large",
    "batch": {"policy": "fixed_global", "size": 192},
    "spot": {"max_wait_seconds": 900},
    "checkpoints": {"local_path": "/opt/ml/checkpoints"},
}
HYPERPARAMETERS = {"epochs": EPOCHS, "passes-per-epoch": 40, "checkpoint-every-steps": 7}


@pytest.fixture(scope="module")
def platform_with_faults(site: SimpleNamespace) -> Iterator[SimpleNamespace]:  # noqa: F811
    """The platform as a separate process, with the fault plan."""
    plan = site.folder / "faults.yaml"
    plan.write_text(yaml.safe_dump(FAULTS))
    arguments = ["--port", site.port, "--state-dir", str(site.state)]
    start = [
        sys.executable,
        "-m",
        "sagemaker_emulator",
        "start",
        *arguments,
        "--faults",
        str(plan),
    ]
    subprocess.run(start, check=True)
    try:
        yield site
    finally:
        subprocess.run(
            [sys.executable, "-m", "sagemaker_emulator", "stop", *arguments],
            check=True,
            timeout=300,
        )
        assert node_processes() == []


def run(platform: SimpleNamespace, name: str) -> SimpleNamespace:
    """Run a sweep of one spot job on 2 nodes; return its point of the report, metrics.json,
    secondary statuses and log lines."""
    raw = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())["training"]
    training = {**raw, **TRAINING, "hyperparameters": {**raw["hyperparameters"], **HYPERPARAMETERS}}
    config = write_config(platform, name, training=training, sweep={"node_counts": [2]})
    done = nodesweep(platform, "run", str(config))
    assert done.returncode == 0, done.stderr
    report = latest_report(platform)
    [point] = report["points"]
    job = client(platform, "sagemaker").describe_training_job(TrainingJobName=point["job_name"])
    return SimpleNamespace(
        point=point,
        metrics=metrics_of(platform, load_config(config).platform.bucket, job),
        # Pending: another platform's job has the machine
        phases=[
            status
            for step in job["SecondaryStatusTransitions"]
            if (status := step["Status"]) != "Pending"
        ],
        lines=lines_of(platform, point["job_name"]),
    )


def metrics_of(platform: SimpleNamespace, bucket: str, job: dict[str, Any]) -> dict[str, Any]:
    prefix = job["OutputDataConfig"]["S3OutputPath"].removeprefix(f"s3://{bucket}/")
    key = f"{prefix.rstrip('/')}/{job['TrainingJobName']}/output/output.tar.gz"
    body = client(platform, "s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        read: dict[str, Any] = json.load(archive.extractfile("metrics.json"))  # type: ignore[arg-type]
    return read


def lines_of(platform: SimpleNamespace, job_name: str) -> list[str]:
    logs, group = client(platform, "logs"), "/aws/sagemaker/TrainingJobs"
    streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{job_name}/")[
        "logStreams"
    ]
    events = [
        event
        for stream in streams
        for event in logs.get_log_events(logGroupName=group, logStreamName=stream["logStreamName"])[
            "events"
        ]
    ]
    return [event["message"] for event in sorted(events, key=lambda event: event["timestamp"])]


def evaluation(lines: list[str], step: int) -> list[str]:
    """Return the lines of an evaluation, without its time."""
    printed = [line for line in lines if line.startswith(f"step={step}; validation_")]
    return [re.sub(r" elapsed_seconds=[^;]*;", "", line) for line in printed]


def test_interrupted_sweep_ends_with_the_metric_of_one_that_was_not(
    platform_with_faults: SimpleNamespace,
) -> None:
    """Equal, the loss in all six digits printed: two ranks' sums know no order, and last.ckpt holds
    all the state.
    """
    interrupted, whole = (
        run(platform_with_faults, "interrupted"),
        run(platform_with_faults, "whole"),
    )
    segment = ["Downloading", "Training"]
    assert whole.phases == ["Starting", *segment, "Uploading", "Completed"]
    assert interrupted.phases == [
        "Starting", *segment, "Interrupted", "Restarting", *segment, "Uploading", "Completed",
    ]  # fmt: skip
    for one in (interrupted, whole):
        assert (one.point["status"], one.point["spot"], one.metrics["steps"]) == (
            "Completed",
            True,
            STEPS,
        )
    counted = (interrupted.metrics["interruptions"], whole.metrics["interruptions"])
    assert counted == (1, 0), "\n".join(interrupted.lines)
    resumed_at = interrupted.metrics["resumed_at_step"]
    server_log = (platform_with_faults.state / "server.log").read_text()
    assert 294 <= resumed_at < STEPS, "\n".join([server_log, *interrupted.lines])
    assert interrupted.metrics["samples"] == whole.metrics["samples"]
    assert interrupted.metrics["final_metric"] == whole.metrics["final_metric"]
    assert interrupted.point["final_metric"]["value"] == whole.point["final_metric"]["value"]
    [last] = evaluation(whole.lines, STEPS)
    assert "validation_loss=" in last
    for one, is_restarted in ((interrupted, True), (whole, False)):
        goodput = one.point["goodput"]
        assert 0 < goodput["share"] < 1
        assert (goodput["restart_node_seconds"] > 0) is is_restarted
        parts = ("trained", "start", "restart", "incomplete", "warm_pool")
        spent = sum(goodput[f"{part}_node_seconds"] for part in parts)
        assert spent == pytest.approx(goodput["billed_node_seconds"])
    # printed twice where the nodes are taken away between the last evaluation and the end
    assert set(evaluation(interrupted.lines, STEPS)) == {last}
