"""State that survives a restart of the platform, both an orderly restart and a kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    client,
    job_request,
    serve_platform,
    wait_for_end,
    wait_for_phase,
    wait_until,
)
from infra.local.tests.platform_fakes import IMAGE_DIGEST, FakeEngine, FakeImageStore
from nodesweep.launch.sagemaker.utilisation import (
    EMULATED_METRICS,
    METRICS,
    read_utilisation,
)
from sagemaker_emulator.interfaces import NodeAttainment
from sagemaker_emulator.server import daemon
from sagemaker_emulator.state.s3_snapshot import S3Snapshot
from tests.processes.warm_process import Forked

PART_BYTES = 5 * 1024 * 1024

served = contextmanager(serve_platform)


@contextmanager
def server_process(process: Forked, state_dir: Path) -> Iterator[SimpleNamespace]:
    """Start a platform in a separate process, which is killed at the end if it still runs."""
    try:
        found = wait_until(lambda: daemon.find_server(state_dir))
        yield SimpleNamespace(
            process=process,
            s3=client(found.endpoint, "s3"),
            sagemaker=client(found.endpoint, "sagemaker"),
        )
    finally:
        process.kill()
        process.wait()


def put_in_parts(s3: Any, key: str, first: int = 1, unused: int = 0, last: int = 2) -> None:
    """Put an object in two parts with these numbers, and upload another part that it lacks."""
    where = {"Bucket": "kept", "Key": key}
    upload = {
        **where,
        "UploadId": s3.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")["UploadId"],
    }
    if unused:
        s3.upload_part(**upload, PartNumber=unused, Body=b"unused", ChecksumAlgorithm="SHA256")
    parts = []
    for number, body in ((first, b"a" * PART_BYTES), (last, b"b" * 10)):
        part = s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256")
        parts.append(
            {"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}
        )
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


def head(s3: Any, key: str) -> dict[str, Any]:
    answer = s3.head_object(Bucket="kept", Key=key, ChecksumMode="ENABLED")
    del answer["ResponseMetadata"]
    return dict(answer)


def test_objects_come_back_as_they_were(tmp_path: Path) -> None:
    keys = ["plain", "strange/ü name+%2F_x", "parts", "parts-with-gaps"]
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="kept")
        for key in keys[:2]:
            platform.s3.put_object(
                Bucket="kept",
                Key=key,
                Body=key.encode(),
                ContentType="text/csv",
                Metadata={"sha256": "abc", "with_underscore": "1"},
                Tagging="team=a",
                ChecksumAlgorithm="SHA256",
            )
        put_in_parts(platform.s3, "parts")
        put_in_parts(platform.s3, "parts-with-gaps", first=3, unused=5, last=7)
        before = {key: head(platform.s3, key) for key in keys}
    with served(tmp_path) as platform:
        assert {key: head(platform.s3, key) for key in keys} == before
        assert platform.s3.get_object(Bucket="kept", Key=keys[1])["Body"].read() == keys[1].encode()
        assert platform.s3.get_object_tagging(Bucket="kept", Key="plain")["TagSet"] == [
            {"Key": "team", "Value": "a"}
        ]


def test_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        for bucket in ("kept", "dropped"):
            platform.s3.create_bucket(Bucket=bucket)
        for key in ("a", "b", "c"):
            platform.s3.put_object(Bucket="kept", Key=key, Body=b"1")
    with served(tmp_path) as platform:
        platform.s3.delete_bucket(Bucket="dropped")
        platform.s3.delete_object(Bucket="kept", Key="a")
        platform.s3.delete_objects(Bucket="kept", Delete={"Objects": [{"Key": "b"}]})
        platform.s3.put_object(Bucket="kept", Key="c", Body=b"2")
    with served(tmp_path) as platform:
        assert [bucket["Name"] for bucket in platform.s3.list_buckets()["Buckets"]] == ["kept"]
        assert [item["Key"] for item in platform.s3.list_objects_v2(Bucket="kept")["Contents"]] == [
            "c"
        ]
        assert platform.s3.get_object(Bucket="kept", Key="c")["Body"].read() == b"2"
    assert len(list((tmp_path / "s3" / "bodies").rglob("*-*"))) == 1


def test_repositories_and_images(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        assert described(platform)["imageDigest"] == IMAGE_DIGEST  # filled from the image store
        platform.ecr.create_repository(repositoryName="empty", imageTagMutability="IMMUTABLE")
        platform.ecr.batch_delete_image(repositoryName="trainer", imageIds=[{"imageTag": "v1"}])
    with served(tmp_path) as platform:
        names = {
            item["repositoryName"]: item
            for item in platform.ecr.describe_repositories()["repositories"]
        }
        assert names["empty"]["imageTagMutability"] == "IMMUTABLE"
        with pytest.raises(ClientError, match="ImageNotFoundException"):
            described(platform)


def test_image_whose_files_have_gone_is_not_in_ecr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as platform:
        # makes the platform write its snapshot
        platform.ecr.create_repository(repositoryName="other")
    monkeypatch.setattr(FakeImageStore, "images", lambda self: [])
    with served(tmp_path) as platform, pytest.raises(ClientError, match="ImageNotFoundException"):
        described(platform)


def described(platform: SimpleNamespace) -> dict[str, Any]:
    found = platform.ecr.describe_images(repositoryName="trainer", imageIds=[{"imageTag": "v1"}])
    return dict(found["imageDetails"][0])


def test_orderly_stop_stops_jobs_and_keeps_records(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        platform.sagemaker.create_training_job(**job_request("done"))
        before = wait_for_end(platform.sagemaker, "done")
        platform.sagemaker.create_training_job(**job_request("busy", "endless"))
        wait_for_phase(platform.sagemaker, "busy", "Training")
        platform.sagemaker.create_training_job(**job_request("waiting"))
    with served(tmp_path) as platform:
        after = platform.sagemaker.describe_training_job(TrainingJobName="done")
        assert {**after, "ResponseMetadata": None} == {**before, "ResponseMetadata": None}
        for name in ("busy", "waiting"):
            job = platform.sagemaker.describe_training_job(TrainingJobName=name)
            assert job["TrainingJobStatus"] == "Stopped"
        with pytest.raises(ClientError, match="ResourceInUse"):
            platform.sagemaker.create_training_job(**job_request("done"))


def test_killed_server_fails_its_job_and_keeps_its_objects(
    tmp_path: Path, serve_with_fakes: Callable[..., Forked]
) -> None:
    with server_process(serve_with_fakes(tmp_path), tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        platform.sagemaker.create_training_job(**job_request("cut", "endless"))
        wait_for_phase(platform.sagemaker, "cut", "Training")
        wait_until(lambda: list((tmp_path / "s3" / "buckets").glob("*.json")))
        platform.process.send_signal(signal.SIGKILL)
        platform.process.wait()
        killed_at = datetime.now(UTC)
    with served(tmp_path) as platform:
        job = platform.sagemaker.describe_training_job(TrainingJobName="cut")
        assert job["TrainingJobStatus"] == "Failed"
        assert job["FailureReason"].startswith("InternalServerError: ")
        assert job["TrainingStartTime"] <= job["TrainingEndTime"] <= killed_at
        platform.s3.head_bucket(Bucket="results")
        assert platform.sagemaker.create_training_job(**job_request("next"))
        assert wait_for_end(platform.sagemaker, "next")["TrainingJobStatus"] == "Completed"


def test_server_ends_with_its_killed_owner(
    tmp_path: Path, serve_with_fakes: Callable[..., Forked]
) -> None:
    owner = subprocess.Popen(["sleep", "600"])
    with server_process(serve_with_fakes(tmp_path, owner.pid), tmp_path) as platform:
        owner.kill()  # not reaped yet: a zombie counts as dead
        assert platform.process.wait() == 0
    owner.wait()
    assert daemon.find_server(tmp_path) is None


def test_an_archived_object_does_not_keep_the_others_from_being_kept(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="kept")
        platform.s3.put_object(Bucket="kept", Key="a-cold", Body=b"1", StorageClass="GLACIER")
        platform.s3.put_object(Bucket="kept", Key="b-warm", Body=b"2")
    with served(tmp_path) as platform:
        assert platform.s3.get_object(Bucket="kept", Key="b-warm")["Body"].read() == b"2"


def test_an_object_that_can_not_be_read_is_tried_again_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = S3Snapshot._write_object

    def refuse(self: S3Snapshot, bucket: str, key: str) -> None:
        if key == "a":
            raise ClientError({"Error": {"Code": "InternalError"}}, "HeadObject")
        write(self, bucket, key)

    with served(tmp_path) as platform:
        monkeypatch.setattr(S3Snapshot, "_write_object", refuse)
        platform.s3.create_bucket(Bucket="kept")
        for key in ("a", "b"):
            platform.s3.put_object(Bucket="kept", Key=key, Body=b"1")
        wait_until(lambda: list((tmp_path / "s3" / "objects" / "kept").glob("*.json")))
        monkeypatch.undo()
    with served(tmp_path) as platform:
        assert [item["Key"] for item in platform.s3.list_objects_v2(Bucket="kept")["Contents"]] == [
            "a",
            "b",
        ]


def test_a_bucket_leaves_the_disk_after_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two must not leave objects without a bucket; here the platform dies when
    it writes an object."""
    record = tmp_path / "s3" / "buckets" / "kept.json"
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="kept")
        platform.s3.put_object(Bucket="kept", Key="a", Body=b"1")
    with served(tmp_path) as platform:

        def die(self: S3Snapshot, bucket: str, key: str) -> None:
            raise OSError("killed")

        monkeypatch.setattr(S3Snapshot, "_write_object", die)
        for call, place in (
            (platform.s3.delete_object, {"Key": "a"}),
            (platform.s3.delete_bucket, {}),
        ):
            with pytest.raises(ClientError, match="InternalError"):
                call(Bucket="kept", **place)
    assert record.exists()


