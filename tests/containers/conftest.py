"""A platform whose nodes are containers, and its images: a base, the training image, a tiny one."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from infra.local.tests.platform_client import client
from sagemaker_emulator.engine.container import engine
from sagemaker_emulator.engine.container.cli import ContainerCli
from sagemaker_emulator.engine.host.port_lock import SharedSlot
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running
from tests.containers.container_bench import (
    BASE_IMAGE,
    FILE_SYSTEM,
    IMAGE_CONTEXT,
    REPOSITORY,
    build_image,
    tiny_context,
)

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "local" / "base_image.sh"
REQUIRED = "NODESWEEP_CONTAINERS"
"""If set to "required" (in CI), missing prerequisites fail these tests instead of skipping them."""
SERVICES = ("sagemaker", "s3", "logs", "ecr", "codebuild", "cloudwatch")


@pytest.fixture(scope="session", autouse=True)
def own_training_slot() -> Iterator[None]:
    """Keep these jobs from taking turns with those of other tests on this machine.

    The nodes meet on networks of their own.
    """
    slot = functools.partial(SharedSlot, f"\0containers-of-tests-{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "SharedSlot", slot)
        yield


@pytest.fixture(scope="session")
def cli(tmp_path_factory: pytest.TempPathFactory) -> ContainerCli:
    """The container CLI; the test is skipped with the reason where containers don't run."""
    folder = tmp_path_factory.mktemp("probe")
    found = ContainerCli.find(folder)
    problem = (
        "neither podman nor docker is on PATH"
        if found is None
        else found.problem(folder, needs_registry=True)
    )
    if found is None or problem:
        _miss(f"no containers here: {problem}")
    return found


def _miss(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def base_image(cli: ContainerCli) -> str:
    """The base image, built once per machine in 2-3 quiet minutes and kept in podman's storage."""
    if shutil.which("debootstrap", path=cli.environment["PATH"]) is None:
        _miss("no base image here: debootstrap is not installed")
    done = subprocess.run(
        ["sh", str(SCRIPT), BASE_IMAGE], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return BASE_IMAGE


@pytest.fixture(scope="session")
def platform(
    base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """One platform for all tests: each new one takes half a minute to push the base image."""
    state_dir = tmp_path_factory.mktemp("containers")
    shared = tmp_path_factory.mktemp("file-system")
    config = ServerConfig(0, state_dir, engine="container", file_systems={FILE_SYSTEM: shared})
    with running(config) as endpoint:
        clients = {service: client(endpoint, service) for service in SERVICES}
        clients["s3"].create_bucket(Bucket="results")
        clients["s3"].create_bucket(Bucket="source")
        clients["ecr"].create_repository(repositoryName=REPOSITORY, imageTagMutability="IMMUTABLE")
        yield SimpleNamespace(endpoint=endpoint, state_dir=state_dir, shared=shared, **clients)


@pytest.fixture(scope="session")
def tiny_image(platform: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of an image whose `train` runs the hyperparameter `program` (tiny_train.py)."""
    return build_image(platform, tiny_context(tmp_path_factory.mktemp("tiny")), "tiny")


@pytest.fixture(scope="session")
def training_image(platform: SimpleNamespace) -> str:
    """URI of the project's training image, built once."""
    return build_image(
        platform, IMAGE_CONTEXT, "training", BUILD_ARG_REQUIREMENTS="requirements-on-dlc.txt"
    )
