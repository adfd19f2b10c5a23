"""Running jobs without an owner; ages are computed from the times of a fake platform."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import FolderStore
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.orphans import orphans, validation_orphans
from nodesweep.tasks.sweeps.owner import SweepOwner
from tests.nodesweep.launch.memory import MemoryLauncher
from tests.nodesweep.launch.slurm.cluster import until_told_spec

NOW = datetime(2031, 5, 1, 12, 0, 0, tzinfo=UTC)
"""The platform's clock; this machine's is years behind."""
SWEEP, OTHER = "bench-20310501080000-0a1b2c3d", "other-20310501090000-0a1b2c3d"
GRACE_SECONDS = 3600.0


class FakePlatform:
    """SageMaker and S3 in one object, with the operations that the reaper uses."""

    class exceptions:
        ClientError = ClientError

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.tags: dict[str, dict[str, str]] = {}
        self.objects: dict[str, tuple[bytes, datetime]] = {}

    def add_sweep(
        self, platform: PlatformConfig, sweep: str, owner_age: float | None, left: bool = False
    ) -> None:
        """Add a sweep's record, and the sign of life of its owner this many seconds ago."""
        self.objects[names.sweep_config_key(platform.prefix, sweep)] = (b"{}", NOW)
        if owner_age is not None:
            body = names.pretty_json({"sweep_id": sweep, "left_running": left})
            self.objects[names.owner_key(platform.prefix, sweep)] = (
                body,
                NOW - timedelta(seconds=owner_age),
            )

    def add_job(
        self, name: str, sweep_tag: str | None, age: float, ended_with_pool: bool = False
    ) -> str:
        arn = f"arn:{name}"
        job = {
            "TrainingJobName": name,
            "TrainingJobArn": arn,
            "CreationTime": NOW - timedelta(seconds=age),
            "TrainingJobStatus": "Completed" if ended_with_pool else "InProgress",
            "WarmPoolStatus": {"Status": "Available" if ended_with_pool else "InUse"},
        }
        self.jobs.append(job)
        self.tags[arn] = {} if sweep_tag is None else {names.TAG_SWEEP_ID: sweep_tag}
        return name

    def get_paginator(self, operation: str) -> FakePlatform:
        assert operation == "list_training_jobs"
        return self

    def paginate(self, **query: Any) -> list[dict[str, Any]]:
        [(shown, wanted)] = query.items() & {
            ("StatusEquals", "InProgress"),
            ("WarmPoolStatusEquals", "Available"),
        }
        found = [
            job
            for job in self.jobs
            if wanted
            == (
                job["TrainingJobStatus"]
                if shown == "StatusEquals"
                else job["WarmPoolStatus"]["Status"]
            )
        ]
        oldest_first = sorted(found, key=lambda job: job["CreationTime"])
        return [
            {"TrainingJobSummaries": [job], "ResponseMetadata": _dated()} for job in oldest_first
        ]

    def list_tags(self, ResourceArn: str) -> dict[str, Any]:
        return {
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags[ResourceArn].items()]
        }

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey", "Message": ""}}, "GetObject")
        body, written = self.objects[Key]
        return {"Body": io.BytesIO(body), "LastModified": written, "ResponseMetadata": _dated()}


