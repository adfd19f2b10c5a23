"""The runner of Processing jobs on the real nodes of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.jobs.execution import EngineRunner
from sagemaker_emulator.processing.execution import ProcessingExecution
from sagemaker_emulator.processing.record import ProcessingJob


class EngineProcessingRunner(EngineRunner[ProcessingJob]):
    """Runs Processing jobs on the real nodes of an engine."""

    execution = ProcessingExecution

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that nodes on this machine can run the command in the request.

        Raises:
            ValidationException: If the nodes cannot run the command.
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
