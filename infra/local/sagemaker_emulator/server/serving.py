"""Serves the platform on loopback until it gets a signal or its last owner ends."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from werkzeug.serving import make_server

from sagemaker_emulator.api.moto_backend import QuietRequestHandler
from sagemaker_emulator.environment import server_environment
from sagemaker_emulator.process_identity import start_ticks
from sagemaker_emulator.server.backends import MakeBackend, make_backend
from sagemaker_emulator.server.contract import (
    ENGINE_FILE,
    HOST,
    SERVER_FILE,
    ServerConfig,
    ServerStartError,
    engine_of,
    make_state_dir,
    open_lock,
)
from sagemaker_emulator.server.owners import add_owner, forget_owners, watch_owners
from sagemaker_emulator.server.platform import Platform
from sagemaker_emulator.settings import SettingsError
from sagemaker_emulator.state.files import DamagedFile, write_json

_LOCK_FILE = "server.lock"
_BACKLOG = 128
_SHUTDOWN_POLL_SECONDS = 0.05


logger = logging.getLogger(__name__)


def serve(config: ServerConfig, make: MakeBackend = make_backend) -> None:
    """Run the platform until it gets SIGTERM or SIGINT or its last owner ends, then stop its jobs.

    The server file is not removed. It is valid until this process ends, so that a new start waits
    for that.
    """
    for name in os.environ.keys() - server_environment(os.environ).keys():
        del os.environ[name]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _state_dir_lock(config.state_dir), _owned(config, stop), running(config, make) as endpoint:
        identity = {
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "endpoint": endpoint,
        }
        write_json(config.state_dir / SERVER_FILE, identity)
        logger.info("Serving %s (process %d)", endpoint, os.getpid())
        stop.wait()
        logger.info("Stopping")


@contextmanager
def _owned(config: ServerConfig, stop: threading.Event) -> Iterator[None]:
    """Set `stop` once the last owner of the platform, if any, has ended."""
    forget_owners(config.state_dir)
    if config.owner_pid is not None:
        add_owner(config.state_dir, config.owner_pid)
        watch_owners(config.state_dir, stop.set)
    yield


@contextmanager
def running(config: ServerConfig, make: MakeBackend = make_backend) -> Iterator[str]:
    """Serve the platform from threads during a `with` block, and yield its endpoint."""
    make_state_dir(config.state_dir)
    _claim_folder(config.state_dir, config.engine)
    with _listening_socket(config) as listener:
        endpoint = f"http://{HOST}:{listener.getsockname()[1]}"
        try:
            platform = Platform(config, endpoint, make(config, endpoint))
            platform.start()
        except (SettingsError, DamagedFile) as error:
            raise ServerStartError(str(error)) from error
        server = make_server(
            HOST,
            0,
            platform.front,
            threaded=True,
            request_handler=QuietRequestHandler,
            fd=listener.fileno(),
        )
        thread = threading.Thread(
            target=server.serve_forever, args=(_SHUTDOWN_POLL_SECONDS,), name="http", daemon=True
        )
        thread.start()
        try:
            yield endpoint
        finally:
            platform.close()
            server.shutdown()
            thread.join()
            server.server_close()


def _claim_folder(state_dir: Path, engine: str) -> None:
    """Bind a state folder to an engine, so that measured and simulated jobs are never mixed."""
    used = engine_of(state_dir)
    if used is not None and used != engine:
        raise ServerStartError(
            f"The state folder {state_dir} belongs to a platform with --engine {used}, not"
            f" {engine}: choose a different folder with --state-dir"
        )
    write_json(state_dir / ENGINE_FILE, {"engine": engine})


@contextmanager
def _state_dir_lock(state_dir: Path) -> Iterator[None]:
    """Allow one server per state folder. The kernel releases the lock when the process ends."""
    make_state_dir(state_dir)
    with open_lock(state_dir, _LOCK_FILE) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process = (state_dir / _LOCK_FILE).read_text(errors="replace").strip()
            raise ServerStartError(
                f"Another server (process {process or 'unknown'}) uses the state folder"
                f" {state_dir}: stop that server, or choose a different folder with --state-dir"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _listening_socket(config: ServerConfig) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((HOST, config.port))
        except OSError:
            if not config.or_free_port:
                raise
            listener.bind((HOST, 0))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServerStartError(
            f"Port {config.port} on {HOST} can't be used ({error.strerror}): choose a different"
            " port with --port, or stop the process that uses this one"
        ) from error
    return listener
