"""Jobs run in parallel if there is room. Their nodes are threads."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import (
    client,
    job_request,
    phases,
    resources,
    wait_for_end,
    wait_for_phase,
    wait_until,
)
from infra.local.tests.platform_fakes import FakeEngine, FakeImageStore
from sagemaker_emulator.engine.host.room import Room
from sagemaker_emulator.server.backends import with_real_nodes
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running

LARGE, SMALL = "ml.local.large", "ml.local.small"


@pytest.fixture
def platform(tmp_path):
    """A platform on a machine with two cores."""
    engine, config = FakeEngine(tmp_path / "engine"), ServerConfig(0, tmp_path)
    backend = with_real_nodes(config, engine, FakeImageStore(), room=Room(2, [0, 1], 1 << 50))
    with running(config, lambda *_: backend) as endpoint:
        clients = {service: client(endpoint, service) for service in ("sagemaker", "s3")}
        clients["s3"].create_bucket(Bucket="results")
        yield SimpleNamespace(engine=engine, **clients)


def create(platform, name, count=1, instance_type=LARGE, program="endless", **changes):
    request = job_request(name, program, ResourceConfig=resources(count, instance_type), **changes)
    platform.sagemaker.create_training_job(**request)


def describe(platform, name):
    return platform.sagemaker.describe_training_job(TrainingJobName=name)


def wait_for_running(platform, count):
    wait_until(lambda: platform.engine._running == count)


def stop(platform, name):
    platform.sagemaker.stop_training_job(TrainingJobName=name)
    return wait_for_end(platform.sagemaker, name)


def test_jobs_that_fit_run_at_once_and_a_third_waits_for_the_first_to_end(platform):
    for name in ("first", "second"):
        create(platform, name)
        wait_for_phase(platform.sagemaker, name, "Training")
    wait_for_running(platform, 2)
    create(platform, "third")
    assert describe(platform, "third")["SecondaryStatus"] == "Pending"
    first = stop(platform, "first")
    wait_for_phase(platform.sagemaker, "third", "Training")
    assert describe(platform, "second")["SecondaryStatus"] == "Training"
    wait_for_running(platform, 2)
    second, third = stop(platform, "second"), stop(platform, "third")
    assert platform.engine.most_jobs_at_once == 2
    assert second["TrainingStartTime"] < first["TrainingEndTime"] <= third["TrainingStartTime"]
    assert "Pending" not in phases(first) + phases(second)
    assert phases(third)[:3] == ["Starting", "Pending", "Downloading"]


def test_room_of_one_job_is_given_to_several(platform):
    create(platform, "large", 2)
    wait_for_phase(platform.sagemaker, "large", "Training")
    names = [f"small-{number}" for number in range(4)]
    for name in names:
        create(platform, name, 1, SMALL)
    stop(platform, "large")
    for name in names:
        wait_for_phase(platform.sagemaker, name, "Training")
    wait_for_running(platform, 4)
    for name in names:
        stop(platform, name)


def test_large_job_is_not_passed_by_smaller_ones(platform):
    create(platform, "runs")
    wait_for_phase(platform.sagemaker, "runs", "Training")
    create(platform, "large", 2)
    create(platform, "small", 1, SMALL)
    time.sleep(0.2)
    assert [describe(platform, name)["SecondaryStatus"] for name in ("large", "small")] == [
        "Pending",
        "Pending",
    ]
    stop(platform, "large")  # has no room yet, so it ends immediately
    wait_for_phase(platform.sagemaker, "small", "Training")
    assert "TrainingStartTime" not in describe(platform, "large")
    stop(platform, "small")
    stop(platform, "runs")


def test_job_that_fails_gives_its_room_back(platform):
    def fail(*_):
        raise RuntimeError("broken")

    platform.engine.programs["fail"] = fail
    create(platform, "failing", 2, program="fail")
    create(platform, "next", 2, program="quick")
    assert wait_for_end(platform.sagemaker, "failing")["TrainingJobStatus"] == "Failed"
    assert wait_for_end(platform.sagemaker, "next")["TrainingJobStatus"] == "Completed"
    assert platform.engine.most_jobs_at_once == 1


def test_leaving_the_platform_stops_all_of_them(tmp_path):
    engine, config = FakeEngine(tmp_path / "engine"), ServerConfig(0, tmp_path)
    backend = with_real_nodes(config, engine, FakeImageStore(), room=Room(2, [0, 1], 1 << 50))
    with running(config, lambda *_: backend) as endpoint:
        platform = SimpleNamespace(sagemaker=client(endpoint, "sagemaker"))
        client(endpoint, "s3").create_bucket(Bucket="results")
        for name in ("first", "second", "third"):
            create(platform, name)
        wait_for_phase(platform.sagemaker, "second", "Training")
    assert engine._running == 0
