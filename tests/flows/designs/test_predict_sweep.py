"""sweep.design: predict through the whole flow, and `run --confirm` of its prediction."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling.trend.report_file import parse_report
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.designs.test_sequential_sweep import points_of
from tests.flows.simulated_sweep import nodesweep_run
from tests.nodesweep.scaling.analysis.test_step_budget import metrics, rank

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
PREDICT = {"design": "predict", "node_counts": [1, 2, 4, 8], "repeats": 2}
BASE = [(1, 1), (1, 2), (2, 1), (2, 2)]


def exchanging(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """Report 100 s of compute divided by the nodes and a ring's exchange, as observed, 1% apart."""
    nodes = job.instance_count
    noise = 1.01 if "-r2-" in job.job_name else 1.0
    compute, exchange = 100.0 / nodes * noise, (4.0 * (nodes - 1) / nodes**2) * noise
    ranks = [
        rank(each, forward=compute / 3, backward=compute * 2 / 3, communication=exchange)
        for each in range(nodes)
    ]
    written = {
        "schema_version": 1,
        "train_seconds": compute + exchange,
        "observed": {},
        "samples": {"processed": 6400},
        "final_metric": {"name": "accuracy", "value": 0.9, "goal": "maximize"},
        **metrics(*ranks),
    }
    (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(written))


def slow_at_8(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    """Exchange gradients for 20 s more on 8 nodes, so that 8 nodes fail the limits and 4 may
    pass."""
    exchanging(job, node, say, stop)
    if job.instance_count == 8:
        path = node.opt_ml / "output" / "data" / "metrics.json"
        written = json.loads(path.read_text())
        written["train_seconds"] += 20.0
        for each in written["budget"]:
            each["seconds"]["communication"] += 20.0
        path.write_text(json.dumps(written))


@pytest.fixture
def config_of(served: SimpleNamespace, pipeline_config: Configs) -> Configs:
    served.engine.programs['"exchanging"'] = slow_at_8

    def make(**sweep: Any) -> BenchmarkConfig:
        training = {
            "batch": {"policy": "fixed_per_replica", "size": 16},
            "learning_rate": None,
            "hyperparameters": {"program": "exchanging", "batch": "{per_replica_batch_size}"},
        }
        return pipeline_config("exchanging", training=training, sweep={**PREDICT, **sweep})

    return make


def test_each_confirm_runs_the_one_job_that_settles_it(
    served: SimpleNamespace, config_of: Configs, tmp_path: Path
) -> None:
    """After a command that was cut off before its report, the next one runs no other count; a
    second count is confirmed without the report on this machine."""
    config = config_of()

    def confirm(*options: str) -> Result:
        done = nodesweep_run(config, tmp_path, "--confirm", *options)
        assert done.exit_code == 0, done.output
        return done

    lines = confirm("--log-format", "json").stderr.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    sweep = next(each["sweep"] for each in events if each["event"] == "confirming")
    assert points_of(served, sweep) == [*BASE, (8, 1)]
    path = tmp_path / "reports" / sweep / "report.json"
    written = json.loads(path.read_text())
    assert [row["nodes"] for row in written["summary"]] == [1, 2, 8]
    assert [each["nodes"] for each in written["prediction"]["counts"]] == [4]
    [check] = written["prediction"]["checked"]
    assert check["nodes"] == 8 and check["measured"] == [pytest.approx(32.9375)]
    again, _ = report_sweep(sweep, config)  # its record knows of no confirmed count
    assert [row.nodes for row in again.summary] == [1, 2, 8]
    path.write_text(json.dumps({**written, "summary": written["summary"][:2]}))  # cut off before it
    assert "repeat the command" in confirm("--resume", sweep).stderr
    assert points_of(served, sweep) == [*BASE, (8, 1)]
    shutil.rmtree(tmp_path / "reports")
    confirm("--resume", sweep)
    assert points_of(served, sweep) == [*BASE, (4, 1), (8, 1)]


def test_a_sweep_begun_before_short_runs_resumes_with_whole_ones(
    pipeline_config: Configs, tmp_path: Path
) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / "image").rename(tmp_path / "infra" / "image")

    def config_with(**ends: float) -> BenchmarkConfig:
        return pipeline_config(
            "scaling",
            image={"context": "infra/image"},
            training={"batch": {"policy": "fixed_global", "size": 192}},
            sweep={**PREDICT, **({"probe": ends} if ends else {})},
        )

    before = scaling_benchmark(config_with(max_share=1))
    now = config_with()
    assert now.ends_early(1)
    with pytest.raises(PreflightRefused, match=r"from before .*`--set sweep.probe.max_share=1`"):
        scaling_benchmark(now, sweep_id=before.sweep_id, resume=True)
    with pytest.raises(PreflightRefused, match=r"start a new sweep$"):
        other = now.model_copy(update={"name": "another"})
        scaling_benchmark(other, sweep_id=before.sweep_id, resume=True)
    whole = config_with(max_share=1)
    assert scaling_benchmark(whole, sweep_id=before.sweep_id, resume=True).missing_points == 0


@pytest.mark.pages
def test_the_smallest_counts_are_run_and_shown_if_the_confirming_run_is_refused(
    served: SimpleNamespace, config_of: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_dear(config: BenchmarkConfig, *_: Any) -> BenchmarkConfig:
        sweep = config.sweep.model_copy(update={"confirm": 8, "budget_usd": 0.001})
        return config.model_copy(update={"sweep": sweep})

    monkeypatch.setattr("nodesweep.cli.main.with_confirm", too_dear)
    done = nodesweep_run(config_of(), tmp_path, "--confirm")
    assert done.exit_code == 3 and "sweep.budget_usd" in done.stderr
    assert "report.html" in done.stdout
    report = parse_report((tmp_path / "reports" / "latest" / "report.json").read_bytes(), "here")
    assert points_of(served, report.sweep_id) == BASE
    assert [row.n for row in report.summary] == [2, 2] and report.recommendation is None
    assert report.prediction is not None
    assert [each.nodes for each in report.prediction.counts] == [4, 8]
    for count, seconds in zip(report.prediction.counts, (25.75, 12.94), strict=True):
        assert count.interval is not None and count.interval.contains(seconds * 1.005)


def test_a_program_that_shows_nothing_is_measured_only(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    config = pipeline_config("scaling", sweep=PREDICT)
    done = nodesweep_run(config, tmp_path, "--confirm")
    assert done.exit_code == 0 and "no predictions to confirm" in done.stderr
    assert "no step-time breakdown" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("design", "options", "code"), [("full", (), 2), ("predict", ("--detach",), 2)]
)
def test_what_can_not_be_confirmed_is_refused(
    pipeline_config: Configs, tmp_path: Path, design: str, options: tuple[str, ...], code: int
) -> None:
    config = pipeline_config("scaling", sweep={**PREDICT, "design": design})
    done = nodesweep_run(config, tmp_path, "--confirm", *options)
    assert done.exit_code == code and "--confirm" in done.output
