"""Runs a build through CodeBuild's phases, which build an image and register it in ECR."""

from __future__ import annotations

import logging
import re
import shlex
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from botocore.exceptions import ClientError, ParamValidationError

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.builds.buildspec import (
    PHASES,
    Buildspec,
    BuildspecError,
    Phase,
    parse_buildspec,
)
from sagemaker_emulator.builds.record import Build
from sagemaker_emulator.builds.shell import BuildsByCommands, BuildShell, ShellEnded
from sagemaker_emulator.builds.source import SourceError, fetch_source, parse_source_location
from sagemaker_emulator.interfaces import BuiltImage, ImageBuildError, ImageStore
from sagemaker_emulator.log_streams import LogStreams
from sagemaker_emulator.state.ecr_snapshot import ensure_repository, put_image

_REPOSITORY_VARIABLES = ("IMAGE_REPO_URI", "IMAGE_REPO_NAME")
_NO_REPOSITORY = (
    f"Set the environment variable {' or '.join(_REPOSITORY_VARIABLES)}; neither is set."
)
_TAG_VARIABLE = "IMAGE_TAG"
_ARGUMENT_PREFIX = "BUILD_ARG_"
"""Without a buildspec, BUILD_ARG_<NAME>=value sets ARG <NAME> of the Dockerfile."""
_LOG_HOST = "build"

logger = logging.getLogger(__name__)

Change = Callable[[Callable[[Build], None]], None]
"""Applies a change to a build under the lock of `Builds`, and saves the build."""


