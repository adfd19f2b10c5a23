"""The way of one job through its phases: Downloading, Training, Uploading, and how it ends.

A job has one segment of Downloading and Training, and a further one after each spot interruption
and each retry of an InternalServerError. Only the last one uploads.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.api.in_process import ClientFactory
from infra.local.faults.injector import JobFaults
from infra.local.faults.training_watch import TimesStruck, TrainingWatch
from infra.local.interfaces import Engine, ImageStore, Node, RunResult
from infra.local.log_streams import LogStreams
from infra.local.sagemaker.metric_series import MetricSeries, Point
from infra.local.training.artifacts import ArtifactUploadError, upload_model, upload_output
from infra.local.training.channels import DataDownloadError, DownloadInterrupted, fill_channels
from infra.local.training.file_systems import mount_channels
from infra.local.training.folder_sync import FolderSync, RestoreError, synced_folders
from infra.local.training.metrics import MetricMatcher, PublishedMetrics
from infra.local.training.record import (
    Ending,
    Retries,
    TrainingJob,
    WaitEnded,
    internal_error,
)
from infra.local.training.utilisation import NodeMetrics

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
WAITING_FOR_MACHINE = "Training job waiting for capacity: another training job runs on this machine"

logger = logging.getLogger(__name__)

Change = Callable[[Callable[[TrainingJob], None]], None]
"""Applies a change to the job under the manager's lock and writes the record down."""


class ImageNotFoundError(Exception):
    """The job's image isn't here; the text is FailureReason's, after "ClientError: "."""


@dataclass(frozen=True)
class ExecutionServices:
    """What jobs are run with."""

    engine: Engine
    images: ImageStore
    clients: ClientFactory
    cold_start_seconds: float = 0.0
    clock: Callable[[], float] = time.time
    file_systems: Mapping[str, Path] = field(default_factory=dict)
    """Id -> the folder of this machine that stands for it."""
    series: MetricSeries = field(default_factory=MetricSeries)


