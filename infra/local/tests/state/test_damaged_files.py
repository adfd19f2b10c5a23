"""A state folder in which one file is missing, malformed or unreadable.

The platform starts, or its message names the file and the remedy. Intact files are never lost.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    client,
    job_request,
    serve_platform,
    serve_simulated,
    wait_for_end,
)
from sagemaker_emulator.__main__ import main
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerStartError

served = contextmanager(serve_platform)
simulated = contextmanager(serve_simulated)
OBJECTS = {"kept": {"a/one.csv": b"1", "two": b"22"}, "west": {"three": b"333"}}

DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "other shape": lambda path: path.write_bytes(b"[]"),
}
UNREADABLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256))),
}
"""Files are damaged with these in turn, since nearly all are read by state.files.read_json()."""
MAY_BE_MISSING = {"engine.json", "aws-credentials", "ecr.json", "simulated-images.json"}
"""Recreated without a notice, since nothing records that they existed."""
_LIKE_ANOTHER = re.compile("/results[/.]")
"""Matches files of the job's bucket, which are skipped because other buckets have them, too."""
HOLDS_NOTHING = {"server.json", "server.lock", "start.lock", "server.log", "not-kept.json"}
HOLDS_NOTHING |= {"faults.json", "model.json"}  # passed at every start


