"""Runs a job of any kind on an engine, from the image check to the end."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic

from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import ACCOUNT_ID
from sagemaker_emulator.faults.injector import JobFaults
from sagemaker_emulator.faults.training_watch import TimesStruck, TrainingWatch
from sagemaker_emulator.interfaces import Engine, ImageStore, Node, NodeAttainment, RunResult
from sagemaker_emulator.jobs.downloads import DownloadInterrupted
from sagemaker_emulator.jobs.endings import (
    ClientFault,
    Ending,
    ImageNotFoundError,
    WaitEnded,
    internal_error,
)
from sagemaker_emulator.jobs.job import Change, J, Job
from sagemaker_emulator.jobs.node_metrics_store import NodeMetricsStore
from sagemaker_emulator.jobs.utilisation import NodeMetrics
from sagemaker_emulator.log_streams import LogStreams

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExecutionServices:
    """The services that a job execution needs."""

    engine: Engine
    images: ImageStore
    clients: ClientFactory
    cold_start_seconds: float = 0.0
    clock: Callable[[], float] = time.time
    file_systems: Mapping[str, Path] = field(default_factory=dict)
    """Folders on this machine that emulate file systems, by file system id."""
    kept_metrics: NodeMetricsStore | None = None
    """Keeps node metrics across restarts, or None to lose them."""


class JobExecution(ABC, Generic[J]):
    """Runs a job in the calling thread until it ends.

    All outcomes, including errors, are written to the job's record.
    """

    group: ClassVar[str]
    """The log group of the job, and the namespace of the nodes' metrics."""

    def __init__(
        self,
        job: J,
        change: Change[J],
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
        # Create all clients now. Each takes 0.1 s, which would later count as job time.
        self._s3, self._logs, self._cloudwatch = (
            services.clients(service, job.region) for service in ("s3", "logs", "cloudwatch")
        )
        self._rules = [rule for rule in faults.training if rule.concerns(job)]
        self._times_struck: TimesStruck = Counter()
        self._ran_seconds = 0.0
        self._start_seconds = services.cold_start_seconds

    @abstractmethod
    def _run_in_turn(self) -> Ending:
        """Run one segment and return how it ended. The caller holds the machine."""

    def _has_next_segment(self, ending: Ending) -> bool:
        """Return True and prepare the job if another segment follows, else return False."""
        return False

    def _wait_limit(self, now: float) -> tuple[float, Ending]:
        """Return the deadline of the simulated startup, and how the job ends if it is exceeded."""
        return self._job.longest_wait(now)

    def _note_wait(self) -> None:
        """Called when the job waits for a job of another platform. Do nothing by default."""

    def run(self) -> None:
        try:
            ending = self._segment()
            while self._has_next_segment(ending):
                self._clean_up()
                ending = self._segment()
            self._finish(ending)
        finally:
            self._clean_up()

    def _segment(self) -> Ending:
        try:
            if problem := missing_image(self._services.images, self._job):
                raise ImageNotFoundError(problem)
            self._wait_for_instances()
            with self._turn():
                return self._run_in_turn()
        except ClientFault as error:
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

    def _wait_for_instances(self) -> None:
        """Wait for the simulated startup of instances.

        Raises:
            WaitEnded: If the job is stopped, or if it waits too long.
        """
        now = self._clock()
        deadline, ending = self._wait_limit(now)
        seconds = min(self._start_seconds, deadline - now)
        if seconds > 0 and self._stop.wait(seconds):
            raise WaitEnded(Ending("Stopped"))
        if self._clock() >= deadline:
            raise WaitEnded(ending)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold this machine for the segment.

        While a job of another platform holds the machine, this job waits as if AWS had no capacity.
        The wait is therefore not billable and not part of MaxRuntimeInSeconds.

        Raises:
            WaitEnded: If the job ends before its turn.
        """
        now = self._clock()
        ends_at, ending = self._job.longest_wait(now)
        deadline = time.monotonic() + ends_at - now
        with self._engine.turn(self._job.spec(), self._stop, deadline, self._note_wait) as is_held:
            if not is_held:
                raise WaitEnded(Ending("Stopped") if self._stop.is_set() else ending)
            yield

    def _prepare(self) -> Sequence[Node]:
        nodes = self._engine.prepare(self._job.spec())
        now = self._clock()
        self._change(lambda job: job.begin_segment(now))
        return nodes

    def _watch(self) -> TrainingWatch:
        return TrainingWatch(
            self._rules,
            self._times_struck,
            self._stop,
            lambda host: self._engine.kill_node(self._job.spec(), host),
        )

    def _run_nodes(
        self,
        nodes: Sequence[Node],
        watch: TrainingWatch,
        left_seconds: float,
        on_line: Callable[[str, int], None] = lambda line, unix_milliseconds: None,
    ) -> RunResult:
        spec = self._job.spec()
        metrics = NodeMetrics(
            self._cloudwatch, self.group, self._job.name, lambda: self._engine.usage(spec)
        )
        with LogStreams(self._logs, self.group) as streams, metrics, watch:
            opened_milliseconds = int(self._clock() * 1000)
            for node in nodes:
                streams.open(node.host, f"{self._job.name}/{node.host}-{opened_milliseconds}")

            def take(host: str, line: str, unix_milliseconds: int) -> None:
                streams.write(host, line, unix_milliseconds)
                on_line(line, unix_milliseconds)
                watch.feed(line)

            began = time.monotonic()
            result = self._engine.run(spec, nodes, take, watch.halt, max(0.0, left_seconds))
            self._ran_seconds += time.monotonic() - began
            metrics.put_attainment(self._attainment(nodes, result))
        if kept := self._services.kept_metrics:
            # The current time is still within the job's training time.
            means, now = metrics.means(), self._clock()
            kept.keep(self._job.region, self.group, self._job.name, means, now)
        return result

    def _attainment(self, nodes: Sequence[Node], result: RunResult) -> Mapping[str, NodeAttainment]:
        return result.attainment

    # -- changes to the record ---------------------------------------------------------------------

    def _end_instances(self) -> None:
        now = self._clock()
        self._change(lambda job: job.end_segment(now))

    def _finish(self, ending: Ending) -> None:
        now = self._clock()
        self._change(lambda job: job.end(ending, now))

    def _clean_up(self) -> None:
        """Remove the files of the nodes. Failures are logged and do not affect the outcome."""
        try:
            self._engine.clean_up(self._job.spec())
        except Exception:
            logger.exception(
                "Job %s: the folders of its nodes could not be removed", self._job.name
            )


def missing_image(images: ImageStore, job: Job) -> str | None:
    """Return why the image of a job is unavailable, worded as on AWS, or None if available."""
    if images.resolve(job.image_uri) is not None:
        return None
    return (
        f"Cannot find the requested image {job.image_uri}. Please check if your ECR repository and"
        f" image exist and role {job.request['RoleArn']} has proper pull permissions for SageMaker:"
        " ecr:BatchCheckLayerAvailability, ecr:BatchGetImage, ecr:GetDownloadUrlForLayer"
    )


class EngineRunner(Generic[J]):
    """A runner that runs jobs of one kind on the real nodes of an engine."""

    account_id = ACCOUNT_ID
    has_virtual_clock = False
    execution: ClassVar[type[JobExecution[Any]]]

    def __init__(self, services: ExecutionServices) -> None:
        self._services = services

    def capacity_problem(self, job: J) -> str | None:
        return self._services.engine.capacity_problem(job.instance_type, job.instance_count)

    def run(self, job: J, change: Change[J], faults: JobFaults, stop: threading.Event) -> None:
        self.execution(job, change, self._services, faults, stop).run()

    def clean_up(self, job: J) -> None:
        self._services.engine.clean_up(job.spec())
