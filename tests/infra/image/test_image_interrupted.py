"""The shipped program as a job on two nodes, taken away in the middle and started again with what
it had saved.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodesweep.infra.local.engine.process.engine import ProcessEngine
from nodesweep.infra.local.engine.process.image_store import ProcessImageStore
from nodesweep.infra.local.interfaces import JobSpec, Node

pytestmark = pytest.mark.slow

STEPS = 174  # six epochs of 29: 1,438 training rows x 4 passes in batches of 192
TOLERANCE = 0.003  # one of the 359 validation rows: sums over ranks may round differently


@pytest.fixture
def engine(tmp_path: Path, image_store: ProcessImageStore) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(tmp_path / "state", image_store, "http://127.0.0.1:1")
    yield engine
    engine.close()


def job(image_uri: str, name: str, instance_type: str = "ml.local.large") -> JobSpec:
    hyperparameters = {
        "passes-per-epoch": "4",
        "global-batch-size": "192",
        "epochs": "6",
        "learning-rate": "0.002",
        "checkpoint-every-steps": "7",
    }
    return JobSpec(
        job_name=name,
        job_arn=f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}",
        region="us-east-1",
        image_uri=image_uri,
        instance_type=instance_type,
        instance_count=2,
        hyperparameters=hyperparameters,
        environment={},
        input_data_config=[{"ChannelName": "training"}],
        checkpoint_config={"S3Uri": "s3://bucket/checkpoints"},
    )


def prepare(engine: ProcessEngine, spec: JobSpec, data: Path) -> list[Node]:
    nodes = engine.prepare(spec)
    for node in nodes:
        shutil.copytree(data, node.opt_ml / "input" / "data" / "training", dirs_exist_ok=True)
    return nodes


def run(
    engine: ProcessEngine, spec: JobSpec, nodes: list[Node], stop: threading.Event
) -> list[str]:
    lines: list[str] = []
    engine.run(spec, nodes, lambda _host, text, _at: lines.append(text), stop, 1800)
    return lines


def metrics(nodes: list[Node], lines: list[str]) -> dict[str, Any]:
    file = nodes[0].opt_ml / "output" / "data" / "metrics.json"
    assert file.exists(), "\n".join(lines[-80:])
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def test_an_interrupted_job_ends_with_the_metric_of_one_that_was_not(
    engine: ProcessEngine, image_uri: str, digits: Path, tmp_path: Path
) -> None:
    # at a fifth of a CPU it trains for 10 s after its first checkpoint
    spec = job(image_uri, "interrupted", "ml.local.small")
    nodes = prepare(engine, spec, digits)
    last, stop, over = (
        nodes[0].opt_ml / "checkpoints" / "last.ckpt",
        threading.Event(),
        threading.Event(),
    )

    def take_away() -> None:
        while not last.exists() and not over.wait(0.005):
            pass
        stop.set()

    watcher = threading.Thread(target=take_away)
    watcher.start()
    lines = run(engine, spec, nodes, stop)
    over.set()
    watcher.join()
    assert last.exists(), "\n".join(lines[-80:])
    saved = shutil.copytree(last.parent, tmp_path / "saved")

    spec = job(image_uri, "interrupted")
    nodes = prepare(engine, spec, digits)
    for node in nodes:
        shutil.copytree(saved, node.opt_ml / "checkpoints", dirs_exist_ok=True)
    resumed = metrics(nodes, run(engine, spec, nodes, threading.Event()))

    spec = job(image_uri, "whole")
    nodes = prepare(engine, spec, digits)
    whole = metrics(nodes, run(engine, spec, nodes, threading.Event()))

    assert (resumed["interruptions"], whole["interruptions"]) == (1, 0)
    assert resumed["steps"] == whole["steps"] == STEPS
    assert resumed["samples"] == whole["samples"]
    assert resumed["final_metric"]["value"] == pytest.approx(
        whole["final_metric"]["value"], abs=TOLERANCE
    )
