from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.models import BenchmarkConfig, ImageConfig
from tasks.errors import ImageBuildFailed, PreflightRefused
from tasks.image import find, read_context, repository_uri, start, wait, zip_context
from tasks.polling import Cancelled, Clock


@pytest.fixture
def context_config(tmp_path: Path) -> ImageConfig:
    root = tmp_path / "image"
    (root / "pkg").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "train.py").write_text("print(1)\n")
    (root / "pkg" / "notes.md").write_text("ignored\n")
    (root / ".dockerignore").write_text("*.md\n**/*.md\n")
    return ImageConfig(context=str(root))


class Builds:
    """CodeBuild that answers with the given builds one after another, then repeats the last."""

    def __init__(self, *builds: dict[str, Any]) -> None:
        self._builds, self.stopped, self._index = builds, [], -1

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        self._index = min(self._index + 1, len(self._builds) - 1)
        return {"builds": [{"id": ids[0], **self._builds[self._index]}]}

    def stop_build(self, id: str) -> None:
        self.stopped.append(id)


class Logs:
    def get_log_events(self, **query: Any) -> dict[str, Any]:
        return {"events": [{"message": "pip: no such package\n"}]}


def counting_clock() -> Clock:
    """A clock that moves only when somebody sleeps."""
    now = [0.0]

    def wait_for(seconds: float) -> bool:
        now[0] += seconds
        return False

    return Clock(monotonic=lambda: now[0], wait=wait_for)


RUNNING = {"buildStatus": "IN_PROGRESS", "currentPhase": "BUILD"}
DONE = {"buildStatus": "SUCCEEDED"}


def test_tag_is_the_content_not_the_place(context_config: ImageConfig, tmp_path: Path) -> None:
    before = read_context(context_config)
    moved = tmp_path / "elsewhere"
    Path(context_config.context).rename(moved)
    assert read_context(ImageConfig(context=str(moved))).tag == before.tag
    assert before.files == (".dockerignore", "Dockerfile", "train.py")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("print(2)\n"),
        lambda root: (root / "train.py").chmod(0o755),
        lambda root: (root / "new.py").write_text(""),
    ],
)
def test_tag_follows_every_change(context_config: ImageConfig, change: Callable[[Path], Any]) -> None:
    before = read_context(context_config).tag
    change(Path(context_config.context))
    assert read_context(context_config).tag != before


def test_tag_follows_base_image_and_build_arguments(context_config: ImageConfig) -> None:
    tags = {
        read_context(context_config.model_copy(update=update)).tag
        for update in ({}, {"base_image": "a"}, {"build_args": {"X": "1"}})
    }
    assert len(tags) == 3


def test_ignored_files_do_not_count(context_config: ImageConfig) -> None:
    before = read_context(context_config).tag
    (Path(context_config.context) / "pkg" / "notes.md").write_text("changed\n")
    assert read_context(context_config).tag == before


def test_context_without_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightRefused, match=r"image\.context: .* has no Dockerfile"):
        read_context(ImageConfig(context=str(tmp_path)))


def test_zip_has_the_same_bytes_each_time(context_config: ImageConfig) -> None:
    context = read_context(context_config)
    body = zip_context(context)
    assert body == zip_context(context)
    assert zipfile.ZipFile(io.BytesIO(body)).namelist() == list(context.files)


def test_image_is_found_by_tag_only_when_it_is_there(aws: Callable[[str], Any]) -> None:
    ecr = aws("ecr")
    assert find(ecr, "nodesweep", "ctx-1") is None
    ecr.create_repository(repositoryName="nodesweep")
    assert find(ecr, "nodesweep", "ctx-1") is None
    manifest = '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}'
    put = ecr.put_image(repositoryName="nodesweep", imageTag="ctx-1", imageManifest=manifest)
    assert find(ecr, "nodesweep", "ctx-1") == put["image"]["imageId"]["imageDigest"]


def test_missing_repository_is_made_only_where_allowed(aws: Callable[[str], Any]) -> None:
    ecr = aws("ecr")
    with pytest.raises(PreflightRefused, match="no ECR repository 'nodesweep'"):
        repository_uri(ecr, ImageConfig(), create_missing=False)
    assert repository_uri(ecr, ImageConfig(), create_missing=True).endswith("/nodesweep")
    made = ecr.describe_repositories(repositoryNames=["nodesweep"])["repositories"][0]
    assert made["imageTagMutability"] == "IMMUTABLE"


def test_build_gets_context_tag_and_arguments(
    aws: Callable[[str], Any], context_config: ImageConfig, benchmark_config: BenchmarkConfig
) -> None:
    s3, platform = aws("s3"), benchmark_config.platform
    s3.create_bucket(Bucket=platform.bucket)
    asked: dict[str, Any] = {}

    class CodeBuild:
        def start_build(self, **request: Any) -> dict[str, Any]:
            asked.update(request)
            return {"build": {"id": "nodesweep-image:1"}}

    (Path(context_config.context) / "buildspec.yml").write_text("version: 0.2\n")
    config = context_config.model_copy(update={"base_image": "base:1"})
    context = read_context(config)
    assert start(CodeBuild(), s3, config, platform, context, "repo-uri") == "nodesweep-image:1"
    variables = {item["name"]: item["value"] for item in asked["environmentVariablesOverride"]}
    assert (variables["IMAGE_TAG"], variables["BUILD_ARG_BASE_IMAGE"]) == (context.tag, "base:1")
    assert asked["buildspecOverride"] == "version: 0.2\n"
    bucket, key = asked["sourceLocationOverride"].split("/", 1)
    assert zipfile.ZipFile(io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())).testzip() is None


def test_wait_returns_when_the_build_succeeds() -> None:
    builds = Builds(RUNNING, RUNNING, DONE)
    wait(builds, Logs(), "b:1", 600, counting_clock())
    assert builds.stopped == []


def test_failed_build_names_phase_and_last_lines() -> None:
    failed = {
        "buildStatus": "FAILED",
        "phases": [{"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": "exit status 1"}]}],
        "logs": {"groupName": "g", "streamName": "s"},
    }
    with pytest.raises(ImageBuildFailed, match=r"FAILED; phase BUILD: exit status 1\n    pip: no such package"):
        wait(Builds(RUNNING, failed), Logs(), "b:1", 600, counting_clock())


def test_build_past_its_deadline_is_stopped() -> None:
    builds = Builds(RUNNING)
    with pytest.raises(ImageBuildFailed, match="was stopped after"):
        wait(builds, Logs(), "b:1", 60, counting_clock())
    assert builds.stopped == ["b:1"]


def test_cancelled_wait_stops_the_build() -> None:
    builds = Builds(RUNNING)
    with pytest.raises(Cancelled):
        wait(builds, Logs(), "b:1", 60, Clock(monotonic=lambda: 0.0, wait=lambda seconds: True))
    assert builds.stopped == ["b:1"]
