"""`run --confirm`: measure the node count whose prediction matters most for the recommendation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodesweep.cli.guard import BAD_INPUT, fail
from nodesweep.cli.output import print_event

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig
    from nodesweep.scaling.report import ScalingReport


def refuse_confirm(config: BenchmarkConfig, detach: bool, is_resume: bool) -> None:
    """Exit if the sweep makes no predictions, or is detached and does not wait for them.

    Raises:
        PreflightRefused: A new sweep is invalid if its largest node count is the one to confirm.
    """
    if detach:
        raise click.UsageError(
            "--confirm needs the predictions and cannot be combined with --detach"
        )
    if not config.sweep.rules.predicts:
        fail(
            f"--confirm: sweep.design is {config.sweep.design}, which predicts no node count; set"
            " sweep.design: predict",
            BAD_INPUT,
        )
    if is_resume or config.sweep.confirm is not None:
        return  # the run's own preflight checks the job before anything more is paid
    from nodesweep.flows.stages.offline import check_offline, raise_if_refused

    largest = config.sweep.model_copy(update={"confirm": config.sweep.node_counts[-1]})
    raise_if_refused(check_offline(config.model_copy(update={"sweep": largest})))


def last_report(config: BenchmarkConfig, sweep: str | None) -> ScalingReport | None:
    """Return the report that a sweep to resume has on this machine ("": the latest), if any."""
    if sweep is None:
        return None
    from nodesweep.scaling import names
    from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report

    path = Path(config.report.directory) / (sweep or names.LATEST) / names.REPORT_JSON
    try:
        return parse_report(path.read_bytes(), str(path))
    except (OSError, ReportUnreadable):
        return None


def with_confirm(
    config: BenchmarkConfig, report: ScalingReport, last: ScalingReport | None
) -> BenchmarkConfig | None:
    """Return the config with the node count to measure; print the reason if there is none.

    A count that is measured in `report`, but not in `last`, the report before this command, was
    confirmed by a job of a command that was cut off.
    """
    from nodesweep.scaling.formats import join_words

    known = {*config.sweep.measured_counts, config.sweep.confirm}
    if last is not None and last.sweep_id == report.sweep_id:
        known |= {row.nodes for row in last.summary if row.n}
    if new := [row.nodes for row in report.summary if row.n and row.nodes not in known]:
        print_event(
            "nothing-to-confirm",
            f"--confirm: the earlier command's run on {join_words(new)} nodes has ended and is in"
            " this report; repeat the command to confirm another count",
        )
        return None
    prediction = report.prediction
    if prediction is None:
        print_event(
            "nothing-to-confirm", "--confirm: no predictions to confirm; see the report's notes"
        )
        return None
    job = prediction.next_job
    if job is None:
        print_event(
            "nothing-to-confirm",
            "--confirm: no predicted count could change the recommendation",
        )
        return None
    print_event("confirming", f"--confirm: one run on {job.nodes} nodes", sweep=report.sweep_id)
    sweep = config.sweep.model_copy(update={"confirm": job.nodes})
    return config.model_copy(update={"sweep": sweep})