class PhaseFailure(Exception):
    """The current phase failed; the status code and message are for CodeBuild's phase context."""

    def __init__(self, status_code: str, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.message = message


class BuildExecution:
    """Runs a build in the calling thread until it ends.

    All outcomes, including errors of the platform, are written to the build's record.
    """

    def __init__(
        self,
        build: Build,
        change: Change,
        images: ImageStore,
        clients: ClientFactory,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._build = build
        self._change = change
        self._images = images
        self._s3 = clients("s3", build.region)
        self._ecr = clients("ecr", build.region)
        self._logs = clients("logs", build.region)
        self._stop = stop
        self._clock = clock

    def run(self) -> None:
        try:
            with LogStreams(self._logs, self._build.log_group) as streams:
                streams.open(_LOG_HOST, self._build.uuid)
                self._streams = streams
                status = self._run_phases()
        except Exception as error:
            logger.exception("Build %s: the platform failed", self._build.id)
            self._close("FAULT", "INTERNAL_ERROR", f"{type(error).__name__}: {error}")
            status = "FAULT"
        now = self._clock()
        self._change(lambda build: build.complete(status, now))

    def _run_phases(self) -> str:
        """Run all phases and return the final status: SUCCEEDED, FAILED, STOPPED or TIMED_OUT."""
        deadline = self._clock() + self._build.timeout_minutes * 60
        try:
            with tempfile.TemporaryDirectory(prefix="codebuild-") as scratch:
                self._enter("PROVISIONING")
                context = self._fetch(Path(scratch) / "src")
                if isinstance(self._images, BuildsByCommands):
                    self._run_buildspec(self._images, context, deadline)
                else:
                    self._enter("INSTALL")
                    repository, tag = self._prepare_repository()
                    image = self._build_image(context, repository, tag, deadline)
                    self._register(repository, tag, image)
        except PhaseFailure as failure:
            status = self._failure_status(deadline)
            self._log(
                f"Phase {self._build.phases[-1]['phaseType']} {status}:"
                f" {failure.message.partition(chr(10))[0]}"
            )
            self._close(status, failure.status_code, failure.message)
            return status
        return "SUCCEEDED"

    def _failure_status(self, deadline: float) -> str:
        if self._stop.is_set():
            return "STOPPED"
        return "TIMED_OUT" if self._clock() >= deadline else "FAILED"

    def _fetch(self, folder: Path) -> Path:
        self._enter("DOWNLOAD_SOURCE")
        folder.mkdir()
        try:
            fetch_source(self._s3, parse_source_location(self._build.source_location), folder)
        except SourceError as error:
            raise PhaseFailure("CLIENT_ERROR", str(error)) from error
        if not isinstance(self._images, BuildsByCommands) and not (folder / "Dockerfile").is_file():
            found = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
            raise PhaseFailure(
                "CLIENT_ERROR", f"No Dockerfile in the root of the source, which contains {found}"
            )
        return folder

    def _run_buildspec(self, images: BuildsByCommands, context: Path, deadline: float) -> None:
        """Run the phases of the buildspec in CodeBuild's order.

        A failed phase ends the build, but post_build still runs after a failed build phase.
        """
        spec = self._read_buildspec(context)
        variables = {
            **spec.variables,
            **{item["name"]: item["value"] for item in self._build.variables},
            "CODEBUILD_BUILD_ID": self._build.id,
            "CODEBUILD_BUILD_ARN": self._build.arn,
        }
        monotonic_deadline = time.monotonic() + max(0.0, deadline - self._clock())
        with images.open_shell(context, variables, self._log, self._stop) as shell:
            failure: PhaseFailure | None = None
            for name in PHASES:
                if failure and name != "post_build":
                    break
                self._enter(name.upper())
                try:
                    self._run_phase(spec.phases[name], shell, monotonic_deadline)
                except PhaseFailure as error:
                    if (
                        failure is not None
                        or name != "build"
                        or spec.phases[name].aborts
                        or self._stop.is_set()
                    ):
                        raise failure or error from error
                    failure = error
                    self._close("FAILED", error.status_code, error.message)
            if failure:
                raise failure

    def _run_phase(self, phase: Phase, shell: BuildShell, deadline: float) -> None:
        try:
            for command in phase.commands:
                if (code := self._run_command(shell, command, deadline)) != 0:
                    raise PhaseFailure(
                        "COMMAND_EXECUTION_ERROR",
                        f"Error while executing command: {command.strip()}."
                        f" Reason: exit status {code}",
                    )
        finally:
            for command in phase.final_commands:
                self._run_command(shell, command, deadline)

    def _run_command(self, shell: BuildShell, command: str, deadline: float) -> int:
        self._log(f"Running command {command.strip()}")
        try:
            return shell.run(command, deadline)
        except ShellEnded as error:
            if self._stop.is_set():
                raise _stopped() from error
            raise PhaseFailure("BUILD_TIMED_OUT", "Build has timed out.") from error

    def _read_buildspec(self, context: Path) -> Buildspec:
        """Return the buildspec in the request, the project or the source.

        The request and the project can also name a file in the source, which is buildspec.yml by
        default. Without a buildspec, the Dockerfile in the source is built and pushed, as on a
        platform without containers.
        """
        buildspec = self._build.buildspec or "buildspec.yml"
        if self._build.buildspec is None and not (context / buildspec).is_file():
            return self._buildspec_of_dockerfile()
        if "\n" not in buildspec:
            path = context / buildspec
            if not path.resolve().is_relative_to(context.resolve()) or not path.is_file():
                raise PhaseFailure("YAML_FILE_ERROR", f"{buildspec}: no such file in the source")
            buildspec = path.read_text(encoding="utf-8", errors="replace")
        try:
            return parse_buildspec(buildspec)
        except BuildspecError as error:
            raise PhaseFailure("YAML_FILE_ERROR", str(error)) from error

    def _buildspec_of_dockerfile(self) -> Buildspec:
        repository = self._build.variable(*_REPOSITORY_VARIABLES)
        if repository is None:
            raise PhaseFailure("COMMAND_EXECUTION_ERROR", _NO_REPOSITORY)
        image = shlex.quote(f"{repository}:{self._build.variable(_TAG_VARIABLE) or 'latest'}")
        # Shell variables keep the values out of the log.
        names = [name for name in self._build_arguments() if re.fullmatch(r"[A-Za-z_]\w*", name)]
        options = "".join(f'--build-arg {name}="${_ARGUMENT_PREFIX}{name}" ' for name in names)
        build, push = f"docker build {options}--tag {image} .", f"docker push {image}"
        # An attestation would turn the image into an index, which SageMaker rejects.
        variables = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        phases = dict.fromkeys(PHASES, Phase()) | {"build": Phase((build, push), aborts=True)}
        return Buildspec(phases, variables)

    def _build_arguments(self) -> dict[str, str]:
        return {
            item["name"].removeprefix(_ARGUMENT_PREFIX): item["value"]
            for item in self._build.variables
            if item["name"].startswith(_ARGUMENT_PREFIX)
        }

    def _prepare_repository(self) -> tuple[str, str]:
        self._enter("PRE_BUILD")
        repository = self._build.variable(*_REPOSITORY_VARIABLES)
        if repository is None:
            raise PhaseFailure("COMMAND_EXECUTION_ERROR", _NO_REPOSITORY)
        registry, slash, name = repository.partition("/")
        if slash and "." in registry:  # full URI: <account>.dkr.ecr.<region>.amazonaws.com/<name>
            if not registry.startswith(self._build.account_id):
                raise PhaseFailure(
                    "COMMAND_EXECUTION_ERROR",
                    f"Registry {registry} does not belong to the platform's account"
                    f" ({self._build.account_id}).",
                )
            repository = name
        try:
            ensure_repository(self._ecr, repository)
        except (ClientError, ParamValidationError) as error:
            raise PhaseFailure(
                "COMMAND_EXECUTION_ERROR", f"Repository {repository!r}: {error}"
            ) from error
        return repository, self._build.variable(_TAG_VARIABLE) or "latest"

    def _build_image(self, context: Path, repository: str, tag: str, deadline: float) -> BuiltImage:
        self._enter("BUILD")
        try:
            image = self._images.build(
                context,
                repository,
                tag,
                self._build_arguments(),
                on_line=self._log,
                stop=self._stop,
                deadline_seconds=max(0.0, deadline - self._clock()),
            )
        except ImageBuildError as error:
            raise PhaseFailure(
                "COMMAND_EXECUTION_ERROR", f"Error while executing command: build. {error}"
            ) from error
        if self._stop.is_set():
            raise _stopped()
        return image

    def _register(self, repository: str, tag: str, image: BuiltImage) -> None:
        self._enter("POST_BUILD")
        try:
            put_image(self._ecr, repository, tag, image.digest, image.annotations)
        except self._ecr.exceptions.ImageAlreadyExistsException as error:
            found = self._ecr.describe_images(
                repositoryName=repository, imageIds=[{"imageTag": tag}]
            )["imageDetails"]
            if found[0]["imageDigest"] != image.digest:
                raise PhaseFailure(
                    "COMMAND_EXECUTION_ERROR",
                    f"tag invalid: The image tag '{tag}' already exists in the '{repository}'"
                    " repository and cannot be overwritten because the repository is immutable.",
                ) from error
        except ClientError as error:
            raise PhaseFailure("COMMAND_EXECUTION_ERROR", str(error)) from error
        self._log(f"{repository}:{tag}: digest: {image.digest}")

    # -- changes to the record ---------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        if self._stop.is_set():
            raise _stopped()
        now = self._clock()
        self._change(lambda build: build.enter(phase, now))
        self._log(f"Entering phase {phase}")

    def _close(self, status: str, status_code: str, message: str) -> None:
        now = self._clock()
        self._change(lambda build: build.close_phase(status, now, status_code, message))

    def _log(self, line: str) -> None:
        self._streams.write(_LOG_HOST, line, int(self._clock() * 1000))


def _stopped() -> PhaseFailure:
    return PhaseFailure("STOPPED", "The build was stopped")
