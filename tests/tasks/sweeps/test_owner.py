from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

import nodesweep.tasks.sweeps.owner
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.owner import (
    Heartbeat,
    SweepOwner,
    owned,
    read_heartbeat,
)

SWEEP = "bench-20260102030405-0a1b2c3d"


@pytest.fixture
def s3(aws: Callable[[str], Any], platform: PlatformConfig) -> Iterator[Any]:
    aws_client.cache_clear()  # a client made outside the mocked account would not be mocked
    client = aws("s3")
    client.create_bucket(Bucket=platform.bucket)
    yield client
    aws_client.cache_clear()


def sign_in_bucket(s3: Any, platform: PlatformConfig) -> dict[str, Any]:
    answer = s3.get_object(Bucket=platform.bucket, Key=names.owner_key(platform.prefix, SWEEP))
    return dict(json.loads(answer["Body"].read()))


def test_sweep_without_a_sign_and_missing_bucket_have_none(
    s3: Any, platform: PlatformConfig
) -> None:
    assert read_heartbeat(BucketStore(platform, client=s3), SWEEP) is None
    elsewhere = platform.model_copy(update={"bucket": "another"})
    assert read_heartbeat(BucketStore(elsewhere, client=s3), SWEEP) is None


@pytest.mark.parametrize("detached", [False, True])
def test_sign_shows_that_a_run_goes_on_and_that_a_detached_one_has_ended(
    store: Store, detached: bool
) -> None:
    """Others make their report next, or share the sweep with a run that goes on."""
    with owned(store, SWEEP, detached):
        begun = read_heartbeat(store, SWEEP)
        assert begun is not None or not detached, "a reaper could see the first job before it"
        sign = wait_until(lambda: read_heartbeat(store, SWEEP))
        assert sign.is_alive and not sign.ended and sign.left_running is detached
    last = read_heartbeat(store, SWEEP)
    assert last is not None and last.ended is detached and last.is_alive is not detached
    assert last.left_running is detached


def test_run_that_was_killed_counts_as_alive_for_150_s() -> None:
    written = datetime(2026, 1, 2, tzinfo=UTC)
    assert Heartbeat(written, written + timedelta(seconds=150), left_running=False).is_alive
    assert not Heartbeat(written, written + timedelta(seconds=151), left_running=False).is_alive


@pytest.mark.parametrize("left", [False, True])
def test_sign_of_a_version_without_ends(store: Store, left: bool) -> None:
    body = json.dumps({"sweep_id": SWEEP, "left_running": left}).encode()
    store.put(names.owner_key(store.prefix, SWEEP), body)
    sign = read_heartbeat(store, SWEEP)
    assert sign is not None and (sign.left_running, sign.is_alive) == (left, not left)


def test_detached_run_whose_first_sign_cannot_be_written_begins_no_job(
    aws: Callable[[str], Any], platform: PlatformConfig
) -> None:
    """The bucket for the sign does not exist."""
    aws_client.cache_clear()
    with (
        pytest.raises(ClientError, match="NoSuchBucket"),
        owned(BucketStore(platform), SWEEP, detached=True),
    ):
        pytest.fail("a reaper would take its jobs for orphans")
    aws_client.cache_clear()


def test_sign_is_kept_in_every_store(store: Store) -> None:
    assert read_heartbeat(store, SWEEP) is None
    for leaves in (True, False):
        owner = SweepOwner(store, SWEEP)
        owner.write_heartbeat()
        if leaves:
            owner.leave()
        sign = read_heartbeat(store, SWEEP)
        assert sign is not None and sign.left_running is leaves and sign.age_seconds < 300


def test_sign_is_written_anew_with_every_beat(
    s3: Any, platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, three_times = [], threading.Event()

    def write(*_: Any, left_running: bool, ended: bool) -> None:
        written.append(left_running)
        if len(written) == 3:
            three_times.set()

    monkeypatch.setattr(SweepOwner, "_write", write)
    monkeypatch.setattr(nodesweep.tasks.sweeps.owner, "HEARTBEAT_SECONDS", 0.001)
    with owned(BucketStore(platform), SWEEP):
        assert three_times.wait(HANG_SECONDS)
    assert set(written) == {False}
    assert not [thread for thread in threading.enumerate() if thread.name == f"owner-{SWEEP}"]


def test_sign_that_cannot_be_written_costs_a_warning_and_not_the_sweep(
    aws: Callable[[str], Any], platform: PlatformConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """The bucket for the sign does not exist."""
    aws_client.cache_clear()
    with caplog.at_level(logging.WARNING), owned(BucketStore(platform), SWEEP):
        pass
    aws_client.cache_clear()
    assert f"heartbeat of {SWEEP}" in caplog.text


def test_sweep_that_is_left_says_so_until_somebody_runs_it_again(
    s3: Any, platform: PlatformConfig
) -> None:
    SweepOwner(BucketStore(platform), SWEEP).leave()
    assert sign_in_bucket(s3, platform)["left_running"] is True
    with owned(BucketStore(platform), SWEEP):
        pass
    assert sign_in_bucket(s3, platform)["left_running"] is False


def test_beat_that_is_under_way_does_not_undo_that_the_jobs_were_left(
    s3: Any, platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sweep.on_cancel: leave, while a slow beat is being written and others follow at once."""
    write, writing = SweepOwner._write, threading.Event()

    def slowly(*args: Any, left_running: bool, ended: bool) -> None:
        if not left_running:
            writing.set()
            time.sleep(0.2)
        write(*args, left_running, ended)

    monkeypatch.setattr(SweepOwner, "_write", slowly)
    monkeypatch.setattr(nodesweep.tasks.sweeps.owner, "HEARTBEAT_SECONDS", 0.001)
    with owned(BucketStore(platform), SWEEP) as owner:
        assert writing.wait(HANG_SECONDS)
        owner.leave()
        time.sleep(0.3)
    assert sign_in_bucket(s3, platform)["left_running"] is True


def test_beat_goes_on_whatever_error_one_of_them_meets(
    s3: Any,
    platform: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If the heartbeat stopped, the reaper would stop the jobs of a healthy sweep."""
    tries, twice_more = iter(range(1000)), threading.Event()

    def write(*_: Any, **__: Any) -> None:
        if (number := next(tries)) == 0:
            raise RuntimeError("can't start new thread")
        if number == 2:
            twice_more.set()

    monkeypatch.setattr(SweepOwner, "_write", write)
    monkeypatch.setattr(nodesweep.tasks.sweeps.owner, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    with owned(BucketStore(platform), SWEEP):
        assert twice_more.wait(HANG_SECONDS)
    assert "new thread" in caplog.text


def test_age_is_by_the_platforms_clock_whatever_this_machines_says(
    platform: PlatformConfig,
) -> None:
    """Date of the response minus LastModified is 90 s, in another year than this machine's
    clock."""
    s3 = aws_client("s3", platform)
    written = datetime(2031, 5, 1, 12, 0, 0, tzinfo=UTC)
    answer = {
        "LastModified": written,
        "Body": io.BytesIO(b'{"left_running": false}'),
        "ResponseMetadata": {"HTTPHeaders": {"date": "Thu, 01 May 2031 12:01:30 GMT"}},
    }
    with Stubber(s3) as stub:
        stub.add_response(
            "get_object",
            answer,
            {"Bucket": platform.bucket, "Key": names.owner_key(platform.prefix, SWEEP)},
        )
        sign = read_heartbeat(BucketStore(platform, client=s3), SWEEP)
    assert sign == Heartbeat(written, written + timedelta(seconds=90), left_running=False)
    assert sign.age_seconds == 90
