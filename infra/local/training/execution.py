"""The way of one job through its phases: Downloading, Training, Uploading, and how it ends."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.local.in_process import ClientFactory
from infra.local.interfaces import Engine, ImageStore, Node, RunResult
from infra.local.log_streams import LogStreams
from infra.local.training.artifacts import ArtifactUploadError, upload_model, upload_output
from infra.local.training.channels import DataDownloadError, DownloadInterrupted, fill_channels
from infra.local.training.metrics import MetricMatcher
from infra.local.training.record import TrainingJob

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_PLATFORM_ERROR = "InternalServerError: We encountered an internal error. Please try again."

logger = logging.getLogger(__name__)

Change = Callable[[Callable[[TrainingJob], None]], None]
"""Applies a change to the job under the manager's lock and writes the record down."""


class ImageNotFoundError(Exception):
    """The job's image isn't here; the text is FailureReason's, after "ClientError: "."""


class JobExecution:
    """Runs one job to its end in the calling thread. Every outcome ends up in the job's record; nothing is raised."""

    def __init__(
        self,
        job: TrainingJob,
        change: Change,
        engine: Engine,
        images: ImageStore,
        clients: ClientFactory,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._change = change
        self._engine = engine
        self._images = images
        self._clients = clients
        self._stop = stop
        self._clock = clock
        self._s3 = clients("s3", job.region)
        self._metrics = MetricMatcher(job.request["AlgorithmSpecification"].get("MetricDefinitions", []))

    def run(self) -> None:
        spec = self._job.spec()
        try:
            self._run_phases()
        except (DataDownloadError, ImageNotFoundError, ArtifactUploadError) as error:
            self._fail(f"ClientError: {error}")
        except DownloadInterrupted:
            self._end_instances()
            self._enter("Stopped")
        except Exception as error:
            logger.exception("Job %s: the platform failed", self._job.name)
            self._fail(f"{_PLATFORM_ERROR} ({type(error).__name__}: {error})")
        finally:
            try:
                self._engine.clean_up(spec)
            except Exception:
                logger.exception("Job %s: its nodes' folders could not be removed", self._job.name)

    def _run_phases(self) -> None:
        self._find_image()
        nodes = self._engine.prepare(self._job.spec())
        self._start_instances()
        fill_channels(self._s3, self._job.request.get("InputDataConfig", []), nodes, self._stop)
        if self._stop.is_set():
            raise DownloadInterrupted
        result = self._train(nodes)
        self._upload(nodes, result)

    def _find_image(self) -> None:
        uri = self._job.request["AlgorithmSpecification"]["TrainingImage"]
        if self._images.resolve(uri) is None:
            raise ImageNotFoundError(
                f"Cannot find the requested image {uri}. Please check if your ECR repository and image exist and role "
                f"{self._job.request['RoleArn']} has proper pull permissions for SageMaker: "
                "ecr:BatchCheckLayerAvailability, ecr:BatchGetImage, ecr:GetDownloadUrlForLayer"
            )

    def _train(self, nodes: Sequence[Node]) -> RunResult:
        self._enter("Training")
        with LogStreams(self._clients("logs", self._job.region), LOG_GROUP) as streams:
            opened_milliseconds = int(self._clock() * 1000)
            for node in nodes:
                streams.open(node.host, f"{self._job.name}/{node.host}-{opened_milliseconds}")

            def on_line(host: str, line: str, unix_milliseconds: int) -> None:
                streams.write(host, line, unix_milliseconds)
                self._metrics.feed(line, unix_milliseconds)

            result = self._engine.run(self._job.spec(), nodes, on_line, self._stop, self._job.max_runtime_seconds)
        final = self._metrics.final()
        self._change(lambda job: setattr(job, "final_metrics", final))
        return result

    def _upload(self, nodes: Sequence[Node], result: RunResult) -> None:
        """Upload and end. A failed job's instances end when the failure is seen; others' after the upload."""
        failed = result.failed_host is not None and not result.stopped and not result.timed_out
        if failed:
            self._end_instances()
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
        if failed:
            self._fail(result.failure_reason or f"AlgorithmError: {result.failed_host} failed, see its log.")
            return
        self._end_instances()
        self._enter("MaxRuntimeExceeded" if result.timed_out else "Stopped" if result.stopped else "Completed")

    # -- changes of the record ------------------------------------------------------------------------------------

    def _start_instances(self) -> None:
        now = self._clock()

        def start(job: TrainingJob) -> None:
            job.training_start_time = now
            job.enter("Downloading", now)

        self._change(start)

    def _end_instances(self) -> None:
        now = self._clock()

        def end(job: TrainingJob) -> None:
            if job.training_start_time is not None and job.training_end_time is None:
                job.training_end_time = now

        self._change(end)

    def _enter(self, secondary_status: str) -> None:
        now = self._clock()
        self._change(lambda job: job.enter(secondary_status, now))

    def _fail(self, reason: str) -> None:
        self._end_instances()
        now = self._clock()
        self._change(lambda job: job.fail(reason, now))
