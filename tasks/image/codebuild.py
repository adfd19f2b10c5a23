"""Build the image in CodeBuild from a context in S3, and follow the build's log.

If a build of the same image is already running, for example after a run was killed, it is adopted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import yaml
from botocore.exceptions import ClientError

from nodesweep.aws.platform import aws_client
from nodesweep.aws.storage import put_once
from nodesweep.configs.models import ImageConfig, PlatformConfig
from nodesweep.configs.strict_yaml import parse_yaml
from nodesweep.errors import ImageBuildFailed, best_effort, error_code
from nodesweep.polling import Clock, Progress, intervals
from nodesweep.scaling import names
from nodesweep.tasks.image.find import (
    BuildContext,
    Image,
    Images,
    arguments_to_send,
    find,
    pushed_image,
    zip_context,
)
from nodesweep.tasks.image.output import BuildOutput

logger = logging.getLogger("nodesweep.image")
_MAX_PAGES = 20  # log pages per poll, each up to 10,000 lines
_STARTER = "NODESWEEP_STARTER"
"""Build variable with the token of the run that started the build; only that run stops it."""
_MAX_ADOPTED_BUILDS = 3
"""Maximum number of builds to adopt in turn, in case the runs that started them stop them."""
_QUEUEING_SECONDS = 300  # on top of the build's own limit, which CodeBuild enforces
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0
"""Shortest and longest pause between two polls of a build, in seconds."""


class _AdoptedBuildStopped(ImageBuildFailed):
    """A build that another run had started was stopped, for example because it was cancelled."""


class CodeBuildBuilder:
    """Builds images in CodeBuild, which needs no local container engine."""

    def __init__(self, images: Images) -> None:
        self._platform, self._config = images.backend.platform, images.section

    def start(self, context: BuildContext, repository: str, token: str) -> str:
        """Adopt a running build of this image, or upload the context and start a new build."""
        codebuild, s3 = (aws_client(service, self._platform) for service in ("codebuild", "s3"))
        return start(codebuild, s3, self._config, self._platform, context, repository, token)

    def finish(
        self, context: BuildContext, repository: str, build_id: str, clock: Clock, token: str
    ) -> Image:
        """Wait for the build, and return the image from ECR.

        The build is stopped only by the run that started it, which `token` identifies. If that is
        another run, a new build is started.

        Raises:
            ImageBuildFailed: the build failed or exceeded its limit, and ECR has no image.
        """
        codebuild, logs, ecr = (
            aws_client(service, self._platform) for service in ("codebuild", "logs", "ecr")
        )
        deadline_seconds = self._config.build_timeout_minutes * 60 + _QUEUEING_SECONDS

        def build() -> None:
            waited_for = build_id
            for adopted in range(1, _MAX_ADOPTED_BUILDS + 1):
                try:
                    return wait(codebuild, logs, waited_for, deadline_seconds, clock, token)
                except _AdoptedBuildStopped as stopped:
                    is_pushed = find(ecr, self._config.repository, context.tag) is not None
                    if adopted == _MAX_ADOPTED_BUILDS or is_pushed:
                        raise
                    logger.warning("%s; building the image again", stopped)
                    waited_for = self.start(context, repository, token)

        return pushed_image(
            ecr, self._config.repository, repository, context.tag, f"build {build_id}", build
        )


def start(
    codebuild: Any,
    s3: Any,
    config: ImageConfig,
    platform: PlatformConfig,
    context: BuildContext,
    repository: str,
    token: str,
) -> str:
    """Return the ID of a running build of the image, or of a new one.

    For a new build, the context is uploaded first.
    """
    image = {"IMAGE_REPO_URI": repository, "IMAGE_TAG": context.tag}
    if running := running_build(codebuild, config.codebuild_project, image):
        logger.info("build %s of %s is already running and is adopted", running, context.tag)
        return running
    key = names.context_key(platform.prefix, context.tag)
    put_once(s3, platform.bucket, key, zip_context(context))
    variables = {
        "AWS_DEFAULT_REGION": platform.region,
        "IMAGE_REPO_NAME": config.repository,
        **image,
        _STARTER: token,
        **{
            f"BUILD_ARG_{name}": value for name, value in sorted(arguments_to_send(context).items())
        },
    }
    own = _own_buildspec(codebuild, config.codebuild_project, context)
    try:
        build = codebuild.start_build(
            projectName=config.codebuild_project,
            idempotencyToken=token,
            sourceTypeOverride="S3",
            sourceLocationOverride=f"{platform.bucket}/{key}",
            timeoutInMinutesOverride=config.build_timeout_minutes,
            environmentVariablesOverride=[
                {"name": name, "value": value, "type": "PLAINTEXT"}
                for name, value in variables.items()
            ],
            **own,
        )["build"]
    except ClientError as error:
        if own and error_code(error) == "AccessDeniedException":
            raise ImageBuildFailed(
                f"{config.codebuild_project} is not allowed to use the context's buildspec.yml,"
                " which differs from the project's: update the stack of infra/aws, delete that"
                " file, or set"
                f" the stack's OwnBuildspecs=true (docs/aws.md); {error}"
            ) from error
        raise
    return str(build["id"])


def _own_buildspec(codebuild: Any, project: str, context: BuildContext) -> dict[str, str]:
    """Return a buildspecOverride if the context's buildspec.yml differs from the project's.

    By default, the stack's pipeline role is not allowed to send one. If the project can't be read,
    the context's file is sent.
    """
    file = context.root / "buildspec.yml"
    if not file.is_file():
        return {}
    text, known = file.read_text(), ""
    with best_effort(f"the buildspec of {project} can't be read"):
        projects = codebuild.batch_get_projects(names=[project])["projects"]
        known = projects[0]["source"].get("buildspec", "") if projects else ""
    return {} if known and _parsed(known) == _parsed(text) else {"buildspecOverride": text}


def _parsed(buildspec: str) -> Any:
    """Parse a buildspec as YAML, so that comments and line breaks make no difference.

    Return the text itself if parse_yaml() refuses it, for example because its aliases expand to
    millions of values.
    """
    try:
        return parse_yaml(buildspec)
    except yaml.YAMLError:
        return buildspec


def running_build(codebuild: Any, project: str, image: Mapping[str, str]) -> str | None:
    """Return the ID of a running build with these variables, or None.

    Only the project's newest 100 builds are checked. The tag covers all inputs of the build, so
    equal tags mean equal images. If the builds can't be listed, a second build starts.
    """
    builds: list[Mapping[str, Any]] = []
    with best_effort(f"builds of {project} that may still be running can't be listed"):
        ids = codebuild.list_builds_for_project(projectName=project, sortOrder="DESCENDING").get(
            "ids"
        )
        builds = codebuild.batch_get_builds(ids=ids)["builds"] if ids else []
    for build in builds:
        if build["buildStatus"] == "IN_PROGRESS" and image.items() <= _variables(build).items():
            return str(build["id"])
    return None


def _variables(build: Mapping[str, Any]) -> dict[str, str]:
    return {
        item["name"]: item["value"]
        for item in build.get("environment", {}).get("environmentVariables", ())
    }


def wait(
    codebuild: Any, logs: Any, build_id: str, deadline_seconds: float, clock: Clock, token: str
) -> None:
    """Wait for a build, and log its phases and output.

    At the deadline, or if the run is cancelled, a build started with this token is stopped. An
    adopted build is left running.

    Raises:
        ImageBuildFailed: the build failed or exceeded the deadline; the message gives the phase and
            the log's last lines. It is an _AdoptedBuildStopped if another run's build was stopped.
    """
    is_ours = False
    started = clock.monotonic()
    progress = Progress(f"build {build_id}", logger, clock)
    log = _BuildLog(logs)
    try:
        for pause in intervals(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS):
            build = codebuild.batch_get_builds(ids=[build_id])["builds"][0]
            is_ours = _variables(build).get(_STARTER) == token
            elapsed = clock.monotonic() - started
            if build["buildStatus"] != "IN_PROGRESS":
                break
            progress.note(build["currentPhase"])
            log.poll(build)
            if elapsed > deadline_seconds:
                if is_ours:
                    codebuild.stop_build(id=build_id)
                whose = "" if is_ours else " of another run"
                end = " and was stopped" if is_ours else ""
                raise ImageBuildFailed(
                    f"image build {build_id}{whose} was still in phase {build['currentPhase']}"
                    f" after {elapsed:.0f} s (image.build_timeout_minutes plus time to queue){end}"
                    f"{log.output.tail()}"
                )
            clock.sleep(pause)
    except BaseException as error:
        if is_ours and not isinstance(error, Exception):
            # The run was cancelled; a lost connection must not stop the build.
            codebuild.stop_build(id=build_id)
        raise
    log.poll(build)
    if build["buildStatus"] != "SUCCEEDED":
        is_stopped = build["buildStatus"] == "STOPPED" and not is_ours
        failure = _AdoptedBuildStopped if is_stopped else ImageBuildFailed
        raise failure(f"{_describe_failure(build)}{log.output.tail()}")


class _BuildLog:
    """Follows a build's log stream until it can't be read."""

    def __init__(self, logs: Any) -> None:
        self._logs = logs
        self._next: dict[str, str] = {}
        self._readable = True
        self.output = BuildOutput(logger)

    def poll(self, build: Mapping[str, Any]) -> None:
        """Log all lines since the last poll."""
        logs = build.get("logs", {})
        if not self._readable or not logs.get("groupName") or not logs.get("streamName"):
            return
        self._readable = False
        with best_effort(f"the log of build {build['id']} can't be followed"):
            self.output.add(self._new_lines(logs["groupName"], logs["streamName"]))
            self._readable = True

    def _new_lines(self, group: str, stream: str) -> list[str]:
        lines: list[str] = []
        for _ in range(_MAX_PAGES):
            try:
                page = self._logs.get_log_events(
                    logGroupName=group, logStreamName=stream, startFromHead=True, **self._next
                )
            except ClientError as error:
                if error_code(error) == "ResourceNotFoundException":
                    # CodeBuild reports the log stream before its first line is written.
                    break
                raise
            lines += [event["message"].rstrip() for event in page["events"]]
            seen = self._next.get("nextToken")
            self._next = {"nextToken": page["nextForwardToken"]}
            if page["nextForwardToken"] == seen:  # the token repeats at the end of the log
                break
        return lines


def _describe_failure(build: Mapping[str, Any]) -> str:
    """Return the status and the failing phases with their messages."""
    failed = [
        phase
        for phase in build.get("phases", ())
        if phase.get("phaseStatus") not in (None, "SUCCEEDED")
    ]
    where = "; ".join(
        f"phase {phase['phaseType']}:"
        f" {phase.get('contexts', [{}])[0].get('message', phase['phaseStatus'])}"
        for phase in failed
    )
    return (
        f"image build {build['id']} ended with status {build['buildStatus']};"
        f" {where or 'no failed phase reported'}"
    )
