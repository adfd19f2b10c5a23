"""A run as a user sees it at a real Prefect server."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterName
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run

from infra.local.tests.platform_client import wait_until
from nodesweep.cli.session import run_flow
from nodesweep.cli.views.state import RunState
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import HIDDEN
from nodesweep.errors import PointsMissing
from nodesweep.events import PROGRESS, ROOT, STAGES, Event, read_event
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.graph import in_stage
from nodesweep.scaling import names
from nodesweep.scaling.report.plots import draw_plots
from nodesweep.tasks.sweeps.job_runs import (
    SUBMITTED,
    JobRuns,
    JobView,
    end_job_runs,
    running_view,
)
from tests.flows.simulated_sweep import KeptRecords, kept_records

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """Return the events for a view."""
    events: list[Event] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            events.append(read_event(record))

    root, progress, listener = logging.getLogger(ROOT), logging.getLogger(PROGRESS), Listener()
    for logger, level, propagate in ((root, logging.INFO, root.propagate),
                                     (progress, logging.DEBUG, False)):  # fmt: skip
        logger.addHandler(listener)
        logger.setLevel(level)
        logger.propagate = propagate
    yield events
    progress.propagate = True
    progress.setLevel(logging.NOTSET)
    for logger in (root, progress):
        logger.removeHandler(listener)


def artifact(kept: KeptRecords, key: str) -> SimpleNamespace:
    """Return the latest artifact with this key."""
    found = [made for made in kept.artifacts if made["key"] == key]
    return SimpleNamespace(**max(found, key=lambda made: made["created"]))


@pytest.mark.usefixtures("prefect")
@pytest.mark.prefect_events
@pytest.mark.drawn
@pytest.mark.pages
def test_artifacts_task_names_and_links(
    served: SimpleNamespace,
    pipeline_config: Callable[..., BenchmarkConfig],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodesweep.scaling.report.render.draw_plots", draw_plots)
    config = pipeline_config("scaling", sweep={"node_counts": [1, 2]})
    result = scaling_benchmark(config)
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [text for text in warnings if result.sweep_id in text] == []

    kept = kept_records(result.sweep_id)
    progress, table, report = (
        artifact(kept, key) for key in ("sweep-progress", "sweep-points", "scaling-report")
    )
    assert progress.data == 100.0
    rows = json.loads(table.data)
    assert [(row["nodes"], row["status"], row["train (s)"]) for row in rows] == [
        (1, "Completed", 80.0), (2, "Completed", 40.0),
    ]  # fmt: skip
    assert "emulated" in table.description
    assert result.sweep_id in report.description

    for linking, file_name in (
        (report, names.REPORT_HTML),
        (artifact(kept, "data-docs"), names.DATA_DOCS),
    ):
        [url] = re.findall(rf"\[{file_name}\]\((\S+)\)", linking.data)
        with urllib.request.urlopen(url) as page:
            assert page.read() == (result.folder / file_name).read_bytes()

    [kept_run] = kept.flow_runs
    assert kept_run["name"] == f"scaling-{result.sweep_id}"
    path = {"id": kept_run["id"]}

    def graph() -> dict[str, Any] | None:  # once the server has heard of all tasks
        with get_client(sync_client=True) as client:
            answer = client.request("GET", "/flow_runs/{id}/graph-v2", path_params=path).json()
        nodes = dict(answer["nodes"])
        wanted = {*STAGES, "train-1n-r1", "train-2n-r1"}
        return nodes if wanted <= {node["label"] for node in nodes.values()} else None

    nodes = wait_until(graph)
    top = [node["label"] for node in nodes.values() if not node["encapsulating"]]
    assert sorted(top) == sorted(STAGES), "the graph is the five stages, the rest is inside them"
    [inside] = next(
        node["encapsulating"] for node in nodes.values() if node["label"] == "train-2n-r1"
    )
    assert nodes[inside["id"]]["label"] == "sweep"
    jobs = wait_until(lambda: ended_jobs(result.sweep_id))
    assert {run["name"]: run["state"]["name"] for run in jobs} == {
        "train-1n-r1": "Completed", "train-2n-r1": "Completed",
    }  # fmt: skip
    assert {"attempt 1 of 2", "timeout 1 h 0 min"} <= set(jobs[0]["tags"])
    pictures = re.findall(r"!\[.*?\]\(data:image/svg\+xml;base64,(.*?)\)", report.data)
    drawn = [file.read_bytes() for file in result.folder.glob("*.svg")]
    assert len(drawn) >= 2 and sorted(map(b64decode, pictures)) == sorted(drawn)


def test_run_of_a_command_is_kept_with_its_config_and_empty_fields(
    pipeline_config: Callable[..., BenchmarkConfig],
) -> None:
    """The config without its secrets replaces the name of a config in a form; the other fields are
    empty."""
    training = {"environment": {"HF_TOKEN": "s3cr3t"}}
    config = pipeline_config(
        "broken-at-2", name="kept", training=training, sweep={"node_counts": [2]}
    )
    with pytest.raises(PointsMissing) as missing:
        run_flow(scaling_benchmark, config, as_started=True)
    [point] = missing.value.result.report.points
    assert point.status == "Failed"
    [run] = kept_records(missing.value.result.sweep_id).flow_runs
    kept = run["parameters"].pop("preset")
    assert (kept["name"], kept["training"]["environment"]) == ("kept", {"HF_TOKEN": HIDDEN})
    assert {field for field, value in run["parameters"].items() if value} == {"as_started"}
    assert run["state"]["type"] == "FAILED"
    assert "1 of" in run["state"]["message"]


def test_an_object_in_aws_is_shown_by_its_console() -> None:
    url = names.console_url("bucket", "a b/report.html", "eu-west-1")
    assert (
        url
        == "https://eu-west-1.console.aws.amazon.com/s3/object/bucket?region=eu-west-1&prefix=a%20b/report.html"
    )


@pytest.mark.drawn
@pytest.mark.usefixtures("new_image")
def test_views_are_told_the_stages_the_points_and_how_each_ended(
    served: SimpleNamespace,
    pipeline_config: Callable[..., BenchmarkConfig],
    told: list[Event],
) -> None:
    """Prefect's record has no events that only a view needs."""
    config = pipeline_config("broken-at-2", sweep={"node_counts": [1, 2]})
    with pytest.raises(PointsMissing) as raised:
        run_flow(scaling_benchmark, config)
    order = [(event.event, event.stage) for event in told if event.event.startswith("stage-")]
    assert [*order[:2], *sorted(order[2:6]), *order[6:]] == [
        ("stage-begun", "preflight"), ("stage-ended", "preflight"),
        ("stage-begun", "dataset"), ("stage-begun", "image"),  # in parallel, so in any order
        ("stage-ended", "dataset"), ("stage-ended", "image"),
        ("stage-begun", "sweep"), ("stage-ended", "sweep"),
        ("stage-begun", "report"), ("stage-ended", "report"),
    ]  # fmt: skip
    state = RunState()
    for event in told:
        state.show(event)
    result = raised.value.result
    assert (state.sweep, [stage.state for stage in state.stages.values()]) == (
        result.sweep_id,
        ["done"] * 5,
    )
    points = sorted(state.points, key=lambda point: point.nodes)
    assert [(point.nodes, point.state, point.train_seconds) for point in points] == [
        (1, "done", 80.0), (2, "failed", None),
    ]  # fmt: skip
    [ended] = [
        event for event in told if event.event == "point-ended" and event.level == logging.ERROR
    ]
    assert any("about to fail" in line for line in ended.facts["lines"])
    [named] = [event for event in told if event.event == "sweep-named"]
    assert named.facts["folder"] == str(result.folder)
    kinds = [event.event for event in told]
    recorded = kinds.index("sweep-recorded")
    assert kinds.index("sweep-named") < recorded < kinds.index("sweep-planned")
    assert not named.facts["is_recorded"]
    builds = {event.event: event.facts["build"] for event in told if "build" in event.facts}
    assert list(builds) == ["build-begun", "build-ended"] and len(set(builds.values())) == 1
    kept = {log["message"] for log in kept_records(result.sweep_id).logs}
    assert kept and not kept & {event.text for event in told if event.event.startswith("stage-")}


