"""The training image: named by its build context, found in ECR or built by CodeBuild."""

from __future__ import annotations

import hashlib
import io
import logging
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pathspec
from prefect import task

from configs.models import ImageConfig, PlatformConfig
from scaling import names
from tasks.errors import ImageBuildFailed, PreflightRefused, error_code
from tasks.platform import TASK_OPTIONS, aws_client
from tasks.polling import Clock, Progress, intervals
from tasks.storage import put_bytes

logger = logging.getLogger("nodesweep.image")
LOG_TAIL_LINES = 20
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold: equal contexts, equal bytes


@dataclass(frozen=True)
class BuildContext:
    """The files of a build context less the ignored ones, and the tag computed from them."""

    root: Path
    files: tuple[str, ...]
    tag: str
    build_args: Mapping[str, str]


@dataclass(frozen=True)
class Image:
    """An image pinned by digest; `built` says whether this run built it."""

    uri: str
    tag: str | None
    built: bool


def read_context(config: ImageConfig) -> BuildContext:
    """List and digest the context (paths, executable bits, contents, build arguments). Raises PreflightRefused."""
    root = Path(config.context)
    if not (root / "Dockerfile").is_file():
        raise PreflightRefused((f"image.context: {root} has no Dockerfile",))
    ignore_file = root / ".dockerignore"
    ignored = pathspec.GitIgnoreSpec.from_lines(ignore_file.read_text().splitlines() if ignore_file.exists() else ())
    paths = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    files = tuple(name for path in paths if not ignored.match_file(name := path.relative_to(root).as_posix()))
    build_args = dict(config.build_args)
    if config.base_image is not None:
        build_args["BASE_IMAGE"] = config.base_image
    entries = [
        [name, bool((root / name).stat().st_mode & 0o111), hashlib.sha256((root / name).read_bytes()).hexdigest()]
        for name in files
    ]
    tag = names.image_tag(names.canonical_digest({"files": entries, "build_args": build_args}))
    return BuildContext(root, files, tag, build_args)


def find(ecr: Any, repository: str, tag: str) -> str | None:
    """The image's digest, or None where the repository or the tag does not exist."""
    try:
        details = ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])["imageDetails"]
    except ecr.exceptions.ClientError as error:
        if error_code(error) in ("ImageNotFoundException", "RepositoryNotFoundException"):
            return None
        raise
    return str(details[0]["imageDigest"]) if details else None


def repository_uri(ecr: Any, config: ImageConfig, create_missing: bool) -> str:
    """URI of the ECR repository, created (immutable tags) where allowed. Raises PreflightRefused otherwise."""
    try:
        found = ecr.describe_repositories(repositoryNames=[config.repository])["repositories"]
        return str(found[0]["repositoryUri"])
    except ecr.exceptions.RepositoryNotFoundException:
        if not create_missing:
            raise PreflightRefused(
                (
                    f"image.repository: no ECR repository {config.repository!r}; create it, "
                    "or set platform.create_missing: true",
                )
            ) from None
    made = ecr.create_repository(repositoryName=config.repository, imageTagMutability="IMMUTABLE")
    return str(made["repository"]["repositoryUri"])


