"""The whole pipeline against a served platform with a fake engine: real flows, tasks, and API."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pydantic
import pytest
from prefect.settings import PREFECT_API_URL
from pydantic import ConfigDict

import nodesweep.flows.report
import nodesweep.flows.stages.ending
import nodesweep.scaling.report.render
import nodesweep.tasks.cancelling
import nodesweep.tasks.dataset.validation
import nodesweep.tasks.image.codebuild
import nodesweep.tasks.report.publish
import nodesweep.tasks.sweeps.board
import nodesweep.tasks.sweeps.job_runs
import nodesweep.tasks.sweeps.stopping
from benchmarks.chaos.forks import Forks
from benchmarks.chaos.world import REPOSITORY
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import serve_platform, serve_simulated
from infra.local.tests.platform_fakes import endless_program
from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker import create
from nodesweep.tasks.sweeps.drawing import Drawer
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.simulated_sweep import DLC, SMALL


@pytest.fixture(autouse=True)
def reports_without_plots(without_plots: None) -> None:
    """Skip drawing, which tests/nodesweep/scaling/report and one pipeline test cover."""


@pytest.fixture(autouse=True)
def reports_without_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write report.json as a user gets it, and empty pages, except in tests marked `pages`.

    Each of the other files takes about 0.1 s of CPU time a report. tests/nodesweep/scaling/report
    tests them, and one sweep of each design is marked.
    """
    if request.node.get_closest_marker("pages") is None:
        for name in ("render_csv", "render_markdown", "_page"):
            monkeypatch.setattr(nodesweep.scaling.report.render, name, lambda *_, **__: "")
        monkeypatch.setattr(nodesweep.flows.report, "render_markdown", lambda *_, **__: "")


@pytest.fixture(autouse=True)
def no_prefect_events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Prefect no events, except in tests marked `prefect_events`.

    Prefect builds its list of task runs from events, which few tests read; that takes about 40% of
    a run's CPU time.
    """
    if request.node.get_closest_marker("prefect_events") is None:
        monkeypatch.setattr("prefect.events.utilities.should_emit_events", lambda: False)


@pytest.fixture(autouse=True)
def nothing_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Prefect nothing that only its UI shows, except in tests marked `drawn`.

    These are a sweep's artifacts, assets and logs, and the task runs of its jobs. They take 2 s a
    sweep. What is drawn is not paced, which tests/tasks/sweeps/test_job_runs.py tests.
    """
    monkeypatch.setattr(nodesweep.tasks.sweeps.job_runs, "BURST_CALLS", 100)
    if request.node.get_closest_marker("drawn") is not None:
        # A busy machine draws late; a run that gives up would leave something undrawn.
        for module, limits in (
            (nodesweep.tasks.sweeps.board, ("_LAST_SECONDS", "_ABANDON_SECONDS")),
            (
                nodesweep.tasks.sweeps.job_runs,
                ("_LAST_SECONDS", "_ANSWER_SECONDS", "_ENDING_SECONDS"),
            ),
        ):
            for limit in limits:
                monkeypatch.setattr(module, limit, HANG_SECONDS)
        return
    for name in ("submit", "show_jobs", "abandon_jobs", "wait"):
        monkeypatch.setattr(Drawer, name, lambda *_: None)
    for name in ("create_markdown_artifact", "create_link_artifact"):
        monkeypatch.setattr(nodesweep.tasks.report.publish, name, lambda *_, **__: None)
    monkeypatch.setattr(nodesweep.flows.report, "materialize_assets", lambda *_: None)
    monkeypatch.setattr(nodesweep.flows.stages.ending, "end_job_runs", lambda *_: None)
    monkeypatch.setattr("prefect.logging.handlers.APILogHandler.emit", lambda handler, record: None)


