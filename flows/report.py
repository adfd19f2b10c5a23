"""Create a sweep's report, from the outcomes just collected or from the platform's data alone."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

from botocore.exceptions import ClientError
from prefect import flow
from prefect.utilities.annotations import quote

from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig, ReportConfig
from nodesweep.errors import ReportNotWritten, SweepNotFound, is_bucket_gone
from nodesweep.flows.stages.cancellable import cancellable, named
from nodesweep.flows.stages.form import (
    EMPTY,
    ConfigVariable,
    Preset,
    Settings,
    SweepId,
    config_from_parameters,
    log_to_run,
)
from nodesweep.flows.stages.outcomes import PlannedSweep, collect_outcome
from nodesweep.launch.registry import backend_of
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.arms import Arm, main_arm
from nodesweep.scaling.instances.report import analyse_sweep
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.outcome.outcome import JobOutcome
from nodesweep.scaling.planning.fail_fast import code_digest
from nodesweep.scaling.planning.plan import plan_arms
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.report.render import render_files, render_markdown
from nodesweep.scaling.trend.history import HistoryError, parse_history
from nodesweep.scaling.trend.nights import night_sigmas
from nodesweep.tasks.calls import (
    append_history,
    list_training_jobs,
    look_up_prices,
    mark_code_proven,
    put_objects,
    read_history_of,
    read_sweep_record,
    write_report,
)
from nodesweep.tasks.jobs.training_jobs import job_status
from nodesweep.tasks.report.assets import materialize_assets
from nodesweep.tasks.report.pricing import TRAINING
from nodesweep.tasks.report.publish import publish_report

logger = logging.getLogger("nodesweep.report")


def make_report(
    planned: PlannedSweep, outcomes: Sequence[JobOutcome], provenance: Mapping[str, Any]
) -> tuple[ScalingReport, Path]:
    """Build the report and store it in the bucket, on this machine and as a Prefect artifact."""
    config, plan, inputs = planned.config, planned.plan, planned.inputs
    sweep, store = inputs.sweep_id, planned.backend.store
    prices = {}
    asked = [(config.node_type(each), TRAINING) for each in config.possible_types]
    for instance, notices in look_up_prices(planned.backend, asked):
        for notice in notices:
            logger.info("notice: %s", notice)
        prices[instance.instance_type] = price_of(instance, config.platform.region)
    if any(outcome.completed for outcome in outcomes):
        mark_code_proven(store, code_digest(config.training, inputs), sweep)
    analyse = partial(
        analyse_sweep, sweep, config, plan, outcomes, prices, provenance, datetime.now(UTC)
    )
    report, by_arm = analyse()
    if nights := _nights(config.report, store, config.name, by_arm or {main_arm(config): report}):
        report, by_arm = analyse(nights)
    log_files = (Path(config.report.directory) / sweep / names.LOGS).glob("*.log")
    logs = [names.log_link(path.name) for path in log_files]
    files = render_files(report, logs)
    for arm, own in by_arm.items():
        own_files = render_files(own, [names.from_arm(link) for link in logs])
        files |= {names.of_arm(arm.name, name): body for name, body in own_files.items()}
    keys = {names.report_key(store.prefix, sweep, name): body for name, body in files.items()}
    # Write to the bucket first, so that nothing is lost if the local disk is full.
    try:
        put_objects(store, keys)
    except ClientError as error:
        if is_bucket_gone(error):  # save paid results where possible
            folder = _write_local_copy(config.report, store, sweep, files)
            logger.error("the bucket is gone; the report is only in %s", folder)
        raise
    plots = {kind: files.get(names.plot_name(kind, "svg")) for kind in get_args(names.PlotKind)}
    pictures = {kind: svg for kind, svg in plots.items() if svg is not None}
    publish_report(store, sweep, render_markdown(report, pictures))
    materialize_assets(store, sweep, provenance)
    try:
        # quoted, because Prefect would search every value of the reports for task runs
        measured: Any = quote(list(by_arm.values()) or [report])
        append_history(store, measured, config.name)
    except Exception as error:
        # the report exists; `nodesweep report` rewrites a missing history file
        logger.warning("the history of %s was not written: %s", config.name, error)
    folder = _write_local_copy(config.report, store, sweep, files)
    logger.info("report in %s", folder / names.REPORT_HTML)
    return report, folder


def _nights(
    section: ReportConfig, store: Store, name: str, reports: Mapping[Arm, ScalingReport]
) -> dict[Arm, dict[int, float]]:
    """Return the spread between the benchmark's earlier sweeps by arm, or {} if it isn't needed.

    Only a deadline and a budget need it, because they apply to future runs on other days.
    """
    goals = section.recommendation
    if goals.deadline_seconds is None and goals.budget_usd_per_run is None:
        return {}
    try:
        files = read_history_of(store, name)
    except Exception as error:
        # without it, the spread within this sweep is used
        logger.warning("the history of %s was not read: %s", name, error)
        return {}
    frames = []
    for uri, body in files.items():
        try:
            frames.append(parse_history(body, uri))
        except HistoryError as error:
            logger.warning("history file left out: %s", error)
    found = {arm: night_sigmas(report, frames) for arm, report in reports.items()}
    return {arm: sigmas for arm, sigmas in found.items() if sigmas}


def recorded_inputs(sweep: str, record: Mapping[str, Any]) -> ResolvedInputs:
    """Return the recorded inputs of a sweep's jobs; old records have no dataset folders."""
    inputs = record["inputs"]
    return ResolvedInputs(
        **{**inputs, "sweep_id": sweep, "dataset_folders": tuple(inputs.get("dataset_folders", ()))}
    )


