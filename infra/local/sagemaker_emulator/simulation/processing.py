"""Simulated Processing jobs, whose times are computed and whose outputs the user provides.

Since the program does not run, the user starts the platform with a folder that contains the files
that the program would leave below /opt/ml. Without this folder, all requests are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagemaker_emulator.api.protocol import validation_error
from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.interfaces import Node
from sagemaker_emulator.jobs.artifacts import upload_folder
from sagemaker_emulator.jobs.downloads import check_sources
from sagemaker_emulator.jobs.endings import Ending
from sagemaker_emulator.jobs.job import Change
from sagemaker_emulator.processing.execution import LOG_GROUP, exit_message
from sagemaker_emulator.processing.files import input_folders, output_folders
from sagemaker_emulator.processing.record import RUNTIME_EXCEEDED, ProcessingJob
from sagemaker_emulator.simulation.model import model_of_job
from sagemaker_emulator.simulation.virtual import Simulation, VirtualExecution


class SimulatedProcessing(VirtualExecution[ProcessingJob]):
    """Runs a simulated Processing job in the calling thread until it ends."""

    group = LOG_GROUP

    def __init__(
        self,
        job: ProcessingJob,
        change: Change[ProcessingJob],
        runner: SimulatedProcessingRunner,
        faults: JobFaults,
        stop: threading.Event,
    ) -> None:
        super().__init__(job, change, runner, faults, stop)
        self._runner = runner
        self._model = model_of_job(runner.model, job.request.get("Environment", {}))
        # The folder that the user provides is used like the /opt/ml of a node.
        self._nodes = [Node("algo-1", "", runner.leaves)] if runner.leaves else []

    def run(self) -> None:
        ending = self._segment()
        self._write(self._log())
        self._record(lambda job, now: job.end(ending, now))

    def _run_phases(self) -> Ending:
        self._pass(self._model.startup_seconds + self._runner.cold_start_seconds)
        self._pass(self._faults.pending_seconds)
        if self._faults.capacity_error is not None:
            return Ending("Failed", self._faults.capacity_error)
        self._record(lambda job, now: job.begin_segment(now))
        s3 = self._runner.clients("s3", self._job.region)
        check_sources(s3, input_folders(self._job.request))
        self._pass(self._model.download_seconds)
        ending = self._process()
        if ending.status != "Completed":
            return ending
        self._pass(self._model.upload_seconds)
        for output in output_folders(self._job.request):
            upload_folder(s3, self._nodes, output.folder, output.uri)
        return ending

    def _process(self) -> Ending:
        """Let time pass until the job is done, MaxRuntimeInSeconds has passed or a fault occurs."""
        line = (
            f"[simulated] nothing runs: {self._job.instance_count} nodes are assumed to need"
            f" {self._model.processing_seconds:g} s; any output is from --processing-leaves"
        )
        self._printed.append((self._elapsed, line))
        most = self._job.max_runtime_seconds
        end_seconds = min(self._model.processing_seconds, most)
        struck = self._next_fault([(0.0, line)], end_seconds)
        self._pass(struck[0] if struck else end_seconds)
        if struck is not None:
            return self._rules[struck[1]].ending()
        if message := exit_message(self._nodes):
            self._record(lambda job, now: setattr(job, "exit_message", message))
        is_done = self._model.processing_seconds <= most
        return Ending("Completed") if is_done else RUNTIME_EXCEEDED


@dataclass(frozen=True)
class SimulatedProcessingRunner(Simulation[ProcessingJob]):
    """A runner of Processing jobs that only computes times."""

    leaves: Path | None = None
    """The folder with the files that programs leave below /opt/ml, if provided."""

    execution = SimulatedProcessing

    def check(self, request: Mapping[str, Any]) -> None:
        """Check that a job's outputs are provided, and its settings of the time model are valid.

        Raises:
            ValidationException: If --processing-leaves is not set or lacks the folder of an output,
                or if a setting is invalid.
        """
        if self.leaves is None:
            raise validation_error(
                "A simulation runs no program, so a Processing job would have no outputs: start"
                " the local platform with --engine process or container, or provide the files that"
                " the program would leave below /opt/ml with --processing-leaves DIR."
            )
        for output in output_folders(request):
            if not (self.leaves / output.folder).is_dir():
                raise validation_error(
                    "A simulation runs no program, and the files that the program would leave in"
                    f" /opt/ml/{output.folder} are missing: add a subfolder {output.folder} to the"
                    " folder that --processing-leaves names."
                )
        super().check(request)
