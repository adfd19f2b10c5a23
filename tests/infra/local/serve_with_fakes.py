"""A platform with a fake engine as a process of its own: python serve_with_fakes.py STATE_DIR PORT [OWNER_PID]."""

from __future__ import annotations

import sys
from pathlib import Path

from infra.local.interfaces import Engine, ImageStore
from infra.local.server.contract import ServerConfig
from infra.local.server.serving import serve
from tests.infra.local.platform_fakes import FakeEngine, FakeImageStore


def fake_engine(state_dir: Path, endpoint_url: str) -> tuple[Engine, ImageStore]:
    return FakeEngine(state_dir / "engine"), FakeImageStore()


if __name__ == "__main__":
    owner_pid = int(sys.argv[3]) if len(sys.argv) > 3 else None
    serve(ServerConfig(int(sys.argv[2]), Path(sys.argv[1]), owner_pid), fake_engine)
