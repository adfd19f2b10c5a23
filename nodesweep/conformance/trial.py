"""State shared by the checks of one run: the config, the inputs of its jobs, and its jobs.

Jobs are submitted, watched, read and stopped by the launcher and the tasks that a sweep uses. Their
names derive from the trial's own sweep id, so an interrupted run finds its jobs again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.configs.catalogue import InstanceType
from nodesweep.configs.models import BenchmarkConfig, ImageConfig, PlatformConfig
from nodesweep.conformance.check import NoEvidence, Shape, Unmet
from nodesweep.errors import best_effort
from nodesweep.launch.protocol import STOPPING_SECONDS
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.watch import BURST_CALLS, JobLimits, watch
from nodesweep.polling import CallBudget, Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobStatus, ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.planning.specs import build_spec
from nodesweep.scaling.rules.rule import Facts
from nodesweep.tasks.dataset.files import channel_folders, scan_directory, upload_dataset
from nodesweep.tasks.dataset.remote.objects import (
    RemoteDataset,
    RemoteSource,
    describe_remote_dataset,
)
from nodesweep.tasks.image.bases import pin_base_images
from nodesweep.tasks.image.build import start_image_build, wait_for_image_build
from nodesweep.tasks.image.find import Image, Images, find_image, read_context
from nodesweep.tasks.jobs.source import LocalCode, upload_source
from nodesweep.tasks.preflight.facts import read_facts
from nodesweep.tasks.sweeps.owner import SweepOwner
from nodesweep.tasks.sweeps.stopping import release_pools_now, stop_sweep_jobs_now

logger = logging.getLogger("nodesweep.conformance")
_MOST_ATTEMPTS = 99


@dataclass
class Observed:
    """A watched job, with the log lines read so far.

    Attributes:
        spec: the job.
        status: its last status.
        lines: the lines read, each with its node.
        live_lines: number of lines read before the job ended.
    """

    spec: JobSpec
    status: JobStatus
    lines: list[str] = field(default_factory=list)
    live_lines: int = 0


@dataclass
class Trial:
    """One run of the checks.

    Attributes:
        config: the config, on its running platform.
        sweep: the jobs' sweep id.
        folder: folder for the jobs' logs on this machine.
        on_job: called with a job's name before it is submitted.
        clock: the source of time.
    """

    config: BenchmarkConfig
    sweep: str
    folder: Path
    on_job: Callable[[str], None] = lambda name: None
    clock: Clock = field(default_factory=Clock)
    owner: SweepOwner | None = None
    """Heartbeat of the jobs' owner; None until a job can exist."""
    _observed: dict[Shape, Observed] = field(default_factory=dict)
    _inputs: ResolvedInputs | None = None
    _image: Image | None = None
    _has_no_image: bool = False

    @property
    def platform(self) -> PlatformConfig:
        """The config's platform."""
        return self.config.platform

    @property
    def instance(self) -> InstanceType:
        """The type of the nodes."""
        return self.config.node_type(self.config.training.instance_type)

    def client(self, service: str) -> Any:
        """Return a client of the platform."""
        return aws_client(service, self.platform)

    def facts(self, shape: Shape) -> Facts:
        """Return preflight's facts about a sweep that consists of this job."""
        return read_facts(shape.config(self.config))

    def image(self) -> Image:
        """Return the training image, found or built as in a run; a failed build is not retried.

        Raises:
            Unmet: an earlier check failed to find or build it.
        """
        if self._has_no_image:
            raise Unmet("there is no image; see the first check that needed it")
        if self._image is None:
            self._has_no_image = True
            self._image = self.built(self.facts(Shape("image")).config.image)
            self._has_no_image = False
        return self._image

    def built(self, image: ImageConfig) -> Image:
        """Return the image of a build context, found in the registry or built now."""
        if image.uri is not None:
            return Image(image.uri, None, built=False)
        images = Images(backend_of(self.platform), image)
        pinned = pin_base_images(images, image.all_build_args)
        context = read_context(image, pinned, self.config.own_folders)
        found = find_image(images, context)
        if found is not None:
            return found
        token = f"{context.tag}-{datetime.now(UTC):%Y%m%d%H%M%S%f}"
        started = start_image_build(images, context, token)
        logger.info("building the image %s:%s", image.repository, context.tag)
        return wait_for_image_build(images, context, started)

    def inputs(self) -> ResolvedInputs:
        """Return the jobs' inputs, after building or uploading image, code and data as in a run."""
        if self._inputs is None:
            config, backend = self.config, backend_of(self.platform)
            image = self.image()
            uri, folders = None, tuple[str, ...]()
            section = config.dataset
            if section is not None and section.is_remote:
                there = self.dataset_in_s3()
                uri, folders = (
                    there.uri,
                    channel_folders(section, map(there.name_of, there.objects)),
                )
            elif section is not None:
                here = scan_directory(section)
                uri = upload_dataset(backend, section, here).uri
                folders = channel_folders(section, [file.name for file in here.files])
            code = None
            if config.training.source_dir is not None:
                code = upload_source(backend, LocalCode.of(config), True)
            self._inputs = ResolvedInputs(self.sweep, image.uri, uri, code, folders)
        return self._inputs

    def dataset_in_s3(self) -> RemoteDataset:
        """Return the dataset's objects.

        Raises:
            Unmet: the config's dataset is not in S3.
        """
        section = self.config.dataset
        if section is None or not section.is_remote:
            raise Unmet("dataset.source is not in S3")
        return describe_remote_dataset(RemoteSource(backend_of(self.platform), section))

    def spec(self, shape: Shape, attempt: int = 1) -> JobSpec:
        """Return the job of a shape; its name derives from the trial's sweep id."""
        config = shape.config(self.config)
        [point] = plan_sweep(config, self.instance).points
        return build_spec(
            config,
            replace(point, repeat=shape.repeat),
            self.inputs(),
            backend_of(self.platform).render,
            attempt,
        )

    def submit(self, shape: Shape, anew: bool = False) -> JobSpec:
        """Start the job of a shape, or adopt the job of an interrupted run.

        A job that was stopped when that run ended is replaced by a new attempt.

        Args:
            shape: the job.
            anew: True to replace a job that has already ended.
        """
        launcher = backend_of(self.platform).launcher()
        for attempt in range(1, _MOST_ATTEMPTS):
            spec = self.spec(shape, attempt)
            before = launcher.status(spec.name)
            if before is None or not (before.has_ended and (anew or before.state == "stopped")):
                break
        self.on_job(spec.name)
        launcher.submit(spec)
        return spec

    def follow(self, spec: JobSpec, until: Callable[[Observed], bool] | None = None) -> Observed:
        """Wait until the job ends, or until `until` returns True at a poll."""
        launcher, config = backend_of(self.platform).launcher(), self.config
        log = launcher.logs(spec.name, names.sweep_started(self.sweep))
        seen = Observed(spec, JobStatus(spec.name, "running"))

        def read(name: str) -> None:
            seen.lines.extend(text for _, text in log.new_lines())

        def note(states: object) -> None:
            seen.live_lines = len(seen.lines)

        limits = JobLimits(
            config.sweep.queue_deadline_seconds,
            spec.training.longest_seconds + 2 * STOPPING_SECONDS,
        )
        ended = watch(
            launcher,
            [spec.name],
            config.sweep.poll_interval_seconds,
            limits,
            self.clock,
            CallBudget(self.platform.calls_per_second, BURST_CALLS, self.clock),
            read,
            has_stepped=None if until is None else lambda name: until(seen),
            on_poll=note,
        )
        if not ended:
            seen.live_lines = len(seen.lines)
            return seen
        while log.has_more:
            read(spec.name)
        [seen.status] = ended
        return seen

    def ended(self, shape: Shape) -> Observed:
        """Return the job of a shape once it has ended; several checks share a job."""
        if shape not in self._observed:
            self._observed[shape] = self.follow(self.submit(shape))
        return self._observed[shape]

    def completed(self, shape: Shape) -> Observed:
        """Return the job of a shape once it has completed.

        Raises:
            NoEvidence: the job did not complete.
        """
        job = self.ended(shape)
        if not job.status.completed:
            raise NoEvidence(f"the job ended as {job.status.state}: {job.status.reason}")
        return job

    def end_jobs(self) -> None:
        """Stop running jobs and release kept nodes, even after Ctrl-C."""
        with best_effort(
            f"some jobs of {self.sweep} may still be running; stop them with nodesweep stop "
            f"{self.sweep} --config CONFIG"
        ):
            backend = backend_of(self.platform)
            stop_sweep_jobs_now(backend, self.sweep)
            kept = [job.spec.name for job in self._observed.values()]
            release_pools_now(backend, self.sweep, kept)
            logger.info("no job of %s is running anymore", self.sweep)

    def delete_outputs(self) -> list[str]:
        """Delete the objects below the trial's prefix; return those that could not be deleted."""
        store = BucketStore(self.platform, client=self.client("s3"))
        left = []
        for key in store.keys(names.sweep_prefix(self.platform.prefix, self.sweep)):
            left.append(key)
            with best_effort(f"could not delete {key}"):
                store.delete(key)
                left.pop()
        return left