def test_buckets_whose_records_are_lost_are_rebuilt(tmp_path: Path) -> None:
    """The region is restored, too. Every run creates the bucket, which earlier deleted all of its
    bodies."""
    where = {"CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}}
    keys = [f"key{number}" for number in range(3)]
    left = {
        "absent": None, "empty": b"", "half": b'{"name": "half"', "list": b"[]",
        "bare": b'{"name": "bare"}',
    }  # fmt: skip
    files = {name: tmp_path / "s3" / "buckets" / f"{name}.json" for name in left}
    with served(tmp_path) as platform:
        for name in left:
            client(platform.endpoint, "s3", "eu-west-1").create_bucket(Bucket=name, **where)
            for key in keys:
                platform.s3.put_object(Bucket=name, Key=key, Body=key.encode())
    for name, record in left.items():
        files[name].unlink() if record is None else files[name].write_bytes(record)
    for start in range(2):
        with served(tmp_path) as platform:
            for name in left:
                with pytest.raises(ClientError):
                    platform.s3.create_bucket(Bucket=name)
                assert platform.s3.get_bucket_location(Bucket=name)["LocationConstraint"] == (
                    "eu-west-1"
                )
                found = platform.s3.list_objects_v2(Bucket=name)["Contents"]
                assert [item["Key"] for item in found] == keys
            damaged = daemon.read_status(platform.endpoint)["damaged"]  # type: ignore[index]
            expected = files.values() if start == 0 else ()
            assert len(damaged) == len(expected)
            assert all(any(str(file) in line for line in damaged) for file in expected)


def test_body_of_an_unreadable_record_is_kept_and_the_record_is_said(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="kept")
        for key in ("a", "b"):
            platform.s3.put_object(Bucket="kept", Key=key, Body=key.encode())
    a = min(
        (tmp_path / "s3" / "objects" / "kept").iterdir(),
        key=lambda path: json.loads(path.read_bytes())["key"],
    )
    whole = a.read_bytes()
    a.write_bytes(whole[:-1])
    with served(tmp_path) as platform:
        platform.s3.put_object(Bucket="kept", Key="c", Body=b"c")
        platform.s3.delete_objects(Bucket="kept", Delete={"Objects": [{"Key": "c"}]})
        said = daemon.read_status(platform.endpoint)["damaged"]  # type: ignore[index]
        assert any(line.startswith(f"{a} ") and "JSON" in line for line in said)
    a.write_bytes(whole)
    with served(tmp_path) as platform:
        assert platform.s3.get_object(Bucket="kept", Key="a")["Body"].read() == b"a"
        platform.s3.put_object(Bucket="kept", Key="a", Body=b"again")
    assert len(list((tmp_path / "s3" / "bodies").rglob("*-*"))) == 2, "the replaced one is gone"


def test_body_that_was_changed_on_disk_is_not_given_as_the_object(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="kept")
        platform.s3.put_object(Bucket="kept", Key="a", Body=b"whole")
    [body] = (tmp_path / "s3" / "bodies" / "kept").iterdir()
    body.write_bytes(b"who")
    with served(tmp_path) as platform:
        with pytest.raises(ClientError, match="NoSuchKey"):
            platform.s3.get_object(Bucket="kept", Key="a")
        [said] = daemon.read_status(platform.endpoint)["damaged"]  # type: ignore[index]
        assert said.startswith("s3://kept/a ") and str(body) in said
    body.write_bytes(b"whole")
    with served(tmp_path) as platform:
        assert platform.s3.get_object(Bucket="kept", Key="a")["Body"].read() == b"whole"


def test_record_of_another_version_does_not_keep_the_platform_from_starting(
    tmp_path: Path,
) -> None:
    odd = [tmp_path / folder / "odd.json" for folder in ("training_jobs", "builds")]
    for path in odd:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"region": "us-east-1", "unknown": 1}')
    with served(tmp_path) as platform:
        said = daemon.read_status(platform.endpoint)["damaged"]  # type: ignore[index]
    assert all(path.exists() and any(str(path) in line for line in said) for path in odd)


