"""Start commands as forks of a process that has already imported their modules.

    python -m benchmarks.chaos.forks     # forks for each line of JSON on stdin, until it ends

A command of a sweep imports Prefect, Great Expectations and the SageMaker SDK, 9 s of CPU time
before its first call. Forks share only the imports: each has its own session, log and exit.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MODULES = (
    "nodesweep.flows.scaling_benchmark",
    "nodesweep.flows.detach",
    "nodesweep.flows.stop",
    "great_expectations",
    "sagemaker.core.resources",
    "nodesweep.scaling.report.render",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
)
"""Modules that `nodesweep run` and `stop` import."""
_START_SECONDS = 300.0
_ANSWER_SECONDS = 60.0


class Forked:
    """A running command, with subprocess.Popen's interface; its parent is the forking process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the command and return its exit code, -9 after SIGKILL.

        Raises:
            subprocess.TimeoutExpired: It is still running after the timeout.
        """
        if not self.ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)


class Forks:
    """The forking process; close it after use. `environment` applies to every command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chaos.forks"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._forked: dict[int, Forked] = {}
        self._begun: queue.Queue[Forked] = queue.Queue()
        self._lock = threading.Lock()
        self._is_ready = threading.Event()
        threading.Thread(target=self._listen, name="forks", daemon=True).start()

    def start(self, arguments: Sequence[str], folder: Path, log: Path) -> Forked:
        """Start `nodesweep` with these arguments in the folder, with its output in the log."""
        if not self._is_ready.wait(_START_SECONDS):
            raise RuntimeError("the forking process did not start; its output is above")
        assert self._process.stdin is not None
        asked = {"arguments": list(arguments), "folder": str(folder), "log": str(log)}
        with self._lock:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            return self._begun.get(timeout=_ANSWER_SECONDS)

    def close(self) -> None:
        """End the forking process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        """Read the process's messages: ready, a fork has begun, a fork has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "began" in said:
                forked = self._forked[said["began"]] = Forked(said["began"])
                self._begun.put(forked)
            elif "ended" in said:
                forked = self._forked.pop(said["ended"])
                forked.returncode = said["exit_code"]
                forked.ended.set()
            self._is_ready.set()


def main() -> None:
    """Fork for each request; the fork returns into the command, to exit as any interpreter does."""
    from nodesweep.cli.session import (
        PREFECT_DEFAULTS,  # before Prefect is imported, as in a command
    )

    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    gc.disable()
    for module in _MODULES:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _send(answers, ready=os.getpid())
    request = _serve(answers)
    if request is not None:
        _become(request)
        from nodesweep.cli.main import main as command

        command()


def _serve(answers: int) -> dict[str, Any] | None:
    """Return the request of the fork that this process has become; None at the end of stdin."""
    waits, unread = selectors.DefaultSelector(), b""
    waits.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in waits.select():
            if key.fd != 0:
                waits.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                _send(answers, ended=key.data, exit_code=os.waitstatus_to_exitcode(status))
                continue
            received = os.read(0, 65_536)
            if not received:
                return None
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    for key in waits.get_map().values():  # pipes of the other forks
                        if key.fd != 0:
                            os.close(key.fd)
                    waits.close()
                    os.close(answers)
                    return dict(json.loads(line))
                _send(answers, began=pid)
                waits.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def _become(request: Mapping[str, Any]) -> None:
    """Set up the fork's session, folder, log and arguments."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["nodesweep", *request["arguments"]]


def _send(answers: int, **said: int) -> None:
    os.write(answers, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
