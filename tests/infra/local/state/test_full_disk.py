"""A platform with a full disk: no call succeeds whose change is not stored, and the end reports
what is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from benchmarks.ports import free_port
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import (
    client,
    job_request,
    run_job,
    serve_platform,
    wait_until,
)
from nodesweep.cli.local_platform import LocalPlatformError, running_platform
from nodesweep.configs.models import PlatformConfig
from sagemaker_emulator.server import daemon
from sagemaker_emulator.state import files, unsaved

ROOT = Path(__file__).resolve().parents[4]
served = contextmanager(serve_platform)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a disk with fill() and make_room(); in between, no file can be moved into the state
    folder."""
    real = os.replace

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return SimpleNamespace(
        fill=lambda: monkeypatch.setattr(files.os, "replace", refuse),
        make_room=lambda: monkeypatch.setattr(files.os, "replace", real),
    )


def refusal(call: Callable[..., Any], **request: Any) -> ClientError:
    with pytest.raises(ClientError) as refused:
        call(**request)
    answer = refused.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (
        "InternalError",
        507,
    )
    assert os.strerror(errno.ENOSPC) in answer["Error"]["Message"]
    return refused.value


def test_calls_fail_whose_change_can_not_be_kept(tmp_path: Path, disk: SimpleNamespace) -> None:
    """Errors use the protocol of each service; the job and the build do not exist, and reads
    continue to work."""
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        platform.s3.put_object(Bucket="results", Key="code.zip", Body=b"1")
        upload = platform.s3.create_multipart_upload(Bucket="results", Key="parts")["UploadId"]
        place = {"Bucket": "results", "Key": "parts", "UploadId": upload}
        part = platform.s3.upload_part(**place, PartNumber=1, Body=b"1")["ETag"]
        disk.fill()
        assert "s3://results/key " in str(
            refusal(platform.s3.put_object, Bucket="results", Key="key", Body=b"1")
        )
        refusal(platform.s3.create_bucket, Bucket="further")
        parts = [{"PartNumber": 1, "ETag": part}]
        refusal(platform.s3.complete_multipart_upload, **place, MultipartUpload={"Parts": parts})
        refusal(platform.ecr.create_repository, repositoryName="images")
        refusal(platform.sagemaker.create_training_job, **job_request("job"))
        refusal(
            platform.codebuild.start_build,
            projectName="p",
            sourceLocationOverride="results/code.zip",
        )
        assert platform.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
        assert platform.codebuild.list_builds_for_project(projectName="p")["ids"] == []
        assert platform.s3.get_object(Bucket="results", Key="code.zip")["Body"].read() == b"1"
        disk.make_room()
        assert run_job(platform, "job")["TrainingJobStatus"] == "Completed"


def test_what_could_not_be_kept_is_written_once_there_is_room(
    tmp_path: Path, disk: SimpleNamespace
) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        disk.fill()
        refusal(platform.s3.put_object, Bucket="results", Key="early", Body=b"1")
        assert len(daemon.read_status(platform.endpoint)["not_kept"]) == 1  # type: ignore[index]
        disk.make_room()
        platform.s3.put_object(Bucket="results", Key="late", Body=b"2")
        assert daemon.read_status(platform.endpoint)["not_kept"] == []  # type: ignore[index]
    assert unsaved.lost(tmp_path) == []
    with served(tmp_path) as platform:
        assert [
            item["Key"] for item in platform.s3.list_objects_v2(Bucket="results")["Contents"]
        ] == ["early", "late"]


def test_a_job_goes_on_through_a_full_disk_and_its_end_is_not_kept(
    tmp_path: Path, disk: SimpleNamespace
) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        platform.sagemaker.create_training_job(**job_request("endless", "endless"))
        wait_until(
            lambda: (
                platform.sagemaker.describe_training_job(TrainingJobName="endless")[
                    "SecondaryStatus"
                ]
                == "Training"
            )
        )
        disk.fill()
    lost = unsaved.lost(tmp_path)
    assert any("training_jobs/us-east-1/endless: No space" in line for line in lost), lost
    disk.make_room()
    assert daemon.status(tmp_path)["not_kept"] == lost
    with served(tmp_path):
        pass
    assert unsaved.lost(tmp_path) == [], "a later end at which everything was kept"


def test_a_killed_server_says_nothing_of_what_it_kept(tmp_path: Path) -> None:
    unsaved.begin(tmp_path)
    assert "was killed" in unsaved.lost(tmp_path)[0]
    unsaved.end(tmp_path, unsaved.Ledger())
    assert unsaved.lost(tmp_path) == []


def test_much_that_is_lost_is_named_within_the_place_that_was_taken_for_it(tmp_path: Path) -> None:
    ledger = unsaved.Ledger()
    for number in range(300):
        ledger.note(f"s3://bucket/{'k' * 900}{number:03d}", "No space left on device")
    unsaved.begin(tmp_path)
    size_bytes = (tmp_path / "not-kept.json").stat().st_size
    unsaved.end(tmp_path, ledger)
    assert (tmp_path / "not-kept.json").stat().st_size == size_bytes
    assert unsaved.lost(tmp_path)[0].startswith("s3://bucket/kkk")
    assert ledger.unsaved()[-1] == "and 280 more"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def local(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sagemaker_emulator", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)


def fill_up(endpoint: str) -> int:
    """Upload objects of 100 KB until one is refused; return the number of accepted objects."""
    s3 = client(endpoint, "s3")
    s3.create_bucket(Bucket="kept")
    for number in range(30):
        try:
            s3.put_object(Bucket="kept", Key=f"{number:02d}", Body=bytes(100_000))
        except ClientError as error:
            assert error.response["Error"]["Code"] == "InternalError"
            return number
    raise AssertionError("the disk held more than it has")


@pytest.mark.slow
def test_stop_says_what_a_full_disk_did_not_keep(small_disk: Path) -> None:
    """A real platform on a real small disk ends with exit code 3, and has everything that it
    reported as done afterwards."""
    place = ["--state-dir", str(small_disk / "state")]
    endpoint = local("start", "--port", "0", "--engine", "simulated", *place).stdout.strip()
    taken = fill_up(endpoint)
    stopped = local("stop", *place)
    assert (stopped.returncode, stopped.stdout) == (3, "stopped\n")
    assert f"s3://kept/{taken:02d}: No space" in stopped.stderr
    status = json.loads(local("status", *place).stdout)
    assert status["running"] is False and len(status["not_kept"]) == 1
    bodies = small_disk / "state" / "s3" / "bodies" / "kept"
    assert len(list(bodies.iterdir())) == taken > 3


@pytest.mark.slow
def test_run_that_started_the_platform_says_what_is_lost(small_disk: Path) -> None:
    platform = PlatformConfig(
        region="us-east-1",
        bucket="kept",
        role_arn="arn:aws:iam::000000000000:role/training",
        endpoint_url=f"http://127.0.0.1:{free_port()}",
        credentials="platform",
        autostart=True,
        state_directory=str(small_disk / "state"),
    )
    with (
        pytest.raises(LocalPlatformError, match=os.strerror(errno.ENOSPC)),
        running_platform(platform) as own,
    ):
        fill_up(str(own.endpoint_url))
