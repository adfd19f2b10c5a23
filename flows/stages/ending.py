"""Stop a sweep's running jobs, or leave them, when its run ends early; see docs/ending.md."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import BotoCoreError
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow

from nodesweep.errors import best_effort, is_bucket_gone
from nodesweep.flows.stages.form import config_from_parameters
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.scaling.formats import pluralize
from nodesweep.tasks.cancelling import is_cancel
from nodesweep.tasks.sweeps.ids import claimed_sweep_id
from nodesweep.tasks.sweeps.job_runs import STOPPED, UNWATCHED, end_job_runs
from nodesweep.tasks.sweeps.owner import SweepOwner
from nodesweep.tasks.sweeps.records import Sweeps
from nodesweep.tasks.sweeps.stop import still_running
from nodesweep.tasks.sweeps.stopping import stop_sweep_jobs_now

logger = logging.getLogger("nodesweep.sweep")


def end_sweep(
    backend: Backend,
    on_cancel: str,
    sweep: str,
    job_names: Sequence[str],
    error: BaseException,
    owner: SweepOwner,
) -> bool:
    """Stop a cancelled sweep's jobs, or leave them running by policy or after a crash.

    Return True if they were stopped.

    Args:
        backend: The platform's backend.
        on_cancel: The config's sweep.on_cancel.
        sweep: Id of the sweep.
        job_names: Jobs that this run started; they are stopped first.
        error: The exception that ended the run.
        owner: The sweep's heartbeat.
    """
    if not is_cancel(error):
        _log_jobs_left_running(backend, sweep, job_names, error)
    elif on_cancel == "leave":
        logger.warning("leaving the running jobs of %s, as set by sweep.on_cancel", sweep)
        with best_effort(f"{sweep} can't be marked as left running; a reaper may stop its jobs"):
            owner.leave()
    else:
        logger.warning("stopping the running jobs of %s", sweep)
        for name in stop_sweep_jobs_now(backend, sweep, job_names):
            logger.info("%s: stop requested", name)
        return True
    return False


def _log_jobs_left_running(
    backend: Backend, sweep: str, job_names: Sequence[str], error: BaseException
) -> None:
    """Log the number of jobs that keep running, as reported by the platform if possible.

    Since the last poll, jobs may have ended, or may never have begun. The platform is not queried
    after a signal or if it is unreachable.
    """
    may_ask = job_names and isinstance(error, Exception) and not isinstance(error, BotoCoreError)
    known = still_running(backend, sweep, job_names) if may_ask else None
    count = len(job_names if known is None else known)
    if count == 0:
        return
    jobs = f"{'at most ' if known is None else ''}{pluralize(count, 'job')}"
    run_on = f"{jobs} {'keeps' if count == 1 else 'keep'} running"
    if is_bucket_gone(error):
        logger.warning(
            "%s, but the results bucket is gone: run `nodesweep stop %s`, then start a new sweep"
            " without --resume",
            run_on, sweep,
        )  # fmt: skip
    else:
        logger.warning(
            "%s: `nodesweep run CONFIG --resume %s` takes over the sweep's jobs, `nodesweep stop"
            " %s` stops them",
            run_on, sweep, sweep,
        )  # fmt: skip


def stop_jobs_of_run(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Stop jobs that the run's process could not stop; the flow's on_cancellation hook.

    It runs in a different process, which has only the run's parameters.
    """
    stopped = False
    try:
        stopped = _stop_jobs_of_run(flow_run)
    finally:
        end_job_runs(flow_run.id, STOPPED if stopped else UNWATCHED)


def end_jobs_of_run(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """End the task runs of a crashed or failed run's jobs; the flow's hook for both.

    After a crash, it runs in a different process.
    """
    end_job_runs(flow_run.id)


def _stop_jobs_of_run(flow_run: FlowRun) -> bool:
    """Stop the run's jobs, if the config says so; return True if they were stopped."""
    config = config_from_parameters(flow_run.parameters)
    if config.sweep.on_cancel != "stop" or flow_run.expected_start_time is None:
        return False
    backend, started = backend_of(config.platform), flow_run.expected_start_time
    sweeps = Sweeps(backend.store, config)
    if not (sweep := flow_run.parameters.get("sweep_id")):
        if flow_run.parameters.get("resume"):
            # such a run claims no id, but is named after its sweep, which may not be the latest now
            sweep = flow_run.name.partition("-")[2]
        else:
            sweep = claimed_sweep_id(sweeps, started, str(flow_run.id))
    if sweep is None or not sweeps.include(sweep):
        return False  # the id may belong to a different config, and a name may contain none
    stop_sweep_jobs_now(backend, sweep)
    return True
