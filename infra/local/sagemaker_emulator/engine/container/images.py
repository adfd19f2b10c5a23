"""Images of the container engine, which builds push to a registry."""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagemaker_emulator.builds.shell import BuildShell, ShellEnded
from sagemaker_emulator.engine.container.cli import ContainerCli, ContainerCommandError
from sagemaker_emulator.engine.container.registry import Registry
from sagemaker_emulator.engine.errors import ImageNotFoundError
from sagemaker_emulator.interfaces import BuiltImage, ImageBuildError
from sagemaker_emulator.state.files import write_atomically

_SHIM = '#!/bin/sh\nexec {program} "$@"\n'
_REFERENCE = re.compile(
    r"(?P<name>[^@]+?)(?:@(?P<digest>sha256:[0-9a-f]{64})|:(?P<tag>[\w][\w.-]{0,127}))?"
)
_PULL_SECONDS = 1800.0


@dataclass(frozen=True)
class ImageConfig:
    """The parts of an image's configuration that determine how its containers start."""

    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    command: tuple[str, ...] = ()


class ContainerImageStore:
    """Builds images with podman or docker, and stores them in a registry.

    See `sagemaker_emulator.interfaces.ImageStore`.
    """

    def __init__(self, state_dir: Path, cli: ContainerCli, registry: Registry) -> None:
        self._cli = cli
        self._registry = registry
        self._state_dir = state_dir.resolve()
        self._shims = self._state_dir / "build-commands"
        self._shims.mkdir(parents=True, exist_ok=True)
        shim = self._shims / "docker"  # buildspecs call docker; podman takes the same arguments
        write_atomically(shim, _SHIM.format(program=shlex.quote(cli.program)), 0o755)

    @property
    def registry(self) -> Registry:
        """The registry that images are pushed to."""
        return self._registry

    @property
    def address(self) -> str:
        """The registry's host:port, which ECR returns to clients."""
        return self._registry.address

    def open_shell(
        self,
        context: Path,
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
    ) -> BuildShell:
        """Return a shell in the build context in which `docker` runs podman or docker.

        Args:
            context: The build context.
            variables: The build's environment variables.
            on_line: Receives each line of output.
            stop: Stops the shell when set.
        """
        environment = {
            "LANG": "C.UTF-8",
            "CODEBUILD_SRC_DIR": str(context),
            **self._cli.environment,
            **variables,
        }
        environment["PATH"] = f"{self._shims}:{self._cli.environment['PATH']}"
        return BuildShell(context, environment, on_line, stop)

    def build(
        self,
        context: Path,
        repository: str,
        tag: str,
        build_args: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
        deadline_seconds: float,
    ) -> BuiltImage:
        """Build and push an image without a buildspec.

        Raises:
            ImageBuildError: If a step fails, is stopped or times out.
        """
        image = shlex.quote(f"{self.address}/{repository}:{tag}")
        arguments = " ".join(
            f"--build-arg {shlex.quote(f'{name}={value}')}" for name, value in build_args.items()
        )
        deadline = time.monotonic() + deadline_seconds
        with self.open_shell(context, {}, on_line, stop) as shell:
            for phase, command in (
                ("BUILD", f"docker build {arguments} --tag {image} ."),
                ("PUSH", f"docker push {image}"),
            ):
                try:
                    code = shell.run(command, deadline)
                except ShellEnded as error:
                    raise ImageBuildError(f"{phase}: {error}") from error
                if code != 0:
                    raise ImageBuildError(f"{phase} failed with exit code {code}")
        digest = self._registry.digest(repository, tag)
        if digest is None:
            raise ImageBuildError(f"PUSH: the registry did not receive {repository}:{tag}")
        return BuiltImage(digest)

    def resolve(self, image_uri: str) -> Path | None:
        """Return the state folder if the image is in the registry or on this machine, else None."""
        match = _REFERENCE.fullmatch(image_uri)
        if match is None:
            return None
        host, _, repository = match["name"].partition("/")
        if host == self.address:
            found = (
                self._registry.digest(repository, match["digest"] or match["tag"] or "latest")
                is not None
            )
        else:
            found = self._is_local(image_uri)
        return self._state_dir if found else None

    def images(self) -> Sequence[tuple[str, str, str]]:
        """Return the repository, tag and digest of every image in the registry."""
        return list(self._registry.images())

    def pull(self, image_uri: str) -> ImageConfig:
        """Pull the image if it is not on this machine yet, and return its configuration.

        Raises:
            ImageNotFoundError: If the image cannot be pulled.
        """
        try:
            if not self._is_local(image_uri):
                self._cli.call("pull", "--quiet", image_uri, timeout_seconds=_PULL_SECONDS)
            config: dict[str, Any] = json.loads(self._cli.call("image", "inspect", image_uri))[0][
                "Config"
            ]
        except ContainerCommandError as error:
            raise ImageNotFoundError(f"image {image_uri} can't be pulled: {error}") from error
        pairs = (entry.partition("=") for entry in config.get("Env") or [])
        return ImageConfig(
            tuple(config.get("Entrypoint") or ()),
            {name: value for name, _, value in pairs},
            tuple(config.get("Cmd") or ()),
        )

    def _is_local(self, image_uri: str) -> bool:
        try:
            self._cli.call("image", "inspect", "--format", "{{.Id}}", image_uri)
        except ContainerCommandError:
            return False
        return True
