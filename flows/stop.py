"""Stop a sweep: submit no more of its jobs, and stop the running ones."""

from __future__ import annotations

from prefect import flow

from nodesweep.flows.stages.cancellable import cancellable, named
from nodesweep.flows.stages.form import (
    EMPTY,
    ConfigVariable,
    Preset,
    Settings,
    SweepId,
    backend_from_parameters,
    log_to_run,
)
from nodesweep.tasks.sweeps.stop import stop_whole_sweep


@flow(name="stop-sweep", flow_run_name=named("stop-{sweep_id}"))
@cancellable
def stop_sweep(
    sweep_id: SweepId,
    preset: Preset = "local",
    settings: Settings = EMPTY,
    config_variable: ConfigVariable = EMPTY,
) -> list[str]:
    """Stop a sweep's running jobs and keep it from submitting more; return the stopped jobs.

    Args:
        sweep_id: The sweep, e.g. local-20261120191500-1a2b3c4d.
        preset: The config whose platform holds the sweep: a file in configs/ without its extension.
        settings: Any field of the config by its dotted name.
        config_variable: A Prefect variable that holds a whole config as JSON or YAML, instead of
            the preset.
    """
    log_to_run()
    return stop_whole_sweep(backend_from_parameters(locals()), sweep_id)
