"""The interface of training job runners, and the runner that uses real nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.jobs.book import Runner
from sagemaker_emulator.jobs.execution import EngineRunner
from sagemaker_emulator.training.execution import TrainingExecution
from sagemaker_emulator.training.launch_path import launch_path_note
from sagemaker_emulator.training.limits import check_runnable
from sagemaker_emulator.training.record import TrainingJob


class JobRunner(Runner[TrainingJob], Protocol):
    """The interface of the runners that `TrainingJobs` uses."""

    def isolation(self) -> str:
        """Return a short description of how nodes are isolated."""

    def starting_text(self, job: TrainingJob) -> str:
        """Return the part of the Starting message that describes the nodes of a job.

        It begins with "Emulated nodes: …" or "Simulated: …", possibly after a note.
        """


class EngineTrainingRunner(EngineRunner[TrainingJob]):
    """Runs training jobs on the real nodes of an engine."""

    execution = TrainingExecution

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that nodes on this machine support the request.

        Raises:
            ValidationException: If the nodes do not support the request.
        """
        check_runnable(request)
        algorithm = request["AlgorithmSpecification"]
        command = algorithm.get("ContainerEntrypoint", ()), algorithm.get("ContainerArguments", ())
        if problem := self._services.engine.command_problem(*command):
            raise validation_error(f"AlgorithmSpecification.{problem}")

    def isolation(self) -> str:
        return self._services.engine.isolation("ml.local.small")

    def starting_text(self, job: TrainingJob) -> str:
        emulated = f"Emulated nodes: {self._services.engine.isolation(job.instance_type)}"
        note = launch_path_note(job.request)
        return f"{note} {emulated}" if note else emulated