def ended_jobs(sweep: str) -> list[dict[str, Any]] | None:
    """Return the task runs of a sweep's jobs, once all have ended."""
    runs = [run for run in kept_records(sweep).task_runs if "training-job" in run["tags"]]
    return runs if all(run["state_type"] in ("COMPLETED", "FAILED") for run in runs) else None


def test_a_jobs_task_run_is_as_long_as_the_job_and_found_by_a_retried_run() -> None:
    """A cancelled or killed run leaves no task run unfinished."""
    jobs = [f"s-20261124120000-0a1b2c3d-n{nodes}-r1-a1-abcd" for nodes in (1, 2, 4)]
    done, seen = JobView(StateType.COMPLETED, "Completed"), list[list[Any]]()

    @flow(name="of-three-jobs")
    def run() -> None:
        own = UUID(flow_run.id)
        of_run = FlowRunFilter(id=FlowRunFilterId(any_=[own]))

        def show(*views: dict[str, JobView]) -> None:
            runs = JobRuns(2, 60.0)
            for each in views:
                runs.want(each)
                while (due := runs.next_to_show()) is not None:
                    runs.show(*due)
            assert not runs.is_behind
            look()

        def look() -> None:
            with get_client(sync_client=True) as client:
                found = client.read_task_runs(flow_run_filter=of_run)
            named = [each for each in found if "training-job" in each.tags]
            seen.append(sorted(named, key=lambda each: each.name))

        begun = dict.fromkeys(jobs, SUBMITTED)
        running = dict.fromkeys(jobs, running_view("Training"))
        in_stage("sweep", lambda: show(begun, running, {jobs[0]: done}))
        end_job_runs(own)
        look()
        in_stage("sweep", lambda: show({**running, jobs[0]: done}))

    run()
    states = [[each.state.name for each in looked] for looked in seen]
    assert states == [
        ["Completed", "Running", "Running"],
        ["Completed", "Unwatched", "Unwatched"],
        ["Completed", "Running", "Running"],
    ]
    assert len({tuple(each.id for each in looked) for looked in seen}) == 1
    assert [each.run_count for each in seen[0]] == [1, 1, 1]
    first = seen[0][0]
    assert first.expected_start_time < first.start_time < first.end_time


@task(name="looked", task_run_name="looked")
def look() -> int:
    return 7


@pytest.mark.prefect_events
def test_a_stage_that_fails_takes_nothing_back_that_was_done_in_it() -> None:
    @flow(name="of-one-stage", flow_run_name="of-one-stage")
    def run() -> None:
        def fail() -> None:
            assert look() == 7
            raise ValueError("boom")

        in_stage("report", fail)

    with pytest.raises(ValueError, match="boom"):
        run()
    named = FlowRunFilter(name=FlowRunFilterName(any_=["of-one-stage"]))

    def are_over() -> bool:  # the server hears of a task's states by events, and so later
        with get_client(sync_client=True) as client:
            runs = client.read_task_runs(flow_run_filter=named)
        states = {run.name: run.state and run.state.name for run in runs}
        return states == {"looked": "Completed", "report": "Failed"}

    wait_until(are_over)
