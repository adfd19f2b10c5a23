"""Stops training jobs whose sweep nobody runs any more: a killed orchestrator must not cost the night."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from configs.models import PlatformConfig
from configs.presets import config_of_preset
from tasks.sweeps.orphans import find_orphans
from tasks.sweeps.stopping import stop_training_jobs

logger = logging.getLogger("nodesweep.reaper")


@flow(name="reaper", flow_run_name="reaper-{preset}")
def reaper(
    preset: str = "local",
    grace_minutes: Annotated[float, Field(ge=20)] = 60,
    dry_run: bool = False,
    settings: dict[str, Any] | None = None,
) -> list[str]:
    """Stop the running jobs of sweeps that nobody has run for longer than the grace; returns their names.

    Only jobs with a nodesweep name and tag, of a sweep in the platform's bucket, are touched; a sweep that was left
    running on purpose (`--detach`, `sweep.on_cancel: leave`) is spared.

    Args:
        preset: The config whose platform is looked at: a file of configs/ without its ending.
        grace_minutes: How long a sweep's owner may give no sign; it gives one every minute.
        dry_run: Only say what would be stopped.
        settings: Any field of the config by its dotted name, e.g. {"platform.bucket": "my-bucket"}.
    """
    logging.getLogger("nodesweep").setLevel(logging.INFO)
    platform: PlatformConfig = config_of_preset(preset, settings or {}).platform
    orphans = find_orphans(platform, grace_minutes * 60)
    for name in orphans:
        logger.warning("%s: its sweep has no owner%s", name, "; dry run, left alone" if dry_run else ", stopping it")
    return orphans if dry_run else stop_training_jobs(platform, orphans)
