"""A report out of the flow: to this machine's folder and to Prefect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.tasks.platform import TASK_OPTIONS, patient
from nodesweep.tasks.storage import browser_url
from nodesweep.tasks.sweeps.folder import write_files
from nodesweep.tasks.task import task


def emit_event(event: str, **members: Any) -> None:
    """Prefect's function of that name."""
    from prefect import events

    events.emit_event(event, **members)


@task(name="write-report", **TASK_OPTIONS)
def write_report(directory: Path, sweep: str, files: Mapping[str, bytes]) -> Path:
    """This machine: the report's files."""
    return write_files(directory, sweep, files)


@patient
def publish_report(platform: PlatformConfig, sweep: str, markdown: str) -> None:
    """Prefect: the report as an artifact of the run, above it links to its files.

    No task: the graph shows it on the bar of the stage then.
    """
    from prefect.artifacts import create_markdown_artifact

    links = (
        f"[{name}]({browser_url(platform, names.report_key(platform.prefix, sweep, name))})"
        for name in (names.REPORT_HTML, names.POINTS_CSV, names.REPORT_JSON)
    )
    create_markdown_artifact(
        " · ".join(links) + f"\n\n{markdown}",
        key="scaling-report",
        description=f"Scaling report of {sweep}",
    )


@task(name="publish-trend", **TASK_OPTIONS)
def publish_trend(sweep: str, markdown: str) -> None:
    """Prefect: the verdict of the sweep's trend as an artifact of the run."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(
        markdown, key="scaling-trend", description=f"{sweep} against the history of its benchmark"
    )


@task(name="announce-regression", **TASK_OPTIONS)
def announce_regression(sweep: str, before: str, message: str) -> None:
    """Prefect: an event that automations can act on."""
    resource = {"prefect.resource.id": f"nodesweep.sweep.{sweep}", "prefect.resource.name": sweep}
    emit_event(
        "nodesweep.regression", resource=resource, payload={"before": before, "message": message}
    )


@task(name="announce-budget", **TASK_OPTIONS)
def announce_budget(benchmark: str, message: str, sweep: str | None = None) -> None:
    """Prefect: an event that sweep.budget_usd kept a sweep (None: before it had an id) or an
    attempt from starting.
    """
    resource = {
        "prefect.resource.id": f"nodesweep.benchmark.{benchmark}",
        "prefect.resource.name": benchmark,
    }
    emit_event("nodesweep.budget", resource=resource, payload={"sweep": sweep, "message": message})
