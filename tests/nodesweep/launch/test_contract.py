"""The contract of every launcher.

Each test runs against SageMaker on a served local platform, directly and through an AWS Batch
queue, against a real Slurm cluster, and against the launcher in memory.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

import pytest

from infra.local.tests.platform_client import (
    ROLE_ARN,
    made_queue,
    serve_platform,
    wait_until,
)
from infra.local.tests.platform_fakes import IMAGE_URI
from nodesweep.configs.distribution import NoDistribution
from nodesweep.configs.models import PlatformConfig
from nodesweep.configs.platform import BatchConfig
from nodesweep.configs.training import TrainingConfig
from nodesweep.errors import JobRefused, QuotaReached
from nodesweep.launch.protocol import HeldJob, Launcher
from nodesweep.launch.sagemaker.backend import bind
from nodesweep.launch.sagemaker.batch import training_launcher
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.sagemaker.logs import own_name
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.launch.watch import BURST_CALLS, JobLimits, watch
from nodesweep.polling import STOP, CallBudget, Clock
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobState, JobStatus, ResolvedInputs
from tests.nodesweep.launch.memory import MemoryLauncher
from tests.nodesweep.launch.slurm.cluster import FOUR, Cluster, running_cluster, until_told_spec

NODES = 4
"""Nodes that all running jobs can have together."""
INSTANCE_TYPE = "ml.local.small"
PLATFORM = PlatformConfig(region="us-east-1", bucket="results", role_arn=ROLE_ARN)


@dataclass
class Backend:
    """A launcher with end("completed" or "failed"), which ends the program of its jobs.

    say() lets the program of a running job print a line.
    """

    launcher: Launcher
    end: Callable[[str, JobState], None]
    say: Callable[[str, str], None]
    sweep: str
    queues: ClassVar[bool] = False
    """True if jobs wait for nodes in the backend itself."""

    def spec(self, nodes: int = 1, repeat: int = 1, max_runtime_seconds: int = 3600) -> JobSpec:
        return JobSpec(
            name=names.job_name(self.sweep, nodes, repeat, 1, "abcd"),
            digest=f"digest-{max_runtime_seconds}",
            nodes=nodes,
            repeat=repeat,
            attempt=1,
            inputs=ResolvedInputs(self.sweep, IMAGE_URI, dataset_uri=None),
            training=TrainingConfig(
                entry_point="train.py",
                distribution=NoDistribution(kind="none"),
                instance_type=INSTANCE_TYPE,
                max_runtime_seconds=max_runtime_seconds,
                volume_size_gb=1,
                environment={"PROGRAM": "until-told"},
            ),
            dataset=None,
            hyperparameters={},
        )

    def ended(self, name: str) -> JobStatus:
        """Return the job's status once the job has ended."""

        def over() -> JobStatus | None:
            job = self.launcher.status(name)
            return job if job is not None and job.has_ended else None

        found: JobStatus = wait_until(over)
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    quotas = {INSTANCE_TYPE: NODES}
    for platform in serve_platform(tmp_path_factory.mktemp("platform"), **quotas):
        platform.s3.create_bucket(Bucket="results")
        platform.queue = made_queue(platform, "training", NODES)
        platform.ends, platform.words = {}, {}
        platform.engine.programs["until-told"] = until_told(platform.ends, platform.words)
        yield platform


def until_told(ends: dict[str, JobState], words: dict[str, str]) -> Callable[..., None]:
    """Run until `ends` names the end of this job, and print its `words`."""

    def program(job: Any, node: Any, say: Callable[[str], None], stop: threading.Event) -> None:
        while not stop.wait(0.01) and job.job_name not in ends:
            if text := words.pop(job.job_name, None):
                say(text)
        if ends.get(job.job_name) == "failed":
            raise ValueError("boom")

    return program


class BatchBackend(Backend):
    queues = True


