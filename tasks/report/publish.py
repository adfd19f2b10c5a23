"""Publish reports as Prefect artifacts, and emit Prefect events about sweeps."""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.events import emit_event

from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.formats import pluralize
from nodesweep.tasks.dataset.validation import store_data_docs
from nodesweep.tasks.dataset.validation_report import ValidationReport
from nodesweep.tasks.task import failures_as_warnings


def publish_report(store: Store, sweep: str, markdown: str) -> None:
    """Publish the report in Prefect as an artifact of the run that begins with links to its files.

    This is not a task, so that Prefect's graph shows the artifact on the stage's bar.
    """
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


def keep_data_docs(store: Store, sweep: str, report: ValidationReport, folder: Path) -> None:
    """Save the Data Docs page to the store and this machine, and link to it from the run."""
    url = store_data_docs(store, sweep, report, folder)
    verdict = (
        "valid" if report.success else f"not valid, {pluralize(len(report.problems), 'problem')}"
    )
    description = f"Data Docs of {report.dataset}: {verdict}"
    with failures_as_warnings(names.DATA_DOCS):
        create_link_artifact(
            url, link_text=names.DATA_DOCS, key="data-docs", description=description
        )


def publish_trend(sweep: str, markdown: str) -> None:
    """Publish the verdict of the sweep's trend in Prefect, as an artifact of the run."""
    with failures_as_warnings(f"the trend up to {sweep}"):
        create_markdown_artifact(
            markdown,
            key="scaling-trend",
            description=f"{sweep} against the history of its benchmark",
        )


def announce_regression(sweep: str, before: str, message: str) -> None:
    """Emit a Prefect event about a regression, for automations."""
    resource = {"prefect.resource.id": f"nodesweep.sweep.{sweep}", "prefect.resource.name": sweep}
    emit_event(
        "nodesweep.regression", resource=resource, payload={"before": before, "message": message}
    )


def announce_budget(benchmark: str, message: str, sweep: str | None = None) -> None:
    """Emit a Prefect event that sweep.budget_usd prevented a sweep or an attempt from starting.

    `sweep` is None before the sweep has an ID.
    """
    resource = {
        "prefect.resource.id": f"nodesweep.benchmark.{benchmark}",
        "prefect.resource.name": benchmark,
    }
    emit_event("nodesweep.budget", resource=resource, payload={"sweep": sweep, "message": message})
