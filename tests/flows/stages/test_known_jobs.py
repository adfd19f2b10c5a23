"""Every accepted job is watched, counted and ended, although the platform's lists and descriptions
lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from prefect.exceptions import CancelledRun

import nodesweep.flows.scaling_benchmark
import nodesweep.flows.stages.ending
import nodesweep.flows.stages.sweep
import nodesweep.launch.sagemaker.batch
import nodesweep.tasks.jobs.training_jobs
import nodesweep.tasks.sweeps.stopping
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_for_end, wait_until
from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused, SweepStopped
from nodesweep.flows.collect import collect_sweep
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stop import stop_sweep
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling import names
from nodesweep.scaling.job import JobSpec, JobStatus
from nodesweep.tasks.sweeps.owner import read_heartbeat
from tests.flows.simulated_sweep import begin_as, measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


class Late:
    """SageMaker whose lists, descriptions and tags show a job only some seconds after this client
    created it."""

    def __init__(self, sagemaker: Any, list_seconds: float, known_seconds: float) -> None:
        self._sagemaker = sagemaker
        self._list_seconds, self._known_seconds = list_seconds, known_seconds
        self._made_at: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sagemaker, name)

    def create_training_job(self, **request: Any) -> Any:
        self._made_at.setdefault(request["TrainingJobName"], time.monotonic())
        return self._sagemaker.create_training_job(**request)

    def _is_young(self, job_name: str, seconds: float) -> bool:
        return time.monotonic() < self._made_at.get(job_name, float("-inf")) + seconds

    def _only_known(self, job_name: str, operation: str) -> None:
        if self._is_young(job_name, self._known_seconds):
            missing: Any = {
                "Error": {"Code": "ValidationException", "Message": "Requested resource not found."}
            }
            raise ClientError(missing, operation)

    def describe_training_job(self, TrainingJobName: str) -> Any:
        self._only_known(TrainingJobName, "DescribeTrainingJob")
        return self._sagemaker.describe_training_job(TrainingJobName=TrainingJobName)

    def stop_training_job(self, TrainingJobName: str) -> Any:
        self._only_known(TrainingJobName, "StopTrainingJob")
        return self._sagemaker.stop_training_job(TrainingJobName=TrainingJobName)

    def list_tags(self, ResourceArn: str) -> Any:
        young = self._is_young(ResourceArn.rsplit("/", 1)[1], self._known_seconds)
        return {"Tags": []} if young else self._sagemaker.list_tags(ResourceArn=ResourceArn)

    def list_training_jobs(self, **query: Any) -> Any:
        return self._older(self._sagemaker.list_training_jobs(**query))

    def get_paginator(self, operation: str) -> Any:
        pages = self._sagemaker.get_paginator(operation).paginate
        return SimpleNamespace(paginate=lambda **query: map(self._older, pages(**query)))

    def _older(self, page: dict[str, Any]) -> dict[str, Any]:
        jobs = page["TrainingJobSummaries"]
        shown = [
            job for job in jobs if not self._is_young(job["TrainingJobName"], self._list_seconds)
        ]
        return {**page, "TrainingJobSummaries": shown}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Return late(list_seconds, known_seconds), which sets SageMaker's lags from now on."""

    def install(list_seconds: float, known_seconds: float) -> None:
        clients: dict[str, Late] = {}

        def client(service: str, platform: Any, quick: bool = False) -> Any:
            made = aws_client(service, platform, quick)
            if service != "sagemaker":
                return made
            return clients.setdefault(platform.bucket, Late(made, list_seconds, known_seconds))

        monkeypatch.setattr(
            nodesweep.launch.sagemaker.batch,
            "training_launcher",
            lambda backend, quick: SageMakerJobs(
                client("sagemaker", backend.platform, quick), backend
            ),
        )
        monkeypatch.setattr(nodesweep.tasks.sweeps.stopping, "SETTLE_SECONDS", known_seconds + 4.0)
        # While the list lags, only descriptions show that a job has stopped.
        monkeypatch.setattr(nodesweep.tasks.sweeps.stopping, "_DESCRIBE_SECONDS", 1.0)

    return install