def test_deleted_bucket_stays_deleted(tmp_path: Path) -> None:
    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="kept")
        platform.s3.put_object(Bucket="kept", Key="a", Body=b"1")
        platform.s3.delete_object(Bucket="kept", Key="a")
        platform.s3.delete_bucket(Bucket="kept")
    with served(tmp_path) as platform:
        assert platform.s3.list_buckets()["Buckets"] == []


def test_what_a_jobs_nodes_attained_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a regenerated report would treat CPU-throttled nodes as sound ones."""
    starved = {
        "algo-1": NodeAttainment(100.0, 20.0, 19.0, 20.0, 80.0, 0.25),
        "algo-2": NodeAttainment(100.0, 20.0, 10.0, 20.0, 80.0, 0.25),
    }
    run = FakeEngine.run
    monkeypatch.setattr(FakeEngine, "run", lambda *given: replace(run(*given), attainment=starved))

    def utilisation(platform: SimpleNamespace) -> dict[str, float]:
        described = platform.sagemaker.describe_training_job(TrainingJobName="starved")
        window = described["TrainingStartTime"], described["TrainingEndTime"]
        asked = METRICS | EMULATED_METRICS
        return read_utilisation(platform.cloudwatch, "starved", 2, *window, asked)

    with served(tmp_path) as platform:
        platform.s3.create_bucket(Bucket="results")
        two = {"InstanceType": "ml.local.small", "InstanceCount": 2, "VolumeSizeInGB": 1}
        platform.sagemaker.create_training_job(**job_request("starved", ResourceConfig=two))
        wait_for_end(platform.sagemaker, "starved")
        before = utilisation(platform)
    assert before["attained_percent"] == 50.0
    [kept] = (tmp_path / "node_metrics" / "us-east-1").iterdir()
    (kept.parent / "other.json").write_text('{"region": "us-east-1"}')
    with served(tmp_path) as platform:
        assert utilisation(platform) == pytest.approx(before)
