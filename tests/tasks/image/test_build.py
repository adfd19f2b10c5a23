from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import ImageBuildFailed
from nodesweep.events import read_event
from nodesweep.launch import registry
from nodesweep.launch.registry import backend_of
from nodesweep.tasks.image import codebuild as image_codebuild
from nodesweep.tasks.image.build import (
    StartedBuild,
    builder_of,
    start_image_build,
    wait_for_image_build,
)
from nodesweep.tasks.image.codebuild import _MAX_ADOPTED_BUILDS, CodeBuildBuilder
from nodesweep.tasks.image.docker import DockerBuilder
from nodesweep.tasks.image.find import Image, Images, find_image, read_context
from tests.tasks.image.image_fakes import counting_clock, make_context, make_repository, push


class CodeBuild:
    """A CodeBuild whose only build ends as soon as it begins."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def start_build(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        return {"build": {"id": "b:1"}}

    def list_builds_for_project(self, **_: Any) -> dict[str, Any]:
        return {"ids": []}

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        return {"builds": [{"id": ids[0], "buildStatus": "SUCCEEDED"}]}


def test_builder_is_the_one_that_the_config_names(benchmark_config: BenchmarkConfig) -> None:
    config, platform = benchmark_config.image, benchmark_config.platform
    assert isinstance(builder_of(Images(backend_of(platform), config)), CodeBuildBuilder)
    assert isinstance(
        builder_of(Images(backend_of(platform), config.model_copy(update={"builder": "docker"}))),
        DockerBuilder,
    )


def test_image_goes_from_start_to_its_digest(
    aws: Callable[[str], Any],
    tmp_path: Path,
    benchmark_config: BenchmarkConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    codebuild, platform = (
        CodeBuild(),
        benchmark_config.platform.model_copy(update={"create_missing": True}),
    )
    ecr = aws("ecr")
    aws("s3").create_bucket(Bucket=platform.bucket)
    for module in (registry, image_codebuild):
        client = lambda service, platform: codebuild if service == "codebuild" else aws(service)  # noqa: E731
        monkeypatch.setattr(module, "aws_client", client)
    config = make_context(tmp_path)
    images, context = Images(backend_of(platform), config), read_context(config)
    assert find_image(images, context) is None
    started = start_image_build(images, context, "token")
    uri = "123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep"
    assert started == StartedBuild("b:1", uri, "token")
    assert codebuild.requests[0]["idempotencyToken"] == "token"
    digest = push(ecr, context.tag)
    caplog.set_level(logging.DEBUG, "nodesweep.progress")
    built = wait_for_image_build(images, context, started)
    ended = [read_event(record) for record in caplog.records]
    assert [one.facts["build"] for one in ended if one.event == "build-ended"] == ["b:1"]
    assert built == Image(f"{uri}@{digest}", context.tag, built=True)
    assert find_image(images, context) == Image(f"{uri}@{digest}", context.tag, built=False)


class StoppedBuilds(CodeBuild):
    """A CodeBuild with builds of other runs, each of which is stopped once it was adopted."""

    def __init__(self, tag: str, others: int, push: Callable[[], Any]) -> None:
        super().__init__()
        image = {"IMAGE_REPO_URI": "uri", "IMAGE_TAG": tag}
        self._variables = [{"name": name, "value": value} for name, value in image.items()]
        self._others, self._push, self._is_running = others, push, False

    def start_build(self, **request: Any) -> dict[str, Any]:
        self._push()
        return super().start_build(**request)

    def list_builds_for_project(self, **_: Any) -> dict[str, Any]:
        self._others, self._is_running = self._others - 1, True
        return {"ids": ["theirs"] if self._others >= 0 else []}

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        if ids == ["b:1"]:
            return super().batch_get_builds(ids)
        status = "IN_PROGRESS" if self._is_running else "STOPPED"
        self._is_running = False
        environment = {"environmentVariables": self._variables}
        return {"builds": [{"id": ids[0], "buildStatus": status, "environment": environment}]}


@pytest.mark.parametrize(
    ("others", "is_pushed", "tokens"),
    [(1, False, ["ours"]), (1, True, []), (_MAX_ADOPTED_BUILDS, False, [])],
    ids=["then none", "stopped after its push", "each is stopped"],
)
def test_adopted_build_that_is_stopped_is_replaced_unless_its_image_is_there(
    aws: Callable[[str], Any],
    tmp_path: Path,
    benchmark_config: BenchmarkConfig,
    monkeypatch: pytest.MonkeyPatch,
    others: int,
    is_pushed: bool,
    tokens: list[str],
) -> None:
    config, platform, ecr = make_context(tmp_path), benchmark_config.platform, aws("ecr")
    context = read_context(config)
    builds = StoppedBuilds(context.tag, others, lambda: push(ecr, context.tag))
    aws("s3").create_bucket(Bucket=platform.bucket)
    make_repository(ecr)
    client = lambda service, platform: builds if service == "codebuild" else aws(service)  # noqa: E731
    monkeypatch.setattr(image_codebuild, "aws_client", client)
    builder = CodeBuildBuilder(Images(backend_of(platform), config))
    adopted = builder.start(context, "uri", "ours")
    if is_pushed:
        push(ecr, context.tag)
    built: list[bool] = []
    try:
        built += [builder.finish(context, "uri", adopted, counting_clock(), "ours").built]
    except ImageBuildFailed as failure:
        assert str(failure).startswith("image build theirs ended with status STOPPED")
    assert [each["idempotencyToken"] for each in builds.requests] == tokens
    assert built == [not is_pushed] * (others == 1)
