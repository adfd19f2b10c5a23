"""Selects an engine that works on this machine, and assembles the container engine.

`python -m sagemaker_emulator.engine.choice` prints whether containers run on this machine. If they
do not, it prints the reason and exits with 1.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.engine.container.cli import ContainerCli
from sagemaker_emulator.engine.container.engine import ContainerEngine
from sagemaker_emulator.engine.container.images import ContainerImageStore
from sagemaker_emulator.engine.container.registry import Registry
from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.server.contract import engine_of

_NOT_FOUND = "neither podman nor docker is on PATH"


def choose_engine(state_dir: Path, registry: str | None = None) -> tuple[str, str]:
    """Return the name of the engine to use, and the reason.

    This is the engine that the state folder was last used with, if any. Otherwise, it is
    "container" if a test container runs, else "process".

    Raises:
        ServerStartError: If the state folder's record of its engine is damaged.
    """
    used = engine_of(state_dir)
    if used is not None:
        return used, f"already used by {state_dir}"
    cli = ContainerCli.find(state_dir / "containers")
    if cli is None:
        return "process", _NOT_FOUND
    problem = cli.problem(state_dir / "containers", needs_registry=registry is None)
    return ("process", problem) if problem else ("container", f"{cli.name} works on this machine")


def make_container_engine(
    state_dir: Path, endpoint_url: str, registry: str | None
) -> tuple[ContainerEngine, ContainerImageStore]:
    """Return the container engine and its image store.

    Raises:
        EngineError: If containers do not work on this machine, for the reason in the message.
    """
    settings = state_dir.resolve() / "containers"
    cli = ContainerCli.find(settings)
    problem = _NOT_FOUND if cli is None else cli.problem(settings, needs_registry=registry is None)
    if cli is None or problem:
        raise EngineError(f"--engine container: {problem}; use --engine process or auto")
    face = Registry(state_dir.resolve() / "registry", registry)
    try:
        # The settings can only include the registry's address now, so write them again.
        cli = ContainerCli.find(settings, [face.address]) or cli
        images = ContainerImageStore(state_dir, cli, face)
        return (
            ContainerEngine(
                state_dir / "engine", images, cli, endpoint_url, access_keys(state_dir).node
            ),
            images,
        )
    except BaseException:
        face.close()
        raise


def main() -> int:
    """Print whether containers run on this machine, and return exit code 0 if they do, else 1."""
    with tempfile.TemporaryDirectory(prefix="nodesweep-probe-") as folder:
        engine, reason = choose_engine(Path(folder))
    print(reason)
    return 0 if engine == "container" else 1


if __name__ == "__main__":
    sys.exit(main())