def zip_context(context: BuildContext) -> bytes:
    """The context as a zip with fixed order, times and modes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in context.files:
            executable = (context.root / name).stat().st_mode & 0o111
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, (context.root / name).read_bytes())
    return buffer.getvalue()


def start(
    codebuild: Any, s3: Any, config: ImageConfig, platform: PlatformConfig, context: BuildContext, repository: str
) -> str:
    """Send the context to S3 and start a build of it; returns the build id."""
    key = names.context_key(platform.prefix, context.tag)
    put_bytes(s3, platform.bucket, key, zip_context(context))
    variables = {
        "AWS_DEFAULT_REGION": platform.region,
        "IMAGE_REPO_URI": repository,
        "IMAGE_REPO_NAME": config.repository,
        "IMAGE_TAG": context.tag,
        **{f"BUILD_ARG_{name}": value for name, value in sorted(context.build_args.items())},
    }
    buildspec = context.root / "buildspec.yml"
    own = {"buildspecOverride": buildspec.read_text()} if buildspec.is_file() else {}  # else the project's
    build = codebuild.start_build(
        projectName=config.codebuild_project,
        sourceTypeOverride="S3",
        sourceLocationOverride=f"{platform.bucket}/{key}",
        timeoutInMinutesOverride=config.build_timeout_minutes,
        environmentVariablesOverride=[
            {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
        ],
        **own,
    )["build"]
    return str(build["id"])


def wait(codebuild: Any, logs: Any, build_id: str, deadline_seconds: float, clock: Clock) -> None:
    """Wait for a build, saying each phase; stops it at the deadline. Raises ImageBuildFailed with its last lines."""
    started = clock.monotonic()
    progress = Progress(f"build {build_id}", logger, clock)
    try:
        for pause in intervals(1.0, 15.0):
            build = codebuild.batch_get_builds(ids=[build_id])["builds"][0]
            elapsed = clock.monotonic() - started
            if build["buildStatus"] != "IN_PROGRESS":
                break
            progress.note(build["currentPhase"])
            if elapsed > deadline_seconds:
                codebuild.stop_build(id=build_id)
                raise ImageBuildFailed(
                    f"image build {build_id} was stopped after {elapsed:.0f} s in phase {build['currentPhase']}"
                )
            clock.sleep(pause)
    except BaseException as error:
        if not isinstance(error, Exception):  # cancelled; a lost connection must not cost the build
            codebuild.stop_build(id=build_id)
        raise
    if build["buildStatus"] != "SUCCEEDED":
        raise ImageBuildFailed(_describe_failure(build, logs))


def _describe_failure(build: Mapping[str, Any], logs: Any) -> str:
    """Status, failing phase with its context, and the last lines of the build's log."""
    failed = [phase for phase in build.get("phases", ()) if phase.get("phaseStatus") not in (None, "SUCCEEDED")]
    where = "; ".join(
        f"phase {phase['phaseType']}: {phase.get('contexts', [{}])[0].get('message', phase['phaseStatus'])}"
        for phase in failed
    )
    lines: list[str] = []
    place = build.get("logs", {})
    if place.get("groupName") and place.get("streamName"):
        events = logs.get_log_events(
            logGroupName=place["groupName"],
            logStreamName=place["streamName"],
            limit=LOG_TAIL_LINES,
            startFromHead=False,
        )["events"]
        lines = [event["message"].rstrip() for event in events]
    tail = "\n".join(f"    {line}" for line in lines)
    return f"image build {build['id']} ended {build['buildStatus']}; {where or 'no phase reported'}\n{tail}".rstrip()


@task(name="find-image", **TASK_OPTIONS)
def find_image(platform: PlatformConfig, config: ImageConfig, context: BuildContext) -> Image | None:
    """ECR: the image of this context, pinned by digest, or None."""
    ecr = aws_client("ecr", platform)
    digest = find(ecr, config.repository, context.tag)
    if digest is None:
        return None
    return Image(names.image_uri(repository_uri(ecr, config, create_missing=False), digest), context.tag, built=False)


@task(name="start-image-build", **TASK_OPTIONS)
def start_image_build(platform: PlatformConfig, config: ImageConfig, context: BuildContext) -> str:
    """CodeBuild: start the build of this context; returns the build id."""
    repository = repository_uri(aws_client("ecr", platform), config, platform.create_missing)
    return start(aws_client("codebuild", platform), aws_client("s3", platform), config, platform, context, repository)


@task(name="wait-for-image-build", **TASK_OPTIONS)
def wait_for_image_build(platform: PlatformConfig, config: ImageConfig, context: BuildContext, build_id: str) -> Image:
    """CodeBuild: wait for the build; ECR: the digest it pushed."""
    deadline_seconds = config.build_timeout_minutes * 60 + 300  # CodeBuild's own limit, and five minutes of queueing
    wait(aws_client("codebuild", platform), aws_client("logs", platform), build_id, deadline_seconds, Clock())
    ecr = aws_client("ecr", platform)
    digest = find(ecr, config.repository, context.tag)
    if digest is None:
        raise ImageBuildFailed(f"build {build_id} succeeded, but ECR has no {config.repository}:{context.tag}")
    return Image(names.image_uri(repository_uri(ecr, config, create_missing=False), digest), context.tag, built=True)