def statuses(served: SimpleNamespace, benchmark: str) -> list[str]:
    """Return the statuses of the benchmark's jobs, once none of them is Stopping."""

    def settled() -> list[str] | None:
        jobs = served.sagemaker.list_training_jobs(NameContains=f"{benchmark}-", MaxResults=100)[
            "TrainingJobSummaries"
        ]
        found = sorted(job["TrainingJobStatus"] for job in jobs)
        return None if "Stopping" in found else [*found, ""]

    return list(wait_until(settled))[:-1]


def pools(served: SimpleNamespace, benchmark: str) -> set[str]:
    jobs = served.sagemaker.list_training_jobs(NameContains=f"{benchmark}-", MaxResults=100)[
        "TrainingJobSummaries"
    ]
    described = (
        served.sagemaker.describe_training_job(TrainingJobName=job["TrainingJobName"])
        for job in jobs
    )
    return {job["WarmPoolStatus"]["Status"] for job in described}


def interrupt_at(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int) -> None:
    """Send Ctrl-C at the beginning of this call of the task (counted from 1)."""
    real, calls = getattr(module, name), iter(range(1, 1000))

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, interrupted)


def test_sweep_whose_jobs_are_known_late_runs_to_its_report(
    pipeline_config: Configs, served: SimpleNamespace, late: Callable[[float, float], None]
) -> None:
    late(3.0, 1.5)
    sweep = {"node_counts": [1, 2], "max_parallel_jobs": 2}
    result = scaling_benchmark(pipeline_config("scaling", name="late", sweep=sweep))
    assert (result.missing_points, statuses(served, "late")) == (0, ["Completed"] * 2)


@pytest.fixture
def running(
    pipeline_config: Configs, served: SimpleNamespace
) -> Iterator[Callable[..., tuple[BenchmarkConfig, str]]]:
    """Return running(name), which runs two jobs of a sweep in a thread, and yields (config, sweep).

    The jobs take half a second to stop.
    """
    threads: list[threading.Thread] = []
    ended: list[BaseException] = []

    def start(name: str, **training: Any) -> tuple[BenchmarkConfig, str]:
        config = pipeline_config(
            "lingering",
            name=name,
            training=training,
            sweep={"node_counts": [1, 2], "max_parallel_jobs": 2},
        )
        sweep = f"{name}-20261120000001-{names.config_digest(config)[:8]}"

        def run() -> None:
            try:
                begin_as(config, sweep)
            except BaseException as error:
                ended.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        wait_until(lambda: len(statuses(served, name)) == 2)
        return config, sweep

    yield start
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
    assert [type(error) for error in ended] == [SweepStopped] * len(threads)


def test_stop_ends_jobs_that_the_list_does_not_show_yet_and_releases_their_pools(
    served: SimpleNamespace,
    running: Callable[..., tuple[BenchmarkConfig, str]],
    late: Callable[[float, float], None],
) -> None:
    late(30.0, 1.5)
    config, sweep = running("unseen", keep_alive_seconds=3600)
    stop_sweep(sweep, config)
    assert statuses(served, "unseen") == ["Stopped"] * 2
    assert pools(served, "unseen") == {"Terminated"}


def test_detached_sweep_keeps_no_pool_once_it_is_stopped_or_collected(
    pipeline_config: Configs, served: SimpleNamespace
) -> None:
    sections: dict[str, Any] = {
        "training": {"keep_alive_seconds": 3600},
        "sweep": {"node_counts": [1, 2], "max_parallel_jobs": 2},
    }
    stopped = start_detached_sweep(pipeline_config("lingering", name="poolstopped", **sections))
    config = pipeline_config("scaling", name="poolcollected", **sections)
    stop_sweep(stopped.sweep_id, config)
    collected = start_detached_sweep(config)
    for name in collected.job_names:
        wait_for_end(served.sagemaker, name)
    assert pools(served, "poolcollected") == {"Available"}
    assert collect_sweep(collected.sweep_id, config) is not None
    assert pools(served, "poolstopped") == pools(served, "poolcollected") == {"Terminated"}


