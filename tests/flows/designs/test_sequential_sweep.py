"""sweep.design: sequential through the whole flow runs only the jobs that its answer needs."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused
from nodesweep.events import read_event
from nodesweep.flows.detach import start_detached_sweep
from nodesweep.flows.report import report_sweep
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from sagemaker_emulator.interfaces import JobSpec, Node
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


def decisions_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [event for event in map(read_event, caplog.records) if event.event == "sweep-decided"]


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


@pytest.mark.pages
def test_it_runs_what_the_answer_needs_and_a_crash_between_two_decisions_loses_nothing(
    served: SimpleNamespace,
    pipeline_config: Configs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    config = pipeline_config("scaling", name="crash", sweep=SEQUENTIAL)
    say = logging.getLogger("nodesweep.sweep").info

    def crash(message: str, *arguments: Any, **options: Any) -> None:
        say(message, *arguments, **options)
        if "one more run" in message % arguments:
            raise MemoryError("crashed")

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
    *_, second = decisions_of(caplog)
    assert "1, 2 and 4 nodes" in second.text
    assert [len(event.facts["points"]) for event in decisions_of(caplog)] == [3, 3]
    caplog.clear()
    resumed = scaling_benchmark(config, sweep_id=sweep)
    assert points_of(served, sweep) == ALL
    assert (resumed.planned_points, resumed.missing_points) == (6, 0)
    *_, last = decisions_of(caplog)
    assert [answer["answer"] for answer in last.facts["answers"]] == ["pass"]
    assert last.facts["points"] == []
    written = json.loads((resumed.folder / "report.json").read_text())
    assert {point["attempt"] for point in written["points"]} == {1}


def test_a_rebuilt_report_holds_the_repeats_that_a_resume_added(
    served: SimpleNamespace, pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_unevenly(
        job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event
    ) -> None:
        place = names.parse_job_name(job.job_name)
        assert place is not None
        seconds = 80.0 / place.nodes * (1.5 if (place.nodes + place.repeat) % 2 else 1.0)
        world = {"world_size": place.nodes}
        metrics = {"schema_version": 1, "train_seconds": seconds, "world": world}
        (node.opt_ml / "output" / "data" / "metrics.json").write_text(json.dumps(metrics))

    monkeypatch.setitem(served.engine.programs, '"uneven"', train_unevenly)
    sweep = {**SEQUENTIAL, "node_counts": [1, 2]}
    started = pipeline_config("uneven", name="raised", sweep={**sweep, "max_repeats": 2})
    first = measure(started)
    raised = pipeline_config("uneven", name="raised", sweep={**sweep, "max_repeats": 3})
    resumed = measure(raised, sweep_id=first.sweep_id)
    assert (2, 3) in points_of(served, first.sweep_id)
    rebuilt, _ = report_sweep(first.sweep_id, started)
    assert rebuilt.points == resumed.report.points
    assert rebuilt.recommendation == resumed.report.recommendation


@pytest.mark.parametrize("design", ["sequential", "probe", "predict"])
def test_detached_jobs_can_not_be_decided_one_by_one(design: str, pipeline_config: Configs) -> None:
    sweep = {"design": design, "node_counts": [1, 2, 4, 8], "repeats": 3}
    with pytest.raises(PreflightRefused, match=rf"sweep\.design: {design} "):
        start_detached_sweep(pipeline_config("scaling", sweep=sweep))