class SlurmBackend(Backend):
    queues = True

    def spec(self, nodes: int = 1, repeat: int = 1, max_runtime_seconds: int = 3600) -> JobSpec:
        name = names.job_name(self.sweep, nodes, repeat, 1, "abcd")
        return until_told_spec(name, nodes, INSTANCE_TYPE, max_runtime_seconds)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(
    params=["memory", "sagemaker", "batch", pytest.param("slurm", marks=pytest.mark.slow)]
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    number = zlib.crc32(request.node.name.encode())
    sweep = f"bench-20260102030405-{number:08x}"
    if request.param == "slurm":
        cluster: Cluster = request.getfixturevalue("cluster")
        jobs = SlurmJobs(cluster.platform(partition=FOUR))
        yield SlurmBackend(jobs, cluster.end, cluster.say, sweep)
        cluster.end_all(jobs, sweep)
        return
    if request.param == "memory":
        memory = MemoryLauncher(NODES)

        def end(name: str, state: JobState) -> None:
            memory.end(name, state, "AlgorithmError: boom" if state == "failed" else None)

        yield Backend(memory, end, memory.say, sweep)
        return
    served = request.getfixturevalue("served")
    platform = PLATFORM.model_copy(
        update={
            "endpoint_url": served.endpoint,
            "credentials": "platform",
            "state_directory": str(served.state_dir),
        }
    )
    if request.param == "batch":
        platform = platform.model_copy(update={"batch": BatchConfig(queue=served.queue)})

    def named(table: dict[str, Any], name: str, value: Any) -> None:
        """Tell a job's program, which knows the name that SageMaker has for the job."""
        table[own_name(bind(platform), name)] = value

    backend = (BatchBackend if request.param == "batch" else Backend)(
        launcher := training_launcher(bind(platform), quick=False),
        partial(named, served.ends),
        partial(named, served.words),
        sweep,
    )
    yield backend
    for job in launcher.jobs_of(sweep):
        launcher.stop(job.name)
        backend.ended(job.name)


def test_a_rendered_job_is_the_same_for_every_attempt_but_for_what_names_it(
    backend: Backend,
) -> None:
    spec = backend.spec()
    again = replace(spec, attempt=2, name=names.job_name(backend.sweep, 1, 1, 2, "abcd"))
    render = backend.launcher.render
    assert render(replace(spec, name="")) == render(replace(again, name=""))
    assert render(spec) != render(again)
    for other in (backend.spec(nodes=2), backend.spec(max_runtime_seconds=3601)):
        assert render(replace(other, name="")) != render(replace(spec, name=""))
    assert list(backend.launcher.jobs_of(backend.sweep)) == [], "nothing is started"


def test_a_job_is_started_once_and_known_by_its_name(backend: Backend) -> None:
    launcher, spec = backend.launcher, backend.spec(nodes=2)
    assert launcher.status(spec.name) is None
    assert launcher.submit(spec).state == "running"
    again = launcher.submit(spec)
    assert (again.name, again.state) == (spec.name, "running")
    assert [job.name for job in launcher.jobs_of(backend.sweep)] == [spec.name]
    job = launcher.status(spec.name)
    assert job is not None and not job.has_ended and job.created_at is not None
    assert (job.nodes, job.instance_type, job.billed_node_seconds) == (2, INSTANCE_TYPE, None)


def test_a_job_of_another_spec_is_not_adopted(backend: Backend) -> None:
    backend.launcher.submit(backend.spec())
    other = backend.spec(max_runtime_seconds=3601)
    if isinstance(backend.launcher, SageMakerJobs):
        backend.launcher = replace(backend.launcher, clock=hurried())
    with pytest.raises(JobRefused):
        backend.launcher.submit(other)
    assert len(backend.launcher.jobs_of(backend.sweep)) == 1


def hurried() -> Clock:
    """A clock on which a wait takes no time."""
    passed = [0.0]

    def wait(seconds: float) -> bool:
        passed[0] += seconds
        return False

    return Clock(monotonic=lambda: passed[0], wait=wait)


def test_an_ended_job_is_adopted_too_and_not_run_again(backend: Backend) -> None:
    spec = backend.spec()
    backend.launcher.submit(spec)
    backend.end(spec.name, "completed")
    backend.ended(spec.name)
    assert backend.launcher.submit(spec).completed


def test_without_free_nodes_a_job_waits_in_the_backend_or_leaves_nothing_behind(
    backend: Backend,
) -> None:
    backend.launcher.submit(backend.spec(nodes=NODES))
    late = backend.spec(nodes=1, repeat=2)
    if backend.queues:
        backend.launcher.submit(late)
        waiting = backend.launcher.status(late.name)
        assert waiting is not None and (waiting.state, waiting.started_at) == ("running", None)
    else:
        with pytest.raises(QuotaReached):
            backend.launcher.submit(late)
        assert backend.launcher.status(late.name) is None
    first = backend.spec(nodes=NODES).name
    backend.end(first, "completed")
    backend.ended(first)
    assert backend.launcher.submit(late).state == "running"


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_an_ended_job_says_how_and_when_and_what_was_billed(
    backend: Backend, state: JobState
) -> None:
    spec = backend.spec(nodes=2)
    backend.launcher.submit(spec)
    backend.end(spec.name, state)
    job = backend.ended(spec.name)
    assert (job.state, job.completed) == (state, state == "completed")
    assert (job.reason is None) == job.completed
    assert job.created_at is not None and job.started_at is not None and job.ended_at is not None
    assert job.created_at <= job.started_at <= job.ended_at
    assert job.seconds_to_end is not None and job.seconds_to_end >= 0
    assert job.billed_seconds is not None and job.billed_node_seconds == 2 * job.billed_seconds
    assert "Training" in job.phase_seconds
    assert not backend.launcher.stop(spec.name)


def test_a_stopped_job_ends_as_stopped(backend: Backend) -> None:
    spec = backend.spec()
    backend.launcher.submit(spec)
    assert backend.launcher.stop(spec.name)
    job = backend.ended(spec.name)
    assert (job.state, job.completed) == ("stopped", False) and job.reason
    assert not backend.launcher.stop(spec.name)


def test_a_run_that_is_being_cancelled_can_list_describe_and_stop_its_jobs(
    backend: Backend,
) -> None:
    spec = backend.spec()
    backend.launcher.submit(spec)
    STOP.set()
    for _ in range(2):
        assert [job.name for job in backend.launcher.jobs_of(backend.sweep)] == [spec.name]
        assert backend.launcher.status(spec.name) is not None
    assert backend.launcher.stop(spec.name)
    assert backend.ended(spec.name).state == "stopped"


def test_a_job_that_does_not_exist_is_unknown_and_can_not_be_stopped(backend: Backend) -> None:
    assert backend.launcher.status(backend.spec().name) is None
    assert not backend.launcher.stop(backend.spec().name)
    assert list(backend.launcher.jobs_of(backend.sweep)) == []


def test_many_jobs_are_described_at_once_and_unknown_ones_left_out(backend: Backend) -> None:
    specs = [backend.spec(repeat=repeat) for repeat in (1, 2, 3)]
    for spec in specs[:2]:
        backend.launcher.submit(spec)
    backend.end(specs[0].name, "completed")
    backend.ended(specs[0].name)
    calls: list[str] = []
    found = backend.launcher.describe([spec.name for spec in specs], lambda: calls.append("call"))
    assert {name: job.state for name, job in found.items()} == {
        specs[0].name: "completed",
        specs[1].name: "running",
    }
    assert 1 <= len(calls) <= len(specs) + 1, "one each, and a list of all at most"
    assert found[specs[0].name] == backend.launcher.status(specs[0].name)


def test_lines_of_a_log_are_read_once_each(backend: Backend) -> None:
    spec = backend.spec()
    job = backend.launcher.submit(spec)
    log = backend.launcher.logs(spec.name, job.created_at or datetime.now(UTC))
    backend.say(spec.name, "step 1")
    read: list[tuple[int, str]] = []

    def has_read() -> bool:
        read.extend(log.new_lines())
        return any(text.endswith(": step 1") for _, text in read)

    wait_until(has_read)
    assert [text.partition(": ")[2] for _, text in read] == ["step 1"]
    assert list(log.new_lines()) == [] and not log.has_more
    assert spec.name in log.location or log.location == "memory"


def test_jobs_are_listed_oldest_first_with_their_state(backend: Backend) -> None:
    first, second = backend.spec(repeat=2), backend.spec(repeat=1)
    for spec in (first, second):
        backend.launcher.submit(spec)
    backend.end(first.name, "completed")
    backend.ended(first.name)
    assert [(job.name, job.has_ended) for job in backend.launcher.jobs_of(backend.sweep)] == [
        (first.name, True),
        (second.name, False),
    ]


def test_jobs_that_hold_nodes_are_found_without_their_sweep_and_say_which_it_is(
    backend: Backend,
) -> None:
    def held() -> list[HeldJob]:
        return [
            job for job in backend.launcher.held() if names.sweep_of_job(job.name) == backend.sweep
        ]

    specs = [backend.spec(repeat=repeat) for repeat in (2, 1)]
    for spec in specs:
        backend.launcher.submit(spec)
    found = held()
    assert [(job.name, job.is_running) for job in found] == [(spec.name, True) for spec in specs]
    assert {job.read_tag() for job in found} == {backend.sweep}
    assert found[0].age_seconds >= found[1].age_seconds > -60
    backend.end(specs[0].name, "completed")
    backend.ended(specs[0].name)
    assert [job.name for job in held()] == [specs[1].name]


def test_a_watch_ends_with_the_first_job_that_does(backend: Backend) -> None:
    clock = Clock()
    budget = CallBudget(None, BURST_CALLS, clock)
    specs = [backend.spec(repeat=repeat) for repeat in (1, 2)]
    for spec in specs:
        backend.launcher.submit(spec)
    backend.end(specs[0].name, "completed")
    limits = JobLimits(queue_seconds=1e9, run_seconds=1e9)
    [ended] = watch(backend.launcher, [spec.name for spec in specs], 0.01, limits, clock, budget)
    assert (ended.name, ended.state) == (specs[0].name, "completed")
