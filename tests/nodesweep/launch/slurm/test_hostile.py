"""Failures of a cluster: real daemons that are killed, and commands of other users."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.local.tests.platform_client import wait_until
from nodesweep.configs.load import parse_config
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.configs.strict_yaml import parse_yaml
from nodesweep.errors import BackendUnavailable, JobRefused
from nodesweep.launch.slurm.check import check_cluster
from nodesweep.launch.slurm.launcher import SlurmJobs
from nodesweep.launch.slurm.queue import Queue
from nodesweep.launch.slurm.starter import first_config
from nodesweep.scaling import names
from nodesweep.scaling.job import OVER_TIME, JobSpec, JobStatus
from nodesweep.scaling.outcome.outcome import is_retryable
from nodesweep.tasks.preflight.facts import read_facts
from tests.nodesweep.launch.slurm.cluster import (
    EIGHT,
    FOUR,
    SMALL,
    URGENT,
    Cluster,
    running_cluster,
    until_told_spec,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@dataclass
class Sweep:
    """A sweep on the cluster, and its launcher."""

    cluster: Cluster
    name: str
    jobs: SlurmJobs

    def spec(self, nodes: int = 1, max_runtime_seconds: int = 3600) -> JobSpec:
        name = names.job_name(self.name, nodes, 1, 1, "abcd")
        return until_told_spec(name, nodes, max_runtime_seconds=max_runtime_seconds)

    def launcher(self, **options: Any) -> SlurmJobs:
        """Return another launcher of the same jobs."""
        return SlurmJobs(self.cluster.platform(**{"partition": EIGHT, **options}))

    def running(self, nodes: int = 1, **options: Any) -> JobSpec:
        """Start a job, and return its spec once it runs."""
        spec = self.spec(nodes)
        self.launcher(**options).submit(spec)
        self.wait(spec, lambda job: job.phase == "Training")
        # the script has begun, too
        wait_until(lambda: (self.cluster.shared / spec.name / "runs").exists())
        return spec

    def wait(self, spec: JobSpec, condition: Callable[[JobStatus], bool]) -> JobStatus:
        def met() -> JobStatus | None:
            job = self.jobs.status(spec.name)
            return job if job is not None and condition(job) else None

        found: JobStatus = wait_until(met)
        return found

    def ended(self, spec: JobSpec) -> JobStatus:
        return self.wait(spec, lambda job: job.has_ended)


@pytest.fixture
def sweep(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Sweep]:
    number = zlib.crc32(request.node.name.encode())
    jobs = SlurmJobs(cluster.platform(partition=EIGHT))
    sweep = Sweep(cluster, f"bench-20260102030405-{number:08x}", jobs)
    yield sweep
    cluster.end_all(sweep.jobs, sweep.name)
    cluster.wait_for_nodes()


def test_a_killed_controller_is_reported_and_its_jobs_go_on(sweep: Sweep) -> None:
    spec = sweep.running()
    state = sweep.cluster.folder / "state" / "job_state"
    began = (sweep.cluster.shared / spec.name / "runs").stat().st_mtime
    # slurmctld saves its state every few seconds; a kill before that loses the job's start
    wait_until(lambda: state.exists() and state.stat().st_mtime > began + 1)
    sweep.cluster.kill("slurmctld")
    sweep.jobs.queue.forget()
    with pytest.raises(BackendUnavailable, match="squeue failed"):
        sweep.jobs.status(spec.name)
    later = sweep.spec(nodes=2)
    with pytest.raises(BackendUnavailable):
        sweep.jobs.submit(later)
    with pytest.raises(BackendUnavailable):
        sweep.jobs.stop(spec.name)
    sweep.cluster.start_controller()
    sweep.cluster.end(spec.name, "completed")
    assert sweep.ended(spec).completed
    # what happened to the submission is unknown, so it is looked up, and then repeated
    os.utime(sweep.cluster.shared / later.name / "job.sh", (0, 0))
    assert sweep.jobs.submit(later).state == "running"
    assert sweep.wait(later, lambda job: job.phase == "Training").nodes == 2
    assert len(sweep.jobs.jobs_of(sweep.name)) == 2


def test_two_who_submit_at_once_start_one_job(sweep: Sweep) -> None:
    spec = sweep.spec()
    launchers = [sweep.launcher() for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        states = [job.state for job in pool.map(lambda each: each.submit(spec), launchers)]
    assert states == ["running"] * 4
    assert sweep.cluster.job_id(spec.name)


def test_of_two_submissions_of_one_name_one_runs(sweep: Sweep) -> None:
    """The second submission is the result of a call whose response came after its deadline."""
    spec = sweep.running()
    script = sweep.cluster.shared / spec.name / "job.sh"
    second = sweep.cluster.command("sbatch", "--parsable", str(script)).stdout.strip()
    assert sweep.jobs.submit(spec).state == "running"
    sweep.cluster.end(spec.name, "completed")
    assert sweep.ended(spec).completed

    def state_of_second() -> str:
        listed = sweep.cluster.command("squeue", "-h", "-t", "all", "-j", second, "-o", "%T")
        return listed.stdout.strip()

    wait_until(lambda: state_of_second() == "FAILED")
    runs = (sweep.cluster.shared / spec.name / "runs").read_text().split()
    assert runs.count("start") == 1
    assert sweep.jobs.submit(spec).completed


def test_a_job_whose_number_was_not_recorded_is_found_by_its_name(sweep: Sweep) -> None:
    """The process was killed between sbatch's response and the record."""
    spec = sweep.running(nodes=2)
    (sweep.cluster.shared / spec.name / "job.json").unlink()
    (sweep.cluster.shared / spec.name / "owner").unlink()
    job = sweep.launcher().submit(spec)
    assert (job.state, job.nodes, job.instance_type) == ("running", 2, "main")
    assert sweep.cluster.job_id(spec.name)