def _dated() -> dict[str, Any]:
    return {"HTTPHeaders": {"date": format_datetime(NOW, usegmt=True)}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    monkeypatch.setattr("nodesweep.tasks.sweeps.orphans.read_claims", lambda *_: frozenset())
    return FakePlatform()


def job_of(sweep: str, nodes: int) -> str:
    return names.job_name(sweep, nodes, 1, 1, "abcd")


def test_sweep_of_any_launcher_is_reaped(tmp_path: Path) -> None:
    """Slurm's jobs have no tags, and its records are in a folder."""
    store, cluster = FolderStore(tmp_path), MemoryLauncher()
    spec = until_told_spec(job_of(SWEEP, 1), nodes=1)
    cluster.submit(spec)
    assert orphans(cluster, store, 0.0) == [], "another folder's sweep"
    store.put(names.sweep_config_key(store.prefix, SWEEP), b"{}")
    assert orphans(cluster, store, 0.0) == [spec.name]
    assert orphans(cluster, store, 3600.0) == [], "it began just now"
    assert validation_orphans(cluster, store, 0.0) == []
    SweepOwner(store, SWEEP).leave()
    assert orphans(cluster, store, 0.0) == []


def found(fake: FakePlatform, platform: PlatformConfig) -> list[str]:
    return orphans(SageMakerJobs(fake), BucketStore(platform, client=fake), GRACE_SECONDS)


@pytest.mark.parametrize(("silent_seconds", "reaped"), [(3600, False), (3601, True)])
def test_owner_may_be_silent_for_the_grace_and_no_longer(
    fake: FakePlatform, platform: PlatformConfig, silent_seconds: float, reaped: bool
) -> None:
    fake.add_sweep(platform, SWEEP, silent_seconds)
    jobs = [
        fake.add_job(job_of(SWEEP, nodes), SWEEP, age) for nodes, age in ((1, 9000.0), (2, 10.0))
    ]
    assert found(fake, platform) == (jobs if reaped else [])


def test_sweep_without_any_sign_counts_from_its_youngest_job(
    fake: FakePlatform, platform: PlatformConfig
) -> None:
    for sweep, youngest in ((SWEEP, 3601.0), (OTHER, 3600.0)):
        fake.add_sweep(platform, sweep, None)
        fake.add_job(job_of(sweep, 1), sweep, 9000.0)
        fake.add_job(job_of(sweep, 2), sweep, youngest)
    assert found(fake, platform) == [job_of(SWEEP, 1), job_of(SWEEP, 2)]


def test_sweep_that_was_left_running_on_purpose_is_spared(
    fake: FakePlatform, platform: PlatformConfig
) -> None:
    fake.add_sweep(platform, SWEEP, 900_000.0, left=True)
    fake.add_job(job_of(SWEEP, 1), SWEEP, 900_000.0)
    assert found(fake, platform) == []


@pytest.mark.parametrize("left", [False, True])
def test_warm_pool_of_a_sweep_that_nobody_runs_is_found(
    fake: FakePlatform, platform: PlatformConfig, left: bool
) -> None:
    """The jobs have all ended, and a job that was left running needs no pool either."""
    fake.add_sweep(platform, SWEEP, 3601.0, left)
    fake.add_sweep(platform, OTHER, 60.0)
    pool = fake.add_job(job_of(SWEEP, 1), SWEEP, 9000.0, ended_with_pool=True)
    fake.add_job(job_of(OTHER, 1), OTHER, 9000.0, ended_with_pool=True)
    assert found(fake, platform) == [pool]


def test_warm_pool_of_a_sweep_that_was_left_running_is_spared_while_a_job_runs(
    fake: FakePlatform, platform: PlatformConfig
) -> None:
    fake.add_sweep(platform, SWEEP, 9000.0, left=True)
    fake.add_job(job_of(SWEEP, 1), SWEEP, 9000.0, ended_with_pool=True)
    fake.add_job(job_of(SWEEP, 2), SWEEP, 9000.0)
    assert found(fake, platform) == []


def test_only_jobs_with_a_name_and_a_tag_of_ours_are_touched(
    fake: FakePlatform, platform: PlatformConfig
) -> None:
    fake.add_sweep(platform, SWEEP, 9000.0)
    ours = fake.add_job(job_of(SWEEP, 1), SWEEP, 9000.0)
    fake.add_job(job_of(SWEEP, 2), None, 9000.0)
    fake.add_job(job_of(SWEEP, 4), OTHER, 9000.0)
    fake.add_job("somebody-elses-job", SWEEP, 9000.0)
    fake.add_job(f"{SWEEP}-n8", SWEEP, 9000.0)
    assert found(fake, platform) == [ours]


def test_sweep_of_another_bucket_is_left_alone(
    fake: FakePlatform, platform: PlatformConfig
) -> None:
    """The sweep's record and its owner's sign of life are in a bucket that this reaper does not
    read."""
    fake.add_job(job_of(SWEEP, 1), SWEEP, 9000.0)
    assert found(fake, platform) == []


@pytest.mark.parametrize(
    ("tag", "claimed", "reaped"),
    [(None, True, True), (None, False, False), (OTHER, True, False), (SWEEP, False, True)],
)
def test_job_that_lost_its_tag_is_the_sweeps_where_the_bucket_has_its_claim(
    fake: FakePlatform,
    platform: PlatformConfig,
    monkeypatch: pytest.MonkeyPatch,
    tag: str | None,
    claimed: bool,
    reaped: bool,
) -> None:
    fake.add_sweep(platform, SWEEP, 9_000.0)
    job = fake.add_job(job_of(SWEEP, 1), tag, 9_000.0)
    claims = frozenset({job} if claimed else ())
    monkeypatch.setattr("nodesweep.tasks.sweeps.orphans.read_claims", lambda *_: claims)
    assert found(fake, platform) == ([job] if reaped else [])


def test_sweep_that_cannot_be_judged_is_left_alone_and_the_others_are_not(
    fake: FakePlatform, platform: PlatformConfig, caplog: pytest.LogCaptureFixture
) -> None:
    for sweep in (SWEEP, OTHER):
        fake.add_sweep(platform, sweep, 9_000.0)
        fake.add_job(job_of(sweep, 1), sweep, 9_000.0)
    denied = ClientError({"Error": {"Code": "InternalError", "Message": "no"}}, "GetObject")
    get_object = fake.get_object

    def deny(Bucket: str, Key: str) -> dict[str, Any]:
        if Key == names.owner_key(platform.prefix, SWEEP):
            raise denied
        return get_object(Bucket, Key)

    fake.get_object = deny  # type: ignore[method-assign]
    assert found(fake, platform) == [job_of(OTHER, 1)]
    assert SWEEP in caplog.text