def fill(platform: SimpleNamespace) -> None:
    """Create objects in two regions, one of them by a multipart upload."""
    west = client(platform.endpoint, "s3", "us-west-2")
    platform.s3.create_bucket(Bucket="kept")
    west.create_bucket(Bucket="west", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    for bucket, objects in OBJECTS.items():
        for key, body in objects.items():
            west.put_object(Bucket=bucket, Key=key, Body=body, Tagging="team=a")
    upload = {"Bucket": "kept", "Key": "parts"}
    upload["UploadId"] = west.create_multipart_upload(**upload)["UploadId"]
    etag = west.upload_part(**upload, PartNumber=1, Body=b"p")["ETag"]
    parts = [{"PartNumber": 1, "ETag": etag}]
    west.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a platform with objects, a job, a build, a repository and nodes."""
    folder = tmp_path_factory.mktemp("sound")
    with served(folder) as platform:
        fill(platform)
        platform.s3.create_bucket(Bucket="results")
        platform.sagemaker.create_training_job(**job_request("done"))
        wait_for_end(platform.sagemaker, "done")
        platform.codebuild.start_build(
            projectName="p", sourceTypeOverride="S3", sourceLocationOverride="kept/no.zip"
        )
        platform.ecr.create_repository(repositoryName="own")
    return folder


@pytest.fixture(scope="module")
def sound_simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulation")
    with simulated(folder) as platform:
        fill(platform)
    (folder / "simulated-images.json").write_text(f'[["a", "1", "sha256:{"a" * 64}"]]')
    return folder


def files_of(folder: Path) -> list[str]:
    """Return the files of the platform's own state, as relative paths, without the folders of
    runs."""
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path) for path in found if path.parts[0] != "engine")


def objects_of(platform: SimpleNamespace) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    for bucket in platform.s3.list_buckets()["Buckets"]:
        place = {"Bucket": bucket["Name"]}
        listed = platform.s3.list_objects_v2(**place).get("Contents", [])
        found[bucket["Name"]] = {
            item["Key"]: platform.s3.get_object(**place, Key=item["Key"])["Body"].read()
            for item in listed
        }
    return found


def use(platform: SimpleNamespace) -> None:
    """Use the platform like a run that starts: create missing resources, and change other keys."""
    for bucket in OBJECTS:
        with contextlib.suppress(ClientError):
            platform.s3.create_bucket(Bucket=bucket)
        platform.s3.put_object(Bucket=bucket, Key="further", Body=b"f")
        platform.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "further"}]})


def check_bodies_are_kept(sound: Path, folder: Path, damaged: str) -> None:
    for path in files_of(sound):
        if path.startswith("s3/bodies/") and path != damaged:
            assert (folder / path).read_bytes() == (sound / path).read_bytes(), path


def check_start(
    sound: Path, folder: Path, damaged: str, is_missing: bool, serve: Callable[..., Any]
) -> ServerStartError | None:
    """Start the platform, use it, and start it again; return the refusal if the first start was
    refused."""
    try:
        with serve(folder) as platform:
            found = objects_of(platform)
            said = daemon.read_status(platform.endpoint)["damaged"]  # type: ignore[index]
            use(platform)
            jobs = platform.sagemaker.list_training_jobs()["TrainingJobSummaries"]
            location = platform.s3.get_bucket_location(Bucket="west")["LocationConstraint"]
    except ServerStartError as error:
        check_bodies_are_kept(sound, folder, damaged)
        return error
    whole = OBJECTS | {"kept": OBJECTS["kept"] | {"parts": b"p"}}
    lost = [
        (bucket, key)
        for bucket, objects in whole.items()
        for key, body in objects.items()
        if found.get(bucket, {}).get(key) != body
    ]
    is_one_of_them = damaged.split("/")[1:3] in [
        [kind, bucket] for kind in ("objects", "bodies") for bucket in whole
    ]
    assert len(lost) == is_one_of_them, (lost, said)
    assert location == "us-west-2" or damaged.startswith("s3/objects/west/")
    if serve is served:
        assert len(jobs) == 1 - damaged.startswith("training_jobs/"), said
    name = Path(damaged).name
    if name not in HOLDS_NOTHING | MAY_BE_MISSING:
        stem = name.removesuffix(".json").partition("-")[0]
        assert any(stem in line for line in said) or (is_missing and damaged[:3] != "s3/"), said
    check_bodies_are_kept(sound, folder, damaged)
    if damaged.startswith("s3/"):
        with serve(folder) as platform:
            assert objects_of(platform) == found
        check_bodies_are_kept(sound, folder, damaged)
    return None


def check_every_file(
    sound: Path, place: Path, serve: Callable[..., Any], names: Sequence[str]
) -> None:
    """Damage every file in three ways, one at a time."""
    unreadable = itertools.cycle(UNREADABLE.items())
    for damaged in names:
        for damage, inflict in (*DAMAGES.items(), next(unreadable)):
            folder = place / "copy"
            shutil.copytree(sound, folder)
            inflict(folder / damaged)
            try:
                refused = check_start(sound, folder, damaged, damage == "missing", serve)
            except BaseException as error:
                error.add_note(f"{damaged}: {damage}")
                raise
            if refused is not None:
                message = str(refused)
                assert f"{folder / damaged} is damaged (" in message and "\n" not in message
                assert "remove it" in message or "Write " in message
            shutil.rmtree(folder)


@pytest.mark.slow
def test_every_file_of_a_platform(sound: Path, tmp_path: Path) -> None:
    names = [name for name in files_of(sound) if not _LIKE_ANOTHER.search(name)]
    assert len(names) >= 14
    check_every_file(sound, tmp_path, served, names)


@pytest.mark.slow
def test_the_further_files_of_a_simulation(sound_simulation: Path, tmp_path: Path) -> None:
    names = ["aws-credentials", "engine.json", "simulated-images.json"]
    check_every_file(sound_simulation, tmp_path, simulated, names)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_the_terminal_names_the_file(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The platform starts in a real process.

    A refused start exits with 1, damaged files that are skipped are reported, and unimportant files
    do not prevent a start.
    """
    inflict = (DAMAGES | UNREADABLE)[damage]
    with simulated(tmp_path) as platform:
        fill(platform)
    start = ["start", "--port", "0", "--engine", "simulated", "--state-dir", str(tmp_path)]
    stop = ["stop", "--state-dir", str(tmp_path)]
    [record] = (tmp_path / "s3" / "objects" / "west").iterdir()
    for path in [record, *(tmp_path / name for name in sorted(HOLDS_NOTHING))]:
        path.touch()
        inflict(path)
    try:
        assert main(start) == 0
        said = capsys.readouterr().err
        lines = [line for line in said.splitlines() if line.startswith("damaged: ")]
        assert lines and all(record.stem in line for line in lines)
        assert (main(stop), main(stop)) == (0, 0)
        for name in ("engine.json", "aws-credentials"):
            sound = (tmp_path / name).read_bytes()
            inflict(tmp_path / name)
            capsys.readouterr()
            code = main(start)
            said = capsys.readouterr().err
            if damage == "missing":
                assert (code, main(stop)) == (0, 0)
            else:
                assert code == 1 and said.startswith(f"{tmp_path / name} is damaged ("), said
            (tmp_path / name).write_bytes(sound)
    finally:
        daemon.stop(tmp_path)
