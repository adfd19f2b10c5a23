"""Publish a report to this machine's folder, to the store and to Prefect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodesweep.aws.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.registry import store_of
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.folder import write_files
from nodesweep.tasks.task import failures_as_warnings, task


def emit_event(event: str, **members: Any) -> None:
    """Call Prefect's emit_event, imported late."""
    from prefect import events

    events.emit_event(event, **members)


@task(name="write-report", **TASK_OPTIONS)
def write_report(directory: Path, sweep: str, files: Mapping[str, bytes]) -> Path:
    """Write the report's files on this machine."""
    return write_files(directory, sweep, files)


@task(name="put-objects", **PATIENT_TASK_OPTIONS)
def put_objects(platform: PlatformConfig, objects: Mapping[str, bytes]) -> None:
    """Write small objects to the store, by key."""
    store = store_of(platform)
    for key, body in objects.items():
        store.put(key, body)


def publish_report(store: Store, sweep: str, markdown: str) -> None:
    """Publish the report in Prefect as an artifact of the run, with links to its files on top.

    It is not a task, so that the graph shows it on the stage's bar.
    """
    from prefect.artifacts import create_markdown_artifact

    links = (
        f"[{name}]({store.link(names.report_key(store.prefix, sweep, name))})"
        for name in (names.REPORT_HTML, names.POINTS_CSV, names.REPORT_JSON)
    )
    with failures_as_warnings(f"the report of {sweep}"):
        create_markdown_artifact(
            " · ".join(links) + f"\n\n{markdown}",
            key="scaling-report",
            description=f"Scaling report of {sweep}",
        )


@task(name="publish-trend", **TASK_OPTIONS)
def publish_trend(sweep: str, markdown: str) -> None:
    """Publish the verdict of the sweep's trend in Prefect, as an artifact of the run."""
    from prefect.artifacts import create_markdown_artifact

    with failures_as_warnings(f"the trend up to {sweep}"):
        create_markdown_artifact(
            markdown,
            key="scaling-trend",
            description=f"{sweep} against the history of its benchmark",
        )


@task(name="announce-regression", **TASK_OPTIONS)
def announce_regression(sweep: str, before: str, message: str) -> None:
    """Emit a Prefect event about a regression, for automations."""
    resource = {"prefect.resource.id": f"nodesweep.sweep.{sweep}", "prefect.resource.name": sweep}
    emit_event(
        "nodesweep.regression", resource=resource, payload={"before": before, "message": message}
    )


@task(name="announce-budget", **TASK_OPTIONS)
def announce_budget(benchmark: str, message: str, sweep: str | None = None) -> None:
    """Emit a Prefect event: sweep.budget_usd kept a sweep or an attempt from starting.

    `sweep` is None before the sweep has an ID.
    """
    resource = {
        "prefect.resource.id": f"nodesweep.benchmark.{benchmark}",
        "prefect.resource.name": benchmark,
    }
    emit_event("nodesweep.budget", resource=resource, payload={"sweep": sweep, "message": message})
