"""Stop a sweep: no further job of it is submitted, and those that run are stopped."""

from __future__ import annotations

from prefect import flow

from flows.stages.cancellable import cancellable
from flows.stages.form import EMPTY, Preset, Settings, SweepId, config_of_run, log_to_run
from tasks.sweeps.stop import stop_whole_sweep


@flow(name="stop-sweep", flow_run_name="stop-{sweep_id}")
@cancellable
def stop_sweep(
    sweep_id: SweepId, preset: Preset = "local", settings: Settings = EMPTY
) -> list[str]:
    """Keep a sweep from going on and ask its running jobs to stop; returns their names.

    Args:
        sweep_id: The sweep, e.g. local-20261120191500-1a2b3c4d.
        preset: The config whose platform has the sweep: a file of configs/ without its ending.
        settings: Any field of the config by its dotted name.
    """
    log_to_run()
    platform = config_of_run({"preset": preset, "settings": settings}).platform
    return stop_whole_sweep(platform, sweep_id)
