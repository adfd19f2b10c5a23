"""sweep.design: predict over two instance types through the whole flow."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.designs.test_instance_types import MEDIUM, OUT_OF_MEMORY, SMALL, jobs_of
from tests.flows.designs.test_predict_sweep import PREDICT, exchanging
from tests.flows.simulated_sweep import nodesweep_run

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
JOBS = [
    (f"n{nodes}{code}-r{repeat}-a1", name)
    for nodes in (1, 2)
    for code, name in (("a", SMALL), ("b", MEDIUM))
    for repeat in (1, 2)
]


def twice_as_fast_on_medium(
    job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
) -> None:
    exchanging(job, node, say, stop)
    if job.instance_type == MEDIUM:
        path = node.opt_ml / "output" / "data" / "metrics.json"
        written = json.loads(path.read_text())
        written["train_seconds"] /= 2
        for rank in written["budget"]:
            rank["seconds"] = {part: spent / 2 for part, spent in rank["seconds"].items()}
        path.write_text(json.dumps(written))


@pytest.fixture
def config_of(served: SimpleNamespace, pipeline_config: Configs) -> Configs:
    served.engine.programs['"exchanging"'] = twice_as_fast_on_medium

    def make(**given: Any) -> BenchmarkConfig:
        training = {
            "batch": {"policy": "fixed_per_replica", "size": 16},
            "learning_rate": None,
            "hyperparameters": {"program": "exchanging", "batch": "{per_replica_batch_size}"},
        }
        sweep = {**PREDICT, "instance_types": [SMALL, MEDIUM], "max_parallel_jobs": 4}
        return pipeline_config("exchanging", training=training, sweep=sweep, **given)

    return make


def test_a_sweep_that_crashed_ends_with_the_jobs_and_predictions_of_each_type(
    served: SimpleNamespace, config_of: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashes after the third of its eight jobs."""
    config = config_of(report={"recommendation": {"deadline_seconds": 3600.0}})
    say = logging.getLogger("nodesweep.sweep").info
    ended: list[str] = []

    def crash(message: str, *arguments: Any, **options: Any) -> None:
        say(message, *arguments, **options)
        if "trained for" in (text := message % arguments):
            ended.append(text)
            if len(ended) == 3:
                raise MemoryError("crashed")

    with monkeypatch.context() as patched:
        patched.setattr("nodesweep.flows.stages.sweep.logger.info", crash)
        with pytest.raises(MemoryError):
            scaling_benchmark(config)
    [sweep] = {names.sweep_of_job(text.partition(":")[0]) for text in ended}
    refused = nodesweep_run(config, tmp_path, "--resume", str(sweep), "--confirm")
    assert refused.exit_code == 2 and "a sweep of the chosen type alone" in refused.stderr
    assert len(jobs_of(served, str(sweep))) < len(JOBS)
    done = nodesweep_run(config, tmp_path, "--resume", str(sweep))
    assert done.exit_code == 0, done.output
    assert jobs_of(served, str(sweep)) == JOBS
    folder = tmp_path / "reports" / str(sweep)
    written = json.loads((folder / "report.json").read_text())
    compared = written["instances"]
    assert (compared["points_done"], compared["points_asked"]) == (8, 8)
    arms = {(arm["instance_type"], arm["nodes"]): arm for arm in compared["arms"]}
    for name, speed in ((SMALL, 1), (MEDIUM, 2)):
        own = json.loads((folder / name / "report.json").read_text())
        assert own["recommendation"] is None
        assert [each["nodes"] for each in own["prediction"]["counts"]] == [4, 8]
        for nodes, seconds in ((4, 25.75), (8, 12.94)):
            arm, truth = arms[name, nodes], seconds * 1.005 / speed
            assert (arm["n"], arm["predicted"]) == (0, True)
            assert arm["train_interval"]["low"] < truth < arm["train_interval"]["high"]
        assert all("predicted" not in arms[name, nodes] for nodes in (1, 2))
    chosen = compared["answers"][0]
    assert (chosen["instance_type"], chosen["nodes"]) == (MEDIUM, 8)
    assert f"8 x {MEDIUM} (6.8 s, cost unknown, predicted) is the best" in written["headline"]
    assert f"training.instance_type={MEDIUM} --confirm` measures it" in written["headline"]
    assert written["recommendation"] is None


def test_a_type_that_lacks_memory_on_2_nodes_leaves_the_other_its_predictions(
    served: SimpleNamespace, config_of: Configs
) -> None:
    def lacking(
        job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
    ) -> None:
        if (job.instance_type, job.instance_count) == (SMALL, 2):
            raise ValueError(OUT_OF_MEMORY)
        twice_as_fast_on_medium(job, node, say, stop)

    config = config_of()
    served.engine.programs['"exchanging"'] = lacking
    result = scaling_benchmark(config)
    assert result.missing_points == 0
    report = result.report
    assert report.instances is not None
    arms = {(arm.instance_type, arm.nodes): arm for arm in report.instances.arms}
    assert [arms[SMALL, nodes].predicted for nodes in (4, 8)] == [False, False]
    assert [arms[MEDIUM, nodes].predicted for nodes in (4, 8)] == [True, True]
    assert f"; nothing is predicted for {SMALL}; " in report.headline
    assert any(each.startswith(f"{SMALL}: No predictions: ") for each in report.caveats)
