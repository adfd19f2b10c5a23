"""What the server's process and those who start, ask and stop it agree on. Imports nothing heavy: a status is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
"""Loopback only: the platform takes any credentials and runs what it is sent."""

STATUS_PATH = "/_nodesweep/status"

SERVER_FILE = "server.json"
"""In the state folder: who serves it. Left behind at the end, believed only while that process lives."""

JOBS_STOP_DEADLINE_SECONDS = 140.0
"""A node gets 120 s between SIGTERM and SIGKILL; the rest is for the upload."""


class ServerStartError(Exception):
    """The server can't start; the message says why and what to do."""


@dataclass(frozen=True)
class ServerConfig:
    """What a server is asked for. Port 0 takes any free one."""

    port: int
    state_dir: Path
    owner_pid: int | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
