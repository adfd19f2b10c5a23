"""`run --confirm`: measure the node count whose prediction matters most for the recommendation."""

from __future__ import annotations

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


def with_confirm(config: BenchmarkConfig, report: ScalingReport) -> BenchmarkConfig | None:
    """Return the config with the node count to measure; print the reason if there is none."""
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
