"""FSx and EFS channels, for which a folder of this machine replaces the file system."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import job_request, resources, run_job, serve_platform
from sagemaker_emulator.__main__ import _file_system
from sagemaker_emulator.interfaces import JobSpec, Node

ID = "fs-0123456789abcdef0"
VPC = {"VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}}


def channel(
    path: str, name: str = "corpus", id: str = ID, type: str = "FSxLustre"
) -> dict[str, Any]:
    source = {
        "FileSystemId": id,
        "FileSystemType": type,
        "FileSystemAccessMode": "ro",
        "DirectoryPath": path,
    }
    return {
        "ChannelName": name,
        "DataSource": {"FileSystemDataSource": source},
        "InputMode": "File",
    }


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    root = tmp_path_factory.mktemp("file-system")
    (root / "fsx" / "corpus").mkdir(parents=True)
    (root / "fsx" / "corpus" / "a.csv").write_text("1,2")
    for served in serve_platform(tmp_path_factory.mktemp("platform"), file_systems={ID: root}):
        served.s3.create_bucket(Bucket="results")
        served.root = root
        yield served


@pytest.mark.parametrize("type", ["FSxLustre", "EFS"])
def test_every_node_sees_the_folder(platform: SimpleNamespace, type: str) -> None:
    seen: dict[str, str] = {}

    def look(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        seen[node.host] = (node.opt_ml / "input" / "data" / "corpus" / "a.csv").read_text()

    platform.engine.programs["look"] = look
    request = {
        **VPC,
        "InputDataConfig": [channel("/fsx/corpus", type=type)],
        "ResourceConfig": resources(2),
    }
    job = run_job(platform, f"mounted-{type}", "look", **request)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert seen == {"algo-1": "1,2", "algo-2": "1,2"}
    assert [one["DataSource"] for one in job["InputDataConfig"]] == [
        channel("/fsx/corpus", type=type)["DataSource"]
    ]
    assert job["VpcConfig"] == VPC["VpcConfig"]
    assert (platform.root / "fsx" / "corpus" / "a.csv").exists(), (
        "the job's folders are removed, not what they link to"
    )


def test_objects_of_s3_come_beside_it(platform: SimpleNamespace) -> None:
    platform.s3.put_object(Bucket="results", Key="in/b.csv", Body=b"3")
    objects = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://results/in/"}}
    channels = [{"ChannelName": "train", "DataSource": objects}, channel("/fsx/corpus")]
    seen: list[str] = []

    def look(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        root = node.opt_ml / "input" / "data"
        seen.extend((root / name).read_text() for name in ("train/b.csv", "corpus/a.csv"))

    platform.engine.programs["look"] = look
    run_job(platform, "both", "look", InputDataConfig=channels, **VPC)
    assert seen == ["3", "1,2"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            channel("/fsx/none"),
            f"{ID} directory path: /fsx/none. Incorrect mount path. Please ensure that the mount",
        ),
        (channel("/../.."), f"{ID} directory path: /../... Incorrect mount path."),
        (
            channel("/fsx", id="fs-00000000"),
            (
                "fs-00000000 directory path: /fsx. File system id is invalid; configured file"
                f" systems: {ID}."
            ),
        ),
    ],
)
def test_what_can_not_be_mounted_fails_the_job(
    platform: SimpleNamespace, source: dict[str, Any], message: str
) -> None:
    path = source["DataSource"]["FileSystemDataSource"]["DirectoryPath"]
    job = run_job(
        platform, f"unmounted-{path.count('/')}-{len(message)}", InputDataConfig=[source], **VPC
    )
    assert job["FailureReason"].startswith(f"ClientError: Unable to mount file system: {message}")


def test_file_system_without_a_vpc_is_refused(platform: SimpleNamespace) -> None:
    with pytest.raises(
        ClientError, match=r"ValidationException.*Channel corpus: VpcConfig must be specified"
    ):
        platform.sagemaker.create_training_job(
            **job_request("no-vpc", InputDataConfig=[channel("/fsx")])
        )


def test_option_names_an_id_and_a_folder(tmp_path: Path) -> None:
    assert _file_system(f"{ID}={tmp_path}") == (ID, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data", "is not ID=DIR"),
        ("fs-xyz=/tmp", "is not ID=DIR"),
        (f"{ID}=", "is not ID"),
        (f"{ID}=/no", "not a folder"),
    ],
)
def test_option_that_names_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        _file_system(text)
