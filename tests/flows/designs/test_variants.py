"""sweep.variants through the whole flow: jobs of each variant, a joint report, and a report of each
variant."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from nodesweep.scaling.instances.tried import find_trial
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.designs.test_probe_sweep import events_of
from tests.nodesweep.scaling.analysis.test_step_budget import metrics, rank

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
MODEL = {"noise_sigma": 0.0, "serial_share": 0.0, "gradient_bytes": 1e6}
SWEEP = {
    "variants": [{"name": "bf16", "set": {"training.hyperparameters.precision": "bf16"}}],
    "node_counts": [1, 2],
    "max_parallel_jobs": 4,
}


def jobs_of(served: SimpleNamespace, sweep: str) -> list[tuple[str, str | None]]:
    """Return (n1a-r1-a1, precision as JSON) of every job of the sweep on the platform, sorted."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(NameContains=sweep)
    found = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    jobs = []
    for name in found:
        key, job = names.parse_job_name(name), served.sagemaker.describe_training_job
        assert key is not None
        given = job(TrainingJobName=name)["HyperParameters"]
        jobs.append((key.text, given.get("precision")))
    return sorted(jobs)


def test_every_variant_at_every_count_and_one_report(
    simulated: Callable[..., Any], sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    with simulated(model=MODEL) as served:
        config = sweep_config(served, sweep=SWEEP)
        result = scaling_benchmark(config)
        assert jobs_of(served, result.sweep_id) == [
            ("n1a-r1-a1", None),
            ("n1b-r1-a1", '"bf16"'),
            ("n2a-r1-a1", None),
            ("n2b-r1-a1", '"bf16"'),
        ]
        again, folder = report_sweep(result.sweep_id, config)
    assert (result.planned_points, result.missing_points) == (4, 0)
    planned = events_of(caplog, "sweep-planned")[0]
    assert [fact["place"] for fact in planned.facts["points"]] == [
        "1 node with the base config",
        "1 node with bf16",
        "2 nodes with the base config",
        "2 nodes with bf16",
    ]
    written = json.loads((folder / "report.json").read_text())
    assert written["headline"] == again.headline and " with " in again.headline
    arms = written["instances"]["arms"]
    assert [(arm["variant"], arm["nodes"]) for arm in arms] == [
        ("base", 1),
        ("base", 2),
        ("bf16", 1),
        ("bf16", 2),
    ]
    for name in ("base", "bf16"):
        own = json.loads((folder / name / "report.json").read_text())
        assert len(own["points"]) == 2 and own["config"]["sweep"].get("variants") is None
    assert own["config"]["training"]["hyperparameters"]["precision"] == "bf16"


def waiting_for_data(
    job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Report 100 s of work divided by the nodes and 10 s of waiting divided by the workers, as
    observed."""
    work = 100.0 / job.instance_count
    wait = 10.0 / max(1, int(job.hyperparameters["num_workers"])) if job.instance_count > 1 else 0.0
    ranks = [rank(each, forward=work, data=wait) for each in range(job.instance_count)]
    written = {
        "schema_version": 1,
        "train_seconds": work + wait,
        "observed": {},
        **metrics(*ranks),
    }
    (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(written))


def test_a_predicted_change_is_tried_and_compared_with_its_prediction(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    served.engine.programs['"waiting"'] = waiting_for_data
    given = {"program": "waiting", "num_workers": 1}
    training = {"hyperparameters": given, "batch": None, "learning_rate": None}
    sweep = {"node_counts": [1, 4]}
    before = scaling_benchmark(pipeline_config("waiting", training=training, sweep=sweep)).report
    config = pipeline_config("waiting", training=training, sweep={**sweep, "repeats": 3})
    trial = find_trial(before, config)
    assert trial is not None and trial.settings == {"training.hyperparameters.num_workers": 2}
    result = scaling_benchmark(BenchmarkConfig.model_validate(trial.config_of(config)))
    compared = {each.nodes: each for each in result.report.instances.predicted}
    assert compared.keys() == set(trial.counts)
    assert compared[4].predicted_efficiency == pytest.approx(1.0)
    assert compared[4].efficiency == pytest.approx(100 / 4 / 30)
    assert compared[4].is_inside is False  # no more waiting was predicted, and half of it is left
