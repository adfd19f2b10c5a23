"""Runs a simulated training job through its phases."""

from __future__ import annotations

import io
import json
import logging
import tarfile
import threading
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.jobs.endings import Ending, WaitEnded
from sagemaker_emulator.jobs.job import Change
from sagemaker_emulator.s3_objects import S3Location
from sagemaker_emulator.simulation.model import model_of_job, plan_workload
from sagemaker_emulator.simulation.program import VALIDATIONS, log_lines, metrics
from sagemaker_emulator.simulation.virtual import Simulation, VirtualExecution
from sagemaker_emulator.training.metrics import NAMESPACE, MetricMatcher, PublishedMetrics
from sagemaker_emulator.training.record import PENDING_TOO_LONG, Retries, TrainingJob

logger = logging.getLogger(__name__)


class SimulatedExecution(VirtualExecution[TrainingJob]):
    """Runs a simulated training job in the calling thread until it ends."""

    group = NAMESPACE

    def __init__(
        self,
        job: TrainingJob,
        change: Change[TrainingJob],
        runner: SimulatedRunner,
        faults: JobFaults,
        stop: threading.Event,
    ) -> None:
        super().__init__(job, change, runner, faults, stop)
        request = job.request
        self._runner = runner
        self._model = model_of_job(runner.model, request.get("Environment", {}))
        self._work = plan_workload(
            self._model,
            job.name,
            job.instance_count,
            request.get("HyperParameters", {}),
            request.get("Environment", {}),
        )
        self._start_seconds = self._cold_start_seconds() if not job.reused_pool_of else 0.0
        self._wait_seconds = faults.pending_seconds
        self._done_seconds = 0.0
        """Training time that the next segment does not have to repeat."""
        self._trained_seconds = 0.0
        self._retries = Retries(job.retry_attempts)
        self._pending_seconds = 0.0

    def run(self) -> None:
        ending = self._segment()
        while self._has_next_segment(ending):
            ending = self._segment()
        self._write_log()
        if ending.status == "Completed":
            self._record(lambda job, now: job.complete(now))
        else:
            self._record(lambda job, now: job.end(ending, now))

    def _run_phases(self) -> Ending:
        self._pass(self._start_seconds)
        if self._wait_seconds > 0:
            if self._job.secondary_status != "Pending":
                self._enter("Pending")
            self._pass(self._wait_seconds)
            self._wait_seconds = 0.0
        if self._faults.capacity_error is not None:
            return Ending("Failed", self._faults.capacity_error)
        self._record(lambda job, now: job.begin_segment(now))
        self._pass(self._model.download_seconds)
        self._enter("Training")
        ending = self._train()
        return self._upload() if ending.status == "Completed" else ending

    # -- training ----------------------------------------------------------------------------------

    def _train(self) -> Ending:
        """Let time pass until the job is done, MaxRuntimeInSeconds has passed or a fault occurs."""
        setup = self._model.setup_seconds
        lines = [
            (setup + at - self._done_seconds, line)
            for at, line in log_lines(self._work, self._model.final_metric)
            if at >= self._done_seconds
        ]
        end_seconds = setup + self._work.train_seconds - self._done_seconds
        left_seconds = self._job.max_runtime_seconds - self._trained_seconds
        struck = self._next_fault(lines, min(end_seconds, left_seconds))
        before = self._elapsed
        try:
            self._pass(struck[0] if struck else min(end_seconds, left_seconds))
        finally:
            spent = self._elapsed - before
            self._trained_seconds += spent
            self._printed += [(before + at, line) for at, line in lines if at <= spent]
        if struck is not None:
            self._keep_checkpoint(max(0.0, spent - setup))
            self._times_struck[struck[1]] += 1
            return self._rules[struck[1]].ending()
        return Ending("Completed" if end_seconds <= left_seconds else "MaxRuntimeExceeded")

    def _keep_checkpoint(self, spent_seconds: float) -> None:
        """If the job has checkpoints, let the next segment resume at the last validation."""
        if self._job.request.get("CheckpointConfig"):
            interval = self._work.train_seconds / VALIDATIONS
            self._done_seconds = interval * int((self._done_seconds + spent_seconds) / interval)

    # -- results -----------------------------------------------------------------------------------

    def _upload(self) -> Ending:
        """Upload output.tar.gz with metrics.json, but no model."""
        self._enter("Uploading")
        self._pass(self._model.upload_seconds)
        content = metrics(
            self._work, self._model.final_metric, self._clock() - self._model.upload_seconds
        )
        target = S3Location.parse(f"{self._job.output_prefix}/output.tar.gz")
        try:
            s3 = self._runner.clients("s3", self._job.region)
            s3.put_object(
                Bucket=target.bucket, Key=target.key, Body=_archive("metrics.json", content)
            )
        except (ClientError, BotoCoreError) as error:
            return Ending("Failed", f"ClientError: Artifact upload failed:{error}")
        return Ending("Completed")

    def _write_log(self) -> None:
        """Write all lines to the log stream of algo-1, and publish their metrics."""
        if not (lines := self._log()):
            return
        published = PublishedMetrics(
            self._runner.clients("cloudwatch", self._job.region), self._job.name
        )
        matcher = MetricMatcher(
            self._job.request["AlgorithmSpecification"].get("MetricDefinitions", []), published.add
        )
        for unix_milliseconds, line in lines:
            matcher.feed(line, unix_milliseconds)
        published.publish()
        final = matcher.final()
        self._record(lambda job, now: setattr(job, "final_metrics", final))
        self._write(lines)

    # -- between segments --------------------------------------------------------------------------

    def _has_next_segment(self, ending: Ending) -> bool:
        """Return True and prepare the job if another segment follows, else return False."""
        if ending.status == "Interrupted":
            self._enter("Interrupted")
            self._enter("Restarting")
            self._start_seconds = 0.0
            self._wait_seconds = ending.restart_after_seconds + self._cold_start_seconds()
            return True
        if not self._retries.may_follow(ending) or self._stop.is_set():
            return False
        self._start_seconds = self._cold_start_seconds()
        self._enter(
            "Starting", f"{self._retries.begin_next()}. {self._runner.starting_text(self._job)}"
        )
        return True

    def _cold_start_seconds(self) -> float:
        return self._model.startup_seconds + self._runner.cold_start_seconds

    # -- the virtual clock -------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Let virtual time pass.

        Raises:
            WaitEnded: If the job is stopped or waits too long.
        """
        is_pending = self._job.secondary_status == "Pending"
        left_seconds, ending = (
            self._job.max_wait_seconds - self._elapsed,
            Ending("MaxWaitTimeExceeded"),
        )
        left_pending_seconds = self._job.max_pending_seconds - self._pending_seconds
        if is_pending and left_pending_seconds < left_seconds:
            left_seconds, ending = left_pending_seconds, PENDING_TOO_LONG
        passed = min(seconds, left_seconds)
        super()._pass(passed)
        if is_pending:
            self._pending_seconds += passed
        if seconds > left_seconds:
            raise WaitEnded(ending)

    def _enter(self, secondary_status: str, message: str | None = None) -> None:
        self._record(lambda job, now: job.enter(secondary_status, now, message))


class SimulatedRunner(Simulation[TrainingJob]):
    """A `sagemaker_emulator.training.runner.JobRunner` that only computes times."""

    execution = SimulatedExecution

    def isolation(self) -> str:
        return "simulated"

    def starting_text(self, job: TrainingJob) -> str:
        return "Simulated: nothing runs, and every time is computed from a performance model."


def _archive(name: str, content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo(name)
        member.size, member.mtime = len(body), int(content["run_stop_unix_seconds"])
        archive.addfile(member, io.BytesIO(body))
    return buffer.getvalue()
