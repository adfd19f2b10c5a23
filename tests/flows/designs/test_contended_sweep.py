"""Sweeps in which the nodes of some runs get less CPU time than they request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import SweepResult, scaling_benchmark
from nodesweep.scaling import names
from sagemaker_emulator.interfaces import JobSpec

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
FIRST = [(1, 1, 1), (2, 1, 1), (4, 1, 1)]


@pytest.fixture
def contend(served: SimpleNamespace) -> Iterator[Callable[[Mapping[int, list[float]]], None]]:
    """Return contend(), which sets the CPU shares that a count's jobs attain in turn.

    After `contend({2: [.8]})` the first job of 2 nodes attains 80%, and the following ones 100%.
    """

    def script(shares: Mapping[int, list[float]]) -> None:
        left = {nodes: list(each) for nodes, each in shares.items()}

        def attains(job: JobSpec) -> float:
            own = left.get(job.instance_count)
            return own.pop(0) if own else 1.0

        served.engine.attains = attains

    yield script
    served.engine.attains = lambda job: None


def jobs_of(served: SimpleNamespace, sweep: str) -> list[tuple[int, int, int]]:
    """Return (nodes, repeat, attempt) of every job of the sweep, sorted."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(
        NameContains=names.job_prefix(sweep)
    )
    listed = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    return sorted(place[1:] for name in listed if (place := names.parse_job_name(name)) is not None)


def used(result: SweepResult) -> list[tuple[int, int]]:
    return [(point.nodes, point.attempt) for point in result.report.points if point.used]


def test_contended_runs_are_made_again_and_the_least_contended_of_three_counts(
    served: SimpleNamespace,
    pipeline_config: Configs,
    contend: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1 node is contended once, and 2 nodes always; the answer holds at both ends of their time."""
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    contend({1: [0.7], 2: [0.8, 0.9, 0.85]})
    result = scaling_benchmark(pipeline_config("scaling"))
    again = [(1, 1, 2), (2, 1, 2), (2, 1, 3)]
    assert jobs_of(served, result.sweep_id) == sorted([*FIRST, *again])
    assert used(result) == [(1, 2), (2, 2), (4, 1)]
    assert (result.planned_points, result.missing_points) == (3, 0)
    one, two, four = result.report.summary
    assert not one.flags and not four.flags
    assert two.least_time_share == pytest.approx(0.9)
    assert result.report.recommendation is not None and result.report.recommendation.chosen
    assert result.report.recommendation.chosen.nodes == 4
    _, _, contended = result.report.headline.partition("; contended: ")
    assert "2 nodes" in contended and "1 node" not in contended
    told = [record.getMessage() for record in caplog.records]
    assert any("70%" in text for text in told)
    assert any("attempt 2 after a contended run" in text for text in told)


def test_what_stays_undecided_is_settled_by_the_command_that_the_headline_names(
    served: SimpleNamespace, pipeline_config: Configs, contend: Callable[..., None]
) -> None:
    limits = {"recommendation": {"min_efficiency": 0.95}}
    contend({1: [0.9] * 2})
    counts = {"node_counts": [1, 2]}
    config = pipeline_config("scaling", name="pair", report=limits, sweep=counts)
    first = scaling_benchmark(config)
    assert first.report.recommendation is not None
    assert first.report.recommendation.between == (1, 2)
    assert "1 and 2 nodes" in first.report.headline
    assert f"`nodesweep run CONFIG --resume {first.sweep_id}`" in first.report.headline
    written = json.loads((first.folder / "report.json").read_text())
    assert written["recommendation"]["between"] == [1, 2]
    jobs = jobs_of(served, first.sweep_id)

    # the report made anew starts nothing
    assert report_sweep(first.sweep_id, config)[0].headline == first.report.headline
    assert jobs_of(served, first.sweep_id) == jobs

    second = scaling_benchmark(config, sweep_id=first.sweep_id, resume=True)
    assert jobs_of(served, first.sweep_id) == sorted([*jobs, (1, 1, 3)])
    assert second.report.recommendation is not None and second.report.recommendation.chosen
    assert second.report.recommendation.chosen.nodes == 2
    third = scaling_benchmark(config, sweep_id=first.sweep_id, resume=True)
    assert jobs_of(served, first.sweep_id) == sorted([*jobs, (1, 1, 3)])
    assert len(third.report.points) == len(jobs) + 1
