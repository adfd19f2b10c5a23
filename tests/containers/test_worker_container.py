"""A run of a deployment uses the server, Postgres and worker containers of compose.yaml, and the
platform."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import httpx
import pytest
import yaml

from nodesweep.scaling import names
from sagemaker_emulator.engine.container.cli import ContainerCli, ContainerCommandError
from tests.containers.worker_images import ROOT, WORKER_IMAGE, build_images
from tests.containers.worker_stack import (
    API_PASSWORD,
    PASSWORD,
    Stack,
    platform,
    running_stack,
    within_reach,
)
from tests.production.world import World

pytestmark = [pytest.mark.slow, pytest.mark.containers]
DEPLOYMENT = "scaling-benchmark/scaling-benchmark"
REVISION = "0a1b2c3"
GRACE_SECONDS = 60.0
BOTH_COMPLETED = {(1, 1): ["Completed"], (2, 1): ["Completed"]}
JOBS = {
    "t_compute_seconds": 0.2,
    "gradient_bytes": 0,
    "noise_sigma": 0,
    "startup_seconds": 0,
    "download_seconds": 0,
    "setup_seconds": 0,
    "upload_seconds": 0,
}


@pytest.fixture(scope="module")
def stack(cli: ContainerCli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    print(f"worker image built in {build_images(cli, REVISION):.0f} s")
    with running_stack(
        cli, tmp_path_factory.mktemp("stack"), f"nodesweep-test-{os.getpid()}"
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    with platform(stack, JOBS) as world:
        yield world


def start(world: World, benchmark: str) -> str:
    """Start a run whose report is in a folder that the worker may write."""
    settings = world.settings(benchmark, report__directory="reports")
    return world.start(DEPLOYMENT, preset="local", settings=settings)


def test_run_goes_from_the_server_by_the_worker_to_the_platform(stack: Stack, world: World) -> None:
    with within_reach(stack, world.machine.platform_port):
        run = start(world, "contained")
        assert world.end_of(run) == "Completed", world.log_of(run)
    ledger = world.ledger("contained")
    assert ledger.points == BOTH_COMPLETED
    (sweep,) = ledger.sweeps
    assert sweep is not None
    world.s3.head_object(
        Bucket="nodesweep-local", Key=names.report_key("nodesweep", sweep, names.REPORT_JSON)
    )
    stack.inside("worker", "test", "-s", f"/opt/nodesweep/reports/{sweep}/{names.REPORT_HTML}")
    assert stack.sql(f"SELECT state_type FROM flow_run WHERE id = '{run}'") == "COMPLETED"


def test_server_has_the_deployments_and_the_page(stack: Stack, world: World) -> None:
    named = {
        entry["name"]
        for entry in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    }
    assert set(stack.sql("SELECT name FROM deployment").split()) == named
    found = world.call("GET", f"/deployments/{world.deployment_id(DEPLOYMENT)}")
    assert found["version"] == REVISION
    page = httpx.get(
        f"http://127.0.0.1:{stack.port}/", trust_env=False, follow_redirects=True, timeout=30
    )
    assert page.status_code == 200 and "<html" in page.text.lower()


@pytest.mark.parametrize("service", ["server", "worker"])
def test_container_can_write_nothing_but_its_volumes(stack: Stack, service: str) -> None:
    status = dict(
        line.split(":\t", 1) for line in stack.inside(service, "cat", "/proc/1/status").splitlines()
    )
    assert status["Uid"].split() == ["10001"] * 4
    assert (int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (
        0,
        0,
        "1",
    )
    for path in ("/etc", "/opt/nodesweep", "/opt/venv"):
        with pytest.raises(ContainerCommandError, match="Read-only file system"):
            stack.inside(service, "touch", f"{path}/new")
    stack.inside(
        service, "touch", "/tmp/new", "/var/lib/nodesweep/new", "/opt/nodesweep/reports/new"
    )


def test_no_containers_configuration_shows_the_password(stack: Stack) -> None:
    for service in ("postgres", "server", "deploy", "worker"):
        for password in (PASSWORD, API_PASSWORD):
            assert password not in str(stack.inspect(service)), service
    assert stack.inside("server", "cat", "/run/secrets/postgres_password") == PASSWORD


def test_image_brings_its_own_health_check(cli: ContainerCli) -> None:
    """The health check is for users who start the image without compose.yaml."""
    shown = cli.call(
        "image", "inspect", WORKER_IMAGE, "--format", "{{json .HealthCheck}} {{json .Config.Cmd}}"
    )
    assert "infra/worker/health.py" in shown
    assert shown.rstrip().endswith(
        '["prefect","worker","start","--pool","nodesweep","--type","process","--with-healthcheck"]'
    )


def test_told_to_end_the_worker_leaves_the_jobs_and_the_next_one_takes_them_over(
    stack: Stack, world: World
) -> None:
    """docs/ending.md, "A process ends or is killed": the run stays Running, its jobs run on, a
    retry adopts them."""
    release = world.hold_jobs()
    try:
        with within_reach(stack, world.machine.platform_port):
            run = start(world, "ended")
            jobs = world.running_jobs("ended", 2)
            began = time.monotonic()
            stack.compose("stop", "worker")
        seconds, state = time.monotonic() - began, stack.inspect("worker")["State"]
        print(f"worker ended in {seconds:.1f} s with exit code {state['ExitCode']}")
        assert seconds < GRACE_SECONDS and state["ExitCode"] == 0, stack.log_of("worker")
        assert world.state(run) == "Running"
        assert sorted(world.ledger("ended").running) == sorted(jobs)
        stack.up("worker")
        with within_reach(stack, world.machine.platform_port):
            world.retry(run)
            world.running_jobs("ended", 2)
            release()
            assert world.end_of(run) == "Completed", world.log_of(run)
    finally:
        release()
    assert world.ledger("ended").points == BOTH_COMPLETED
    assert sorted(world.ledger("ended").jobs) == sorted(jobs)
