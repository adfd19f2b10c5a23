"""The AWS CLI, unmodified, creates, describes, lists and stops a training job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.infra.local.platform_client import job_request, wait_for_end

AWS = Path(sys.executable).with_name("aws")


def aws(platform: SimpleNamespace, *arguments: str, expect: int = 0) -> Any:
    """The CLI's JSON answer, or what it printed on stderr where another exit code is expected."""
    done = subprocess.run(
        [str(AWS), "--endpoint-url", platform.endpoint, "--output", "json", *arguments],
        env={
            **os.environ,
            "AWS_SHARED_CREDENTIALS_FILE": str(platform.state_dir / "aws-credentials"),
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done.stderr if expect else json.loads(done.stdout or "null")


def test_create_describe_list_stop(platform: SimpleNamespace, tmp_path: Path) -> None:
    request = tmp_path / "job.json"
    request.write_text(json.dumps(job_request("from-cli", "endless")))
    created = aws(
        platform, "sagemaker", "create-training-job", "--cli-input-json", f"file://{request}"
    )
    assert created["TrainingJobArn"].endswith(":training-job/from-cli")
    job = aws(platform, "sagemaker", "describe-training-job", "--training-job-name", "from-cli")
    assert job["TrainingJobStatus"] == "InProgress"
    listed = aws(platform, "sagemaker", "list-training-jobs", "--name-contains", "from-cli")
    assert [item["TrainingJobName"] for item in listed["TrainingJobSummaries"]] == ["from-cli"]
    aws(platform, "sagemaker", "stop-training-job", "--training-job-name", "from-cli")
    assert wait_for_end(platform.sagemaker, "from-cli")["TrainingJobStatus"] == "Stopped"


def test_error_text(platform: SimpleNamespace) -> None:
    text = aws(
        platform, "sagemaker", "describe-training-job", "--training-job-name", "absent", expect=255
    )
    assert (
        "An error occurred (ValidationException) when calling the DescribeTrainingJob operation"
        in text
    )


def test_s3_round_trip(platform: SimpleNamespace, tmp_path: Path) -> None:
    source = tmp_path / "a b.csv"
    source.write_text("1,2\n")
    copied = [str(AWS), "--endpoint-url", platform.endpoint, "s3", "cp", "--quiet"]
    environment = {
        **os.environ,
        "AWS_SHARED_CREDENTIALS_FILE": str(platform.state_dir / "aws-credentials"),
    }
    subprocess.run(
        [*copied, str(source), "s3://results/cli/a b.csv"], env=environment, check=True, timeout=60
    )
    assert platform.s3.get_object(Bucket="results", Key="cli/a b.csv")["Body"].read() == b"1,2\n"