class JobExecution:
    """Runs one job to its end in the calling thread. Every outcome ends up in the job's record;
    nothing is raised.
    """

    def __init__(
        self,
        job: TrainingJob,
        change: Change,
        services: ExecutionServices,
        faults: JobFaults,
        stop: threading.Event,
    ) -> None:
        self._job = job
        self._change = change
        self._services = services
        self._engine = services.engine
        self._clock = services.clock
        self._stop = stop
        # All clients now: making one takes a tenth of a second, which would be Training's.
        self._s3, self._logs, self._cloudwatch = (
            services.clients(service, job.region) for service in ("s3", "logs", "cloudwatch")
        )
        algorithm = job.request["AlgorithmSpecification"]
        self._published = PublishedMetrics(self._cloudwatch, job.name)
        self._has_series = bool(algorithm.get("EnableSageMakerMetricsTimeSeries"))
        self._metrics = MetricMatcher(algorithm.get("MetricDefinitions", []), self._keep_value)
        self._rules = [rule for rule in faults.training if rule.concerns(job)]
        self._times_struck: TimesStruck = Counter()
        self._retries = Retries(job.retry_attempts)
        self._trained_seconds = 0.0
        self._start_seconds = 0.0 if job.reused_pool_of else services.cold_start_seconds

    def run(self) -> None:
        try:
            ending = self._segment()
            while self._goes_on(ending):
                self._clean_up()
                ending = self._segment()
            self._finish(ending)
        finally:
            self._clean_up()

    def _segment(self) -> Ending:
        try:
            return self._run_phases()
        except (DataDownloadError, ImageNotFoundError, ArtifactUploadError, RestoreError) as error:
            return Ending("Failed", f"ClientError: {error}")
        except DownloadInterrupted:
            return Ending("Stopped")
        except WaitEnded as wait:
            return wait.ending
        except Exception as error:
            logger.exception("Job %s: the platform failed", self._job.name)
            return Ending("Failed", internal_error(error))
        finally:
            self._end_instances()

    def _run_phases(self) -> Ending:
        self._find_image()
        self._wait_for_instances()
        with self._turn():
            return self._run_in_turn()

    def _run_in_turn(self) -> Ending:
        nodes = self._engine.prepare(self._job.spec())
        now = self._clock()
        self._change(lambda job: job.begin_segment(now))
        sync = FolderSync(self._s3, synced_folders(self._job.request), nodes)
        sync.restore()
        channels = self._job.request.get("InputDataConfig", [])
        mount_channels(channels, nodes, self._services.file_systems)
        fill_channels(self._s3, channels, nodes, self._stop)
        if self._stop.is_set():
            raise DownloadInterrupted
        watch = TrainingWatch(
            self._rules,
            self._times_struck,
            self._stop,
            lambda host: self._engine.kill_node(self._job.spec(), host),
        )
        result = self._train(nodes, sync, watch)
        if watch.struck is not None and result.stopped and not self._stop.is_set():
            return watch.struck.ending()
        return self._upload(nodes, result)

    def _find_image(self) -> None:
        if problem := missing_image(self._services.images, self._job):
            raise ImageNotFoundError(problem)

    def _wait_for_instances(self) -> None:
        """Let the modelled start-up of instances pass. Raises WaitEnded for a stop, and for a wait
        that is too long.
        """
        now = self._clock()
        deadline, ending = self._job.wait_deadline, Ending("MaxWaitTimeExceeded")
        if self._job.secondary_status == "Pending":
            deadline, ending = self._job.longest_wait(now)
        seconds = min(self._start_seconds, deadline - now)
        if seconds > 0 and self._stop.wait(seconds):
            raise WaitEnded(Ending("Stopped"))
        if self._clock() >= deadline:
            raise WaitEnded(ending)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold this machine for the segment. Raises WaitEnded where the job ends
        before it is its turn.

        While another platform's job has the machine this one is Pending, as if AWS had no instances
        for it: that time is neither Training nor billable, and MaxRuntimeInSeconds does not pass.
        """
        now = self._clock()
        ends_at, ending = self._job.longest_wait(now)
        deadline = time.monotonic() + ends_at - now
        with self._engine.turn(self._job.spec(), self._stop, deadline, self._note_wait) as is_held:
            if not is_held:
                raise WaitEnded(Ending("Stopped") if self._stop.is_set() else ending)
            yield

    def _note_wait(self) -> None:
        if self._job.secondary_status != "Pending" and not self._stop.is_set():
            self._enter("Pending", WAITING_FOR_MACHINE)

    def _train(self, nodes: Sequence[Node], sync: FolderSync, watch: TrainingWatch) -> RunResult:
        self._enter("Training")
        spec, clients = self._job.spec(), self._services.clients
        metrics = NodeMetrics(
            clients("cloudwatch", self._job.region),
            self._job.name,
            lambda: self._engine.usage(spec),
        )
        logs = LogStreams(clients("logs", self._job.region), LOG_GROUP)
        with logs as streams, sync, metrics, self._published, watch:
            opened_milliseconds = int(self._clock() * 1000)
            for node in nodes:
                streams.open(node.host, f"{self._job.name}/{node.host}-{opened_milliseconds}")

            def on_line(host: str, line: str, unix_milliseconds: int) -> None:
                streams.write(host, line, unix_milliseconds)
                self._metrics.feed(line, unix_milliseconds)
                watch.feed(line)

            left_seconds = max(
                0.0, min(self._runtime_left_seconds(), self._job.wait_deadline - self._clock())
            )
            began = time.monotonic()
            result = self._engine.run(spec, nodes, on_line, watch.halt, left_seconds)
            self._trained_seconds += time.monotonic() - began
            metrics.put_attainment(result.attainment)
        final = self._metrics.final()
        self._change(lambda job: setattr(job, "final_metrics", final))
        return result

    def _keep_value(self, metric: str, value: float, unix_milliseconds: int) -> None:
        """Of a metric definition: for CloudWatch,
        and for SageMaker Metrics where the job asks for the series.
        """
        self._published.add(metric, value, unix_milliseconds)
        if self._has_series:
            self._services.series.add(self._job.arn, metric, Point(unix_milliseconds / 1000, value))

    def _runtime_left_seconds(self) -> float:
        """MaxRuntimeInSeconds is for all segments together."""
        return self._job.max_runtime_seconds - self._trained_seconds

    def _upload(self, nodes: Sequence[Node], result: RunResult) -> Ending:
        """Upload and end. A failed job's instances end when the failure is seen;
        others' after the upload.
        """
        failed = result.failed_host is not None and not result.stopped and not result.timed_out
        ending = self._ending(result, failed)
        if failed:
            self._end_instances()
            if self._is_retried(ending):
                return ending
        self._enter("Uploading")
        try:
            with tempfile.TemporaryDirectory(prefix="artifacts-", dir=nodes[0].opt_ml) as scratch:
                upload_output(self._s3, nodes, self._job.output_prefix, Path(scratch))
                if not failed:
                    upload_model(self._s3, nodes, self._job.model_uri, Path(scratch))
        except ArtifactUploadError as error:
            if not failed:
                raise
            logger.error("Job %s failed and its output is lost: %s", self._job.name, error)
        return ending

    def _ending(self, result: RunResult, failed: bool) -> Ending:
        if failed:
            reason = (
                result.failure_reason
                or f"AlgorithmError: {result.failed_host} failed, see its log."
            )
            return Ending("Failed", reason)
        if result.timed_out:
            is_wait = self._clock() >= self._job.wait_deadline
            return Ending("MaxWaitTimeExceeded" if is_wait else "MaxRuntimeExceeded")
        return Ending("Stopped" if result.stopped else "Completed")

    # -- between segments --------------------------------------------------------------------------

    def _goes_on(self, ending: Ending) -> bool:
        """Whether another segment follows; if so, the job is brought to where that begins."""
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

    # -- changes of the record ---------------------------------------------------------------------

    def _end_instances(self) -> None:
        now = self._clock()
        self._change(lambda job: job.end_segment(now))

    def _enter(self, secondary_status: str, message: str | None = None) -> None:
        now = self._clock()
        self._change(lambda job: job.enter(secondary_status, now, message))

    def _finish(self, ending: Ending) -> None:
        now = self._clock()
        self._change(lambda job: job.end(ending, now))

    def _clean_up(self) -> None:
        """What can't be removed is reported: the job's outcome is decided,
        and folders must not change it.
        """
        try:
            self._engine.clean_up(self._job.spec())
        except Exception:
            logger.exception("Job %s: its nodes' folders could not be removed", self._job.name)


def missing_image(images: ImageStore, job: TrainingJob) -> str | None:
    """Why the job's image can't be had, in AWS's words, or None."""
    uri = job.request["AlgorithmSpecification"]["TrainingImage"]
    if images.resolve(uri) is not None:
        return None
    return (
        f"Cannot find the requested image {uri}. Please check if your ECR repository and image"
        f" exist and role {job.request['RoleArn']} has proper pull permissions for SageMaker:"
        " ecr:BatchCheckLayerAvailability, ecr:BatchGetImage, ecr:GetDownloadUrlForLayer"
    )
