"""Stop every job of a sweep."""

from __future__ import annotations

import logging

from prefect import flow

from configs.models import PlatformConfig
from tasks.jobs import list_training_jobs, stop_training_jobs

logger = logging.getLogger("nodesweep.stop")


@flow(name="stop-sweep", flow_run_name="stop-{sweep_id}")
def stop_sweep(platform: PlatformConfig, sweep_id: str) -> list[str]:
    """Ask every running job of a sweep to stop; returns their names.

    Args:
        platform: Where the sweep runs.
        sweep_id: The sweep.
    """
    running = list_training_jobs(platform, sweep_id, only_running=True)
    for name in running:
        logger.info("stopping %s", name)
    return stop_training_jobs(platform, running)
