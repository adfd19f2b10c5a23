"""What the server's process and those who start, ask and stop it agree on.
Imports nothing heavy: a status is quick.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from nodesweep.infra.local.settings import digest
from nodesweep.infra.local.state.files import DamagedFile, read_json

HOST = "127.0.0.1"
"""Loopback only: the platform runs what it is sent, and its HTTP is plain."""

STATUS_PATH = "/_nodesweep/status"

SERVICE = "nodesweep-local"
"""What the status calls the platform, so that whatever else answers on its port is known
for something else.
"""


def proof_of(secret: str, endpoint: str, nonce: str) -> str:
    """What the status answers to a nonce: that the platform at this very endpoint holds the key.

    Without the endpoint in it, a server elsewhere could hand the question on and be taken for it.
    """
    message = f"{SERVICE}\n{endpoint}\n{nonce}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


SERVER_FILE = "server.json"
"""In the state folder: who serves it. Left behind at the end,
believed only while that process lives.
"""

ENGINE_FILE = "engine.json"
"""In the state folder: the engine whose folder it is."""

CREDENTIALS_FILE = "aws-credentials"
"""In the state folder: the access keys, in the form of AWS's shared credentials file."""

JOBS_STOP_DEADLINE_SECONDS = 140.0
"""A node gets 120 s between SIGTERM and SIGKILL; the rest is for the upload."""


class ServerStartError(Exception):
    """The server can't start; the message says why and what to do."""


def engine_of(state_dir: Path) -> str | None:
    """The engine whose folder it is, None for that of no platform yet. Raises ServerStartError."""

    def parse(record: Any) -> str:
        if not isinstance(record["engine"], str):
            raise TypeError("engine is no text")
        return record["engine"]

    remedy = (
        'it names the engine of this folder. Write {"engine": "process"} into it, or container'
        " or simulated, whichever the folder was used with; or choose another with --state-dir"
    )
    try:
        return read_json(state_dir / ENGINE_FILE, parse, remedy)
    except DamagedFile as error:
        raise ServerStartError(str(error)) from error


def make_state_dir(state_dir: Path) -> None:
    """Make the folder where it isn't there, and keep others out of it: jobs' files, logs and
    objects lie in it. Raises ServerStartError.
    """
    try:
        state_dir.mkdir(0o700, parents=True, exist_ok=True)
        if (state_dir / CREDENTIALS_FILE).exists() and state_dir.stat().st_uid == os.geteuid():
            state_dir.chmod(0o700)  # of a version that let others in
    except OSError as error:
        raise _unusable(state_dir, error) from error


def open_lock(state_dir: Path, name: str) -> TextIO:
    """The folder's file of that name, for a lock. Raises ServerStartError."""
    try:
        return (state_dir / name).open("a")
    except OSError as error:
        raise _unusable(state_dir, error) from error


def _unusable(state_dir: Path, error: OSError) -> ServerStartError:
    reason = error.strerror or str(error)
    return ServerStartError(
        f"--state-dir {state_dir} can't be used: {reason};"
        " give a folder that can be made and written to"
    )


@dataclass(frozen=True)
class ServerConfig:
    """What a server is asked for, handed to its process whole, as JSON.
    Port 0 takes any free one.
    """

    port: int
    state_dir: Path
    owner_pid: int | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Instance type, or a quota's full name ("ml.local.small for spot training job usage"),
    and its instances.
    """
    faults_file: Path | None = None
    cold_start_seconds: float = 0.0
    """How long instances take to be there where no warm pool has them."""
    engine: str = "process"
    """process, container or simulated."""
    model_file: Path | None = None
    """Of the simulated engine: its performance model; None for the default one."""
    time_scale: float = 0.0
    """Of the simulated engine: real seconds that a virtual second takes."""
    processing_leaves: Path | None = None
    """Of the simulated engine: a folder with what Processing jobs leave below /opt/ml."""
    file_systems: Mapping[str, Path] = field(default_factory=dict)
    """Id of an FSx or EFS file system -> the folder that stands for it."""
    or_free_port: bool = False
    """Whether another port will do where `port` is taken."""
    registry: str | None = None
    """Of the container engine: host:port of an OCI registry that runs already;
    None for one of its own.
    """

    def to_json(self) -> str:
        """All settings as JSON, which `from_json` reads back."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ServerConfig:
        """What `to_json` wrote. Raises ValueError or TypeError for anything else."""
        config = cls(**json.loads(text))
        return replace(
            config,
            state_dir=Path(config.state_dir),
            faults_file=Path(config.faults_file) if config.faults_file else None,
            model_file=Path(config.model_file) if config.model_file else None,
            processing_leaves=Path(config.processing_leaves) if config.processing_leaves else None,
            file_systems={name: Path(folder) for name, folder in config.file_systems.items()},
        )

    def described(self) -> dict[str, Any]:
        """As the server's status gives it, and as a further start is held against it; files by
        place and content.
        """
        return {
            "quotas": dict(self.quotas),
            "faults_file": str(self.faults_file) if self.faults_file else None,
            "faults_sha256": digest(self.faults_file) if self.faults_file else None,
            "cold_start_seconds": self.cold_start_seconds,
            "engine": self.engine,
            "registry": self.registry,
            "model_file": str(self.model_file) if self.model_file else None,
            "model_sha256": digest(self.model_file) if self.model_file else None,
            "time_scale": self.time_scale,
            "processing_leaves": str(self.processing_leaves) if self.processing_leaves else None,
            "file_systems": {name: str(folder) for name, folder in self.file_systems.items()},
        }
