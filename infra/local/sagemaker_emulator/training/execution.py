"""Runs a training job through its phases: Downloading, Training, Uploading and the end.

A job has one segment of Downloading and Training, plus one for each spot interruption and each
retry after an InternalServerError. Only the last segment uploads its output.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.faults.training_watch import TrainingWatch
from sagemaker_emulator.interfaces import Node, NodeAttainment, RunResult
from sagemaker_emulator.jobs.artifacts import ArtifactUploadError, upload_model, upload_output
from sagemaker_emulator.jobs.downloads import DownloadInterrupted
from sagemaker_emulator.jobs.endings import Ending
from sagemaker_emulator.jobs.execution import ExecutionServices, JobExecution
from sagemaker_emulator.jobs.folder_sync import FolderSync
from sagemaker_emulator.jobs.job import Change
from sagemaker_emulator.training.channels import fill_channels
from sagemaker_emulator.training.checkpoints import synced_folders
from sagemaker_emulator.training.file_systems import mount_channels
from sagemaker_emulator.training.metrics import NAMESPACE, MetricMatcher, PublishedMetrics
from sagemaker_emulator.training.record import Retries, TrainingJob
from sagemaker_emulator.training.window import TrainWindow

WAITING_FOR_MACHINE = "Training job waiting for capacity: another job runs on this machine"

logger = logging.getLogger(__name__)


class TrainingExecution(JobExecution[TrainingJob]):
    """Runs a training job in the calling thread until it ends."""

    group = NAMESPACE

    def __init__(
        self,
        job: TrainingJob,
        change: Change[TrainingJob],
        services: ExecutionServices,
        faults: JobFaults,
        stop: threading.Event,
    ) -> None:
        super().__init__(job, change, services, faults, stop)
        algorithm = job.request["AlgorithmSpecification"]
        self._published = PublishedMetrics(self._cloudwatch, job.name)
        self._metrics = MetricMatcher(algorithm.get("MetricDefinitions", []), self._keep_value)
        self._window = TrainWindow()
        self._retries = Retries(job.retry_attempts)
        if job.reused_pool_of:
            self._start_seconds = 0.0

    def _run_in_turn(self) -> Ending:
        nodes = self._prepare()
        sync = FolderSync(self._s3, synced_folders(self._job.request), nodes)
        sync.restore()
        channels = self._job.request.get("InputDataConfig", [])
        nodes = mount_channels(channels, nodes, self._services.file_systems)
        fill_channels(self._s3, channels, nodes, self._stop)
        if self._stop.is_set():
            raise DownloadInterrupted
        watch = self._watch()
        result = self._train(nodes, sync, watch)
        if watch.struck is not None and result.stopped and not self._stop.is_set():
            return watch.struck.ending()
        return self._upload(nodes, result)

    def _wait_limit(self, now: float) -> tuple[float, Ending]:
        if self._job.secondary_status == "Pending":
            return super()._wait_limit(now)
        return self._job.wait_deadline, Ending("MaxWaitTimeExceeded")

    def _note_wait(self) -> None:
        """Enter Pending while a job of another platform holds the machine."""
        if self._job.secondary_status != "Pending" and not self._stop.is_set():
            self._enter("Pending", WAITING_FOR_MACHINE)

    def _train(self, nodes: Sequence[Node], sync: FolderSync, watch: TrainingWatch) -> RunResult:
        self._enter("Training")
        with sync, self._published:
            left_seconds = min(
                self._runtime_left_seconds(), self._job.wait_deadline - self._clock()
            )
            self._window = TrainWindow()
            result = self._run_nodes(nodes, watch, left_seconds, self._feed)
        final = self._metrics.final()
        self._change(lambda job: setattr(job, "final_metrics", final))
        return result

    def _keep_value(self, metric: str, value: float, unix_milliseconds: int) -> None:
        self._published.add(metric, value, unix_milliseconds)
        self._window.note(metric, value, unix_milliseconds / 1000)

    def _feed(self, line: str, unix_milliseconds: int) -> None:
        self._window.feed(line, unix_milliseconds / 1000)
        self._metrics.feed(line, unix_milliseconds)

    def _attainment(self, nodes: Sequence[Node], result: RunResult) -> Mapping[str, NodeAttainment]:
        """Return the attainment in the training window that the program reports, or in the run."""
        within = self._window.of([node.opt_ml / "output" / "data" for node in nodes])
        if within is None or result.attainment_within is None:
            return result.attainment
        return result.attainment_within(*within)

    def _runtime_left_seconds(self) -> float:
        """Return the remaining runtime. MaxRuntimeInSeconds applies to all segments together."""
        return self._job.max_runtime_seconds - self._ran_seconds

    def _upload(self, nodes: Sequence[Node], result: RunResult) -> Ending:
        """Upload the output of the nodes and return how the job ended.

        A failed job releases its instances when the failure is detected, other jobs after the
        upload.
        """
        failed = result.failed_host is not None and not result.stopped and not result.timed_out
        ending = self._ending(result, failed)
        if failed:
            self._end_instances()
            if self._is_retried(ending):
                return ending
        self._enter("Uploading")
        try:
            upload_output(self._s3, nodes, self._job.output_prefix, nodes[0].opt_ml)
            if not failed:
                upload_model(self._s3, nodes, self._job.model_uri, nodes[0].opt_ml)
        except ArtifactUploadError as error:
            if not failed:
                raise
            logger.error(
                "Job %s failed, and its output could not be uploaded: %s", self._job.name, error
            )
        return ending

    def _ending(self, result: RunResult, failed: bool) -> Ending:
        if failed:
            reason = (
                result.failure_reason
                or f"AlgorithmError: {result.failed_host} failed; see its log."
            )
            return Ending("Failed", reason)
        if result.timed_out:
            is_wait = self._clock() >= self._job.wait_deadline
            return Ending("MaxWaitTimeExceeded" if is_wait else "MaxRuntimeExceeded")
        return Ending("Stopped" if result.stopped else "Completed")

    # -- between segments --------------------------------------------------------------------------

    def _has_next_segment(self, ending: Ending) -> bool:
        """Return True and prepare the job if another segment follows, else return False."""
        if ending.status == "Interrupted":
            self._start_seconds = ending.restart_after_seconds + self._services.cold_start_seconds
            self._enter("Interrupted")
            self._enter("Restarting")
            if self._start_seconds > 0:
                self._enter("Pending")
            return True
        if not self._is_retried(ending):
            return False
        self._start_seconds = self._services.cold_start_seconds
        self._enter("Starting", self._retries.begin_next())
        return True

    def _is_retried(self, ending: Ending) -> bool:
        return self._retries.may_follow(ending) and not self._stop.is_set()

    # -- changes to the record ---------------------------------------------------------------------

    def _enter(self, secondary_status: str, message: str | None = None) -> None:
        now = self._clock()
        self._change(lambda job: job.enter(secondary_status, now, message))
