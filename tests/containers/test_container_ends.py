"""However a platform with containers ends, it leaves no container and no network."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from types import SimpleNamespace

import pytest

from infra.local.tests.platform_client import client, wait_until
from sagemaker_emulator.engine.choice import make_container_engine
from sagemaker_emulator.engine.container.engine import ContainerEngine
from sagemaker_emulator.engine.run.job_run import RunTimes
from sagemaker_emulator.interfaces import JobSpec
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerConfig
from tests.containers.conftest import SERVICES
from tests.containers.container_bench import (
    REPOSITORY,
    assert_completed,
    build_image,
    create_job,
    is_clean,
    labelled,
    log_of,
    run_job,
    tiny_context,
)

pytestmark = [pytest.mark.slow, pytest.mark.containers]
PATIENCE_SECONDS = 180.0
"""Only a hang takes longer: other tests share the cores."""


def connect(endpoint):
    return SimpleNamespace(
        endpoint=endpoint, **{service: client(endpoint, service) for service in SERVICES}
    )


def test_killed_server_takes_its_nodes_with_it_and_its_images_stay(base_image, tmp_path):
    config = ServerConfig(0, tmp_path / "state", engine="container")
    platform = connect(daemon.start(config))
    try:
        for bucket in ("results", "source"):
            platform.s3.create_bucket(Bucket=bucket)
        platform.ecr.create_repository(repositoryName=REPOSITORY, imageTagMutability="IMMUTABLE")
        (tmp_path / "tiny").mkdir()
        image = build_image(platform, tiny_context(tmp_path / "tiny"), "kept")
        create_job(platform, "held", image, "hold", 2)
        wait_until(
            lambda: all("ready" in log_of(platform, "held", host) for host in ("algo-1", "algo-2")),
            PATIENCE_SECONDS,
        )
        os.kill(daemon.find_server(config.state_dir).pid, signal.SIGKILL)
        wait_until(lambda: is_clean(config.state_dir), PATIENCE_SECONDS)
        platform = connect(daemon.start(config))
        job = platform.sagemaker.describe_training_job(TrainingJobName="held")
        assert job["FailureReason"].startswith("InternalServerError")
        assert_completed(platform, run_job(platform, "again", image, "look"))
    finally:
        daemon.stop(config.state_dir)
    wait_until(lambda: is_clean(config.state_dir), PATIENCE_SECONDS)


@pytest.fixture
def engine(platform, cli, tmp_path):
    """An engine next to that of the platform, with short deadlines and the same images."""
    made, images = make_container_engine(tmp_path / "state", platform.endpoint, None)
    made._times = RunTimes(
        stop_term_seconds=2.0, failure_grace_seconds=0.5, failure_term_seconds=1.0
    )
    yield made
    made.close()
    images.registry.close()
    wait_until(lambda: is_clean(tmp_path / "state"), PATIENCE_SECONDS)


def spec(image: str, program: str, count: int = 1) -> JobSpec:
    arn = "arn:aws:sagemaker:us-east-1:000000000000:training-job/ends"
    return JobSpec(
        "ends", arn, "us-east-1", image, "ml.local.small", count, {"program": program}, {}
    )


def start(engine: ContainerEngine, job: JobSpec):
    """Start the run in a thread; return (nodes, lines, stop, results, thread)."""
    nodes, lines, stop, results = engine.prepare(job), [], threading.Event(), []
    work = threading.Thread(
        target=lambda: results.append(
            engine.run(job, nodes, lambda *line: lines.append(line[:2]), stop, 120)
        )
    )
    work.start()
    wait_until(lambda: all((node.host, "ready") in lines for node in nodes), PATIENCE_SECONDS)
    return lines, stop, results, work


@pytest.fixture
def local_image(tiny_image):
    """Return the image's digest in this machine's podman, once the platform has pulled the
    image."""
    subprocess.run(
        ["podman", "pull", "--quiet", "--tls-verify=false", tiny_image],
        check=True,
        capture_output=True,
    )
    return tiny_image


def test_deaf_program_is_killed_after_its_time(engine, local_image):
    lines, stop, results, work = start(engine, spec(local_image, "stubborn"))
    stop.set()
    work.join(PATIENCE_SECONDS)
    assert results[0].stopped
    assert [(item.exit_code, item.stopped_by_platform) for item in results[0].exits] == [(-9, True)]
    assert any(host == "algo-1" and "SIGKILL" in text for host, text in lines)
    engine.clean_up(spec(local_image, "stubborn"))


def test_killed_node_fails_the_job_and_ends_its_peers(engine, local_image):
    job = spec(local_image, "hold", 2)
    _lines, _stop, results, work = start(engine, job)
    engine.kill_node(job, "algo-2")
    work.join(PATIENCE_SECONDS)
    assert results[0].failed_host == "algo-2"
    assert "algo-2" in (reason := results[0].failure_reason) and "SIGKILL" in reason
    assert reason.endswith("exit code: 137")
    engine.clean_up(job)


def test_containers_that_are_removed_from_outside_fail_the_job(engine, local_image, tmp_path):
    job = spec(local_image, "hold", 2)
    _lines, _stop, results, work = start(engine, job)
    containers = labelled(tmp_path / "state", "ps")
    subprocess.run(
        ["podman", "rm", "--force", "--time", "0", *containers], check=True, capture_output=True
    )
    work.join(PATIENCE_SECONDS)
    assert results[0].failed_host in ("algo-1", "algo-2")
    assert [item.exit_code for item in results[0].exits] == [-9, -9]
    engine.clean_up(job)


def test_image_that_can_not_be_started_is_an_engine_error(engine, base_image):
    job = spec("localhost/not-here:1", "hold")
    nodes = engine.prepare(job)
    with pytest.raises(Exception, match=r"image localhost/not-here:1 "):
        engine.run(job, nodes, lambda *_: None, threading.Event(), 60)
    engine.clean_up(job)
