"""The whole pipeline against a served platform whose engine is a fake: flows, tasks and API for real, training not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from prefect.testing.utilities import prefect_test_harness

from configs.models import BenchmarkConfig
from infra.local.interfaces import JobSpec, Node
from tests.infra.local.platform_client import serve_platform
from tests.infra.local.platform_fakes import endless_program


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    """One ephemeral Prefect server for all flow tests; its start takes 15-30 s."""
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        # Hyperparameters travel JSON-encoded, so the fake engine sees its program's name in quotes.
        platform.engine.programs.update(
            {'"scaling"': train, '"broken-at-2"': broken_at_2, '"endless"': endless_program}
        )
        yield platform


def train(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """A perfectly scaling program: 80 s over the node count, on the first node's metrics file."""
    metrics = {"schema_version": 1, "train_seconds": 80.0 / job.instance_count, "steady": {"step_seconds": 0.1}}
    (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(metrics))


def broken_at_2(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    say("about to fail")
    if job.instance_count == 2:
        raise ValueError("ExecuteUserScriptError: boom")
    train(job, node, say, stop)


@pytest.fixture
def pipeline_config(
    served: SimpleNamespace,
    tmp_path: Path,
    make_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., BenchmarkConfig]:
    """pipeline_config("scaling", sweep={…}): a config on the served platform; `program` picks what its jobs do."""
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
            "credentials": "placeholder",
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
                **sections.pop("sweep", {}),
            },
            **sections,
        }
        return make_config(**merged).with_absolute_paths(tmp_path)

    return make
