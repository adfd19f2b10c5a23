"""Input channels: the files that nodes get, and the message if the data is missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import job_request, resources, wait_for_end, wait_for_phase
from sagemaker_emulator.interfaces import JobSpec, Node
from sagemaker_emulator.jobs.downloads import (
    DataDownloadError,
    FolderObject,
    _path_below_prefix,
    _place,
)
from sagemaker_emulator.s3_objects import S3Location

Seen = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def data(platform: SimpleNamespace) -> SimpleNamespace:
    """Create data/train/{a,b,c}.csv and data/train/deep/d.csv, a folder marker, and
    data/training.csv, whose name only looks similar."""
    platform.s3.create_bucket(Bucket="inputs")
    for name in ("train/a.csv", "train/b.csv", "train/c.csv", "train/deep/d.csv", "training.csv"):
        platform.s3.put_object(Bucket="inputs", Key=f"data/{name}", Body=name.encode())
    platform.s3.put_object(Bucket="inputs", Key="data/train/", Body=b"")
    return platform


def channel(uri: str, name: str = "train", **source: str) -> dict[str, Any]:
    return {
        "ChannelName": name,
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri, **source}},
    }


def files_seen(platform: SimpleNamespace, name: str, nodes: int, *channels: dict[str, Any]) -> Seen:
    """Run a job that lists its input folders, and return {channel/path: content} by host."""
    seen: Seen = {}

    def look(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        root = node.opt_ml / "input" / "data"
        seen[node.host] = {
            str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()
        }

    platform.engine.programs["look"] = look
    request = job_request(
        name, "look", InputDataConfig=list(channels), ResourceConfig=resources(nodes)
    )
    platform.sagemaker.create_training_job(**request)
    job = wait_for_end(platform.sagemaker, name)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    return seen


def test_every_node_gets_every_file(data: SimpleNamespace) -> None:
    seen = files_seen(data, "replicated", 2, channel("s3://inputs/data/train/"))
    expected = {
        f"train/{name}": f"train/{name}" for name in ("a.csv", "b.csv", "c.csv", "deep/d.csv")
    }
    assert seen == {"algo-1": expected, "algo-2": expected}


def test_sharding_gives_each_file_to_one_node(data: SimpleNamespace) -> None:
    sharded = channel("s3://inputs/data/train/", S3DataDistributionType="ShardedByS3Key")
    seen = files_seen(
        data, "sharded", 3, sharded, channel("s3://inputs/data/training.csv", "extra")
    )
    assert {host: sorted(files) for host, files in seen.items()} == {
        "algo-1": ["extra/training.csv", "train/a.csv", "train/deep/d.csv"],
        "algo-2": ["extra/training.csv", "train/b.csv"],
        "algo-3": ["extra/training.csv", "train/c.csv"],
    }


def test_manifest(data: SimpleNamespace) -> None:
    manifest = json.dumps([{"prefix": "s3://inputs/data/"}, "train/a.csv", "training.csv"])
    data.s3.put_object(Bucket="inputs", Key="manifest.json", Body=manifest.encode())
    seen = files_seen(
        data, "manifest", 1, channel("s3://inputs/manifest.json", S3DataType="ManifestFile")
    )
    assert sorted(seen["algo-1"]) == ["train/train/a.csv", "train/training.csv"]


@pytest.mark.parametrize("body", ["{", "[]", '["no-prefix"]'])
def test_bad_manifest(data: SimpleNamespace, body: str) -> None:
    data.s3.put_object(Bucket="inputs", Key="bad.json", Body=body.encode())
    name = f"bad-manifest-{len(body)}"
    bad = channel("s3://inputs/bad.json", S3DataType="ManifestFile")
    data.sagemaker.create_training_job(**job_request(name, InputDataConfig=[bad]))
    reason = wait_for_end(data.sagemaker, name)["FailureReason"]
    assert reason.startswith(
        "ClientError: Data download failed:Unable to parse manifest at s3://inputs/bad.json"
    )


def test_data_deleted_while_the_job_waits(data: SimpleNamespace) -> None:
    data.s3.put_object(Bucket="inputs", Key="gone/x", Body=b"x")
    data.sagemaker.create_training_job(**job_request("before", "endless"))
    wait_for_phase(data.sagemaker, "before", "Training")
    data.sagemaker.create_training_job(
        **job_request("after", InputDataConfig=[channel("s3://inputs/gone/")])
    )
    data.s3.delete_object(Bucket="inputs", Key="gone/x")
    data.sagemaker.stop_training_job(TrainingJobName="before")
    job = wait_for_end(data.sagemaker, "after")
    assert (
        job["FailureReason"]
        == "ClientError: Data download failed:S3 key: s3://inputs/gone/ matched no files on s3"
    )
    assert [item["Status"] for item in job["SecondaryStatusTransitions"]][-2:] == [
        "Downloading",
        "Failed",
    ]


def test_key_that_leaves_its_folder(data: SimpleNamespace, snapshot: SnapshotAssertion) -> None:
    data.s3.put_object(Bucket="inputs", Key="evil/../../../out", Body=b"x")
    request = job_request("evil", InputDataConfig=[channel("s3://inputs/evil/")])
    data.sagemaker.create_training_job(**request)
    assert wait_for_end(data.sagemaker, "evil")["FailureReason"] == snapshot


def test_doubled_slashes_stay_in_the_channel(data: SimpleNamespace, tmp_path: Path) -> None:
    """data//tmp/x below data/ is "/tmp/x", which would replace the folder it is joined with."""
    outside = f"{tmp_path}/x"
    data.s3.put_object(Bucket="inputs", Key=f"doubled/{outside}", Body=b"1")
    manifest = json.dumps([{"prefix": "s3://inputs/doubled/"}, outside])
    data.s3.put_object(Bucket="inputs", Key="doubled.json", Body=manifest.encode())
    listed = channel("s3://inputs/doubled.json", "listed", S3DataType="ManifestFile")
    seen = files_seen(data, "doubled", 1, channel("s3://inputs/doubled/"), listed)
    assert sorted(seen["algo-1"]) == [f"listed{outside}", f"train{outside}"]
    assert not Path(outside).exists()


