from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
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
from nodesweep.tasks.image.codebuild import CodeBuildBuilder
from nodesweep.tasks.image.docker import DockerBuilder
from nodesweep.tasks.image.find import Image, Images, find_image, read_context
from tests.tasks.image.image_fakes import make_context, push


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
