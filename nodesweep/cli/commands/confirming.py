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
    """Exit if the sweep predicts nothing or for several types, or if the command can't wait for it.

    Raises:
        PreflightRefused: The sweep is new, and preflight would refuse to confirm its largest node
            count.
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
    if config.sweep.arm_count > 1:
        fail(
            f"--confirm: sweep.instance_types is {list(config.sweep.arm_names)}, but only the"
            " prediction of a single type can be confirmed; run without --confirm, then a sweep of"
            " the chosen type alone: --set sweep.instance_types=null --set"
            " training.instance_type=TYPE --confirm",
            BAD_INPUT,
        )
    if is_resume or config.sweep.confirm is not None:
        return  # the run's own preflight checks the confirming job before any further cost
    from nodesweep.flows.stages.offline import check_offline, raise_if_refused

    raise_if_refused(check_offline(_confirming(config, config.sweep.node_counts[-1])))


def last_report(config: BenchmarkConfig, sweep: str | None) -> ScalingReport | None:
    """Return the existing report of the sweep to resume; None if there is no readable report.

    It is read from this machine or, if it is not here, from the store.

    Args:
        config: Config of the sweep.
        sweep: Id of the sweep; "" for the latest sweep, None for a new one.
    """
    if sweep is None:
        return None
    from nodesweep.scaling import names
    from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report

    path = Path(config.report.directory) / (sweep or names.LATEST) / names.REPORT_JSON
    try:
        body = path.read_bytes() if path.is_file() else _stored(config, sweep)
        return None if body is None else parse_report(body, str(path))
    except (OSError, ReportUnreadable):
        return None


def _stored(config: BenchmarkConfig, sweep: str) -> bytes | None:
    """Return the content of a sweep's report.json in the store; None if there is none.

    Without an id, the result is None, because `--resume` then only continues unfinished sweeps,
    which have not confirmed any node count yet.
    """
    from nodesweep.errors import best_effort
    from nodesweep.launch.registry import backend_of
    from nodesweep.scaling import names
    from nodesweep.tasks.sweeps.records import read_report_file

    if sweep:
        with best_effort(f"the last report of {sweep} cannot be read"):
            return read_report_file(backend_of(config.platform).store, sweep, names.REPORT_JSON)
    return None


def with_confirm(
    config: BenchmarkConfig, report: ScalingReport, last: ScalingReport | None
) -> BenchmarkConfig | None:
    """Return the config with the node count to measure; print the reason if there is none.

    A node count that is measured in `report`, but not in `last`, was confirmed by an earlier
    command that was interrupted.

    Args:
        config: Config of the sweep.
        report: Report of the run that this command has just finished.
        last: Report of the sweep from before this command, if any.
    """
    from nodesweep.scaling.design.predict import confirming_runs
    from nodesweep.scaling.formats import join_words

    known = {*config.sweep.measured_counts, config.sweep.confirm}
    if last is not None and last.sweep_id == report.sweep_id:
        known |= {row.nodes for row in last.summary if row.n}
    new = [row for row in report.summary if row.n and row.nodes not in known]
    measured = join_words(row.nodes for row in new)
    if cut_off := [row for row in new if row.n + row.n_failed < confirming_runs(config)]:
        nodes = cut_off[0].nodes
        print_event(
            "confirming", f"--confirm: the remaining runs on {nodes} nodes", sweep=report.sweep_id
        )
        return _confirming(config, nodes)
    if new:
        print_event(
            "nothing-to-confirm",
            f"--confirm: the earlier command's run on {measured} nodes has ended and is in"
            " this report; repeat the command to confirm a different node count",
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
            "--confirm: no predicted node count could change the recommendation",
        )
        return None
    print_event(
        "confirming", f"--confirm: {job.runs_text} on {job.nodes} nodes", sweep=report.sweep_id
    )
    return _confirming(config, job.nodes)


def _confirming(config: BenchmarkConfig, nodes: int) -> BenchmarkConfig:
    from nodesweep.scaling.design.predict import confirming_runs

    asked = {"confirm": nodes, "confirm_repeats": confirming_runs(config)}
    return config.model_copy(update={"sweep": config.sweep.model_copy(update=asked)})
