"""Constants and settings that the server and the code that manages it share.

This module imports nothing heavy, so that status queries are fast.
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

from sagemaker_emulator.settings import digest
from sagemaker_emulator.state.files import DamagedFile, read_json

HOST = "127.0.0.1"
"""Loopback only, since the platform runs programs that it receives over plain HTTP."""

STATUS_PATH = "/_nodesweep/status"

SERVICE = "nodesweep-local"
"""Name in the platform's status, which distinguishes it from other programs on a port."""


def proof_of(secret: str, endpoint: str, nonce: str) -> str:
    """Return the proof that the platform at this endpoint knows the key, which is in its status.

    The proof depends on the endpoint, since a different server could otherwise relay the challenge
    and impersonate the platform.
    """
    message = f"{SERVICE}\n{endpoint}\n{nonce}".encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


SERVER_FILE = "server.json"
"""File in the state folder that identifies the server process.

The file remains when the process ends, but is only valid while the process is alive.
"""

ENGINE_FILE = "engine.json"
"""File in the state folder that records its engine."""

CREDENTIALS_FILE = "aws-credentials"
"""File in the state folder with the access keys (an AWS shared credentials file)."""

JOBS_STOP_DEADLINE_SECONDS = 140.0
"""Time for all jobs to stop: 120 s from SIGTERM to SIGKILL, plus the upload."""


class ServerStartError(Exception):
    """The server cannot start. The message contains the reason and the remedy."""


def engine_of(state_dir: Path) -> str | None:
    """Return the engine of a state folder, or None if no platform has used it.

    Raises:
        ServerStartError: If the record is damaged.
    """

    def parse(record: Any) -> str:
        if not isinstance(record["engine"], str):
            raise TypeError("engine is not a string")
        return record["engine"]

    remedy = (
        'it records the engine of this folder. Write {"engine": "process"} (or "container" or'
        ' "simulated", as used before) to it, or choose a different folder with --state-dir'
    )
    try:
        return read_json(state_dir / ENGINE_FILE, parse, remedy)
    except DamagedFile as error:
        raise ServerStartError(str(error)) from error


def make_state_dir(state_dir: Path) -> None:
    """Create the folder if it does not exist, and make it private.

    The folder contains files, logs and objects of jobs.

    Raises:
        ServerStartError: If the folder cannot be created or accessed.
    """
    try:
        state_dir.mkdir(0o700, parents=True, exist_ok=True)
        if (state_dir / CREDENTIALS_FILE).exists() and state_dir.stat().st_uid == os.geteuid():
            state_dir.chmod(0o700)  # earlier versions allowed access by other users
    except OSError as error:
        raise _unusable(state_dir, error) from error


def open_lock(state_dir: Path, name: str) -> TextIO:
    """Open a lock file in the state folder.

    Raises:
        ServerStartError: If the file cannot be opened.
    """
    try:
        return (state_dir / name).open("a")
    except OSError as error:
        raise _unusable(state_dir, error) from error


def _unusable(state_dir: Path, error: OSError) -> ServerStartError:
    reason = error.strerror or str(error)
    return ServerStartError(
        f"--state-dir {state_dir} can't be used: {reason};"
        " choose a folder that can be created and written to"
    )


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server, which are passed to its process as JSON.

    Port 0 selects any free port.
    """

    port: int
    state_dir: Path
    owner_pid: int | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Maximum instances by instance type or by full quota name.

    Example: "ml.local.small for spot training job usage".
    """
    faults_file: Path | None = None
    cold_start_seconds: float = 0.0
    """The time that instances take to start without a warm pool."""
    engine: str = "process"
    """process, container or simulated."""
    model_file: Path | None = None
    """The performance model of the simulated engine, or None for the default model."""
    time_scale: float = 0.0
    """Real seconds per virtual second (simulated engine)."""
    processing_leaves: Path | None = None
    """The folder with files that Processing jobs leave below /opt/ml (simulated engine)."""
    file_systems: Mapping[str, Path] = field(default_factory=dict)
    """Folders that emulate FSx or EFS file systems, by file system id."""
    or_free_port: bool = False
    """Use a different port if `port` is taken."""
    registry: str | None = None
    """host:port of a running OCI registry, or None to start one (container engine)."""

    def to_json(self) -> str:
        """Return all settings as JSON, for `from_json`."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ServerConfig:
        """Parse the output of `to_json`.

        Raises:
            ValueError: If the text is invalid.
            TypeError: If the fields do not match.
        """
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
        """Return the settings as the server's status shows them, files as paths and digests.

        A later start compares its settings with them.
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
