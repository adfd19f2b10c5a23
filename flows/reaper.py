"""Stop the jobs of orphaned sweeps, so that a killed orchestrator does not waste compute."""

from __future__ import annotations

import logging
from typing import Annotated

from prefect import flow
from pydantic import Field

from nodesweep.flows.stages.cancellable import cancellable, named
from nodesweep.flows.stages.form import (
    EMPTY,
    ConfigVariable,
    Preset,
    Settings,
    backend_from_parameters,
    log_to_run,
)
from nodesweep.tasks.calls import (
    find_orphans,
    find_validation_orphans,
    stop_processing_jobs,
    stop_training_jobs,
)

logger = logging.getLogger("nodesweep.reaper")


@flow(name="reaper", flow_run_name=named("reaper-{preset}"))
@cancellable
def reaper(
    preset: Preset = "local",
    grace_minutes: Annotated[float, Field(ge=20)] = 60,
    dry_run: bool = False,
    settings: Settings = EMPTY,
    config_variable: ConfigVariable = EMPTY,
) -> list[str]:
    """Stop jobs and warm pools of sweeps that have lost their owner; return the jobs' names.

    A sweep has lost its owner once its last heartbeat (if it has none, its youngest job) is older
    than the grace period. Training jobs are stopped if they have the sweep's name
    and tag (or, without a tag, a lease in the bucket) and the sweep is recorded in the platform's
    bucket. Jobs that validate a dataset are stopped if their request is there, even without a tag.
    Sweeps left running on purpose (`--detach`, `sweep.on_cancel: leave`) are spared while one of
    their jobs runs.

    Args:
        preset: The config whose platform is checked: a file in configs/ without its extension.
        grace_minutes: Minutes since the last heartbeat of the sweep's owner, which sends one a
            minute.
        dry_run: Only report which jobs would be stopped.
        settings: Any field of the config by its dotted name, e.g. {"platform.bucket": "my-bucket"}.
        config_variable: A Prefect variable that holds a whole config as JSON or YAML, instead of
            the preset.
    """
    log_to_run()
    backend = backend_from_parameters(locals())
    orphans = find_orphans(backend, grace_minutes * 60)
    of_validation = find_validation_orphans(backend, grace_minutes * 60)
    for name in [*orphans, *of_validation]:
        logger.warning(
            "%s: its sweep has no owner%s",
            name,
            "; not stopped (dry run)" if dry_run else "; stopping it",
        )
    if dry_run:
        return [*orphans, *of_validation]
    try:
        stopped = stop_training_jobs(backend, orphans)
    finally:  # one that cannot be stopped must not keep the others running
        validating = stop_processing_jobs(backend, of_validation) if of_validation else []
    return [*stopped, *validating]
