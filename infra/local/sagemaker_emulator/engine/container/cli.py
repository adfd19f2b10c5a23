"""Runs podman or docker commands, and tests whether containers can run on this machine.

The platform writes the settings that containers need (runtime, cgroup manager, limits) to files in
its state folder and points podman to them with environment variables, so it neither reads nor
changes the user's settings. Files named by the user's CONTAINERS_CONF and
CONTAINERS_REGISTRIES_CONF take precedence.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.state.files import write_atomically

PROGRAMS = ("podman", "docker")
_COMMAND_SECONDS = 60.0
_PROBE_SECONDS = 30.0
_KEPT_NAMES = (
    "PATH",
    "HOME",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "TMPDIR",
    "CONTAINERS_STORAGE_CONF",
)
_SYSTEM_PATH = (  # netavark needs iptables
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)


class ContainerCommandError(EngineError):
    """A podman or docker command failed. The message contains its output."""


@dataclass(frozen=True)
class ContainerCli:
    """The container program (podman or docker) and its environment variables."""

    program: str  # full path
    environment: dict[str, str]

    @classmethod
    def find(
        cls, settings_dir: Path, insecure_registries: Sequence[str] = ()
    ) -> ContainerCli | None:
        """Return podman if it is installed, else docker, or None if neither is installed.

        The program's settings are written to `settings_dir`.
        """
        found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
        if found is None:
            return None
        settings_dir.mkdir(parents=True, exist_ok=True)
        environment = {
            name: value for name in _KEPT_NAMES if (value := os.environ.get(name)) is not None
        }
        environment["PATH"] = f"{environment.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":")
        settings = {
            "CONTAINERS_CONF": _containers_conf(),
            "CONTAINERS_REGISTRIES_CONF": _registries(insecure_registries),
        }
        for name, text in settings.items():
            file = settings_dir / f"{name.removeprefix('CONTAINERS_').lower()}.toml"
            write_atomically(file, text)
            environment[name] = os.environ.get(name, str(file))
        return cls(found, environment)

    @property
    def name(self) -> str:
        """The program's name: podman or docker."""
        return Path(self.program).name

    def call(self, *arguments: str, timeout_seconds: float = _COMMAND_SECONDS) -> str:
        """Run a command and return its output.

        Raises:
            ContainerCommandError: If the command cannot run, fails or times out.
        """
        shown = f"{self.name} {' '.join(arguments[:2])}"
        try:
            done = subprocess.run(
                [self.program, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ContainerCommandError(f"{shown}: {error}") from error
        if done.returncode != 0:
            output = done.stderr.strip() or done.stdout.strip() or "no output"
            raise ContainerCommandError(
                f"{shown} failed with exit code {done.returncode}: {output[-2000:]}"
            )
        return done.stdout

    def remove(self, containers: Sequence[str]) -> None:
        """Kill containers without a grace period and remove them, ignoring missing ones.

        Raises:
            ContainerCommandError: If the command fails.
        """
        at_once = ("--time", "0", "--ignore") if self.name == "podman" else ()
        self.call("rm", "--force", "--volumes", *at_once, *containers)

    def remove_labelled(self, label: str) -> None:
        """Remove all containers and networks with a label ("name=value").

        Raises:
            ContainerCommandError: If a command fails.
        """
        if containers := self.call("ps", "--all", "--quiet", "--filter", f"label={label}").split():
            self.remove(containers)
        if networks := self.call("network", "ls", "--quiet", "--filter", f"label={label}").split():
            self.call("network", "rm", *networks)

    def problem(self, scratch: Path, needs_registry: bool) -> str | None:
        """Return why containers cannot run on this machine, or None if they can.

        With podman, this runs a container that mounts this machine's /usr read-only.
        """
        if os.geteuid() != 0:
            return (
                f"{self.name} is installed, but the engine needs root to enter the networks of"
                " containers"
            )
        if (
            needs_registry
            and shutil.which("docker-registry", path=self.environment["PATH"]) is None
        ):
            return "docker-registry is not installed, and --registry is not set"
        if self.name != "podman":
            return (
                None
                if _docker_answers(self)
                else "docker is installed, but its daemon doesn't respond"
            )
        root = scratch / "probe-root"
        (root / "usr").mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink() and not (root / name).is_symlink():
                (root / name).symlink_to(os.readlink(f"/{name}"))
        network = f"nodesweep-probe-{os.getpid()}"
        try:
            self.call("network", "create", network)  # like node networks, this needs iptables
            try:
                arguments = (
                    "--rm",
                    "--network",
                    network,
                    "--volume",
                    "/usr:/usr:ro",
                    "--rootfs",
                    str(root),
                )
                self.call("run", *arguments, "/usr/bin/true", timeout_seconds=_PROBE_SECONDS)
            finally:
                self.call("network", "rm", "--force", network)
        except ContainerCommandError as error:
            return f"{error}"
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return None


def _docker_answers(cli: ContainerCli) -> bool:
    try:
        cli.call("info", timeout_seconds=_PROBE_SECONDS)
    except ContainerCommandError:
        return False
    return True


def _containers_conf() -> str:
    """Return podman settings that work inside a container or a small VM.

    podman's defaults need higher limits, systemd's cgroup manager and crun.
    """
    limits = (("nofile", resource.RLIMIT_NOFILE, 65_536), ("nproc", resource.RLIMIT_NPROC, 8_192))
    ulimits = ", ".join(
        f'"{name}={limit}:{limit}"' for name, kind, most in limits for limit in [_limit(kind, most)]
    )
    has_systemd = Path("/run/systemd/system").is_dir()
    runtime = next((name for name in ("crun", "runc") if shutil.which(name)), None)
    lines = ["[containers]", f"default_ulimits = [{ulimits}]", "[engine]", 'events_logger = "file"']
    # For pushed layers. For a base image of 1.5 GB, zstd takes half as long as gzip.
    lines += ['compression_format = "zstd"']
    lines += [f'cgroup_manager = "{"systemd" if has_systemd else "cgroupfs"}"']
    lines += [f'runtime = "{runtime}"'] if runtime else []
    return "\n".join(lines) + "\n"


def _limit(kind: int, most: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def _registries(insecure: Sequence[str]) -> str:
    """Return a registries.conf that disables short names and marks registries as insecure."""
    entries = [f'[[registry]]\nlocation = "{location}"\ninsecure = true' for location in insecure]
    return "\n".join(["unqualified-search-registries = []", *entries]) + "\n"
