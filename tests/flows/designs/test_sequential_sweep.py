"""sweep.design: sequential through the whole flow runs only the jobs that its answer needs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused
from nodesweep.events import read_event
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
SEQUENTIAL = {"design": "sequential", "repeats": 3, "max_parallel_jobs": 3, "max_attempts": 1}
FIRST = [(1, 1), (2, 1), (4, 1)]
ALL = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)]


def points_of(served: SimpleNamespace, sweep: str) -> list[tuple[int, int]]:
    """Return (nodes, repeat) of every job of the sweep, sorted."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(
        NameContains=names.job_prefix(sweep)
    )
    listed = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    return sorted(
        place[1:3] for name in listed if (place := names.parse_job_name(name)) is not None
    )


def test_it_runs_what_the_answer_needs_and_says_why(
    served: SimpleNamespace, pipeline_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    result = scaling_benchmark(pipeline_config("scaling", name="few", sweep=SEQUENTIAL))
    assert points_of(served, result.sweep_id) == ALL
    assert (result.planned_points, result.missing_points) == (6, 0)
    events = [event for event in map(read_event, caplog.records) if event.event == "sweep-decided"]
    assert "1, 2 and 4 nodes" in events[1].text
    assert [answer["answer"] for answer in events[2].facts["answers"]] == ["pass"]
    assert [len(event.facts["points"]) for event in events] == [3, 3, 0]


def test_a_resume_after_a_failed_point_asks_for_what_the_sound_sweep_would(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config("broken-at-2", name="broken", sweep=SEQUENTIAL)
    first = measure(config)
    assert points_of(served, first.sweep_id) == sorted([*FIRST, (1, 2), (4, 2)])
    assert first.missing_points == 1
    programs = served.engine.programs
    monkeypatch.setitem(programs, '"broken-at-2"', programs['"scaling"'])
    resumed = scaling_benchmark(config, sweep_id=first.sweep_id)
    assert set(points_of(served, first.sweep_id)) == set(ALL)
    assert resumed.missing_points == 0


def test_a_crash_between_two_decisions_loses_nothing(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config("scaling", name="crash", sweep=SEQUENTIAL)
    say = logging.getLogger("nodesweep.sweep").info

    def crash(message: str, *arguments: Any, **options: Any) -> None:
        if "one more run" in message % arguments:
            raise MemoryError("crashed")
        say(message, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("nodesweep.flows.stages.sweep.logger.info", crash)
        with pytest.raises(MemoryError):
            scaling_benchmark(config)
    sweeps = served.s3.list_objects_v2(
        Bucket=config.platform.bucket,
        Prefix=f"{names.sweeps_prefix(config.platform.prefix)}crash-",
        Delimiter="/",
    )["CommonPrefixes"]
    sweep = sweeps[0]["Prefix"].rstrip("/").split("/")[-1]
    assert points_of(served, sweep) == FIRST
    resumed = scaling_benchmark(config, sweep_id=sweep)
    assert points_of(served, sweep) == ALL and resumed.missing_points == 0
    written = json.loads((resumed.folder / "report.json").read_text())
    assert {point["attempt"] for point in written["points"]} == {1}


def test_detached_jobs_can_not_be_decided_one_by_one(pipeline_config: Configs) -> None:
    config = pipeline_config("scaling", name="apart", sweep=SEQUENTIAL)
    with pytest.raises(PreflightRefused, match=r"sweep\.design: sequential "):
        start_detached_sweep(config)
