"""Runners of Processing jobs: an engine with this machine's processes, or a simulation."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from sagemaker_emulator.api.protocol import ACCOUNT_ID, validation_error
from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.jobs.book import Runner
from sagemaker_emulator.jobs.execution import ExecutionServices
from sagemaker_emulator.jobs.job import Change
from sagemaker_emulator.processing.execution import ProcessingExecution
from sagemaker_emulator.processing.record import ProcessingJob


class ProcessingRunner(Runner[ProcessingJob], Protocol):
    """Runs Processing jobs; `account_id` is in their ARNs."""

    @property
    def account_id(self) -> str:
        """Twelve digits that no AWS account has."""

    @property
    def has_virtual_clock(self) -> bool:
        """True if a job's waits pass in `run` instead of the queue."""

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that the runner supports a request.

        Raises:
            ValidationException: If it does not.
        """

    def capacity_problem(self, job: ProcessingJob) -> str | None:
        """Return why there can be no room for the job, without "CapacityError: ", or None."""


class EngineProcessingRunner:
    """Runs jobs on an engine's real nodes."""

    account_id = ACCOUNT_ID
    has_virtual_clock = False

    def __init__(self, services: ExecutionServices) -> None:
        self._services = services

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that this machine's nodes can run the request's command.

        Raises:
            ValidationException: If they cannot.
        """
        app, engine = request["AppSpecification"], self._services.engine
        entrypoint, arguments = app.get("ContainerEntrypoint"), app.get("ContainerArguments", ())
        problem = (
            engine.command_problem(entrypoint, arguments)
            if entrypoint
            else engine.image_command_problem()
        )
        if problem:
            raise validation_error(f"AppSpecification.{problem}")

    def capacity_problem(self, job: ProcessingJob) -> str | None:
        return self._services.engine.capacity_problem(job.instance_type, job.instance_count)

    def run(
        self,
        job: ProcessingJob,
        change: Change[ProcessingJob],
        faults: JobFaults,
        stop: threading.Event,
    ) -> None:
        ProcessingExecution(job, change, self._services, faults, stop).run()

    def clean_up(self, job: ProcessingJob) -> None:
        self._services.engine.clean_up(job.spec())
