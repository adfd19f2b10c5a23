"""Serves a platform with a fake engine as a separate process."""

from __future__ import annotations

from pathlib import Path

from infra.local.tests.platform_fakes import FakeEngine, FakeImageStore
from sagemaker_emulator.server.backends import Backend, with_real_nodes
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import serve


def fake_backend(config: ServerConfig, endpoint_url: str) -> Backend:
    """Return a backend of fakes."""
    return with_real_nodes(config, FakeEngine(config.state_dir / "engine"), FakeImageStore())


def main(state_dir: str, owner_pid: str | None = None) -> None:
    """Serve on a free port until a signal or the owner's death."""
    serve(ServerConfig(0, Path(state_dir), owner_pid and int(owner_pid)), fake_backend)
