"""Serves a platform with a fake engine as a separate process."""

from __future__ import annotations

from pathlib import Path

from nodesweep.infra.local.server.backends import Backend, with_real_nodes
from nodesweep.infra.local.server.contract import ServerConfig
from nodesweep.infra.local.server.serving import serve
from tests.infra.local.platform_fakes import FakeEngine, FakeImageStore


def fake_backend(config: ServerConfig, endpoint_url: str) -> Backend:
    """Return a backend of fakes."""
    return with_real_nodes(config, FakeEngine(config.state_dir / "engine"), FakeImageStore())


def main(state_dir: str, owner_pid: str | None = None) -> None:
    """Serve on a free port until a signal or the owner's death."""
    serve(ServerConfig(0, Path(state_dir), owner_pid and int(owner_pid)), fake_backend)
