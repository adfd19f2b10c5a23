"""Run the steps of an image build as processes, with one deadline for all of them."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from nodesweep.errors import ImageBuildFailed
from nodesweep.polling import Clock
from nodesweep.tasks.image.output import BuildOutput

logger = logging.getLogger("nodesweep.image")
_POLL_SECONDS = 0.2
_PROGRESS_SECONDS = 2.0
_END_SECONDS = 10.0
# Docker: "#7 [3/5] RUN …" (BuildKit), "Step 3/5 : RUN …"; podman: "STEP 3/5: RUN …".
_INSTRUCTION = re.compile(
    r"^(?:#\d+ (?P<buildkit>\[[^\]]*\d+/\d+\] .+)|(?P<classic>step \d+/\d+ ?: ?.+))$", re.IGNORECASE
)


class BuildProcess:
    """Runs the steps of one build.

    All steps share `deadline`, a monotonic time of the clock.
    """

    def __init__(
        self, name: str, environment: Mapping[str, str], clock: Clock, deadline: float
    ) -> None:
        self._name = name
        self.environment = environment
        self._clock = clock
        self._deadline = deadline

    def run(
        self,
        step: str,
        command: Sequence[str],
        secret: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Run a command to completion, and return the lines of its output.

        If the command fails or exceeds the deadline, or if the run is cancelled, its whole process
        group is stopped.

        Args:
            step: the step's name in messages.
            command: the command line.
            secret: text for the command's standard input, which is masked in its output.
            variables: further environment variables.

        Raises:
            ImageBuildFailed: the command failed or exceeded the deadline; the message gives the
                step, its current instruction and last lines.
        """
        output = BuildOutput(logger)
        lines: list[str] = []
        logger.info("%s: %s", self._name, step)
        started = drained_at = self._clock.monotonic()
        with _started(command, {**self.environment, **(variables or {})}, secret) as (
            process,
            arrived,
        ):
            while process.poll() is None:
                now = self._clock.monotonic()
                if now - drained_at >= _PROGRESS_SECONDS:
                    drained_at = now
                    self._drain(arrived, secret, lines, output)
                if now > self._deadline:
                    self._drain(arrived, secret, lines, output)
                    raise ImageBuildFailed(
                        f"{self._name} exceeded image.build_timeout_minutes and was stopped after"
                        f" {now - started:.0f} s in {self._progress_text(step, lines)}"
                        f"{output.tail()}"
                    )
                self._clock.sleep(_POLL_SECONDS)
        self._drain(arrived, secret, lines, output)
        if process.returncode != 0:
            raise ImageBuildFailed(
                f"{self._name} failed in {self._progress_text(step, lines)} (exit code"
                f" {process.returncode}){output.tail()}"
            )
        return lines

    def _drain(
        self,
        arrived: queue.SimpleQueue[str],
        secret: str | None,
        lines: list[str],
        output: BuildOutput,
    ) -> None:
        """Move the lines that have arrived to `lines` and the log."""
        new = []
        with suppress(queue.Empty):
            while True:
                line = arrived.get_nowait()
                new.append(line.replace(secret, "***") if secret else line)
        lines += new
        output.add(new)

    def _progress_text(self, step: str, lines: Sequence[str]) -> str:
        """Return the step, including the last Dockerfile instruction that was started."""
        found = [match for match in map(_INSTRUCTION.match, lines) if match]
        return f"{step}, {found[-1]['buildkit'] or found[-1]['classic']}" if found else step


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str], secret: str | None
) -> Iterator[tuple[subprocess.Popen[str], queue.SimpleQueue[str]]]:
    """Yield a process in its own process group, and a queue of its output lines.

    The group is stopped on exit.
    """
    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL if secret is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ImageBuildFailed(f"{command[0]} can't be started: {error}") from error
    arrived: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, arrived), daemon=True)
    reader.start()
    try:
        if secret is not None:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(secret)
        yield process, arrived
    finally:
        _end(process)
        reader.join(_END_SECONDS)


def _read(process: subprocess.Popen[str], arrived: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            arrived.put(line.rstrip())


def _end(process: subprocess.Popen[str]) -> None:
    """Stop the process group with SIGTERM, then kill the rest with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
