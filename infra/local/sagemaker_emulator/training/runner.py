"""Runners of training jobs: an engine with this machine's processes, or a simulation.

This is the manager's view of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from sagemaker_emulator.api.protocol import ACCOUNT_ID, validation_error
from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.jobs.book import Runner
from sagemaker_emulator.jobs.execution import ExecutionServices
from sagemaker_emulator.jobs.job import Change
from sagemaker_emulator.training.execution import TrainingExecution
from sagemaker_emulator.training.launch_path import launch_path_note
from sagemaker_emulator.training.limits import check_runnable
from sagemaker_emulator.training.record import TrainingJob


class JobRunner(Runner[TrainingJob], Protocol):
    """Runs one job at a time; `account_id` is in the ARNs of its jobs."""

    @property
    def account_id(self) -> str:
        """Twelve digits that no AWS account has."""

    @property
    def has_virtual_clock(self) -> bool:
        """True if a job's waits pass in `run` instead of the queue.

        Waits are Pending, lack of capacity and MaxWaitTimeInSeconds.
        """

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that the runner supports a request.

        Raises:
            ValidationException: If it does not.
        """

    def capacity_problem(self, job: TrainingJob) -> str | None:
        """Return why there can be no room for the job (AWS's CapacityError), or None."""

    def isolation(self) -> str:
        """Return a phrase that describes how nodes are isolated."""

    def starting_text(self, job: TrainingJob) -> str:
        """Return the text about a job's nodes that is shown when it starts.

        It begins "Emulated nodes: …" or "Simulated: …", possibly after a note.
        """


class EngineRunner:
    """Runs jobs on an engine's real nodes."""

    account_id = ACCOUNT_ID
    has_virtual_clock = False

    def __init__(self, services: ExecutionServices) -> None:
        self._services = services

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that this machine's nodes support the request.

        Raises:
            ValidationException: If they do not.
        """
        check_runnable(request)
        algorithm = request["AlgorithmSpecification"]
        command = algorithm.get("ContainerEntrypoint", ()), algorithm.get("ContainerArguments", ())
        if problem := self._services.engine.command_problem(*command):
            raise validation_error(f"AlgorithmSpecification.{problem}")

    def capacity_problem(self, job: TrainingJob) -> str | None:
        return self._services.engine.capacity_problem(job.instance_type, job.instance_count)

    def isolation(self) -> str:
        return self._services.engine.isolation("ml.local.small")

    def starting_text(self, job: TrainingJob) -> str:
        emulated = f"Emulated nodes: {self._services.engine.isolation(job.instance_type)}"
        note = launch_path_note(job.request)
        return f"{note} {emulated}" if note else emulated

    def run(
        self,
        job: TrainingJob,
        change: Change[TrainingJob],
        faults: JobFaults,
        stop: threading.Event,
    ) -> None:
        TrainingExecution(job, change, self._services, faults, stop).run()

    def clean_up(self, job: TrainingJob) -> None:
        self._services.engine.clean_up(job.spec())