@pytest.fixture(autouse=True)
def no_console_and_few_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print no lines of Prefect, and rarely ask its server for a cancel, or where results are kept.

    All of it takes an eighth of a run's CPU time; tests of a cancel set their own interval.
    """
    monkeypatch.setattr(
        "prefect.results._read_server_default_result_storage_block_id", lambda: None
    )
    monkeypatch.setattr(
        "prefect.logging.handlers.PrefectConsoleHandler.emit", lambda handler, record: None
    )
    monkeypatch.setattr(nodesweep.tasks.cancelling, "POLL_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the settling time and the pauses between polls of stopping jobs and of builds.

    This platform lists jobs at once, unless a test sets a lag, and builds in milliseconds.
    """
    monkeypatch.setattr(nodesweep.tasks.sweeps.stopping, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(nodesweep.tasks.sweeps.stopping, "_FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(nodesweep.tasks.image.codebuild, "_FIRST_PAUSE_SECONDS", 0.05)


@pytest.fixture(scope="session")
def forks(prefect: None) -> Iterator[Forks]:
    """Start `nodesweep` as a process with these tests' Prefect server, without 9 s of imports."""
    own = {"PREFECT_API_URL": str(PREFECT_API_URL.value()), "PYTHONPATH": str(REPOSITORY)}
    with closing(Forks({**os.environ, **own})) as forks:
        yield forks


_VALIDATORS: dict[Callable[..., Any], Callable[..., Any]] = {}


@pytest.fixture(autouse=True)
def validators_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the validators of sagemaker-core, which builds them for every call: 15 ms a job."""

    def validate_call(config: ConfigDict) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def validated(call: Callable[..., Any]) -> Callable[..., Any]:
            if call not in _VALIDATORS:
                _VALIDATORS[call] = pydantic.validate_call(config=config)(call)
            return _VALIDATORS[call]

        return validated

    if resources := sys.modules.get(create.MODULE):  # loaded by the first run
        monkeypatch.setattr(resources, "validate_call", validate_call)


_RESULTS: dict[tuple[str, ...], Any] = {}


@pytest.fixture(autouse=True)
def data_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache validation results: most runs have the same three rows, which take 0.25 s to judge."""
    judge = nodesweep.tasks.dataset.validation._run_expectations

    def judge_once(frame: pd.DataFrame, specs: Sequence[ExpectationConfig]) -> Any:
        key = (frame.to_json(), *(spec.model_dump_json() for spec in specs))
        if key not in _RESULTS:
            _RESULTS[key] = judge(frame, specs)
        return _RESULTS[key]

    monkeypatch.setattr(nodesweep.tasks.dataset.validation, "_run_expectations", judge_once)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A served platform per test module, with the programs below."""
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        # Hyperparameters are JSON-encoded, so the fake engine sees its program's name in quotes.
        platform.engine.programs.update(
            {
                '"scaling"': train,
                '"broken-at-2"': broken_at_2,
                '"endless"': endless_program,
                '"lingering"': lingering,
            }
        )
        yield platform


def train(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """Scale perfectly: 80 s divided by the node count, in the node's metrics file."""
    world = {"world_size": job.instance_count}
    times = {"train_seconds": 80.0 / job.instance_count, "steady": {"step_seconds": 0.1}}
    metrics = {"schema_version": 1, **times, "world": world}
    (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(metrics))


def broken_at_2(
    job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Fail on two nodes; otherwise train."""
    say("about to fail")
    if job.instance_count == 2:
        raise ValueError("ExecuteUserScriptError: boom")
    train(job, node, say, stop)


def lingering(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """Run until stopped plus 0.5 s, while the job is Stopping and no warm pool is Available."""
    stop.wait()
    time.sleep(0.5)


@pytest.fixture
def pipeline_config(
    served: SimpleNamespace,
    tmp_path: Path,
    make_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., BenchmarkConfig]]:
    """Return a factory of configs on the served platform.

    `pipeline_config("scaling", sweep={…})`: jobs run the named program.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text("FROM scratch\n")
    pd.DataFrame({"label": [0, 1, 2]}).to_parquet(tmp_path / "data" / "a.parquet")

    def make(program: str, **sections: Any) -> BenchmarkConfig:
        training = {
            "instance_type": "ml.local.small",
            "hyperparameters": {
                "program": program,
                "batch-size": "{per_replica_batch_size}",
                "lr": "{learning_rate}",
            },
        }
        platform = {
            "endpoint_url": served.endpoint,
            "credentials": "platform",
            "state_directory": str(served.state_dir),
            "create_missing": True,
            "calls_per_second": None,
            "role_arn": "arn:aws:iam::000000000000:role/training",
        }
        merged: dict[str, Any] = {
            "training": {**training, **sections.pop("training", {})},
            "platform": {**platform, **sections.pop("platform", {})},
            "sweep": {
                "node_counts": [1, 2, 4],
                "repeats": 1,
                "poll_interval_seconds": 0.2,
                "smoke": "never",
                **sections.pop("sweep", {}),
            },
            **sections,
        }
        return make_config(**merged).with_absolute_paths(tmp_path)

    yield make
    # The platform runs one job at a time, so a failed test's job would block all others.
    for job in served.sagemaker.list_training_jobs(StatusEquals="InProgress")[
        "TrainingJobSummaries"
    ]:
        with suppress(served.sagemaker.exceptions.ClientError):  # it may have ended
            served.sagemaker.stop_training_job(TrainingJobName=job["TrainingJobName"])


@pytest.fixture
def new_image(pipeline_config: Callable[..., BenchmarkConfig], tmp_path: Path) -> None:
    """Let the run build an image that no earlier test of the module has built or run."""
    (tmp_path / "image" / "Dockerfile").write_text(f"FROM scratch\nLABEL time={time.time_ns()}\n")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the command's log handler, whose terminal ends with the test."""
    root = logging.getLogger("nodesweep")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Any]:
    """Return a context manager that serves a simulated platform.

    `simulated(fault, …, model={…}, time_scale=…, **quotas)`
    """
    state = tmp_path / "state"
    state.mkdir()

    @contextmanager
    def serve(*faults: dict[str, Any], **options: Any) -> Iterator[SimpleNamespace]:
        yield from serve_simulated(state, faults, **options)

    return serve


@pytest.fixture
def sweep_config(
    tmp_path: Path, make_config: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., BenchmarkConfig]:
    """Return a factory of configs with 1, 2, and 4 nodes, ascending, and an existing image.

    `sweep_config(platform, training={…}, sweep={…})`
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pd.DataFrame({"label": [0, 1, 2]}).to_parquet(tmp_path / "data" / "a.parquet")

    def make(served: SimpleNamespace, **sections: Any) -> BenchmarkConfig:
        sweep = {
            "node_counts": [1, 2, 4],
            "repeats": 1,
            "order": "ascending",
            "poll_interval_seconds": 0.2,
        }
        sweep["smoke"] = "never"
        platform = {
            "endpoint_url": served.endpoint,
            "credentials": "platform",
            "state_directory": str(served.state_dir),
            "create_missing": True,
            "calls_per_second": None,
            "role_arn": "arn:aws:iam::000000000001:role/training",
        }
        config = make_config(
            image={"uri": DLC},
            platform=platform,
            training={**SMALL, **sections.get("training", {})},
            sweep={**sweep, **sections.get("sweep", {})},
        )
        return config.with_absolute_paths(tmp_path)

    return make
