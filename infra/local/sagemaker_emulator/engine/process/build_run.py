"""Runs the commands of a build, streams their output, and kills them at the build's deadline."""

from __future__ import annotations

import collections
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from sagemaker_emulator.engine.host.process_tree import Membership, kill_all
from sagemaker_emulator.interfaces import ImageBuildError
from sagemaker_emulator.tether import tethered

_LAST_LINES = 20
_TICK_SECONDS = 0.1
KILL_SECONDS = 10.0


@dataclass(frozen=True)
class BuildRun:
    """Parameters shared by all steps of a build, where `deadline` is in monotonic seconds."""

    on_line: Callable[[str], None]
    stop: threading.Event
    deadline: float
    shown_paths: Mapping[str, str] = field(default_factory=dict)
    """Names to replace folders of this machine with in the build's output.

    Readers of a build log know the build context, but not its path on this machine.
    """

    def check(self, phase: str) -> None:
        """Check that the build may continue.

        Raises:
            ImageBuildError: If the build was stopped or has timed out.
        """
        if self.stop.is_set():
            raise ImageBuildError(f"{phase}: the build was stopped")
        if time.monotonic() >= self.deadline:
            raise ImageBuildError(f"{phase}: the build timed out")

    def command(
        self,
        phase: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        lock_fd: int,
    ) -> None:
        """Run a command, which holds the lock until it ends and is killed if this process ends.

        Raises:
            ImageBuildError: If the command fails, or the build is stopped or times out.
        """
        self.check(phase)
        self.on_line(f"[{phase}]")
        last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        process = subprocess.Popen(
            # pip must not continue to write into an environment that the next builder recreates.
            # Only pip is tethered. `end_leftovers` finds its children (build back ends, compilers)
            # by the builder's mark.
            tethered(*argv),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock_fd],
        )
        reader = threading.Thread(target=self._read, args=(process, last_lines), daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                self.check(phase)
                self.stop.wait(_TICK_SECONDS)
        finally:
            kill_all(Membership(session_ids=frozenset({process.pid})), KILL_SECONDS)
            process.wait()
            reader.join(KILL_SECONDS)
        if process.returncode != 0:
            output = "\n".join(last_lines)
            raise ImageBuildError(
                f"{phase} failed with exit code {process.returncode}. Last lines:\n{output}"
            )

    def _read(self, process: subprocess.Popen[bytes], last_lines: collections.deque[str]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            for path, shown in self.shown_paths.items():
                line = line.replace(path, shown)
            last_lines.append(line)
            self.on_line(line)


@contextmanager
def build_lock(path: Path, run: BuildRun) -> Iterator[int]:
    """Hold a file lock that excludes concurrent builds in any process, and yield its descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pause_seconds = 0.05
    with path.open("w") as file:
        while True:
            run.check("WAIT for another build of the same environment")
            try:
                flock(file, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                run.stop.wait(pause_seconds * random.uniform(0.5, 1.0))
                pause_seconds = min(pause_seconds * 2, 1.0)
        yield file.fileno()
