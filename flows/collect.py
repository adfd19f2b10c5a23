"""Create the report of a detached sweep from the platform's data alone."""

from __future__ import annotations

import logging
from dataclasses import replace

from prefect import flow

from nodesweep.errors import SweepNotFound
from nodesweep.flows.report import jobs_of_sweep, report_of_jobs
from nodesweep.flows.scaling_benchmark import SweepResult
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
from nodesweep.flows.stages.remote_data import remote_source, with_changes
from nodesweep.scaling import names
from nodesweep.tasks.calls import read_report_file, release_warm_pools
from nodesweep.tasks.sweeps.owner import read_heartbeat

logger = logging.getLogger("nodesweep.collect")


@flow(name="collect-sweep", flow_run_name=named("collect-{sweep_id}"))
@cancellable
def collect_sweep(
    sweep_id: SweepId,
    preset: Preset = "local",
    settings: Settings = EMPTY,
    config_variable: ConfigVariable = EMPTY,
) -> SweepResult | None:
    """Create the report of a detached sweep, or return null while jobs or a run are active.

    The measured config is read from the sweep's record. For the name of a job of no sweep on this
    platform, null is returned, too.

    Args:
        sweep_id: The sweep, or the name of one of its jobs, as in an event about a training job.
        preset: The config whose platform holds the sweep: a file in configs/ without its extension.
        settings: Any field of the config by its dotted name.
        config_variable: A Prefect variable that holds a whole config as JSON or YAML, instead of
            the preset.

    Raises:
        SweepNotFound: The platform has no sweep with this id.
    """
    log_to_run()
    is_job = not names.is_sweep_id(sweep_id)
    sweep = names.sweep_of_job(sweep_id) if is_job else sweep_id
    if sweep is None:  # events report all jobs of the account
        logger.info("%s is not a job of a sweep", sweep_id)
        return None
    try:
        jobs = jobs_of_sweep(config_from_parameters(locals()), sweep)
    except SweepNotFound:
        if not is_job:
            raise
        logger.info("%s is not a job of a sweep on this platform", sweep_id)
        return None
    if jobs.running:
        logger.info("sweep %s has running jobs: %s", sweep, ", ".join(jobs.running))
        return None
    config, backend = jobs.planned.config, jobs.planned.backend
    heartbeat = read_heartbeat(backend.store, sweep)
    if heartbeat is not None and heartbeat.is_alive:  # between two jobs, no job is running
        logger.info("sweep %s has a run, active %.0f s ago", sweep, heartbeat.age_seconds)
        return None
    if config.training.keep_alive_seconds:
        release_warm_pools(backend, sweep, [outcome.job_name for outcome in jobs.outcomes])
    if read_report_file(backend.store, sweep, names.REPORT_JSON) is None:
        # first report: the dataset's change, if any, happened during the sweep, not after it
        source = remote_source(backend, config.dataset)
        changed = with_changes(source, backend.store, sweep, jobs.provenance)
        jobs = replace(jobs, provenance=changed)
    report, folder = report_of_jobs(sweep, jobs)
    return SweepResult(sweep, report, folder, *jobs.planned.count_points(jobs.outcomes))
