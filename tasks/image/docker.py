"""Build the image on this machine, with Docker or podman, and push it to ECR.

The registry's password is passed to the engine on standard input, and stored in a private folder
that is removed after the build. It never appears on a command line, in a log or in an error.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodesweep.aws.platform import aws_client
from nodesweep.errors import PreflightRefused
from nodesweep.launch.sagemaker.preflight.storage import parse_ecr_image
from nodesweep.polling import Clock
from nodesweep.scaling.secrets import secrets_in
from nodesweep.tasks.image.find import (
    BuildContext,
    Image,
    Images,
    arguments_to_send,
    context_file,
    pushed_image,
)
from nodesweep.tasks.image.process import BuildProcess

logger = logging.getLogger("nodesweep.image")
_ENGINES = ("docker", "podman")
_ANSWER_SECONDS = 30
_PLATFORM = "linux/amd64"  # of all training instance types
_PUSHED_DIGEST = re.compile(r"\bdigest: (sha256:[0-9a-f]{64})\b")
_READ_BY_ENGINES = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|COLUMNS|LINES|NO_COLOR|CLICOLOR.*|LANG|LC_.*|TZ|TMPDIR"
    r"|(HTTPS?|FTP|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|SSH_(AUTH_SOCK|ASKPASS)|GNUPGHOME|KUBECONFIG"
    r"|(MOBY|DOCKER|BUILDX?|BUILDKIT|EXPERIMENTAL_BUILDKIT|OTEL|SOURCE_DATE)_.*"
    r"|_?(PODMAN|BUILDAH|CONTAINERS?|REGISTRY|REGISTRIES|STORAGE|NETAVARK)_.*"
    r"|LISTEN_.*|NOTIFY_SOCKET|DBUS_.*|XDG_.*|LD_.*|MALLOC_.*"
    r"|GO(DEBUG|GC|MEMLIMIT|MAXPROCS|TRACEBACK)|BASH_ENV|ENV|IFS",
    re.IGNORECASE,
)
"""Environment variables that Docker, podman, their helpers, Go's runtime and the linker read.

AWS variables are not included, because credential helpers are disabled.
"""
_LOOPBACK = ("127.", "localhost", "[::1]")


class DockerBuilder:
    """Builds images with a local container engine, and pushes them to the repository."""

    def __init__(self, images: Images) -> None:
        self._images, self._config = images, images.section

    def start(self, context: BuildContext, repository: str, token: str) -> str:
        """Return the path of a container engine that responds, which serves as the build's ID.

        Raises:
            PreflightRefused: no engine responds, or a secret build argument would be on its command
                line.
        """
        _, shown = split_arguments(arguments_to_send(context), os.environ)
        for name in sorted(shown):
            if secrets_in({name: shown[name]}) and not shown[name].startswith("/"):
                raise PreflightRefused(
                    f"image.build_args.{name}: its value looks like a secret, but would be visible"
                    " to every user of this machine in the process list: since the engine reads"
                    f" {name} from the environment itself, nodesweep has to pass it on the command"
                    f" line; set {name} to the same value in the flow's environment, or set"
                    " image.builder: codebuild"
                )
        return find_engine()

    def finish(
        self, context: BuildContext, repository: str, build_id: str, clock: Clock, token: str = ""
    ) -> Image:
        """Build and push the image, and return it as found in ECR.

        Raises:
            ImageBuildFailed: a step failed or exceeded the deadline, and ECR has no image.
        """
        build_name = f"image build with {Path(build_id).name}"

        def build() -> str | None:
            with tempfile.TemporaryDirectory(prefix="nodesweep-image-") as scratch:
                deadline = clock.monotonic() + self._config.build_timeout_minutes * 60
                environment = _private_environment(Path(scratch) / "auth")
                process = BuildProcess(build_name, environment, clock, deadline)
                return self._build(
                    context, f"{repository}:{context.tag}", build_id, process, Path(scratch)
                )

        return pushed_image(
            self._images.ecr, self._config.repository, repository, context.tag, build_name, build
        )

    def _build(
        self, context: BuildContext, name: str, engine: str, process: BuildProcess, scratch: Path
    ) -> str | None:
        """Log in, build and push; return the digest, or None if the engine does not report it."""
        folder = scratch / "context"
        _stage(context, folder)
        self._log_in(name, context.bases, engine, process)
        hidden, shown = split_arguments(arguments_to_send(context), process.environment)
        arguments = sorted([*hidden, *(f"{key}={value}" for key, value in shown.items())])
        process.run(
            "build",
            [
                *_command(engine, "build", name),
                *(f"--file={folder / 'Dockerfile'}", f"--tag={name}", f"--platform={_PLATFORM}"),
                *(f"--build-arg={argument}" for argument in arguments),
                str(folder),
            ],
            variables=hidden,
        )
        digest_file = scratch / "digest"
        to_file = [f"--digestfile={digest_file}"] if _is_podman(engine) else []
        output = process.run("push", [*_command(engine, "push", name), *to_file, name])
        if digest_file.is_file():
            return digest_file.read_text().strip()
        found = _PUSHED_DIGEST.findall("\n".join(output))
        return str(found[-1]) if found else None

    def _log_in(self, name: str, bases: Sequence[str], engine: str, process: BuildProcess) -> None:
        """Log in to the target registry, and to the ECR registries of the base images."""
        platform = self._images.backend.platform
        regions = {name.partition("/")[0]: platform.region}
        for base in bases:
            if image := parse_ecr_image(base):
                regions.setdefault(base.partition("/")[0], image.region)
        for registry, region in regions.items():
            ecr = aws_client("ecr", platform.model_copy(update={"region": region}))
            token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
            user, _, password = base64.b64decode(token).decode().partition(":")
            command = [
                *_command(engine, "login", registry),
                f"--username={user}",
                "--password-stdin",
                registry,
            ]
            process.run(f"login to {registry}", command, secret=password)


def split_arguments(
    arguments: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Split build arguments into those for the environment and those for the command line.

    Other users can't see the engine's environment, but some variables in it would affect the engine
    itself.
    """
    shown = {
        name: value
        for name, value in arguments.items()
        if _READ_BY_ENGINES.fullmatch(name) and environment.get(name) != value
    }
    return {name: value for name, value in arguments.items() if name not in shown}, shown


