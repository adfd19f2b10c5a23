"""sweep.design: probe through the whole flow: probes, a validation run, and a report with projected
times."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.events import read_event
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.designs.test_sequential_sweep import points_of
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
PROBE = {"design": "probe", "max_parallel_jobs": 3, "max_attempts": 1}
PROBES, CHECK = [(1, 1), (2, 1), (4, 1)], (4, 2)
MODEL = {"noise_sigma": 0.0, "serial_share": 0.0, "gradient_bytes": 1e6}


def events_of(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [each for each in map(read_event, caplog.records) if each.event == event]


@pytest.mark.pages
def test_probes_project_and_a_whole_run_checks(
    simulated: Callable[..., Any], sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    with simulated(model=MODEL) as served:
        result = scaling_benchmark(sweep_config(served, sweep=PROBE))
        assert points_of(served, result.sweep_id) == sorted([*PROBES, CHECK])
    assert (result.planned_points, result.missing_points) == (4, 0)
    decisions = events_of(caplog, "sweep-decided")
    assert [len(event.facts["points"]) for event in decisions] == [3, 1, 0]
    assert "10 min 0 s" in decisions[1].text and "4 nodes" in decisions[1].text
    ended = events_of(caplog, "point-ended")
    assert [event.facts["is_projected"] for event in ended] == [True, True, True, False]
    alone = next(event.text for event in ended if "-n1-" in event.text)
    assert "599.7 s ± 0.0 s" in alone and "30 of 976 steps" in alone
    written = json.loads((result.folder / "report.json").read_text())
    assert written["train_clock"] == "projected"
    assert written["check"]["is_within_error"] is True
    assert written["check"]["difference"] == pytest.approx(0, abs=1e-6)
    paid = {(each["nodes"], each["repeat"]): each["clocks"] for each in written["points"]}
    assert paid[4, 1]["billable_seconds"] < 0.5 * paid[4, 2]["billable_seconds"]
    projected = {row["nodes"]: row["clocks"]["billable"]["seconds"] for row in written["summary"]}
    assert projected[4] == pytest.approx(paid[4, 2]["billable_seconds"], abs=1.0)


def test_a_resume_that_moves_the_answer_keeps_the_check_that_was_made(
    simulated: Callable[..., Any], sweep_config: Configs
) -> None:
    """With a limit that 4 nodes miss, 2 and 4 are checked; with the usual one, 4 are the answer."""
    with simulated(model=MODEL) as served:
        config = sweep_config(served, sweep=PROBE)
        strict = config.model_dump(mode="json", exclude_unset=True)
        strict.setdefault("report", {})["recommendation"] = {"min_efficiency": 0.995}
        first = measure(BenchmarkConfig.model_validate(strict))
        assert points_of(served, first.sweep_id) == sorted([*PROBES, (2, 2), CHECK])
        assert [check.decides for check in first.report.other_checks] == [True]
        resumed = scaling_benchmark(config, sweep_id=first.sweep_id)
        assert points_of(served, first.sweep_id) == sorted([*PROBES, (2, 2), CHECK])
    assert resumed.report.check is not None and resumed.report.check.nodes == 4
    assert [check.nodes for check in resumed.report.other_checks] == [2]


def test_a_resume_after_a_failed_probe_keeps_the_check_that_was_made(
    simulated: Callable[..., Any], sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    """The probe at 4 nodes fails, so that 2 are checked; the resume makes it. With 1 of 2
    attempts completed, 4 nodes are undecided, and the check at 2 stays."""
    fault = {"fault": "internal_error", "after_seconds": 1, "jobs": "*-n4-r1-a1-*"}
    with simulated(fault, model=MODEL) as served:
        config = sweep_config(served, sweep=PROBE)
        first = measure(config)
        assert points_of(served, first.sweep_id) == sorted([*PROBES, (2, 2)])
        assert first.missing_points == 1
        resumed = scaling_benchmark(config, sweep_id=first.sweep_id)
        assert points_of(served, first.sweep_id) == sorted([*PROBES, (4, 1), (2, 2)])
        before = resumed.report
        again = scaling_benchmark(config, sweep_id=first.sweep_id).report
    assert resumed.missing_points == 0
    assert before.check is not None and before.check.nodes == 2
    assert "1 of 2 attempts completed" in before.headline
    assert again.points == before.points and again.check == before.check
    assert not [record for record in caplog.records if "invalid value" in record.getMessage()]


def test_own_code_that_ends_early_and_does_not_say_so_is_no_whole_run(
    served: SimpleNamespace,
    pipeline_config: Configs,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """12.5 s of a run of 80 s: nothing tells them from all of it, so they are no time to train,
    and the second such job ends the sweep."""

    def mute(job: JobSpec, node: Node, say: Callable[[str], None], stop: Any) -> None:
        say(f"world_size={job.instance_count}; train_seconds=12.5;")

    served.engine.programs['"mute"'] = mute
    config = pipeline_config("mute", sweep={"design": "probe", "repeats": 2})
    result = measure(config)
    assert [point.clocks.train_seconds for point in result.report.points] == [None, None]
    assert len(points_of(served, result.sweep_id)) == 2
    assert result.report.recommendation is None and result.report.check is None
    assert result.missing_points == 4
    caveats = "\n".join(result.report.caveats)
    assert "4 of 6" in caveats
    assert "2 jobs at" in caveats and "gave no train time" in caveats
    ended = events_of(caplog, "point-ended")
    assert [each.facts["train_seconds"] for each in ended] == [None, None]


def test_own_code_of_a_full_sweep_that_says_only_how_long_it_trained_is_whole(
    served: SimpleNamespace, pipeline_config: Configs
) -> None:
    """Nothing asked it to end early."""

    def mute(job: JobSpec, node: Node, say: Callable[[str], None], stop: Any) -> None:
        say(f"world_size={job.instance_count}; train_seconds={80.0 / job.instance_count};")

    served.engine.programs['"mute"'] = mute
    report = scaling_benchmark(pipeline_config("mute", sweep={"node_counts": [1, 2]})).report
    assert [row.train.seconds for row in report.summary] == [80.0, 40.0]
    assert report.train_clock == "logged"
