"""Warm pools: kept, reused, released and expired; matching jobs; DeleteTrainingJob and
UpdateTrainingJob."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import (
    job_request,
    phases,
    resources,
    run_job,
    serve_platform,
    wait_for_end,
    wait_for_phase,
    wait_until,
)
from sagemaker_emulator.interfaces import JobSpec, Node
from sagemaker_emulator.training.execution import TrainingExecution
from sagemaker_emulator.training.warm_pool import WarmPool, is_kept, match_key


def kept(seconds: int = 600, count: int = 1) -> dict[str, Any]:
    return {"ResourceConfig": {**resources(count), "KeepAlivePeriodInSeconds": seconds}}


def pool(platform: SimpleNamespace, name: str) -> dict[str, Any]:
    return dict(platform.sagemaker.describe_training_job(TrainingJobName=name)["WarmPoolStatus"])


def release(platform: SimpleNamespace, name: str, seconds: int = 0) -> None:
    update = {"KeepAlivePeriodInSeconds": seconds}
    platform.sagemaker.update_training_job(TrainingJobName=name, ResourceConfig=update)


@contextmanager
def platform_in(folder: Path, **options: Any) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(folder, **options) as served:
        served.s3.create_bucket(Bucket="results")
        yield served


def test_a_pool_moves_from_job_to_job(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("pool-1", "endless", **kept()))
    wait_for_phase(platform.sagemaker, "pool-1", "Training")
    assert pool(platform, "pool-1") == {"Status": "InUse"}
    platform.sagemaker.stop_training_job(TrainingJobName="pool-1")
    wait_for_end(platform.sagemaker, "pool-1")
    kept_pool = pool(platform, "pool-1")
    assert kept_pool.pop("ResourceRetainedBillableTimeInSeconds") >= 0
    assert kept_pool == {"Status": "Available"}
    job = run_job(platform, "pool-2", **kept())
    assert pool(platform, "pool-1")["Status"] == "Reused"
    assert pool(platform, "pool-1")["ReusedByJob"] == "pool-2"
    assert "pool-1" in job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert listed(platform, "Available") == ["pool-2"]
    assert listed(platform, "Reused") == ["pool-1"]
    release(platform, "pool-2")
    assert pool(platform, "pool-2")["Status"] == "Terminated"
    assert listed(platform, "Available") == []
    run_job(platform, "pool-3", **kept())
    assert (
        "Reusing"
        not in described(platform, "pool-3")["SecondaryStatusTransitions"][0]["StatusMessage"]
    )
    release(platform, "pool-3")


def listed(platform: SimpleNamespace, status: str) -> list[str]:
    found = platform.sagemaker.list_training_jobs(WarmPoolStatusEquals=status)[
        "TrainingJobSummaries"
    ]
    assert all(job["WarmPoolStatus"]["Status"] == status for job in found)
    return [job["TrainingJobName"] for job in found]


def described(platform: SimpleNamespace, name: str) -> dict[str, Any]:
    return dict(platform.sagemaker.describe_training_job(TrainingJobName=name))


def test_a_job_that_keeps_nothing_ends_the_pool_it_reuses(platform: SimpleNamespace) -> None:
    run_job(platform, "giver", **kept())
    job = run_job(platform, "taker")
    assert pool(platform, "giver")["ReusedByJob"] == "taker"
    assert job["WarmPoolStatus"]["Status"] == "Terminated"


def test_a_job_without_keep_alive_has_no_pool(platform: SimpleNamespace) -> None:
    assert "WarmPoolStatus" not in run_job(platform, "no-pool")


@pytest.mark.parametrize(
    "changes",
    [
        {"ResourceConfig": resources(2)},
        {"ResourceConfig": resources(1, "ml.local.medium")},
        {"ResourceConfig": {**resources(1), "VolumeSizeInGB": 2}},
        {"RoleArn": "arn:aws:iam::000000000000:role/OtherRole"},
        {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": []}},
        {"VpcConfig": {"SecurityGroupIds": [], "Subnets": ["subnet-1"]}},
        {"EnableInterContainerTrafficEncryption": True},
        {"EnableNetworkIsolation": True},
        {"SessionChainingConfig": {"EnableSessionTagChaining": True}},
    ],
)
def test_what_does_not_match(changes: dict[str, Any]) -> None:
    assert match_key(job_request("a", **kept())) != match_key(job_request("b", **changes))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("role", {"RoleArn": "arn:aws:iam::000000000000:role/OtherRole"}),
        (
            "spot",
            {
                "EnableManagedSpotTraining": True,
                "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 3600},
            },
        ),
    ],
)
def test_what_does_not_match_starts_cold(
    platform: SimpleNamespace, name: str, changes: dict[str, Any]
) -> None:
    run_job(platform, f"{name}-a", **kept())
    run_job(platform, f"{name}-b", **changes)
    assert pool(platform, f"{name}-a")["Status"] == "Available"
    release(platform, f"{name}-a")


def test_image_and_program_may_differ() -> None:
    first, second = job_request("a"), job_request("b", "other", Environment={"X": "1"})
    second["AlgorithmSpecification"] = {
        **second["AlgorithmSpecification"],
        "TrainingImage": "another",
    }
    assert match_key(first) == match_key(second)


def test_warm_start_takes_no_cold_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts_seconds: list[float] = []
    wait = TrainingExecution._wait_for_instances

    def note(execution: TrainingExecution) -> None:
        starts_seconds.append(execution._start_seconds)
        wait(execution)

    monkeypatch.setattr(TrainingExecution, "_wait_for_instances", note)
    with platform_in(tmp_path, cold_start_seconds=0.2) as platform:
        job = run_job(platform, "cold", **kept())
        assert (job["TrainingStartTime"] - job["CreationTime"]).total_seconds() >= 0.2
        run_job(platform, "warm", **kept())
    assert starts_seconds == [0.2, 0.0]


def test_stop_while_the_instances_start(tmp_path: Path) -> None:
    with platform_in(tmp_path, cold_start_seconds=3600) as platform:
        platform.sagemaker.create_training_job(**job_request("starting", **kept()))
        wait_until(lambda: platform.sagemaker.stop_training_job(TrainingJobName="starting"))
        job = wait_for_end(platform.sagemaker, "starting")
        assert phases(job) == ["Starting", "Stopping", "Stopped"]
        assert job["WarmPoolStatus"] == {"Status": "Terminated"}  # the instances never existed


def test_pool_expires(platform: SimpleNamespace) -> None:
    run_job(platform, "expires", **kept(1))
    wait_until(lambda: pool(platform, "expires")["Status"] == "Terminated")
    assert pool(platform, "expires")["ResourceRetainedBillableTimeInSeconds"] == 1


def test_shorter_keep_alive_than_has_passed_ends_the_pool(platform: SimpleNamespace) -> None:
    run_job(platform, "shortened", **kept(600))
    wait_until(lambda: pool(platform, "shortened")["ResourceRetainedBillableTimeInSeconds"] >= 2)
    release(platform, "shortened", seconds=1)
    ended = pool(platform, "shortened")
    assert ended["Status"] == "Terminated"
    assert ended["ResourceRetainedBillableTimeInSeconds"] >= 2
    with pytest.raises(ClientError, match="Terminated"):
        release(platform, "shortened", seconds=60)


def test_life_of_a_pool() -> None:
    warm = WarmPool(keep_alive_seconds=100)
    assert warm.describe(5.0) == {"Status": "InUse"}
    warm.keep(10.0)
    assert warm.describe(40.0) == {
        "Status": "Available",
        "ResourceRetainedBillableTimeInSeconds": 30,
    }
    assert warm.describe(500.0) == {
        "Status": "Terminated",
        "ResourceRetainedBillableTimeInSeconds": 100,
    }
    warm.end(60.0, reused_by="next")
    expected = {
        "Status": "Reused",
        "ResourceRetainedBillableTimeInSeconds": 50,
        "ReusedByJob": "next",
    }
    assert warm.describe(500.0) == expected
    warm.end(70.0)  # has ended already
    assert warm.describe(500.0) == expected


def test_pool_of_no_seconds_is_not_kept() -> None:
    warm = WarmPool(keep_alive_seconds=0)
    warm.keep(10.0)
    assert warm.describe(10.0) == {
        "Status": "Terminated",
        "ResourceRetainedBillableTimeInSeconds": 0,
    }


@pytest.mark.parametrize(
    ("status", "reason", "launched", "expected"),
    [
        ("Completed", None, True, True),
        ("Stopped", None, True, True),
        ("MaxRuntimeExceeded", None, True, True),
        ("Failed", "AlgorithmError: x", True, True),
        ("Failed", "ClientError: x", True, True),
        ("Failed", "InternalServerError: x", True, False),
        ("Failed", "CapacityError: x", False, False),
        ("Stopped", None, False, False),
    ],
)
def test_which_endings_leave_a_pool(
    status: str, reason: str | None, launched: bool, expected: bool
) -> None:
    assert is_kept(status, reason, launched) is expected


def test_failed_job_keeps_its_pool(platform: SimpleNamespace) -> None:
    def fail(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        raise RuntimeError("boom")

    platform.engine.programs["fail"] = fail
    assert run_job(platform, "fails", "fail", **kept())["WarmPoolStatus"]["Status"] == "Available"
    release(platform, "fails")


def test_update_of_a_running_jobs_keep_alive(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("longer", "endless", **kept(5)))
    answer = platform.sagemaker.update_training_job(
        TrainingJobName="longer",
        ResourceConfig={"KeepAlivePeriodInSeconds": 900},
        ProfilerConfig={"DisableProfiler": True},
    )
    assert answer["TrainingJobArn"].endswith("training-job/longer")
    job = described(platform, "longer")
    assert job["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 900
    assert job["ProfilerConfig"] == {"DisableProfiler": True}
    # a job that stops earlier has no pool to keep
    wait_for_phase(platform.sagemaker, "longer", "Training")
    platform.sagemaker.stop_training_job(TrainingJobName="longer")
    wait_for_end(platform.sagemaker, "longer")
    release(platform, "longer")


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (
            {"ResourceConfig": {"KeepAlivePeriodInSeconds": 60}},
            "this job has no KeepAlivePeriodInSeconds",
        ),
        (
            {"ProfilerConfig": {"DisableProfiler": True}},
            "ProfilerConfig can't be updated: the job is in status Comp",
        ),
        ({"ResourceConfig": {"KeepAlivePeriodInSeconds": 21_601}}, "less than or equal to 21600"),
    ],
)
def test_updates_that_are_refused(
    platform: SimpleNamespace, update: dict[str, Any], message: str
) -> None:
    name = f"fixed-{next(iter(update))}-{len(message)}"
    run_job(platform, name)
    with pytest.raises(ClientError, match=rf"\(ValidationException\).*{message}"):
        platform.sagemaker.update_training_job(TrainingJobName=name, **update)


def test_delete(platform: SimpleNamespace) -> None:
    platform.sagemaker.create_training_job(**job_request("goes", "endless", **kept()))
    wait_for_phase(platform.sagemaker, "goes", "Training")
    with pytest.raises(ClientError, match=r"\(ResourceInUse\).*is in status InProgress"):
        platform.sagemaker.delete_training_job(TrainingJobName="goes")
    platform.sagemaker.stop_training_job(TrainingJobName="goes")
    wait_for_end(platform.sagemaker, "goes")
    with pytest.raises(ClientError, match=r"\(ResourceInUse\).*warm pool"):
        platform.sagemaker.delete_training_job(TrainingJobName="goes")
    release(platform, "goes")
    platform.sagemaker.delete_training_job(TrainingJobName="goes")
    for call in (platform.sagemaker.describe_training_job, platform.sagemaker.delete_training_job):
        with pytest.raises(ClientError, match="Requested resource not found"):
            call(TrainingJobName="goes")
    assert run_job(platform, "goes")["TrainingJobStatus"] == "Completed"  # the name is free again


def test_pools_do_not_outlive_the_platform_and_deletions_do(tmp_path: Path) -> None:
    with platform_in(tmp_path) as platform:
        run_job(platform, "held", **kept())
        run_job(platform, "deleted", ResourceConfig=resources(2))
        platform.sagemaker.delete_training_job(TrainingJobName="deleted")
    with contextmanager(serve_platform)(tmp_path) as platform:
        names = [
            job["TrainingJobName"]
            for job in platform.sagemaker.list_training_jobs()["TrainingJobSummaries"]
        ]
        assert names == ["held"]
        assert pool(platform, "held")["Status"] == "Terminated"
