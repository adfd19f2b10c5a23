"""The report of a sweep that nobody waits for, from the platform alone."""

from __future__ import annotations

import logging

from prefect import flow

from configs.models import BenchmarkConfig
from flows.report import jobs_of_sweep, report_of_jobs
from flows.scaling_benchmark import SweepResult
from tasks.sweeps.stopping import release_warm_pools

logger = logging.getLogger("nodesweep.collect")


@flow(name="collect-sweep", flow_run_name="collect-{sweep_id}")
def collect_sweep(config: BenchmarkConfig, sweep_id: str) -> SweepResult | None:
    """The report of a sweep whose every job has ended; None while one runs.

    Args:
        config: Where the sweep ran and where its report goes; what was measured is read from the sweep's own record.
        sweep_id: The sweep.
    """
    return collect_report(config, sweep_id)


def collect_report(config: BenchmarkConfig, sweep_id: str) -> SweepResult | None:
    """collect_sweep() within a flow run that is there already. Raises SweepNotFound."""
    jobs = jobs_of_sweep(config, sweep_id)
    if jobs.running:
        logger.info("%d jobs of %s still run: %s", len(jobs.running), sweep_id, ", ".join(jobs.running))
        return None
    if jobs.config.training.keep_alive_seconds:
        release_warm_pools(jobs.config.platform, sweep_id, [outcome.job_name for outcome in jobs.outcomes])
    report, folder = report_of_jobs(sweep_id, jobs)
    done = {(outcome.nodes, outcome.repeat) for outcome in jobs.outcomes if outcome.completed}
    planned = len(jobs.plan.points)
    return SweepResult(sweep_id, report, folder, planned, planned - len(done))
