"""Calls about a finished job, and the outcome derived from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages import outcomes
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.scaling.job import LogLine, ResolvedInputs
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.plan import plan_sweep
from tests.nodesweep.scaling.outcome.test_outcome import job

REGEX = "val_loss=([0-9.]+)"
WHOLE = {"schema_version": 1, "train_seconds": 50.0, "world": {"world_size": 1}}


@pytest.fixture
def collect(
    make_config: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., JobOutcome]:
    """Collect the outcome of a completed job whose final_metric on the platform is 9.1."""

    def collected(line: str, metrics: dict[str, Any]) -> JobOutcome:
        log = [LogLine(1000, "algo-1", line)]
        config = make_config()
        backend = replace(
            backend_of(config.platform),
            read_metrics=lambda *_: metrics,
            read_utilisation=lambda *_: {},
        )
        monkeypatch.setattr(Backend, "read_log", lambda *_: log)
        monkeypatch.setattr(outcomes, "backend_of", lambda platform: backend)
        plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
        answer = job(
            AlgorithmSpecification={
                "MetricDefinitions": [{"Name": "final_metric", "Regex": REGEX}]
            },
            FinalMetricDataList=[{"MetricName": "final_metric", "Value": 9.1}],
        )
        planned = outcomes.PlannedSweep(
            backend, config, plan, ResolvedInputs("sweep", "image", None)
        )
        return outcomes.collect_outcome(planned, plan.points[0], 1, answer)

    return collected


def test_a_part_of_a_number_that_the_platform_kept_does_not_count_and_is_said(
    collect: Callable[..., JobOutcome],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    outcome = collect("val_loss=9.1e-05", WHOLE)
    assert "final_metric" not in outcome.logged
    outcomes.log_outcome(outcome)
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "val_loss=9.1e-05" in warning.getMessage() and REGEX in warning.getMessage()


def test_the_time_of_a_phase_is_not_called_the_time_of_the_training(
    collect: Callable[..., JobOutcome],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO)
    outcome = collect("epoch 1", {})
    assert outcome.train_clock == "training_phase"
    outcomes.log_outcome(outcome)
    assert "trained for" not in caplog.text
    assert f"Training phase took {outcome.clocks.train_seconds:.1f} s" in caplog.text
    outcomes.log_outcome(collect("epoch 1", {**WHOLE, "world": {"world_size": 2}}))
    assert "trained for 50.0 s" in caplog.text


def test_a_whole_number_counts(collect: Callable[..., JobOutcome]) -> None:
    outcome = collect("val_loss=9.1", WHOLE)
    assert (outcome.logged["final_metric"], outcome.cut_numbers) == (9.1, ())


def test_the_log_is_left_alone_where_metrics_json_has_the_value(
    collect: Callable[..., JobOutcome],
) -> None:
    assert collect("val_loss=9.1e-05", {**WHOLE, "final_metric": 0.5}).cut_numbers == ()
