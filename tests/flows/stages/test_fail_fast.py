"""A program that cannot run costs two small jobs, new code is tried on a small job first, and no
completed work is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PointsMissing, RunFailed
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.scaling_benchmark import check_points, scaling_benchmark
from nodesweep.flows.stages import sweep as sweep_stage
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.scaling import names
from nodesweep.scaling.job import JobStatus
from nodesweep.scaling.outcome.outcome import JobOutcome
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.conftest import train
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect", "new_image")
Configs = Callable[..., BenchmarkConfig]


def broken(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    say("train.py: error: unrecognized arguments: --epochs 3")
    raise ValueError("ExecuteUserScriptError: ExitCode 2")


class Steps:
    """A program whose first job logs its step late, and ends only after further jobs were sent."""

    def __init__(self, served: SimpleNamespace, polls: Callable[[], int]) -> None:
        self._served, self._polls, self.first_nodes = served, polls, 0
        self.sent_before_step = self.sent_after_step = 0

    def _sent(self, job: JobSpec) -> int:
        """Return the jobs of the sweep on the platform."""
        return len(nodes_of_jobs(self._served, str(names.sweep_of_job(job.job_name))))

    def train(
        self, job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
    ) -> None:
        if not self.first_nodes:
            self.first_nodes = job.instance_count
            enough = self._polls() + 3
            wait_until(lambda: self._polls() >= enough)
            self.sent_before_step = self._sent(job)
            say("step=1; loss=0.5;")
            self.sent_after_step = wait_until(lambda: self._sent(job) == 3 and 3)
        train(job, node, say, stop)


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of times that the sweep has polled its running jobs."""
    made: list[str] = []
    status = SageMakerJobs.status

    def counted(jobs: SageMakerJobs, job_name: str) -> JobStatus | None:
        made.append(job_name)
        return status(jobs, job_name)

    monkeypatch.setattr(SageMakerJobs, "status", counted)
    return lambda: len(made)


def nodes_of_jobs(served: SimpleNamespace, sweep: str) -> list[int]:
    jobs = served.sagemaker.list_training_jobs(
        NameContains=f"{sweep}-n", SortBy="CreationTime", SortOrder="Ascending"
    )["TrainingJobSummaries"]
    return [int(job["TrainingJobName"].removeprefix(f"{sweep}-n").split("-")[0]) for job in jobs]


def test_program_that_can_not_run_costs_one_small_job(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    served.engine.programs['"broken"'] = broken
    config = pipeline_config(
        "broken",
        sweep={
            "node_counts": [1, 2, 4],
            "repeats": 2,
            "order": "descending",
            "smoke": "auto",
            "min_points": 1,
        },
    )
    result = measure(config)
    assert nodes_of_jobs(served, result.sweep_id) == [1]
    assert (result.folder / "report.html").is_file() and result.missing_points == 6
    assert any("5 of 6" in text for text in result.report.caveats)
    assert result.given_up
    with pytest.raises(
        PointsMissing,
        match="--epochs 3",
    ) as refused:
        check_points(config.sweep, result)
    assert "Fix the cause" in str(refused.value)
    assert "--resume sweep" not in str(refused.value)
    again = measure(config, resume=True)
    assert len(nodes_of_jobs(served, result.sweep_id)) == 2, (
        "a resume tries anew, and gives up again"
    )
    assert again.given_up


def test_running_jobs_are_stopped_and_completed_ones_kept(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything at once: 1 node completes, 2 and 4 fail of one cause while 8 would run for
    ever.
    """
    collect, is_seen = sweep_stage.collect_outcome, threading.Event()

    def collect_and_tell(*arguments: Any) -> JobOutcome:
        outcome = collect(*arguments)
        if outcome.completed:
            is_seen.set()
        return outcome

    monkeypatch.setattr(sweep_stage, "collect_outcome", collect_and_tell)

    def mixed(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
        if job.instance_count == 8:
            stop.wait()
        elif job.instance_count == 1:
            train(job, node, say, stop)
        else:
            assert is_seen.wait(HANG_SECONDS)
            broken(job, node, say, stop)

    served.engine.programs['"mixed"'] = mixed
    sweep = {
        "node_counts": [1, 2, 4, 8],
        "repeats": 1,
        "order": "ascending",
        "max_parallel_jobs": 4,
    }
    result = measure(pipeline_config("mixed", sweep=sweep))
    status = {point.nodes: point.status for point in result.report.points}
    assert status == {1: "Completed", 2: "Failed", 4: "Failed", 8: "Stopped"}
    assert result.given_up


def test_new_code_is_tried_small_until_its_first_step_and_known_code_is_not(
    served: SimpleNamespace, pipeline_config: Configs, polls: Callable[[], int]
) -> None:
    steps = Steps(served, polls)
    served.engine.programs['"steps"'] = steps.train
    sweep = {
        "node_counts": [1, 2, 4],
        "order": "descending",
        "smoke": "auto",
        "max_parallel_jobs": 3,
    }
    first = scaling_benchmark(pipeline_config("steps", sweep=sweep))
    assert (first.missing_points, steps.first_nodes) == (0, 1)
    assert (steps.sent_before_step, steps.sent_after_step) == (1, 3)
    assert nodes_of_jobs(served, first.sweep_id) == [1, 4, 2]
    served.engine.programs['"steps"'] = train
    second = scaling_benchmark(pipeline_config("steps", name="again", sweep=sweep))
    assert nodes_of_jobs(served, second.sweep_id) == [4, 2, 1]


def test_detached_sweep_of_new_code_starts_no_large_job_before_a_small_one_ran(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    served.engine.programs['"broken"'] = broken
    sweep = {"node_counts": [1, 4], "order": "descending", "smoke": "auto", "max_parallel_jobs": 2}
    with pytest.raises(RunFailed, match=r"-n1-r1-a1-.* failed.*--epochs 3"):
        start_detached_sweep(pipeline_config("broken", name="detached", sweep=sweep))
    good = start_detached_sweep(pipeline_config("scaling", name="detachedgood", sweep=sweep))
    assert [name.split("-n")[1][0] for name in good.job_names] == ["1", "4"]