def test_a_job_that_somebody_else_cancels_is_stopped_and_says_so(sweep: Sweep) -> None:
    spec = sweep.running()
    sweep.cluster.command("scancel", sweep.cluster.job_id(spec.name))
    job = sweep.ended(spec)
    assert job.state == "stopped" and str(job.reason).startswith("CANCELLED: ")
    assert job.billed_seconds is not None


def test_a_failed_node_fails_the_job_which_is_worth_another_attempt(sweep: Sweep) -> None:
    spec = sweep.running(nodes=8)
    sweep.cluster.kill("slurmd n3")
    sweep.cluster.command("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    job = sweep.ended(spec)
    assert job.state == "failed" and str(job.reason).startswith("NODE_FAIL: ")
    assert is_retryable("Failed", job.reason)
    sweep.cluster.start_node("n3")  # takes it back into service by itself, as ReturnToService says


def test_preemption_fails_the_job_which_is_worth_another_attempt(sweep: Sweep) -> None:
    spec = sweep.running(nodes=8)
    urgent = sweep.running(nodes=4, partition=URGENT)
    job = sweep.ended(spec)
    assert job.state == "failed" and str(job.reason).startswith("PREEMPTED: ")
    assert is_retryable("Failed", job.reason)
    sweep.cluster.end(urgent.name, "completed")
    assert sweep.ended(urgent).completed


def test_a_job_over_its_time_limit_is_stopped_and_says_so(sweep: Sweep) -> None:
    """Slurm's shortest limit is a minute."""
    spec = sweep.spec(2, max_runtime_seconds=60)
    sweep.jobs.submit(spec)
    job = sweep.ended(spec)
    assert job.state == "stopped" and str(job.reason).startswith(OVER_TIME)
    assert job.billed_seconds is not None and job.billed_seconds >= 60


def test_runs_before_a_requeue_are_attempts_and_are_billed(sweep: Sweep) -> None:
    spec = sweep.running(requeue=True)
    sweep.cluster.command("scontrol", "requeue", sweep.cluster.job_id(spec.name))
    runs = sweep.cluster.shared / spec.name / "runs"
    wait_until(lambda: runs.read_text().count("start") == 2)
    sweep.cluster.end(spec.name, "completed")
    job = sweep.ended(spec)
    attempts = [visit for visit in job.visits if visit.phase == "Training"]
    assert job.completed and len(attempts) == 2
    assert job.billed_seconds == job.phase_seconds["Training"]
    assert job.started_at == attempts[0].start


def test_a_job_is_not_requeued_unless_the_config_says_so(sweep: Sweep) -> None:
    spec = sweep.running()
    job_id = sweep.cluster.job_id(spec.name)
    assert sweep.cluster.command("scontrol", "requeue", job_id, check=False).returncode != 0


def test_more_nodes_than_the_partition_gives_a_job_are_refused(sweep: Sweep) -> None:
    for jobs, spec in (
        (sweep.launcher(partition=SMALL), sweep.spec(nodes=4)),
        (sweep.jobs, sweep.spec(nodes=9)),
    ):
        with pytest.raises(JobRefused, match="Slurm refused"):
            jobs.submit(spec)
        assert sweep.jobs.status(spec.name) is None


def test_a_first_config_fits_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    text = first_config("bench", tmp_path / "train.py", tmp_path, cluster.shared, True)
    config = parse_config(parse_yaml(text), "the first config")
    assert isinstance(config.platform, SlurmPlatform)
    assert (config.platform.partition, config.platform.cluster) == (FOUR, "nodesweep")
    assert (config.platform.node.cores, config.sweep.node_counts) == (1, (1, 2, 4))
    assert check_cluster(read_facts(config)).problems == ()


def test_a_job_waits_while_nodes_are_drained(sweep: Sweep) -> None:
    drain = ("scontrol", "update", "nodename=n[1-8]")
    sweep.cluster.command(*drain, "state=drain", "reason=maintenance")
    spec = sweep.spec(nodes=8)
    sweep.jobs.submit(spec)
    waiting = sweep.wait(spec, lambda job: bool(job.message))
    assert (waiting.state, waiting.started_at) == ("running", None)
    sweep.cluster.command(*drain, "state=resume")
    # without TRESBillingWeights, the weight is the number of CPUs
    assert sweep.wait(spec, lambda job: job.phase == "Training").billing == 8


def test_a_job_whose_dependency_is_never_satisfied_is_cancelled_and_says_so(sweep: Sweep) -> None:
    run = sweep.cluster.command
    failing = ("sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 1")
    failed = run(*failing).stdout.strip()
    wait_until(
        lambda: "FAILED" in run("squeue", "-h", "-t", "all", "-j", failed, "-o", "%T").stdout
    )
    run("scontrol", "update", "nodename=n[1-8]", "state=drain", "reason=maintenance")
    spec = sweep.spec()
    sweep.jobs.submit(spec)
    number = sweep.cluster.job_id(spec.name)
    run("scontrol", "update", f"jobid={number}", f"dependency=afterok:{failed}")
    job = sweep.ended(spec)
    run("scontrol", "update", "nodename=n[1-8]", "state=resume")
    assert job.state == "stopped" and str(job.reason).startswith("DependencyNeverSatisfied: ")
    assert job.billed_seconds == 0


def test_a_job_that_slurm_forgot_is_known_from_its_script(sweep: Sweep) -> None:
    """A cluster without accounting forgets a job some minutes after its end."""
    spec = sweep.running(nodes=2)
    sweep.cluster.end(spec.name, "failed")
    runs = sweep.cluster.shared / spec.name / "runs"
    wait_until(lambda: "end" in runs.read_text())
    forgetful = SlurmJobs(sweep.jobs.platform, Queue(run=lambda command: ""))
    job = forgetful.status(spec.name)
    assert job is not None and (job.state, job.nodes) == ("failed", 2)
    assert "exit code 1" in str(job.reason) and job.billed_seconds is not None
    assert not forgetful.stop(spec.name)
    assert [each.state for each in forgetful.jobs_of(sweep.name)] == ["failed"]


def test_a_job_that_was_killed_and_forgotten_is_failed_for_unknown_cost(sweep: Sweep) -> None:
    spec = sweep.running()
    forgetful = SlurmJobs(sweep.jobs.platform, Queue(run=lambda command: ""))
    job = forgetful.status(spec.name)
    assert job is not None and (job.state, job.ended_at, job.billed_seconds) == (
        "failed",
        None,
        None,
    )
    # that it was forgotten isn't kept, since Slurm's word counts
    assert sweep.jobs.status(spec.name) is not None
    assert not sweep.wait(spec, lambda job: job.phase == "Training").has_ended
