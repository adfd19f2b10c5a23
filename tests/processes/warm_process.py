"""Processes for programs with many imports, forked from one that has imported them.

A fork takes milliseconds, a new interpreter seconds of CPU time for its imports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
# Source of the first process. A program runs at its end, as with `python -c`, in a fork of a fork;
# the process between them waits for it and saves its exit code.
_WARM = """
import gc, json, os, signal, sys, threading
gc.disable()
exec(sys.argv[1])
gc.freeze()
gc.enable()
assert threading.active_count() == 1, "only a process without threads can be forked"
_asked = None
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while _asked is None and (_line := sys.stdin.readline()):
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _pid = os.fork()
    if not _pid:
        _asked = json.loads(_line)
        continue
    print(_pid, flush=True)
    _folder = json.loads(_line)["folder"]
    _code = os.waitstatus_to_exitcode(os.waitpid(_pid, 0)[1])
    with open(f"{_folder}/new", "w") as _file:
        _file.write(str(_code))
    os.rename(f"{_folder}/new", f"{_folder}/exit")
    os._exit(0)
if _asked:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for _number, _name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{_asked['folder']}/{_name}", os.O_WRONLY | os.O_CREAT), _number)
    sys.argv = ["-c", *_asked["arguments"]]
    exec(compile(_asked["program"], "<program>", "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class Forked:
    """A running program with the Popen methods that tests use; its output is in files."""

    pid: int
    folder: Path

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        path = self.folder / "exit"
        return int(path.read_text()) if path.exists() else None

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.poll()

    def wait(self, timeout: float = 300.0) -> int:
        """Wait for its end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: It is still running.
        """
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if it is still running."""
        with suppress(ProcessLookupError):  # it has just ended
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def output(self, name: str = "stdout") -> str:
        """Return its output so far."""
        return (self.folder / name).read_text()

    def communicate(self, timeout: float = 300.0) -> tuple[str, str]:
        """Wait for its end and return what it printed to stdout and to stderr."""
        self.wait(timeout)
        return self.output(), self.output("stderr")


class WarmProcess:
    """A process to fork programs from: start() begins one, run() also waits for its end."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._one_at_a_time = threading.Lock()

    def start(self, program: str, *arguments: str) -> Forked:
        """Start a program, as `python -c` would, in a fork."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        for name in ("stdout", "stderr"):
            (folder / name).touch()
        asked = {"program": program, "arguments": arguments, "folder": str(folder)}
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            return Forked(int(self._process.stdout.readline()), folder)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, as subprocess.run() does."""
        forked = self.start(program, *arguments)
        code = forked.wait()
        return subprocess.CompletedProcess(program, code, forked.output(), forked.output("stderr"))


@contextmanager
def warm_process(*modules: str) -> Iterator[WarmProcess]:
    """Yield a process that has imported these modules."""
    with warm_python(sys.executable, "".join(f"import {name}\n" for name in modules)) as process:
        yield process


@contextmanager
def warm_python(
    python: str, imports: str, environment: Mapping[str, str] | None = None
) -> Iterator[WarmProcess]:
    """Yield a process of this interpreter that has run these imports.

    Args:
        python: Path of the interpreter.
        imports: Python source.
        environment: The process's environment; None: that of the tests.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [python, "-c", _WARM, imports],
            cwd=_REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield WarmProcess(process, Path(folder))
