"""The base class of engines that run real nodes."""

from __future__ import annotations

import contextlib
import fcntl
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from sagemaker_emulator.engine.errors import EngineError, StateInUseError
from sagemaker_emulator.engine.host import capacity
from sagemaker_emulator.engine.host.port_lock import training_slot, wait_for
from sagemaker_emulator.engine.run.job_run import RunTimes
from sagemaker_emulator.engine.run.node_files import state_id
from sagemaker_emulator.engine.run.running_nodes import RunningNodes
from sagemaker_emulator.interfaces import (
    AccessKey,
    JobSpec,
    LineSink,
    Node,
    NodeUsage,
    RunResult,
)

_FREED_SECONDS = 10.0
_ANY_KEY = AccessKey("local", "local")  # for an endpoint that checks no keys


class ExclusiveEngine(ABC):
    """Locks its state folder against other live engines, and the machine while its jobs run."""

    def __init__(
        self, state_dir: Path, endpoint_url: str, node_key: AccessKey | None, times: RunTimes | None
    ) -> None:
        """Lock the state folder.

        Raises:
            StateInUseError: If another live engine has locked the folder.
        """
        self._state_dir = state_dir.resolve()
        self._endpoint_url = endpoint_url
        self._node_key = node_key or _ANY_KEY
        self._times = times or RunTimes()
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(self._state_dir / "engine.lock")
        self._state_id = state_id(self._state_dir)
        self._cores = capacity.machine_cores()
        self._live: dict[str, RunningNodes] = {}
        self._in_turn: set[str] = set()

    def close(self) -> None:
        """Release the state folder. It is also released when the process ends."""
        self._lock.close()

    def capacity_problem(self, instance_type: str, instance_count: int) -> str | None:
        """Return why this machine cannot hold these nodes, or None if it can."""
        return capacity.capacity_problem(instance_type, instance_count, self._cores)

    def command_problem(self, entrypoint: Sequence[str], arguments: Sequence[str]) -> str | None:
        """Return why nodes cannot use the entry point and arguments of a request, or None."""
        return None

    def image_command_problem(self) -> str | None:
        """Return why nodes cannot use the entry point of their image, or None."""
        return None

    def run(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        """Run `train` on every node until all have ended, and leave no process or container.

        A job that does not hold the machine yet (see `turn`) first waits for its turn, which does
        not count as runtime. If the job is stopped before its turn, the result has no `exits`.
        """
        own_turn = self._turn(job, stop, math.inf, lambda: None)
        with nullcontext(True) if job.job_name in self._in_turn else own_turn as is_held:
            if not is_held:
                return RunResult([], stopped=True)
            return self._run_alone(job, nodes, on_line, stop, max_runtime_seconds)

    @contextlib.contextmanager
    def turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> Iterator[bool]:
        """Hold the machine for the job, from the creation of its nodes to the end of its uploads.

        Yield False if `stop` is set, or the deadline (monotonic seconds) passes, before the job's
        turn. `on_wait` is called once if a job of another platform holds the machine.
        """
        with self._turn(job, stop, deadline, on_wait) as is_held:
            if is_held:
                self._in_turn.add(job.job_name)
            try:
                yield is_held
            finally:
                self._in_turn.discard(job.job_name)

    def _turn(
        self, job: JobSpec, stop: threading.Event, deadline: float, on_wait: Callable[[], None]
    ) -> AbstractContextManager[bool]:
        return training_slot(stop, deadline, on_wait)

    @abstractmethod
    def _run_alone(
        self,
        job: JobSpec,
        nodes: Sequence[Node],
        on_line: LineSink,
        stop: threading.Event,
        max_runtime_seconds: float,
    ) -> RunResult:
        """Run the job during its turn."""

    def kill_node(self, job: JobSpec, host: str) -> None:
        """Kill every process of a running node, as a hardware failure would."""
        if running := self._live.get(job.job_name):
            running.kill(host)

    def usage(self, job: JobSpec) -> Mapping[str, NodeUsage]:
        """Return the current resource usage of the running nodes by host."""
        running = self._live.get(job.job_name)
        return running.usage(self._vcpus(job)) if running else {}

    def _vcpus(self, job: JobSpec) -> float:
        vcpus = capacity.VCPUS_BY_INSTANCE_TYPE.get(job.instance_type)
        if vcpus is None:
            known = ", ".join(capacity.VCPUS_BY_INSTANCE_TYPE)
            raise EngineError(
                f"job {job.job_name}: instance type {job.instance_type} is not one of {known}"
            )
        return vcpus


def _take_lock(path: Path) -> IO[str]:
    """Lock a state folder against other live engines.

    After a server is killed, its children can hold the lock for another moment, which takes seconds
    on a busy machine.

    Raises:
        StateInUseError: If another live engine has locked the folder.
    """
    file = path.open("w")

    def take() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    if wait_for(take, threading.Event(), time.monotonic() + _FREED_SECONDS, lambda: None):
        return file
    with contextlib.suppress(OSError):
        file.close()
    raise StateInUseError(
        f"{path.parent} is in use by another platform: stop it, or choose a different folder"
    )
