"""What becomes of the running jobs when a sweep is ended from outside:
docs/ending.md holds the table.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow

from configs.models import BenchmarkConfig
from flows.stages.form import config_of_run
from scaling import names
from scaling.formats import counted
from tasks.cancelling import is_cancel
from tasks.errors import best_effort, is_bucket_gone
from tasks.platform import aws_client
from tasks.sweeps.ids import claimed_sweep_id
from tasks.sweeps.owner import SweepOwner
from tasks.sweeps.stopping import stop_sweep_jobs_now

logger = logging.getLogger("nodesweep.sweep")


def end_sweep(
    config: BenchmarkConfig,
    sweep: str,
    job_names: Sequence[str],
    error: BaseException,
    owner: SweepOwner,
) -> None:
    """Stop all running jobs of a sweep that was cancelled,
    or leave them where the policy or a crash says so.

    `job_names` are those that this run has under way; they are stopped first.
    """
    if not is_cancel(error):
        if job_names and is_bucket_gone(error):
            logger.warning(
                "%s without a bucket for results: stop what runs with `nodesweep stop %s`, then"
                " start anew without --resume",
                _run_on(job_names), sweep,
            )  # fmt: skip
        elif job_names:
            logger.warning(
                "%s: `nodesweep run CONFIG --resume %s` takes over what runs, `nodesweep stop %s`"
                " stops it",
                _run_on(job_names), sweep, sweep,
            )  # fmt: skip
    elif config.sweep.on_cancel == "leave":
        logger.warning("leaving the running jobs of %s, as sweep.on_cancel says", sweep)
        with best_effort(f"{sweep} can't be marked as left running; a reaper may stop its jobs"):
            owner.leave()
    else:
        logger.warning("stopping the running jobs of %s", sweep)
        for name in stop_sweep_jobs_now(config.platform, sweep, job_names):
            logger.info("%s was asked to stop", name)


def _run_on(job_names: Sequence[str]) -> str:
    return f"{counted(len(job_names), 'job')} {'runs' if len(job_names) == 1 else 'run'} on"


def stop_jobs_of_run(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """on_cancellation: stop what the run's own process could not.
    It runs elsewhere and knows only the run.
    """
    config = config_of_run(flow_run.parameters)
    if config.sweep.on_cancel == "stop" and flow_run.expected_start_time is not None:
        s3, started = aws_client("s3", config.platform), flow_run.expected_start_time
        sweep = flow_run.parameters.get("sweep_id") or claimed_sweep_id(
            s3, config, started, str(flow_run.id)
        )
        if sweep is not None and names.sweep_matches(sweep, config):
            # an id in the form may be another config's
            stop_sweep_jobs_now(config.platform, sweep)
