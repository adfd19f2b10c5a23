"""Runs a simulated job of any kind on a virtual clock.

Whenever a record changes, its earlier times are shifted back, so that the change happens now. No
time is therefore in the future, and the intervals match the model. With a time scale, virtual
seconds take real time.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import SIMULATED_ACCOUNT_ID
from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.interfaces import ImageStore
from sagemaker_emulator.jobs.endings import (
    ClientFault,
    Ending,
    ImageNotFoundError,
    WaitEnded,
    internal_error,
)
from sagemaker_emulator.jobs.execution import missing_image
from sagemaker_emulator.jobs.job import Change, J
from sagemaker_emulator.log_streams import LogStreams
from sagemaker_emulator.simulation.model import PerformanceModel, model_of_job

_LOG_HOST = "algo-1"

logger = logging.getLogger(__name__)


class VirtualExecution(ABC, Generic[J]):
    """Runs a job in the calling thread until it ends.

    All outcomes, including errors of the platform, are written to the job's record.
    """

    group: ClassVar[str]
    """The log group of the job."""

    def __init__(
        self,
        job: J,
        change: Change[J],
        simulation: Simulation[J],
        faults: JobFaults,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._change = change
        self._simulation = simulation
        self._faults = faults
        self._stop = stop
        self._clock = clock
        self._rules = [rule for rule in faults.training if rule.concerns(job)]
        self._times_struck: Counter[int] = Counter()
        self._printed: list[tuple[float, str]] = []
        """The log so far, as (virtual seconds since creation, line)."""
        self._last = job.creation_time
        self._lapse = 0.0
        self._elapsed = 0.0
        """Virtual seconds since creation; `_lapse` counts from the last change of the record."""

    @abstractmethod
    def run(self) -> None: ...

    @abstractmethod
    def _run_phases(self) -> Ending:
        """Run a segment, from the start of its instances, and return how it ended."""

    def _segment(self) -> Ending:
        try:
            if problem := missing_image(self._simulation.images, self._job):
                raise ImageNotFoundError(problem)
            return self._run_phases()
        except ClientFault as error:
            return Ending("Failed", f"ClientError: {error}")
        except WaitEnded as wait:
            return wait.ending
        except Exception as error:
            logger.exception("Job %s: the platform failed", self._job.name)
            return Ending("Failed", internal_error(error))
        finally:
            self._record(lambda job, now: job.end_segment(now))

    def _next_fault(
        self, lines: Sequence[tuple[float, str]], end_seconds: float
    ) -> tuple[float, int] | None:
        """Return (seconds since the program began, rule index) of the first fault, or None."""
        due: list[tuple[float, int]] = []
        for number, rule in enumerate(self._rules):
            at = rule.after_seconds
            if rule.at_line is not None:
                at = next((moment for moment, line in lines if re.search(rule.at_line, line)), None)
            if (
                at is not None
                and at <= end_seconds
                and self._times_struck[number] < rule.max_strikes
            ):
                due.append((at, number))
        return min(due, default=None)

    def _log(self) -> list[tuple[int, str]]:
        """Return the lines printed so far as (Unix milliseconds, line)."""
        created = self._clock() - self._elapsed
        return [(int((created + at) * 1000), line) for at, line in self._printed]

    def _write(self, lines: Sequence[tuple[int, str]]) -> None:
        if not lines:
            return
        clients = self._simulation.clients
        try:
            with LogStreams(clients("logs", self._job.region), self.group) as streams:
                streams.open(_LOG_HOST, f"{self._job.name}/{_LOG_HOST}-{lines[0][0]}")
                for unix_milliseconds, line in lines:
                    streams.write(_LOG_HOST, line, unix_milliseconds)
        except (ClientError, BotoCoreError):
            logger.exception("Job %s: its log could not be written", self._job.name)

    def _pass(self, seconds: float) -> None:
        """Let virtual time pass.

        Raises:
            WaitEnded: If the job is stopped.
        """
        passed, scale = seconds, self._simulation.time_scale
        if scale > 0:
            began = time.monotonic()
            if self._stop.wait(passed * scale):
                passed = min(passed, (time.monotonic() - began) / scale)
        self._lapse += passed
        self._elapsed += passed
        if self._stop.is_set():
            raise WaitEnded(Ending("Stopped"))

    def _record(self, apply: Callable[[J, float], None]) -> None:
        """Apply a change now, and shift earlier times so that the last change was `_lapse` ago."""
        now = self._clock()
        shift_seconds = now - self._lapse - self._last

        def moved(job: J) -> None:
            job.shift(shift_seconds)
            apply(job, now)

        self._change(moved)
        self._last, self._lapse = now, 0.0


@dataclass(frozen=True)
class Simulation(Generic[J]):
    """A runner that only computes the times of jobs of one kind."""

    model: PerformanceModel
    images: ImageStore
    clients: ClientFactory
    cold_start_seconds: float
    time_scale: float = 0.0
    """Real seconds per virtual second, 0 to 1."""

    execution: ClassVar[type[VirtualExecution[Any]]]
    account_id: ClassVar[str] = SIMULATED_ACCOUNT_ID
    has_virtual_clock: ClassVar[bool] = True

    def check(self, request: Mapping[str, Any]) -> None:
        """Check the model variables in the Environment of a request.

        Raises:
            ValidationException: If they are invalid.
        """
        model_of_job(self.model, request.get("Environment", {}))

    def capacity_problem(self, job: J) -> str | None:
        """Return None, since a simulation can have any number of nodes of any type."""
        return None

    def run(self, job: J, change: Change[J], faults: JobFaults, stop: threading.Event) -> None:
        self.execution(job, change, self, faults, stop).run()

    def clean_up(self, job: J) -> None:
        """Do nothing, since a simulated job leaves nothing but its record."""