def test_hook_of_a_cancelled_deployment_ends_all_jobs_of_its_sweep_and_their_pools(
    pipeline_config: Configs,
    served: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[float, float], None],
) -> None:
    """The flow's own process was killed; the hook knows only the run."""
    late(30.0, 1.5)
    config = pipeline_config(
        "lingering",
        name="hooked",
        training={"keep_alive_seconds": 3600},
        sweep={"node_counts": [1, 2], "max_parallel_jobs": 2},
    )
    sweep = start_detached_sweep(config).sweep_id
    monkeypatch.setattr(
        nodesweep.flows.stages.ending, "config_from_parameters", lambda parameters: config
    )
    run: Any = SimpleNamespace(
        id=uuid4(), parameters={"sweep_id": sweep}, expected_start_time=datetime.now(UTC)
    )
    cancelled: Any = None
    nodesweep.flows.stages.ending.stop_jobs_of_run(scaling_benchmark, run, cancelled)
    assert statuses(served, "hooked") == ["Stopped"] * 2
    assert pools(served, "hooked") == {"Terminated"}


def test_resume_after_a_crash_leaves_no_pool_of_either_run(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config(
        "scaling",
        name="poolresume",
        training={"keep_alive_seconds": 3600},
        sweep={"max_parallel_jobs": 2},
    )
    crashed = start_crashed_sweep(config, monkeypatch)
    for name in crashed:
        wait_for_end(served.sagemaker, name)
    result = scaling_benchmark(config, resume=True)
    assert result.missing_points == 0
    assert pools(served, "poolresume") == {"Terminated"}
    of_sweep = nodesweep.tasks.jobs.training_jobs.list_training_jobs(
        backend_of(config.platform), result.sweep_id
    )
    assert sorted(of_sweep) == sorted(point.job_name for point in result.report.points), (
        "and no other sweep's"
    )


def start_crashed_sweep(config: BenchmarkConfig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start a sweep whose first two jobs run, and whose process ends without cleaning up, as after
    kill -9."""
    with monkeypatch.context() as patches:
        patches.setattr(nodesweep.flows.stages.sweep, "release_pools_now", lambda *_: [])

        def die(*_: Any) -> None:
            raise RuntimeError("killed")

        patches.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", die)
        with pytest.raises(RuntimeError, match="killed"):
            scaling_benchmark(config)
    s3 = aws_client("s3", config.platform)
    listed = s3.list_objects_v2(
        Bucket=config.platform.bucket, Prefix=names.sweeps_prefix(config.platform.prefix)
    )
    claims = [entry["Key"] for entry in listed["Contents"] if "/claims/" in entry["Key"]]
    return sorted(
        names.job_of_claim(key)
        for key in claims
        if names.job_of_claim(key).startswith(f"{config.name}-")
    )


@pytest.mark.parametrize(
    ("name", "module", "task"),
    [
        ("cancelearly", nodesweep.flows.scaling_benchmark, "preflight"),
        ("cancelsubmit", nodesweep.flows.stages.sweep, "submit_training_job"),
    ],
)
def test_ctrl_c_on_resume_stops_all_jobs_of_the_sweep_and_releases_their_pools(
    pipeline_config: Configs,
    served: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: Any,
    task: str,
) -> None:
    """Before the first job is adopted; in preflight too."""
    keep = {"keep_alive_seconds": 3600}
    config = pipeline_config("lingering", name=name, training=keep, sweep={"max_parallel_jobs": 2})
    assert len(start_crashed_sweep(config, monkeypatch)) == 2
    assert statuses(served, name) == ["InProgress"] * 2
    interrupt_at(monkeypatch, module, task, 1)
    with pytest.raises(CancelledRun):
        scaling_benchmark(config, resume=True)
    assert statuses(served, name) == ["Stopped"] * 2
    assert pools(served, name) == {"Terminated"}


def test_stop_that_is_given_while_a_resume_starts_holds(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config("scaling", name="restopped", sweep={"node_counts": [1, 2]})
    sweep = f"restopped-20261120000001-{names.config_digest(config)[:8]}"
    interrupt_at(monkeypatch, nodesweep.flows.stages.sweep, "submit_training_job", 1)
    with pytest.raises(CancelledRun):
        begin_as(config, sweep)
    stop_sweep(sweep, config)
    preflight = nodesweep.flows.scaling_benchmark.preflight

    def stopped_meanwhile(config: BenchmarkConfig, is_resume: bool) -> Any:
        stop_sweep(sweep, config)
        return preflight(config, is_resume)

    monkeypatch.setattr(nodesweep.flows.scaling_benchmark, "preflight", stopped_meanwhile)
    with pytest.raises(SweepStopped):
        scaling_benchmark(config, sweep_id=sweep)
    assert statuses(served, "restopped") == []
    monkeypatch.setattr(nodesweep.flows.scaling_benchmark, "preflight", preflight)
    monkeypatch.setattr(nodesweep.flows.scaling_benchmark, "_earlier_run", lambda *_: None)
    assert scaling_benchmark(config, sweep_id=sweep).missing_points == 0, (
        "an earlier stop does not hold a resume, even one whose first look at the mark failed"
    )


def test_the_resume_of_another_configs_sweep_leaves_that_one_alone(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = pipeline_config("endless", name="theirs", sweep={"node_counts": [1]})
    [job] = start_crashed_sweep(theirs, monkeypatch)
    sweep = job.rsplit("-n1-", 1)[0]
    with pytest.raises(PreflightRefused, match="a different config"):
        scaling_benchmark(pipeline_config("endless", name="mistyped"), sweep_id=sweep)
    assert statuses(served, "theirs") == ["InProgress"]
    stop_sweep(sweep, theirs)


def test_stop_of_a_detach_whose_last_job_is_accepted_late_ends_that_job_too(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop has looked at everything by the time the job is accepted, after pauses of a
    throttled create."""
    config = pipeline_config("endless", name="lastlate", sweep={"node_counts": [1]})
    submit = nodesweep.flows.stages.sweep.submit_training_job

    def stopped_meanwhile(platform: Any, spec: JobSpec) -> Any:
        stop_sweep(spec.name.rsplit("-n1-", 1)[0], config)
        return submit(platform, spec)

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "submit_training_job", stopped_meanwhile)
    with pytest.raises(SweepStopped):
        start_detached_sweep(config)
    assert statuses(served, "lastlate") == ["Stopped"]


@pytest.mark.parametrize("policy", ["stop", "leave"])
def test_interrupted_detach_ends_what_it_has_started_and_says_its_id(
    pipeline_config: Configs,
    served: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    policy: str,
) -> None:
    config = pipeline_config(
        "endless", name=f"cut{policy}", sweep={"max_parallel_jobs": 3, "on_cancel": policy}
    )
    interrupt_at(monkeypatch, nodesweep.flows.stages.sweep, "submit_training_job", 3)
    caplog.set_level("INFO", "nodesweep")
    with pytest.raises(CancelledRun):
        start_detached_sweep(config)
    assert statuses(served, f"cut{policy}") == (
        ["Stopped"] * 2 if policy == "stop" else ["InProgress"] * 2
    )
    [said] = {
        record.getMessage() for record in caplog.records if "`nodesweep stop" in record.getMessage()
    }
    sweep = said.split("`nodesweep stop ")[1].split("`")[0]
    sign = read_heartbeat(BucketStore(config.platform, client=served.s3), sweep)
    assert names.is_sweep_id(sweep) and sign is not None
    stop_sweep(sweep, config)


def test_job_that_does_not_stop_is_its_points_outcome_and_no_other_is_lost(
    pipeline_config: Configs, served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config(
        "scaling", name="stubborn", sweep={"max_parallel_jobs": 3, "max_attempts": 3}
    )
    watch, stubborn = nodesweep.flows.stages.sweep.watch_training_jobs, list[str]()

    def given_up(platform: Any, sweep: str, jobs: list[str], *rest: Any) -> Any:
        if stubborn:
            return watch(platform, sweep, jobs, *rest)
        stubborn.append(jobs[0])
        why = "it did not stop within 300 s of the request"
        return [JobStatus(jobs[0], "stopping", reason=why)]

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", given_up)
    result = measure(config)
    assert result.missing_points == 1
    points = {point["job_name"]: point for point in result.report.model_dump(mode="json")["points"]}
    assert [point["status"] for name, point in points.items() if name != stubborn[0]] == [
        "Completed"
    ] * 2
    assert points[stubborn[0]]["status"] == "Failed" and "300 s" in points[stubborn[0]]["reason"]
    assert len(statuses(served, "stubborn")) == 3, (
        "no further attempt beside a job that may still run"
    )