def test_keys_that_would_be_one_file_are_refused(data: SimpleNamespace) -> None:
    """S3 distinguishes "one//a" from "one/a", but folders do not, so either could remain."""
    for key in ("one//a", "one/a"):
        data.s3.put_object(Bucket="inputs", Key=key, Body=key.encode())
    data.sagemaker.create_training_job(
        **job_request("one-file", InputDataConfig=[channel("s3://inputs/one/")])
    )
    said = wait_for_end(data.sagemaker, "one-file")["FailureReason"]
    assert "s3://inputs/one//a" in said and "s3://inputs/one/a " in said and "'a'" in said


def test_key_listed_twice_in_a_manifest_is_one_file(data: SimpleNamespace) -> None:
    manifest = json.dumps([{"prefix": "s3://inputs/data/"}, "training.csv", "training.csv"])
    data.s3.put_object(Bucket="inputs", Key="twice.json", Body=manifest.encode())
    seen = files_seen(
        data, "listed-twice", 1, channel("s3://inputs/twice.json", S3DataType="ManifestFile")
    )
    assert sorted(seen["algo-1"]) == ["train/training.csv"]


def test_object_that_would_leave_its_channel_by_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "channel").mkdir()
    (tmp_path / "channel" / "link").symlink_to(tmp_path)
    item = FolderObject(S3Location("inputs", "link/x"), "link/x")
    with pytest.raises(DataDownloadError, match="link/x"):
        _place(None, item, [tmp_path / "channel"])


@pytest.mark.parametrize(
    ("prefix", "key", "path"),
    [
        ("data/train", "data/train/a.csv", "a.csv"),
        ("data/train/", "data/train/x/a.csv", "x/a.csv"),
        ("data/train", "data/train.csv", "train.csv"),
        ("data/train.csv", "data/train.csv", "train.csv"),
        ("", "a/b.csv", "a/b.csv"),
        ("tr", "train.csv", "train.csv"),
        ("data/", "data//tmp/x", "tmp/x"),
        ("data", "data///tmp/x", "tmp/x"),
    ],
)
def test_path_below_prefix(prefix: str, key: str, path: str) -> None:
    assert _path_below_prefix(prefix, key) == path
    assert not Path(path).is_absolute()
