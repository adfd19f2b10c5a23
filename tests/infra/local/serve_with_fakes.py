"""A platform with a fake engine as a process of its own: python serve_with_fakes.py STATE_DIR PORT
[OWNER_PID].
"""

from __future__ import annotations

import sys
from pathlib import Path

from infra.local.server.backends import Backend, with_real_nodes
from infra.local.server.contract import ServerConfig
from infra.local.server.serving import serve
from tests.infra.local.platform_fakes import FakeEngine, FakeImageStore


def fake_backend(config: ServerConfig, endpoint_url: str) -> Backend:
    return with_real_nodes(config, FakeEngine(config.state_dir / "engine"), FakeImageStore())


if __name__ == "__main__":
    owner_pid = int(sys.argv[3]) if len(sys.argv) > 3 else None
    serve(ServerConfig(int(sys.argv[2]), Path(sys.argv[1]), owner_pid), fake_backend)
