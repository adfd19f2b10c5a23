"""Stop a sweep: no further job of it is submitted, and those that run are stopped."""

from __future__ import annotations

import logging

from prefect import flow

from flows.stages.form import (
    EMPTY,
    ConfigVariable,
    Preset,
    Settings,
    SweepId,
    config_of_run,
    log_to_run,
)
from tasks.errors import best_effort
from tasks.sweeps.claims import mark_sweep_stopped
from tasks.sweeps.records import sweep_exists
from tasks.sweeps.stopping import list_running_jobs, stop_sweep_jobs

logger = logging.getLogger("nodesweep.stop")


@flow(name="stop-sweep", flow_run_name="stop-{sweep_id}")
def stop_sweep(
    sweep_id: SweepId,
    preset: Preset = "local",
    settings: Settings = EMPTY,
    config_variable: ConfigVariable = EMPTY,
) -> list[str]:
    """Keep a sweep from going on and ask its running jobs to stop; returns their names.

    Args:
        sweep_id: The sweep, e.g. local-20261120191500-1a2b3c4d.
        preset: The config whose platform has the sweep: a file of configs/ without its ending.
        settings: Any field of the config by its dotted name.
        config_variable: A Prefect variable that holds a whole config as JSON or YAML, instead of
            the preset.
    """
    log_to_run()
    platform = config_of_run(locals()).platform
    running: list[str] = []
    with best_effort(f"the running jobs of {sweep_id} can't be listed"):
        # for the answer alone: others may stop them
        running = list_running_jobs(platform, sweep_id)
    # The mark first: whoever runs the sweep either sees it before it sends a job,
    # or has claimed that job by now.
    with best_effort(
        f"sweep {sweep_id} can't be marked as stopped,"
        " so where it still runs it may submit further jobs"
    ):
        mark_sweep_stopped(platform, sweep_id)
    with best_effort(f"whether sweep {sweep_id} has begun is not known"):
        if not running and not sweep_exists(platform, sweep_id):
            logger.warning(
                "no sweep %s has begun; is the id right? One that begins submits no job", sweep_id
            )
    stopped = sorted({*running, *stop_sweep_jobs(platform, sweep_id)})
    for name in stopped:
        logger.info("%s was stopped, or is stopping", name)
    return stopped
