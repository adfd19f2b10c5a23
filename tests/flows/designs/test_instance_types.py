"""sweep.instance_types through the whole flow: jobs of each type, a joint report, and a report of
each type."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.scaling import names
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.conftest import train
from tests.flows.designs.test_probe_sweep import events_of
from tests.flows.simulated_sweep import measure

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
SMALL, MEDIUM = "ml.local.small", "ml.local.medium"
CODES = {SMALL: "a", MEDIUM: "b"}
TYPES = {"instance_types": [SMALL, MEDIUM], "node_counts": [1, 2], "max_parallel_jobs": 4}
MODEL = {"noise_sigma": 0.0, "serial_share": 0.0, "gradient_bytes": 1e6}
OUT_OF_MEMORY = "AlgorithmError: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


def jobs_of(served: SimpleNamespace, sweep: str) -> list[tuple[str, str]]:
    """Return (n1a-r1-a1, instance type) of every job of the sweep on the platform, sorted."""
    pages = served.sagemaker.get_paginator("list_training_jobs").paginate(NameContains=sweep)
    found = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    described = [served.sagemaker.describe_training_job(TrainingJobName=name) for name in found]
    return sorted(
        (
            names.parse_job_name(one["TrainingJobName"]).text,
            one["ResourceConfig"]["InstanceType"],
        )
        for one in described
    )


@pytest.mark.pages
def test_every_type_at_every_count_and_one_report(
    simulated: Callable[..., Any], sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    with simulated(model=MODEL) as served:
        result = scaling_benchmark(sweep_config(served, sweep=TYPES))
        assert jobs_of(served, result.sweep_id) == [
            ("n1a-r1-a1", SMALL),
            ("n1b-r1-a1", MEDIUM),
            ("n2a-r1-a1", SMALL),
            ("n2b-r1-a1", MEDIUM),
        ]
    assert (result.planned_points, result.missing_points) == (4, 0)
    [planned] = events_of(caplog, "sweep-planned")
    assert [(fact["place"], fact["arm"]) for fact in planned.facts["points"]] == [
        (f"1 x {SMALL}", "a"),
        (f"1 x {MEDIUM}", "b"),
        (f"2 x {SMALL}", "a"),
        (f"2 x {MEDIUM}", "b"),
    ]
    written = json.loads((result.folder / "report.json").read_text())
    assert written["headline"] == result.report.headline
    assert [(arm["instance_type"], arm["nodes"]) for arm in written["instances"]["arms"]] == [
        (SMALL, 1),
        (SMALL, 2),
        (MEDIUM, 1),
        (MEDIUM, 2),
    ]
    for name in (SMALL, MEDIUM):
        folder = result.folder / name
        own = json.loads((folder / "report.json").read_text())
        assert own["platform"]["instance_type"] == name and len(own["points"]) == 2
        page = (folder / "report.html").read_text()
        kept = [folder / link for link in re.findall(r'href="(\.\./logs/[^"]+)"', page)]
        assert [names.parse_log_file(file.name)[0].arm for file in kept] == [CODES[name]] * 2
        assert all(file.is_file() for file in kept)


def test_what_does_not_fit_in_memory_fails_alone(
    served: SimpleNamespace, pipeline_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    def lacking(job: JobSpec, node: Node, say: Any, stop: threading.Event) -> None:
        if (job.instance_type, job.instance_count) == (SMALL, 1):
            raise ValueError(OUT_OF_MEMORY)
        train(job, node, say, stop)

    served.engine.programs['"lacking"'] = lacking
    config = pipeline_config(
        "lacking", sweep={**TYPES, "repeats": 2, "max_parallel_jobs": 1, "order": "ascending"}
    )
    result = scaling_benchmark(config)
    kept = [name for name, _ in jobs_of(served, result.sweep_id)]
    assert kept == sorted(
        ["n1a-r1-a1", *(f"n{arm}-r{repeat}-a1" for arm in ("1b", "2a", "2b") for repeat in (1, 2))]
    )
    assert (result.planned_points, result.missing_points) == (6, 0)
    [left_out] = events_of(caplog, "points-left-out")
    assert left_out.text.endswith(f": 1 x {SMALL}, repeat 2")
    [fact] = left_out.facts["points"]
    assert (fact["arm"], fact["nodes"], fact["repeat"]) == ("a", 1, 2)
    arm = result.report.instances.arms[0]
    assert (arm.n, arm.n_failed, arm.reason) == (0, 1, "out of memory")
    resumed = scaling_benchmark(config, sweep_id=result.sweep_id, resume=True)
    assert (resumed.missing_points, len(jobs_of(served, result.sweep_id))) == (0, 7)


def test_probes_of_types_drop_what_misses_the_deadline_and_check_the_answer(
    simulated: Callable[..., Any], sweep_config: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nodesweep.sweep")
    with simulated(model={**MODEL, "noise_sigma": 0.002}) as served:
        config = sweep_config(served, sweep={**TYPES, "design": "probe", "repeats": 3})
        goals = config.report.recommendation.model_copy(update={"deadline_seconds": 550.0})
        report = config.report.model_copy(update={"recommendation": goals})
        result = measure(config.model_copy(update={"report": report}))
        ran = [name for name, _ in jobs_of(served, result.sweep_id)]
    # one node takes 600 s, two take 300 s; both types are as fast on this platform
    assert [name for name in ran if name.startswith("n1")] == [
        "n1a-r1-a1", "n1a-r2-a1", "n1b-r1-a1", "n1b-r2-a1"
    ]  # fmt: skip
    assert len([name for name in ran if name.startswith("n2")]) == 7
    assert result.missing_points == 0
    decisions = events_of(caplog, "sweep-decided")
    later = [[(each["arm"], each["nodes"]) for each in event.facts["later"]] for event in decisions]
    every = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert sorted(later[0]) == sorted(2 * every)
    assert sorted(later[1]) == every
    assert all(each["may_be_dropped"] for event in decisions for each in event.facts["later"])
    assert later[2:] == [[], [], []]
    told = [event.text for event in decisions]
    assert [len(decisions[at].facts["points"]) for at in (0, 2, 3)] == [4, 2, 1]
    assert "round 3" in told[2] and "1 x ml.local.small (" in told[2]
    assert "2 x ml.local." in told[3]
    assert result.report.check is not None
