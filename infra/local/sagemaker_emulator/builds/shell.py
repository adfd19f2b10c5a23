"""Runs all commands of a buildspec in one `sh`, so that they share variables and the folder.

Output is streamed. The shell and its children are killed when the build is stopped or times out, or
when this process ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from sagemaker_emulator.tether import tethered

_TICK_SECONDS = 0.1
_TERM_SECONDS = 5.0
_MARK = "--nodesweep-command-ended--"


class ShellEnded(Exception):
    """The build was stopped or timed out."""


@runtime_checkable
class BuildsByCommands(Protocol):
    """An image store that executes the commands of a buildspec."""

    def open_shell(
        self,
        context: Path,
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
    ) -> BuildShell:
        """Return a shell in the build context in which `docker` builds and pushes images."""


class BuildShell:
    """A context manager that runs `sh` in a folder."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._on_line = on_line
        self._stop = stop
        self._codes: queue.Queue[int | None] = queue.Queue()

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="buildspec-")
        self._process = subprocess.Popen(
            tethered("sh"),  # its children end when their pipes close
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="build-output", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end()
        self._reader.join(_TERM_SECONDS)
        self._scratch.cleanup()

    def run(self, command: str, deadline: float) -> int:
        """Run a command and return its exit code.

        Args:
            command: A shell command, which can have several lines.
            deadline: The deadline in monotonic seconds.

        Raises:
            ShellEnded: If the build is stopped or the deadline passes.
        """
        assert self._process.stdin is not None
        script = Path(self._scratch.name) / "command"
        script.write_text(command)
        try:
            self._process.stdin.write(
                f". '{script}' </dev/null\nprintf '\\n{_MARK} %s\\n' $?\n".encode()
            )
            self._process.stdin.flush()
        except BrokenPipeError:  # an earlier command called `exit`
            return self._process.wait()
        while True:
            try:
                code = self._codes.get(timeout=_TICK_SECONDS)
                return self._process.wait() if code is None else code
            except queue.Empty:
                self._check(deadline)

    def _check(self, deadline: float) -> None:
        if self._stop.is_set():
            raise ShellEnded("the build was stopped")
        if time.monotonic() >= deadline:
            raise ShellEnded("the build timed out")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            if line.startswith(_MARK):
                self._codes.put(int(line.split()[1]))
            elif line:
                self._on_line(line)
        self._codes.put(None)

    def _end(self) -> None:
        """Send SIGTERM to the process group, then SIGKILL.

        SIGTERM lets a builder remove its working container.
        """
        for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _TERM_SECONDS)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(seconds)
                self._reader.join(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
            if self._process.poll() is not None and not self._reader.is_alive():
                return