def _write_local_copy(
    section: ReportConfig, store: Store, sweep: str, files: Mapping[str, bytes]
) -> Path:
    """Write the local copy of the report and return its folder.

    Raises:
        ReportNotWritten: The folder cannot be written.
    """
    try:
        return write_report(Path(section.directory), sweep, files)
    except OSError as error:
        place = store.uri(names.report_key(store.prefix, sweep, names.REPORT_HTML))
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = (
            "free some space"
            if is_full
            else "make the folder writable, or set another report.directory"
        )
        raise ReportNotWritten(
            f"{error.filename or section.directory}: {error.strerror or error}. The report is"
            f" in {place}. For a local copy, {remedy}, then run nodesweep report {sweep}"
        ) from error


@flow(name="report-sweep", flow_run_name=named("report-{sweep_id}"))
@cancellable
def report_sweep(
    sweep_id: SweepId,
    preset: Preset = "local",
    settings: Settings = EMPTY,
    config_variable: ConfigVariable = EMPTY,
) -> tuple[ScalingReport, Path]:
    """Rebuild the report of a sweep from its jobs on the platform; running jobs are left out.

    The measured config is read from the sweep's record.

    Args:
        sweep_id: The sweep, e.g. local-20261120191500-1a2b3c4d.
        preset: The config whose platform holds the sweep: a file in configs/ without its extension.
        settings: Any field of the config by its dotted name, e.g.
            {"report.recommendation.deadline_seconds": 3600}.
        config_variable: A Prefect variable that holds a whole config as JSON or YAML, instead of
            the preset.

    Raises:
        SweepNotFound: No job of the sweep has ended.
    """
    log_to_run()
    ended = jobs_of_sweep(config_from_parameters(locals()), sweep_id)
    for name in ended.running:
        logger.info("%s has not ended, so the report leaves it out", name)
    return report_of_jobs(sweep_id, ended)


@dataclass(frozen=True)
class SweepJobs:
    """A sweep's jobs on the platform, and the config with which it was started."""

    planned: PlannedSweep
    provenance: Mapping[str, Any]
    outcomes: Sequence[JobOutcome]
    running: Sequence[str]


def jobs_of_sweep(current: BenchmarkConfig, sweep_id: str) -> SweepJobs:
    """Return all jobs of a sweep on the platform.

    Its config is the recorded one, with the current report rules and platform, except for the
    recorded place of the jobs.

    Args:
        current: A config with the sweep's platform and the report rules to use now.
        sweep_id: The sweep.

    Raises:
        SweepNotFound: There is no such sweep.
    """
    record = read_sweep_record(backend_of(current.platform).store, sweep_id)
    recorded = parse_config(record["config"], origin=f"the record of {sweep_id}")
    platform = current.platform.with_jobs_of(record["config"]["platform"])
    backend, inputs = backend_of(platform), recorded_inputs(sweep_id, record)
    places = {name: names.parse_job_name(name) for name in list_training_jobs(backend, sweep_id)}
    last = max((place.repeat for place in places.values() if place is not None), default=1)
    sweep = recorded.sweep.rules.with_repeat(recorded.sweep, last)
    config = recorded.model_copy(
        update={"sweep": sweep, "platform": platform, "report": current.report}
    )
    plan = plan_arms(config, [config.node_type(name) for name in config.possible_types])
    planned = PlannedSweep(backend, config, plan, inputs)
    points = {(point.arm.code, point.nodes, point.repeat): point for point in plan.points}
    outcomes, running = [], []
    for name, place in places.items():
        point = points.get(place.point) if place is not None else None
        if place is None or point is None:
            logger.warning("%s is not in the sweep's config, so the report leaves it out", name)
            continue
        job = job_status(backend, name)
        if job is None:
            continue
        if not job.has_ended:
            running.append(name)
        else:
            outcomes.append(collect_outcome(planned, point, place.attempt, job))
    return SweepJobs(planned, record["provenance"], outcomes, running)


def report_of_jobs(sweep_id: str, jobs: SweepJobs) -> tuple[ScalingReport, Path]:
    """Create the report of the ended jobs.

    Raises:
        SweepNotFound: No job has ended.
    """
    if not jobs.outcomes:
        raise SweepNotFound(
            f"sweep {sweep_id} has no finished job; run `nodesweep run CONFIG --resume {sweep_id}`"
        )
    return make_report(jobs.planned, jobs.outcomes, jobs.provenance)