def find_engine() -> str:
    """Return the path of the first engine on PATH that responds.

    Raises:
        PreflightRefused: no engine responds; the message gives the reason for each.
    """
    problems = []
    for name in _ENGINES:
        path = shutil.which(name)
        if path is None:
            problems.append(f"{name}: not on PATH")
            continue
        try:
            answer = subprocess.run(
                [path, "info"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{name}: no response within {_ANSWER_SECONDS:g} s")
            continue
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
            continue
        if answer.returncode == 0:
            return path
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        problems.append(f"{name}: {lines[-1]}")
    raise PreflightRefused(
        "image.builder: docker needs a container engine where the flow runs"
        f" ({'; '.join(problems)}); "
        "start one, or set image.builder: codebuild"
    )


def _is_podman(engine: str) -> bool:
    return Path(engine).name == "podman"


def _command(engine: str, action: str, name: str) -> list[str]:
    """Return the start of the command line.

    Docker uses plain HTTP for a registry on loopback by default; podman needs an option.
    """
    plain = _is_podman(engine) and name.startswith(_LOOPBACK)
    return [engine, action, *(["--tls-verify=false"] if plain else [])]


def _stage(context: BuildContext, folder: Path) -> None:
    """Copy exactly the files included in the tag, with modes derived from their content."""
    for name in context.files:
        content, mode = context_file(context, name)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)


def _private_environment(folder: Path) -> dict[str, str]:
    """Return the engine's environment, which keeps its logins in the private `folder`.

    The user's Docker settings and contexts apply, except credential helpers, which would store the
    password.
    """
    folder.mkdir(mode=0o700)
    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    settings = _docker_settings(own / "config.json")
    (folder / "config.json").write_text(json.dumps(settings))
    for name in ("contexts", "cli-plugins"):
        if (own / name).is_dir():
            (folder / name).symlink_to((own / name).resolve())
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "DOCKER_CONFIG": str(folder),
        "REGISTRY_AUTH_FILE": str(folder / "auth.json"),
        # SageMaker needs an image; attestations would turn it into an index.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        "BUILDAH_FORMAT": "docker",
    }


def _docker_settings(path: Path) -> Mapping[str, object]:
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {
        key: value for key, value in settings.items() if key not in ("credsStore", "credHelpers")
    }
