"""Debian's rclone and s3cmd, unmodified: the first steps of a user who copies data with them."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from infra.local.tests.platform_client import serve_platform
from sagemaker_emulator.api.access import access_keys

pytestmark = pytest.mark.slow

SECONDS = 600.0  # for a machine that has much else to do
PART_BYTES = 5 * 2**20


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[SimpleNamespace]:
    for served in serve_platform(tmp_path / "platform"):
        served.s3.create_bucket(Bucket="own-bucket")
        yield served


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file that is uploaded in parts, and a file whose name has a space."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "a b.csv").write_text("1,2\n")
    (folder / "deep" / "large.bin").write_bytes(os.urandom(2 * PART_BYTES + 1))
    return folder


def runner(program: str, home: Path, *options: str) -> Callable[..., str]:
    """Return a function that runs the program with arguments; skip the test if it is not
    installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"there is no {program} on this machine: apt-get install {program} (Debian 12)")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [path, *options, *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def check_stored(platform: SimpleNamespace, data: Path, prefix: str) -> None:
    for name in ("a b.csv", "deep/large.bin"):
        stored = platform.s3.get_object(Bucket="own-bucket", Key=f"{prefix}/{name}")
        assert stored["Body"].read() == (data / name).read_bytes()


def test_rclone(platform: SimpleNamespace, data: Path, tmp_path: Path) -> None:
    keys = access_keys(platform.state_dir).user
    settings = configparser.RawConfigParser()
    settings["local"] = {
        "type": "s3",
        "provider": "Other",
        "access_key_id": keys.id,
        "secret_access_key": keys.secret,
        "endpoint": platform.endpoint,
    }
    with (tmp_path / "rclone.conf").open("w") as file:
        settings.write(file)
    options = ("--config", str(tmp_path / "rclone.conf"), "--retries", "1")
    parts = ("--low-level-retries", "1", "--s3-chunk-size", "5M", "--s3-upload-cutoff", "5M")
    rclone = runner("rclone", tmp_path, *options, *parts)
    rclone("copy", str(data), "local:own-bucket/all")
    check_stored(platform, data, "all")
    head = platform.s3.head_object(Bucket="own-bucket", Key="all/deep/large.bin")
    assert head["ETag"].endswith('-3"'), "it went in parts"
    rclone("check", "--download", str(data), "local:own-bucket/all")
    rclone("mkdir", "local:other-bucket")
    rclone("sync", "local:own-bucket/all", "local:other-bucket")
    assert sorted(rclone("lsf", "-R", "local:other-bucket").splitlines()) == [
        "a b.csv",
        "deep/",
        "deep/large.bin",
    ]
    rclone("purge", "local:other-bucket")
    assert [bucket["Name"] for bucket in platform.s3.list_buckets()["Buckets"]] == ["own-bucket"]


@pytest.mark.parametrize("region", [(), ("--region", "us-east-1")], ids=["default", "named"])
def test_s3cmd(
    platform: SimpleNamespace, data: Path, tmp_path: Path, region: tuple[str, ...]
) -> None:
    keys, host = access_keys(platform.state_dir).user, urlsplit(platform.endpoint).netloc
    access = (f"--access_key={keys.id}", f"--secret_key={keys.secret}", "--no-ssl")
    s3cmd = runner("s3cmd", tmp_path, *access, f"--host={host}", f"--host-bucket={host}", *region)
    assert s3cmd("ls").endswith("  s3://own-bucket\n")
    s3cmd("mb", "s3://made-by-s3cmd")
    s3cmd("sync", "--multipart-chunk-size-mb=5", f"{data}/", "s3://own-bucket/all/")
    check_stored(platform, data, "all")
    large = "s3://own-bucket/all/deep/large.bin"
    assert "FULL_CONTROL" in s3cmd("info", large)
    s3cmd("cp", large, "s3://made-by-s3cmd/copy")
    s3cmd("get", "s3://made-by-s3cmd/copy", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (data / "deep" / "large.bin").read_bytes()
    s3cmd("del", "s3://made-by-s3cmd/copy")
    s3cmd("rb", "s3://made-by-s3cmd")
    assert "made-by-s3cmd" not in s3cmd("ls")
