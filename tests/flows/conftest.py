"""The whole pipeline against a served platform whose engine is a fake: flows, tasks and API for
real, training not.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import nodesweep.tasks.dataset.validation
import nodesweep.tasks.sweeps.stopping
from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.infra.local.interfaces import JobSpec, Node
from tests.flows.simulated_sweep import DLC, SMALL
from tests.infra.local.platform_client import serve_platform, serve_simulated
from tests.infra.local.platform_fakes import endless_program


@pytest.fixture(autouse=True)
def reports_without_plots(without_plots: None) -> None:
    """What is drawn has its tests in tests/nodesweep/scaling/report; one test of the pipeline draws
    as well.
    """


@pytest.fixture(autouse=True)
def no_prefect_events(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows send Prefect no events, but in tests that are marked `prefect_events`.

    Prefect makes its list of task runs of them, which few tests look at, and that takes about
    40 % of a run's CPU time.
    """
    if request.node.get_closest_marker("prefect_events") is None:
        monkeypatch.setattr("prefect.events.utilities.should_emit_events", lambda: False)


@pytest.fixture(autouse=True)
def names_settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform of these tests shows what it has accepted at once; those with a lag say how long
    it is.
    """
    monkeypatch.setattr(nodesweep.tasks.sweeps.stopping, "SETTLE_SECONDS", 2.0)


_RESULTS: dict[tuple[str, ...], Any] = {}


@pytest.fixture(autouse=True)
def data_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all of these runs have the same three rows, which Great Expectations judges in a
    quarter of a second.
    """
    judge = nodesweep.tasks.dataset.validation._run_expectations

    def judge_once(frame: pd.DataFrame, specs: Sequence[ExpectationConfig]) -> Any:
        key = (frame.to_json(), *(spec.model_dump_json() for spec in specs))
        if key not in _RESULTS:
            _RESULTS[key] = judge(frame, specs)
        return _RESULTS[key]

    monkeypatch.setattr(nodesweep.tasks.dataset.validation, "_run_expectations", judge_once)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        # Hyperparameters travel JSON-encoded, so the fake engine sees its program's name in quotes.
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
    """A perfectly scaling program: 80 s over the node count, on the first node's metrics file."""
    world = {"world_size": job.instance_count}
    times = {"train_seconds": 80.0 / job.instance_count, "steady": {"step_seconds": 0.1}}
    metrics = {"schema_version": 1, **times, "world": world}
    (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(metrics))


def broken_at_2(
    job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
) -> None:
    say("about to fail")
    if job.instance_count == 2:
        raise ValueError("ExecuteUserScriptError: boom")
    train(job, node, say, stop)


def lingering(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """Until it is stopped, and for two seconds more: meanwhile its job is Stopping and no warm pool
    Available.
    """
    stop.wait()
    time.sleep(2.0)


@pytest.fixture
def pipeline_config(
    served: SimpleNamespace,
    tmp_path: Path,
    make_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., BenchmarkConfig]]:
    """pipeline_config("scaling", sweep={…}): a config on the served platform; `program` picks what
    its jobs do.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text(f"FROM scratch\nLABEL time={time.time_ns()}\n")
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
    # the platform runs one job at a time: one that a failed test left would hold up all others
    for job in served.sagemaker.list_training_jobs(StatusEquals="InProgress")[
        "TrainingJobSummaries"
    ]:
        with suppress(served.sagemaker.exceptions.ClientError):  # it may have ended
            served.sagemaker.stop_training_job(TrainingJobName=job["TrainingJobName"])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's handler on a terminal that ends with the test is taken away with it."""
    root = logging.getLogger("nodesweep")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Any]:
    """simulated(fault, …, model={…}, time_scale=…, **quotas) serves a platform while it is
    entered.
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
    """sweep_config(platform, training={…}, sweep={…}): 1, 2 and 4 nodes, ascending, with an image
    that is there.
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
